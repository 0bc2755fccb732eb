"""Runs of agents: records from LangSmith's traces, and one feedback and one result of a monitor a run."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_cfc_agents", reason="agents are an integration of their own")

from langchain_cfc_agents import RecordedRun, make_run_records, read_outcome
from langchain_cfc_langsmith import FeedbackHandler
from langchain_cfc_monitor import CFCMonitor
from langchain_core.tracers import LangChainTracer
from langsmith import Client

from integrations.agents.tests.office import (
    Clerk,
    Desk,
    agent_at,
    asked,
    guarding,
    is_right,
    make_runs,
    recording,
    task,
)
from integrations.langsmith.tests.conftest import KEY
from integrations.langsmith.tests.endpoint import LangSmith
from langchain_cfc import calibrate

SURE, UNSURE, IDLE = task("sure", 1.0, 1.0), task("unsure", 1.0, 0.0), task("idle")
UNITS: dict[str, dict[str, Any]] = {"run": {}, "call": {"unit": "claims"}}


def make_tracer(endpoint: str) -> LangChainTracer:
    return LangChainTracer(project_name="office", client=Client(api_url=endpoint, api_key=KEY))


# What takes its place needs a newer server.
@pytest.mark.filterwarnings("ignore:list_runs")
@pytest.mark.parametrize("per", UNITS)
def test_traced_runs_give_the_records_of_the_runs(endpoint: str, client: Client, per: Any) -> None:
    tracer = make_tracer(endpoint)
    config: Any = {"callbacks": [tracer]}
    states = [
        agent_at(Desk(), Clerk(), recording()).invoke(asked(one), config) for one in (SURE, UNSURE, IDLE)
    ]
    with pytest.raises(ConnectionError):
        agent_at(Desk(), Clerk(broken=1.0), recording()).invoke(asked(SURE), config)
    tracer.client.flush()
    traced = client.list_runs(project_name="office", is_root=True, error=False)
    runs = [
        RecordedRun.model_validate({**(run.outputs or {})["cfc_run"], "id": str(run.id)}) for run in traced
    ]
    own = [RecordedRun.model_validate({**state["cfc_run"], "id": "any"}) for state in states]
    assert [run.model_copy(update={"id": "any"}) for run in runs] == own
    made, provenance, without_calls = make_run_records(
        [run.model_copy(update={"right": is_right(run)}) for run in runs], per=per
    )
    assert [one.id for one in made] == [run.id for run in runs[:2]]
    assert (without_calls, provenance.generator) == (1, states[0]["cfc_run"]["setup"]["generator"])
    tracer.client.close()


@pytest.mark.parametrize("per", UNITS)
def test_feedback_and_monitor_get_one_result_a_run(
    langsmith: LangSmith, endpoint: str, tmp_path: Path, per: Any
) -> None:
    setup = agent_at(Desk(), Clerk(), recording()).invoke(asked(SURE))["cfc_run"]["setup"]
    records, provenance, _ = make_run_records(make_runs(setup), per=per)
    bot = calibrate(records, provenance=provenance, max_wrong_rate=0.1, **UNITS[per])
    tracer, feedback = make_tracer(endpoint), FeedbackHandler(project="office")
    seen: list[Any] = [tracer, feedback]
    with ExitStack() as stack:
        if per == "run":  # a monitor watches no claims
            seen.append(stack.enter_context(CFCMonitor(bot, tmp_path / "monitor.db")))
        agent = agent_at(Desk(), Clerk(), guarding(bot, otherwise="refuse"))
        states = [agent.invoke(asked(one), {"callbacks": seen}) for one in (SURE, UNSURE, IDLE)]
        tracer.client.flush()
        assert feedback.flush(30)
        for monitor in seen[2:]:
            monitor.flush()
            status = monitor.read_status()
            assert (status.results, status.answered) == (2, 0.5)
            said = " ".join(one.sentence for one in (*status.rates, *status.tests, *status.together))
            assert "50 % of 2 runs are let through" in said
            assert not re.search("question|answer|claim", said)
    by_trace = {langsmith.runs[name]["trace_id"]: said for name, said in langsmith.by_run().items()}
    begun = {name: run["start_time"] for name, run in langsmith.runs.items() if not run.get("parent_run_id")}
    order = sorted(begun, key=lambda name: begun[name])
    unattended = [int(read_outcome(state).unattended) for state in states]
    assert unattended == [1, 0, 0]
    assert set(by_trace) == set(order[:2])
    # Of calls, one was shown before the second run left the path.
    answered = [by_trace[name]["cfc_answered"]["score"] for name in order[:2]]
    assert answered == (unattended[:2] if per == "run" else [1, 1])
    tracer.client.close()
