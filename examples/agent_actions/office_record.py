"""Record runs of the office agent: what `runs.jsonl.gz` was made with.

    python office_record.py --base-url http://127.0.0.1:8097/v1 --model NAME --runs 300 --out runs.jsonl

The model may be any behind an OpenAI-compatible server that gives token log-probabilities. Every run is
written as soon as it ends; started again, the recording goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_cfc_agents import RecordActions, match_reference, record_runs
from langchain_core.language_models import BaseChatModel
from office_model import SYSTEM, JsonToolModel
from office_tasks import Task, make_tasks
from office_world import UNGUARDED, Office, make_tools

from langchain_cfc.records import Example
from langchain_cfc.verifiers import SelfConsistency, SequenceProbability

N = 5
MAX_TURNS = 5
# The share of the n messages that make other calls, and how improbable the message is; the score is the mean.
VERIFIERS = {"agreement": SelfConsistency(), "probability": SequenceProbability()}
# Equal in recording and serving. The id vouches for the class of the model, which is the example's own.
SETTINGS: dict[str, Any] = {"unguarded": UNGUARDED, "max_turns": MAX_TURNS, "agent_id": "office"}


def make_agent(model: BaseChatModel, office: Office, middleware: Any, **options: Any) -> Any:
    """Make the agent for one office, with the middleware that records or guards it."""
    return create_agent(model, make_tools(office), system_prompt=SYSTEM, middleware=[middleware], **options)


def make_example(task: Task) -> Example:
    """Return a task as an example: its id names the run."""
    reference = [{"name": name, "args": args} for name, args in task.reference]
    return Example(id=task.id, input=task.text, reference=reference, metadata={"kind": task.kind})


def main(arguments: Sequence[str] | None = None) -> None:
    """Record runs; see the first lines of this file."""
    parser = argparse.ArgumentParser(description="Record runs of the office agent.")
    parser.add_argument("--base-url", required=True, help="an OpenAI-compatible server")
    parser.add_argument("--model", required=True, help="the model's name there")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl"))
    parser.add_argument("--concurrency", type=int, default=2, help="runs at the same time")
    options = parser.parse_args(arguments)
    tasks = {task.id: task for task in make_tasks(options.runs)}

    def make(example: Example) -> Any:
        model = JsonToolModel(
            base_url=options.base_url,
            api_key="none",  # type: ignore[arg-type]  # ChatOpenAI takes text as well as a secret
            model=options.model,
            temperature=0.7,
            max_completion_tokens=130,
            logprobs=True,
            top_logprobs=1,
            draws=N,
            timeout=900,
        )
        office = copy.deepcopy(tasks[example.id].office)
        return make_agent(model, office, RecordActions(VERIFIERS, n=N, **SETTINGS))

    runs = record_runs(
        make,
        map(make_example, tasks.values()),
        options.out,
        label=match_reference,
        max_concurrency=options.concurrency,
    )
    guarded = [run for run in runs if run.guarded]
    right = sum(run.error is None and isinstance(run.right, list) and all(run.right) for run in guarded)
    print(f"{len(runs)} runs, {len(guarded)} with a guarded call, {right} of them right")


if __name__ == "__main__":
    main()
