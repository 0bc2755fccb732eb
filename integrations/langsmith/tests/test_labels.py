"""What people said of served results in LangSmith, as labels of a monitor."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_cfc_langsmith import read_feedback_labels
from langchain_cfc_monitor import CFCMonitor, Label
from langchain_core.tracers import LangChainTracer
from langsmith import Client

from integrations.langsmith.tests.conftest import KEY
from integrations.langsmith.tests.endpoint import Fault, LangSmith
from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, PromptRecord
from langchain_cfc.errors import CFCWarning, CollectionError
from tests.cli.running import run

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
