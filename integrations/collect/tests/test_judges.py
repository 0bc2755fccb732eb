"""A warning if one model both scores and labels."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import Components, collect
from langchain_cfc_collect.collecting import find_shared_judge
from langchain_core.language_models import FakeListChatModel
from langchain_core.language_models.base import LangSmithParams

from langchain_cfc.errors import CollectionWarning
from langchain_cfc.labelers import JudgeLabels, NormalisedMatch
from langchain_cfc.records import Example
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import ModelJudge, SelfConsistency, VerifierEnsemble


class NamedModel(FakeListChatModel):
    """A model with a name that gives one verdict on everything."""

    name: str
    responses: list[str] = ['{"correct": 0.75}']  # noqa: RUF012 - pydantic copies it

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        del stop, kwargs
        return LangSmithParams(ls_model_name=self.name)


SMALL, LARGE = NamedModel(name="small"), NamedModel(name="large")


@pytest.mark.parametrize(
    ("verifier", "labeler", "shared"),
    [
        (ModelJudge(SMALL), JudgeLabels(SMALL), True),
        (ModelJudge(SMALL), JudgeLabels(ModelJudge(SMALL), at_most=0.5), True),
        (VerifierEnsemble({"a": SelfConsistency(), "b": ModelJudge(SMALL)}), JudgeLabels(SMALL), True),
        (ModelJudge(SMALL), JudgeLabels(LARGE), False),
        (ModelJudge(SMALL), NormalisedMatch(), False),
        (SelfConsistency(), JudgeLabels(SMALL), False),
        (len, len, False),
    ],
)
def test_find_shared_judge_names_a_model_that_scores_and_labels(
    verifier: object, labeler: object, *, shared: bool
) -> None:
    found = find_shared_judge(compute_fingerprint(verifier), compute_fingerprint(labeler))
    assert (found is not None) == shared
    assert found is None or found.startswith("small both scores and labels")


@pytest.mark.parametrize("same", [True, False])
def test_collect_warns_if_one_model_scores_and_labels(tmp_path: Path, same: bool) -> None:
    def verdict(prompt: Any, reference: Any, candidate: str) -> bool:
        del prompt, reference
        return candidate == "Lima"

    verdict.fingerprint = {"model": "small" if same else "large"}  # type: ignore[attr-defined]  # as a part may say

    def score(prompt: Any, candidates: list[Any]) -> list[float]:
        del prompt
        return [0.5 for _ in candidates]

    score.fingerprint = {"model": "small"}  # type: ignore[attr-defined]  # as above
    parts = Components(FakeListChatModel(responses=["Lima"]), score, JudgeLabels(verdict), n=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CollectionWarning)
        collect([Example(id="p", input="Which?", reference="Lima")], parts, tmp_path / "store.db")
    said = [str(one.message) for one in caught if "both scores and labels" in str(one.message)]
    assert len(said) == int(same)
