"""A warning if one model both scores and labels."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.language_models.base import LangSmithParams

from langchain_cfc.collect import Components, collect
from langchain_cfc.collect.collecting import find_shared_judge
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


def find_judge(verifier: object, labeler: object) -> str | None:
    return find_shared_judge(compute_fingerprint(verifier), compute_fingerprint(labeler))


@pytest.mark.parametrize(
    ("verifier", "labeler"),
    [
        (ModelJudge(SMALL), JudgeLabels(SMALL)),
        (ModelJudge(SMALL), JudgeLabels(ModelJudge(SMALL), at_most=0.5)),
        (VerifierEnsemble({"a": SelfConsistency(), "b": ModelJudge(SMALL)}), JudgeLabels(SMALL)),
    ],
)
def test_find_shared_judge_names_a_model_that_scores_and_labels(verifier: object, labeler: object) -> None:
    assert str(find_judge(verifier, labeler)).startswith("small both scores and labels")


@pytest.mark.parametrize(
    ("verifier", "labeler"),
    [
        (ModelJudge(SMALL), JudgeLabels(LARGE)),
        (ModelJudge(SMALL), NormalisedMatch()),
        (SelfConsistency(), JudgeLabels(SMALL)),
        (len, len),
    ],
)
def test_find_shared_judge_ignores_different_models(verifier: object, labeler: object) -> None:
    assert find_judge(verifier, labeler) is None


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
