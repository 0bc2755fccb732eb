"""Warnings before the first call: parts that serving cannot compare, one model that scores and labels."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from langchain_cfc_collect import Components, collect
from langchain_cfc_collect.collecting import explain_unverified_parts, find_shared_judge
from langchain_cfc_collect.config import read_config
from langchain_cfc_collect.executor import Executor
from langchain_core.language_models import FakeListChatModel
from langchain_core.language_models.base import LangSmithParams
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableSequence

from integrations.collect.tests.sharing import make_silent_options
from langchain_cfc.errors import CollectionWarning, InputError
from langchain_cfc.labelers import JudgeLabels, NormalisedMatch
from langchain_cfc.records import Example
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import ModelJudge, SelfConsistency, VerifierEnsemble, normalise_answer

EXAMPLES = [Example(id="p", input="Which?", reference="Lima")]


class CountingModel(FakeListChatModel):
    """A model that counts its calls and states its name."""

    calls: list[int] = []  # noqa: RUF012 - pydantic copies it
    responses: list[str] = ["Lima"]  # noqa: RUF012 - as above

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"model": "counting"}

    def _call(self, *arguments: Any, **options: Any) -> str:
        self.calls.append(1)
        return super()._call(*arguments, **options)


def make_chain() -> RunnableSequence[Any, Any]:
    """A prompt, a model and a function."""
    return ChatPromptTemplate.from_template("{question}") | CountingModel() | RunnableLambda(shout)  # type: ignore[return-value]  # a sequence


def shout(text: Any) -> Any:
    """Change an answer, in a way that no fingerprint describes."""
    return text


def score(_: Any, candidates: list[Any]) -> list[float]:
    return [0.5 for _ in candidates]


def explain(generator: Any, verifier: Any, **options: Any) -> str | None:
    parts = Components(generator, verifier, NormalisedMatch(), n=1, **options)
    return explain_unverified_parts(Executor(parts).configuration)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"generator": make_chain()}, {"generator"}),
        ({"generator": shout}, {"generator"}),
        ({"verifier": score}, {"verifier"}),
        ({"answer": shout}, {"answer"}),
        ({"unit": "claims", "splitter": lambda text: [text]}, {"splitter"}),
        (
            {"generator": make_chain(), "verifier": score, "answer": shout},
            {"generator", "verifier", "answer"},
        ),
    ],
)
def test_notice_names_each_part_until_it_has_an_id(parts: dict[str, Any], named: set[str]) -> None:
    parts = {"generator": CountingModel(), "verifier": SelfConsistency(), **parts}
    found = explain(**parts)
    assert found is not None
    for name in ("generator", "verifier", "answer", "splitter"):
        assert (f"--set {name}.id=NAME" in found) == (f"{name}_id=" in found) == (name in named)
    assert explain(**parts, **{f"{name}_id": "mine" for name in named}) is None


def test_described_parts_have_no_notice() -> None:
    template = ChatPromptTemplate.from_template("{question}")
    for generator in (CountingModel(), template | CountingModel()):
        assert explain(generator, SelfConsistency(), answer=normalise_answer) is None
    # Labels are not made while serving.
    unknown = Components(CountingModel(), SelfConsistency(), lambda *_: [True], n=1)
    assert explain_unverified_parts(Executor(unknown).configuration) is None


def test_notice_comes_before_the_first_call_and_not_for_a_complete_store(tmp_path: Path) -> None:
    chain, calls_before = make_chain(), []
    model = next(step for step in chain.steps if isinstance(step, CountingModel))
    options = make_silent_options(on_notice=lambda _: calls_before.append(len(model.calls)))
    parts = Components(chain, SelfConsistency(), NormalisedMatch(), n=2)
    for _ in range(2):
        assert collect(EXAMPLES, parts, tmp_path / "store.db", options).complete
    assert (calls_before, len(model.calls)) == ([0], 2)


def test_ids_of_several_verifiers_vouch_for_them_together() -> None:
    settings = ["store=s.db", "n=2", "source.path=q.csv", "source.input=q"]
    names = {"a": "one", "b": "two"}
    settings += ["labeler.factory=langchain_cfc.labelers:NormalisedMatch"]
    settings += [f"verifiers.{name}.factory={__name__}:score" for name in names]
    given = [f"verifiers.{name}.id={one}" for name, one in names.items()]
    settings += [f"generator.factory={__name__}:CountingModel"]
    nameless = read_config(None, None, settings).create_components()
    found = explain_unverified_parts(Executor(nameless).configuration)
    assert found is not None
    assert "--set verifiers.EACH.id=NAME" in found
    with pytest.raises(InputError, match="each an id"):
        read_config(None, None, [*settings, given[0]])
    named = read_config(None, None, [*settings, *given]).create_components()
    assert named.verifier_id == "one+two"
    assert explain_unverified_parts(Executor(named).configuration) is None


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
        (ModelJudge(SMALL), JudgeLabels(ModelJudge(SMALL)), True),
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
    def verdict(_: Any, __: Any, candidate: str) -> bool:
        return candidate == "Lima"

    verdict.fingerprint = {"model": "small" if same else "large"}  # type: ignore[attr-defined]  # as a part may say

    scorer = partial(score)
    scorer.fingerprint = {"model": "small"}  # type: ignore[attr-defined]  # as above
    parts = Components(FakeListChatModel(responses=["Lima"]), scorer, JudgeLabels(verdict), n=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CollectionWarning)
        collect(EXAMPLES, parts, tmp_path / "store.db")
    said = [str(one.message) for one in caught if "both scores and labels" in str(one.message)]
    assert len(said) == int(same)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([("Which?", "Lima")], "tuple"),
        ([{"question": "Which?"}], "dict"),
        ("questions.csv", "'questions.csv'"),
        ([None], "NoneType"),
        (pd.DataFrame({"question": ["Which?"]}), "DataFrame"),
    ],
)
def test_collect_refuses_what_is_no_example_before_a_call(given: Any, said: str, tmp_path: Path) -> None:
    model = CountingModel(calls=[])
    parts = Components(model, SelfConsistency(), NormalisedMatch(), n=2)
    with pytest.raises(InputError, match=f"expected examples, found {said}: use read_examples"):
        collect(given, parts, tmp_path / "store.db", make_silent_options())
    assert not model.calls
