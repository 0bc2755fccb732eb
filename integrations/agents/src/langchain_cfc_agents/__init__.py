"""Guard agents: final answers with `GuardedAnswer(chain)`, tool calls with `GuardedActions(artifact)`."""

from __future__ import annotations

from langchain_cfc_agents.action_guard import GuardedActions
from langchain_cfc_agents.action_records import RecordActions, arecord_runs, read_runs, record_runs
from langchain_cfc_agents.guarding import GuardedAnswer
from langchain_cfc_agents.promises import RunOutcome, read_outcome
from langchain_cfc_agents.prompts import make_prompt_data
from langchain_cfc_agents.recording import RecordPrompt, aanswer_prompts, answer_prompts
from langchain_cfc_agents.runs import RecordedRun, RunRecords, Turn, make_run_records, match_reference

__all__ = [
    "GuardedActions",
    "GuardedAnswer",
    "RecordActions",
    "RecordPrompt",
    "RecordedRun",
    "RunOutcome",
    "RunRecords",
    "Turn",
    "aanswer_prompts",
    "answer_prompts",
    "arecord_runs",
    "make_prompt_data",
    "make_run_records",
    "match_reference",
    "read_outcome",
    "read_runs",
    "record_runs",
]
