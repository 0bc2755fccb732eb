"""The answer extractor and the metadata function: what they may return, and what their failures become."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from langchain_cfc import CalibrationArtifact, calibrate
from langchain_cfc.errors import DescriptionError, FeatureError, FingerprintError
from tests.calls import Invoke
from tests.factories import fit_topics, make_chain, make_records
from tests.fakes import N, ScriptedModel, answer_of, topic_of


@pytest.fixture(scope="module")
def by_year() -> CalibrationArtifact:
    """A threshold that depends on a number in the metadata."""
    prompts = [
        record.model_copy(update={"metadata": {"year": 1900 + number}})
        for number, record in enumerate(make_records(size=200))
    ]
    return calibrate(prompts, alpha=0.25, features="meta(year)")


async def aanswer_of(text: str) -> str:
    return answer_of(text)


async def atopic_of(prompt: Any) -> dict[str, str]:
    return topic_of(prompt)


@pytest.mark.parametrize("runnable", [False, True])
def test_failing_extractor_raises_description_error(runnable: bool, invoke: Invoke) -> None:
    def extract(text: str) -> str:
        msg = f"no answer in {text}"
        raise LookupError(msg)

    chain = make_chain(answer=RunnableLambda(extract) if runnable else extract)
    with pytest.raises(DescriptionError, match="answer extractor failed with LookupError") as e:
        invoke(chain, "x")
    assert isinstance(e.value.__cause__, LookupError)


@pytest.mark.parametrize("answer", [None, 3, b"lima", ["lima"], {"answer": "lima"}])
def test_chain_refuses_extracted_answers_that_are_not_text(answer: Any, invoke: Invoke) -> None:
    expected = f"returned a {type(answer).__name__} for candidate 0; expected text"
    with pytest.raises(DescriptionError, match=expected):
        invoke(make_chain(answer=lambda _: answer), "x")


def test_async_extractor_works_only_under_ainvoke() -> None:
    chain = make_chain(answer=aanswer_of)
    assert asyncio.run(chain.ainvoke("x")).answers == ("lima",)
    with pytest.raises(DescriptionError, match="the answer extractor is async: use ainvoke"):
        chain.invoke("x")


def test_answer_extractor_may_be_a_runnable(invoke: Invoke) -> None:
    assert invoke(make_chain(answer=RunnableLambda(answer_of)), "x").answers == ("lima",)


def test_chain_requires_metadata_that_its_features_read(by_topics: CalibrationArtifact) -> None:
    with pytest.raises(FingerprintError, match="artifact reads the metadata topic: pass metadata="):
        make_chain(by_topics)


@pytest.mark.parametrize("describe", [topic_of, RunnableLambda(topic_of)])
def test_metadata_may_be_a_function_or_a_runnable(
    by_topics: CalibrationArtifact, describe: Any, invoke: Invoke
) -> None:
    chain = make_chain(by_topics, metadata=describe)
    assert [invoke(chain, prompt).reason for prompt in ("an easy", "a hopeless")] == [
        "answered",
        "not_certifiable",
    ]


def test_async_metadata_function_works_only_under_ainvoke(by_topics: CalibrationArtifact) -> None:
    chain = make_chain(by_topics, metadata=atopic_of)
    assert asyncio.run(chain.ainvoke("a hopeless")).reason == "not_certifiable"
    with pytest.raises(DescriptionError, match="the metadata function is async: use ainvoke"):
        chain.invoke("a hopeless")


def test_failing_metadata_function_raises_before_any_draw(
    by_topics: CalibrationArtifact, invoke: Invoke
) -> None:
    def describe(_: Any) -> dict[str, str]:
        msg = "no topic"
        raise LookupError(msg)

    model = ScriptedModel()
    with pytest.raises(DescriptionError, match="the metadata function failed with LookupError") as e:
        invoke(make_chain(by_topics, generator=model, metadata=describe), "x")
    assert isinstance(e.value.__cause__, LookupError)
    assert model.drawn == []


def test_category_not_calibrated_on_is_flagged_and_named(
    by_topics: CalibrationArtifact, invoke: Invoke
) -> None:
    result = invoke(make_chain(by_topics, metadata=topic_of), "about sports")
    assert (result.abstained, result.reason, result.threshold) == (True, "not_certifiable", math.inf)
    assert result.unknown_categories == ("topic",)
    assert "topic is 'sports', which did not occur in the calibration" in result.explain()
    assert "It counts as" not in result.explain()
    known = invoke(make_chain(by_topics, metadata=topic_of), "about easy")
    assert known.unknown_categories == ()
    assert "did not occur in the calibration" not in known.explain()
    assert "Its topic: easy." in known.explain()


def test_missing_metadata_key_is_named_in_the_error(by_topics: CalibrationArtifact, invoke: Invoke) -> None:
    with pytest.raises(FeatureError, match=r"no metadata 'topic'.*its metadata keys are: theme"):
        invoke(make_chain(by_topics, metadata=lambda _: {"theme": "easy"}), "x")


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "easy",
        ["topic"],
        {"topic": None},
        {"topic": ["easy"]},
        {"topic": {"name": "easy"}},
        {1: "easy"},
        {"topic": "easy", "year": float("nan")},
        {"topic": "easy", "year": float("inf")},
    ],
)
def test_chain_refuses_metadata_that_is_no_mapping_to_scalars(
    by_topics: CalibrationArtifact, metadata: Any, invoke: Invoke
) -> None:
    with pytest.raises(DescriptionError, match="expected a mapping to text, finite numbers or booleans"):
        invoke(make_chain(by_topics, metadata=lambda _: metadata), "x")


@pytest.mark.parametrize("year", ["1950", True])
def test_numeric_feature_refuses_metadata_that_is_no_number(
    by_year: CalibrationArtifact, year: Any, invoke: Invoke
) -> None:
    with pytest.raises(FeatureError, match="needs a finite number"):
        invoke(make_chain(by_year, metadata=lambda _: {"year": year}), "x")


def test_threshold_depends_on_the_metadata_of_the_prompt(
    by_year: CalibrationArtifact, invoke: Invoke
) -> None:
    # In these records later years have larger success scores.
    chain = make_chain(by_year, metadata=lambda prompt: {"year": int(prompt)})
    early, late = invoke(chain, "1910"), invoke(chain, "2090")
    assert early.threshold < late.threshold
    assert early.features != late.features


def test_extractor_is_called_once_per_candidate(invoke: Invoke) -> None:
    asked: list[str] = []

    def extract(text: str) -> str:
        asked.append(text)
        return "same"

    result = invoke(make_chain(answer=extract), "x")
    assert len(asked) == N
    assert result.answers == ("same",)


def test_metadata_is_required_only_if_a_feature_reads_it() -> None:
    # The records have a topic; a map that does not read it asks for no metadata function.
    plain = calibrate(make_records(), alpha=0.25, features="1")
    assert make_chain(plain).invoke("x").reason == "answered"
    grouped = calibrate(make_records(), alpha=0.25, features=fit_topics("easy"))
    with pytest.raises(FingerprintError):
        make_chain(grouped)
