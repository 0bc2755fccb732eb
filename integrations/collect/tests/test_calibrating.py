"""`calibrate_chain`: from questions to an artifact and a report in one call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import (
    CollectionOptions,
    Components,
    Store,
    acalibrate_chain,
    calibrate_chain,
)
from langchain_cfc_collect.calibrating import ChainOptions
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, convert_to_messages
from langchain_core.prompt_values import ChatPromptValue
from langchain_openai import ChatOpenAI

from integrations.collect.tests.sharing import make_recorded_model, make_silent_options
from langchain_cfc import CalibrationArtifact, CFCRunnable, PromptRecord, calibrate, evaluate, read_records
from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.errors import InputError
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import Example, write_records
from langchain_cfc.verifiers import SequenceProbability
from tests.lengths import mostly_long
from tests.recordings import list_facts
from tests.serving.openai_server import Script, serving

MANY, N = 40, 3
QUIET = CollectionOptions(on_progress=lambda _: None)
OPTIONS: dict[str, Any] = {"alpha": 0.3, "features": "1", "collection": QUIET}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def facts() -> list[PromptRecord]:
    return list_facts()[::20][:MANY]


@pytest.fixture
def script(facts: list[PromptRecord]) -> Script:
    return Script.of(facts)


@pytest.fixture
def model(script: Script) -> Iterator[ChatOpenAI]:
    with serving(script) as url:
        yield make_recorded_model(url, temperature=0.7)


@pytest.fixture
def pairs(facts: list[PromptRecord], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    return [(one.input, one.reference) for one in facts]


Calibrate = Callable[..., tuple[CalibrationArtifact, Any]]


def run_acalibrate_chain(*arguments: Any, **options: Any) -> tuple[CalibrationArtifact, Any]:
    return asyncio.run(acalibrate_chain(*arguments, **options))


@mostly_long("form", [calibrate_chain, run_acalibrate_chain], ids=["sync", "async"], quick=1)
def test_calibrate_chain_equals_collect_calibrate_and_evaluate(
    form: Calibrate, model: ChatOpenAI, pairs: list[tuple[Any, Any]], script: Script, tmp_path: Path
) -> None:
    parts: dict[str, Any] = {"verifier": SequenceProbability(), "labeler": NormalisedMatch(), "n": N}
    store, out = tmp_path / "a.db", tmp_path / "artifact.json"
    artifact, report = form(model, pairs, **parts, store=store, out=out, **OPTIONS)
    assert len(script.requests) == N * MANY
    with Store(store) as opened:
        write_records(tmp_path / "r.jsonl", opened.read_records(), opened.read_provenance())
    records = read_records(tmp_path / "r.jsonl")
    expected = calibrate(records, alpha=0.3, features="1", test_fraction=0.3)
    assert artifact.levels == expected.levels
    assert artifact.calibration == expected.calibration
    assert report == evaluate(expected, records)
    assert report.n_test + artifact.calibration.size == MANY
    assert CalibrationArtifact.load(out).digest == artifact.digest
    # Again, and with other options: no further requests.
    again, _ = form(model, pairs, **parts, store=store, **OPTIONS)
    assert again.levels == artifact.levels
    other, _ = form(model, pairs, **parts, store=store, **{**OPTIONS, "alpha": 0.4})
    assert other.alphas == ("0.4",)
    assert len(script.requests) == N * MANY
    # What serves is what was calibrated.
    chain = CFCRunnable(generator=model, verifier=parts["verifier"], artifact=artifact)
    assert chain.guarantee.binding == "matched"


# With a generator in this process


def candidates(question: Any) -> str:
    """Answer every question correctly except each fifth."""
    number = int(str(question).rpartition(" ")[2])
    return "wrong" if number % 5 == 0 else f"answer {number}"


def score(prompt: Any, drawn: list[Any]) -> list[float]:
    number = int(str(prompt).rpartition(" ")[2])
    return [0.9 if number % 5 == 0 else number / 1000] * len(drawn)


LOCAL: dict[str, Any] = {
    "verifier": score,
    "labeler": NormalisedMatch(),
    "n": 2,
    "generator_id": "numbers",
    "verifier_id": "by number",
    "alpha": 0.4,
    "features": "1",
    "collection": make_silent_options(),
}
FORMS: dict[str, list[Any]] = {
    "pairs": [(f"question {number}", f"answer {number}") for number in range(MANY)],
    "lists": [[f"question {number}", f"answer {number}"] for number in range(MANY)],
    "mappings": [{"prompt": f"question {number}", "answer": f"answer {number}"} for number in range(MANY)],
    "examples": [
        Example(id=str(number), input=f"question {number}", reference=f"answer {number}")
        for number in range(MANY)
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_calibrate_chain_accepts_every_example_form(form: str) -> None:
    artifact, report = calibrate_chain(candidates, iter(FORMS[form]), **LOCAL)
    assert report.n_candidates == artifact.n == 2
    assert report.n_test + report.n_calibration == MANY
    assert artifact.provenance is not None
    assert (artifact.provenance.generator or {})["id"] == "numbers"
    # Without a named store, what was paid for is kept all the same.
    calibrate_chain(pytest.fail, FORMS[form], **LOCAL)
    assert Path("chain.db").exists()


def test_calibrate_chain_writes_message_inputs_as_role_and_content() -> None:
    seen: list[Any] = []

    def draw(prompt: Any) -> str:
        seen.append(prompt)
        messages = convert_to_messages(prompt["messages"] if isinstance(prompt, dict) else prompt)
        return candidates(messages[-1].content)

    def examples(wrap: Callable[[list[BaseMessage]], Any]) -> list[Any]:
        return [
            (wrap([SystemMessage("Be brief."), HumanMessage(str(question))]), reference)
            for question, reference in FORMS["pairs"]
        ]

    options = {**LOCAL, "verifier": lambda _, drawn: [0.5] * len(drawn)}
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "question 0"}]
    wraps: list[Callable[[list[BaseMessage]], Any]] = [
        lambda messages: messages,
        lambda messages: ChatPromptValue(messages=messages),
        lambda messages: {"messages": messages},
    ]
    for number, wrap in enumerate(wraps):
        seen.clear()
        artifact, _ = calibrate_chain(draw, examples(wrap), **options, store=f"{number}.db")
        assert artifact.calibration.size > 0
        assert wrap is wraps[2] or expected in seen
    assert {"messages": expected} in seen
    mappings = [{"input": question, "reference": answer} for question, answer in examples(wraps[0])]
    calibrate_chain(draw, mappings, **options, store="mappings.db")


def test_calibrate_chain_reads_id_metadata_and_cluster_of_mappings(tmp_path: Path) -> None:
    mappings: list[dict[str, Any]] = [
        {
            "question": f"question {number}",
            "answer": f"answer {number}",
            "id": number,
            "metadata": {"half": "low" if number < MANY / 2 else "high", "year": None},
        }
        for number in range(MANY)
    ]
    mappings[0]["cluster"] = mappings[2]["cluster"] = "both"
    options = {**LOCAL, "features": "group(half)", "alpha": 0.5, "store": tmp_path / "a.db"}
    artifact, _ = calibrate_chain(candidates, mappings, **options)
    assert len(artifact.calibration.groups) == 3
    with Store(tmp_path / "a.db") as store:
        first, second, *_ = store.read_records()
    assert (first.id, first.metadata, first.cluster) == ("0", {"half": "low"}, "both")
    assert (second.id, second.cluster) == ("1", None)


@pytest.mark.parametrize(
    ("examples", "options", "said"),
    [
        ([("a", "b", "c")], {}, r"example 1 is \('a', 'b', 'c'\); expected a pair"),
        ([FORMS["examples"][0], ("a", "b")], {}, "example 1 is Example"),
        ([], {}, "no rows"),
        ([{"x": "a", "y": "b"}], {}, "which column holds the reference"),
        (
            [{"input": "a", "reference": "b"}, {"input": "c", "reference": "d", "metdata": {}}],
            {},
            "example 2 has the unknown key 'metdata'; did you mean 'metadata'",
        ),
        ([{"input": "a", "reference": "b", "metadata": {"topic": ["art"]}}], {}, "line 1: metadata"),
        (
            [([HumanMessage("a", additional_kwargs={"x": 1})], "b")],
            {},
            "example 1: its messages hold more than role, content",
        ),
        ([{"input": "a", "reference": "b", "id": "1"}, ("c", "d")], {}, "row 2: id: no column .id."),
        (FORMS["pairs"], {"alpha": None}, "name a promise"),
        (FORMS["pairs"], {"test_fraction": 0.0}, "nothing to evaluate on"),
        (FORMS["pairs"], {"test_fraction": 0.001}, "0.001 of 40 prompts leaves none to evaluate on"),
        (FORMS["pairs"], {"features": "group(nope)"}, "record '[0-9a-f]+' has no metadata 'nope'.*are: none"),
        (FORMS["pairs"], {"draws": "lead(2, at_most=2)"}, "scores each candidate separately"),
        (
            FORMS["pairs"],
            {"verifier": SequenceProbability(), "verifier_id": None, "draws": "lead(2, at_most=5)"},
            "these prompts have 2",
        ),
        (FORMS["pairs"], {"unit": "claims", "n": 1, "features": "entropy"}, "need the candidates' answers"),
        (
            FORMS["pairs"][:8],
            {"alpha": 0.1},
            r"0.1 is out of reach: .* for [2-8] of .*\nAdd questions \(at least 9\)",
        ),
        (
            FORMS["pairs"],
            {"alpha": None, "max_wrong_rate": [0.01, 0.05]},
            "A rate of 0.05 wrong answers is not certified: it takes about 81 ",
        ),
        (FORMS["pairs"], {"out": "/"}, "cannot write /: it is not a regular file"),
        (FORMS["pairs"], {"out": "a.json", "store": "./a.json"}, "out: a.json is also the store"),
        (FORMS["pairs"], {"out": "nowhere/artifact.json"}, "the folder .*nowhere does not exist"),
    ],
)
def test_calibrate_chain_refuses_invalid_arguments_before_drawing(
    examples: list[Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    drawn: list[str] = []

    def draw(question: Any) -> str:
        drawn.append(question)
        return "x"

    for form in (calibrate_chain, run_acalibrate_chain):
        with pytest.raises(InputError, match=said):
            form(draw, examples, **{**LOCAL, **options})
    assert drawn == []
    assert list(tmp_path.iterdir()) == []


def test_calibrate_chain_uses_the_metadata_function_for_features() -> None:
    options = {**LOCAL, "features": "group(half)", "alpha": 0.5}
    options["metadata"] = lambda prompt: {"half": str(int(prompt.rpartition(" ")[2]) // 20)}
    artifact, _ = calibrate_chain(candidates, FORMS["pairs"], **options)
    assert len(artifact.calibration.groups) == 3


def test_calibrate_chain_in_a_running_event_loop_names_the_async_form() -> None:
    async def call() -> None:
        calibrate_chain(candidates, FORMS["pairs"], **LOCAL)

    with pytest.raises(InputError, match=r"await acalibrate_chain\(\.\.\.\)"):
        asyncio.run(call())


def test_chain_options_are_those_of_collection_and_calibration() -> None:
    options = set(inspect.get_annotations(ChainOptions))
    calibration = {one.name for one in fields(CalibrationConfig)}
    parts = {one.name for one in fields(Components)} - {"generator", "verifier", "labeler"}
    assert calibration <= options
    # A labeler's name is for configuration files.
    assert options - calibration - {"store", "out", "collection"} == parts - calibration - {"labeler_id"}
