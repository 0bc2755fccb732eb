"""Feedback: decisions on the right run, never delaying an answer, and what people said of them as labels."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_cfc_langsmith import FeedbackHandler, read_feedback_labels
from langchain_cfc_monitor import CFCMonitor, Label
from langchain_core.tracers import LangChainTracer
from langsmith import Client

from integrations.langsmith.tests.conftest import KEY
from integrations.langsmith.tests.endpoint import Fault, LangSmith
from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, PromptRecord
from langchain_cfc.demo import is_promise_kept
from langchain_cfc.errors import CFCWarning, CollectionError, InputError
from langchain_cfc.labelers import NormalisedMatch
from tests.cli.running import run

DECIDED = {"cfc_answered", "cfc_abstained", "cfc_not_certifiable", "cfc_set_size", "cfc_threshold"}
JUDGED = {"cfc_covered", "cfc_kept_promise"}
# Fields that hold names and times, whose signs may spell anything.
NAMES = {"id", "run_id", "session_id", "created_at", "modified_at", "artifact"}
Make = Callable[..., FeedbackHandler]
ServedTwice = Callable[[FeedbackHandler], tuple[list[CFCResult], list[CFCResult]]]


@pytest.fixture
def handler() -> Iterator[Make]:
    """A function that makes a handler for the project `default`."""
    made: list[FeedbackHandler] = []

    def make(**settings: Any) -> FeedbackHandler:
        made.append(FeedbackHandler(**settings))
        return made[-1]

    yield make
    for one in made:
        # What a test has left behind is its own concern.
        one._writer._warned = one.lost
        assert one.flush(30)


def make_reference(facts: list[PromptRecord]) -> Callable[[Any], Any]:
    known = {one.input: one.reference for one in facts}
    return known.get


def test_feedback_handler_writes_each_decision_to_its_run(
    langsmith: LangSmith, endpoint: str, chain: CFCRunnable, new_facts: list[PromptRecord], handler: Make
) -> None:
    tracer = LangChainTracer(project_name="served", client=Client(api_url=endpoint, api_key=KEY))
    feedback = handler(project="served", labeler=NormalisedMatch(), reference=make_reference(new_facts))
    served = [(one, chain.invoke(one.input, {"callbacks": [tracer, feedback]})) for one in new_facts]
    tracer.client.flush()
    assert feedback.flush(30)
    assert (feedback.written, feedback.lost) == (len(new_facts), 0)
    project = langsmith.projects["served"]["id"]
    by_run = langsmith.by_run()
    assert {one["session_id"] for one in langsmith.feedback.values()} == {project}
    traced = {name: run for name, run in langsmith.runs.items() if run.get("name") == "CFCRunnable"}
    assert set(by_run) == set(traced)
    asked = {traced[name]["inputs"]["input"]: said for name, said in by_run.items()}
    for record, result in served:
        said = asked[record.input]
        assert set(said) == DECIDED | JUDGED | (set() if result.abstained else {"cfc_correct"})
        assert said["cfc_abstained"]["score"] == int(result.abstained) == 1 - said["cfc_answered"]["score"]
        assert said["cfc_abstained"]["comment"] == result.reason
        assert said["cfc_not_certifiable"]["score"] == int(result.reason == "not_certifiable")
        assert said["cfc_set_size"]["score"] == sum(one.accepted for one in result.candidates)
        assert said["cfc_kept_promise"]["score"] == int(is_promise_kept(record, result))
        source = said["cfc_answered"]["feedback_source"]["metadata"]
        assert source == {"artifact": chain.artifact.digest, "alpha": "0.2"}
    # Otherwise half of this would have shown nothing.
    for key in ("cfc_abstained", "cfc_not_certifiable", "cfc_covered", "cfc_correct"):
        assert {said[key]["score"] for said in by_run.values() if key in said} == {0, 1}, key
    tracer.client.close()


def find_leaks(langsmith: LangSmith, served: list[CFCResult]) -> set[str]:
    """Texts of rejected candidates that are in any feedback, and the key if it is."""
    said = [
        text for one in langsmith.asked if one.path == "/feedback" for text in texts_in(json.loads(one.body))
    ]
    assert said
    shown = {str(one.text) for result in served for one in result.candidates if one.accepted}
    rejected = {str(one.text) for result in served for one in result.candidates} - shown
    assert rejected
    # Digits alone are parts of any number, and of digests.
    words = [text for text in rejected if any(map(str.isalpha, text))]
    assert words
    return {text for text in [*words, KEY] if any(text in one for one in said)}


def texts_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, one in value.items() if key not in NAMES for text in texts_in(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts_in(one)]
    return [value] if isinstance(value, str) else []


def test_feedback_holds_no_rejected_text(
    langsmith: LangSmith, chain: CFCRunnable, new_facts: list[PromptRecord], handler: Make
) -> None:
    # Even of a chain that shows what it rejected.
    open_chain = chain.model_copy(update={"show_rejected": True})
    feedback = handler(labeler=NormalisedMatch(), reference=make_reference(new_facts))
    served = [open_chain.invoke(one.input, {"callbacks": [feedback]}) for one in new_facts]
    assert feedback.flush(30)
    assert not find_leaks(langsmith, served)


@pytest.fixture
def served_twice(chain: CFCRunnable, new_facts: list[PromptRecord]) -> ServedTwice:
    """A function that serves three prompts, without a handler and with one."""

    def serve(feedback: FeedbackHandler) -> tuple[list[CFCResult], list[CFCResult]]:
        prompts = [one.input for one in new_facts[:3]]
        alone = [chain.invoke(one) for one in prompts]
        return alone, [chain.invoke(one, {"callbacks": [feedback]}) for one in prompts]

    return serve


@pytest.mark.parametrize(
    "fault",
    [
        Fault("/feedback", status=400, times=10**6),
        Fault("/feedback", status=429, times=10**6),
        Fault("/sessions", content=b"<html>", times=10**6),
    ],
)
def test_feedback_handler_counts_lost_feedback_and_keeps_answers(
    langsmith: LangSmith,
    served_twice: ServedTwice,
    handler: Make,
    fault: Fault,
    caplog: pytest.LogCaptureFixture,
) -> None:
    langsmith.faults.append(fault)
    feedback = handler()
    with caplog.at_level(logging.WARNING):
        alone, beside = served_twice(feedback)
        assert beside == alone
        with pytest.warns(
            CFCWarning, match="the feedback of 3 served prompts was lost, and that of 0 is still waiting"
        ):
            assert feedback.flush(60)
    assert (feedback.written, feedback.lost) == (0, 3)
    assert sum("the feedback of a served prompt is lost" in one.message for one in caplog.records) == 3
    assert KEY not in caplog.text
    # It is said once.
    assert feedback.flush()


def test_feedback_handler_does_not_delay_answers(
    langsmith: LangSmith, chain: CFCRunnable, new_facts: list[PromptRecord], handler: Make
) -> None:
    prompts = [one.input for one in new_facts[:10]]

    def seconds(config: Any) -> float:
        begun = time.perf_counter()
        for one in prompts:
            chain.invoke(one, config)
        return time.perf_counter() - begun

    alone = seconds({})
    langsmith.faults.append(Fault("/feedback", seconds=0.3, times=10**6))
    feedback = handler()
    beside = seconds({"callbacks": [feedback]})
    # In the way, fifty pieces of feedback of 0.3 s each would have taken 15 s, by four threads 4 s.
    assert beside < alone + 2.0
    with pytest.warns(CFCWarning, match="is still waiting"):
        assert not feedback.flush(0.01)
    langsmith.faults.clear()
    assert feedback.flush(60)
    assert (feedback.written, feedback.lost) == (10, 0)


def test_feedback_handler_counts_feedback_beyond_most_waiting(
    langsmith: LangSmith, chain: CFCRunnable, new_facts: list[PromptRecord], handler: Make
) -> None:
    langsmith.faults.append(Fault("/feedback", seconds=1.0, times=1))
    feedback = handler(most_waiting=2, threads=1)
    for one in new_facts[:10]:
        chain.invoke(one.input, {"callbacks": [feedback]})
    with pytest.warns(CFCWarning, match="was lost"):
        assert feedback.flush(60)
    assert feedback.lost > 0
    assert feedback.written + feedback.lost == 10
    assert len(langsmith.by_run()) == feedback.written


def test_failing_labeler_loses_only_its_feedback(
    langsmith: LangSmith, chain: CFCRunnable, new_facts: list[PromptRecord], handler: Make
) -> None:
    def fails(*_: Any) -> list[bool]:
        raise RuntimeError

    feedback = handler(labeler=fails, reference=lambda _: "x")
    answered = next(one for one in new_facts if not chain.invoke(one.input).abstained)
    chain.invoke(answered.input, {"callbacks": [feedback]})
    with pytest.warns(CFCWarning, match="1 served prompts was lost"):
        feedback.flush(30)
    (said,) = langsmith.by_run().values()
    assert set(said) == DECIDED


def test_feedback_handler_flushes_at_exit(langsmith: LangSmith, saved: Path) -> None:
    langsmith.faults.append(Fault("/feedback", seconds=0.2, times=3))
    program = (
        "import sys\n"
        "from langchain_cfc.demo import demo_chain\n"
        "from langchain_cfc_langsmith import FeedbackHandler\n"
        "chain = demo_chain(sys.argv[1])\n"
        "chain.invoke('What is the capital of Peru?', {'callbacks': [FeedbackHandler()]})\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(saved)], check=True)
    (said,) = langsmith.by_run().values()
    assert set(said) == DECIDED


@pytest.mark.parametrize(
    "settings", [{"labeler": NormalisedMatch()}, {"reference": str}, {"most_waiting": 0}, {"threads": 0}]
)
def test_feedback_handler_refuses_invalid_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        FeedbackHandler(**settings)


FEW, MANY = 8, 36


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "monitor.db"


@pytest.fixture
def monitor(saved: Path, store: Path) -> Iterator[CFCMonitor]:
    with CFCMonitor(CalibrationArtifact.load(saved), store) as opened:
        yield opened


@pytest.fixture(params=[FEW])
def served(  # noqa: PLR0917 - fixtures
    request: pytest.FixtureRequest,
    chain: CFCRunnable,
    monitor: CFCMonitor,
    endpoint: str,
    langsmith: LangSmith,
    new_facts: list[PromptRecord],
) -> dict[str, tuple[PromptRecord, CFCResult]]:
    """Traced results by the id of their run."""
    tracer = LangChainTracer(project_name="served", client=Client(api_url=endpoint, api_key=KEY))
    made = {}
    for number in range(request.param):
        one, name = new_facts[number % len(new_facts)], uuid4()
        made[str(name)] = one, chain.invoke(one.input, {"callbacks": [tracer, monitor], "run_id": name})
    tracer.client.flush()
    monitor.flush()  # commands read the store
    assert set(made) <= set(langsmith.runs)
    return made


def write_feedback(
    client: Client, langsmith: LangSmith, name: str, key: str = "correct", **said: Any
) -> None:
    """Feedback of a person on a run."""
    client.create_feedback(
        run_id=name, key=key, session_id=langsmith.projects["served"]["id"], stop_after_attempt=1, **said
    )


@pytest.mark.parametrize("served", [MANY], indirect=True)
def test_monitor_labels_reads_feedback_as_labels(
    served: dict[str, tuple[PromptRecord, CFCResult]],
    monitor: CFCMonitor,
    client: Client,
    saved: Path,
    langsmith: LangSmith,
) -> None:
    command = ("monitor", "labels", saved, monitor.name, "langsmith:correct", "--least-probability", "0.5")
    answered = [name for name, (_, result) in served.items() if not result.abstained]
    whole = {name: [one.correct for one in record.candidates] for name, (record, _) in served.items()}
    assert set(monitor.list_unlabelled()) == set(served)
    for place, name in enumerate(answered):
        if place % 3 == 0:
            write_feedback(client, langsmith, name, score=place % 2)
        elif place % 3 == 1:
            write_feedback(client, langsmith, name, value={"correct": whole[name], "probability": 0.5})
        else:
            write_feedback(client, langsmith, name, key="liked", score=1)
    ran = run(*command, "--json")
    assert ran.code == 0, ran.err
    asked = [name for place, name in enumerate(answered) if place % 3 != 2]
    assert ran.data["labels"] == len(asked) > 15
    assert {one for one in served if one not in monitor.list_unlabelled()} == set(asked)
    labels = monitor.read_traffic().labels
    for place, name in enumerate(answered):
        if place % 3 == 0:
            assert labels[name] == Label(name, bool(place % 2))
        elif place % 3 == 1:
            assert labels[name] == Label(name, whole[name], 0.5)
    # Asked again, nothing is labelled twice.
    again = run(*command, "--json")
    assert again.data["labels"] == 0


def test_feedback_labels_uses_the_first_feedback_of_a_run(
    served: dict[str, tuple[PromptRecord, CFCResult]], client: Client, langsmith: LangSmith
) -> None:
    name, *_ = served
    write_feedback(client, langsmith, name, score=0)
    for said in langsmith.feedback.values():
        said["created_at"] = datetime(2026, 1, 2, tzinfo=timezone.utc).isoformat()
    write_feedback(client, langsmith, name, score=1)
    assert read_feedback_labels([name], client=client) == [Label(name, False)]
    assert read_feedback_labels([name], client=client, probability=0.25) == [Label(name, False, 0.25)]
    assert read_feedback_labels(["made up by hand"], client=client) == []


@pytest.mark.parametrize(
    "said", [{"score": 0.5}, {"value": "wrong"}, {"comment": "?"}, {"value": {"right": True}}]
)
def test_feedback_labels_omits_feedback_that_is_no_label(
    said: dict[str, Any],
    served: dict[str, tuple[PromptRecord, CFCResult]],
    client: Client,
    langsmith: LangSmith,
) -> None:
    odd, other, *_ = served
    write_feedback(client, langsmith, odd, **said)
    write_feedback(client, langsmith, other, value={"correct": None, "id": odd})
    with pytest.warns(CFCWarning, match=f"1 feedbacks are not labels and are left out; that of run {odd}"):
        assert read_feedback_labels([odd, other], client=client) == [Label(other, None)]


@pytest.mark.parametrize(
    "rest", ["?probability=1", "correct?chance=1", "correct?probability=often", "correct?probability=2"]
)
def test_monitor_labels_refuses_invalid_keys_and_options(
    rest: str, saved: Path, store: Path, monitor: CFCMonitor
) -> None:
    monitor.flush()
    ran = run("monitor", "labels", saved, store, f"langsmith:{rest}")
    assert ran.code == 2
    assert "langsmith:" in ran.err or "the probability must lie in (0, 1]" in ran.err


def test_monitor_labels_nothing_if_langsmith_refuses(
    served: dict[str, tuple[PromptRecord, CFCResult]],
    monitor: CFCMonitor,
    langsmith: LangSmith,
    client: Client,
    saved: Path,
) -> None:
    for name, (_, result) in served.items():
        if not result.abstained:
            write_feedback(client, langsmith, name, score=1)
    langsmith.faults.append(Fault("/feedback", status=403, method="GET", times=100))
    ran = run("monitor", "labels", saved, monitor.name, "langsmith:correct")
    assert ran.code == 2
    assert "LangSmith: reading feedback 'correct' failed" in ran.err
    assert monitor.read_status().labels == 0
    with pytest.raises(CollectionError):
        read_feedback_labels(list(served), client=client)
