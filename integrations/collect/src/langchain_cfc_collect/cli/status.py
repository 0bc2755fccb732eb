"""Show the state of a collection, as text or as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from langchain_cfc.cli.formatting import format_answer_cell, make_table, print_lines
from langchain_cfc.no_answers import describe_unscored
from langchain_cfc.support.text import format_percent
from langchain_cfc.support.units import UNITS
from langchain_cfc_collect.collecting import format_cost, format_mean_scores
from langchain_cfc_collect.status import CollectionStatus
from langchain_cfc_collect.store import Store
from langchain_cfc_collect.store.batches import read_open_batches


def summarize_status(state: CollectionStatus, store: Store) -> dict[str, Any]:
    """Return the state of a collection as plain data, with the labels that scores contradict most.

    Requests that a run has not read the answer of yet are in progress; once no run uses the store, they are
    unanswered.
    """
    is_running = bool(state.unanswered) and store.is_in_use()
    wrong, correct = state.mean_scores
    labels: dict[str, Any] = {
        "pass_at_n": state.coverage,
        "mean_score_correct": correct,
        "mean_score_wrong": wrong,
    }
    if state.unit == "claims":
        labels = {
            "claims": sum(state.candidates),
            "supported": state.supported,
            "answers_without_claims": state.without_claims,
            "mean_score_supported": correct,
            "mean_score_unsupported": wrong,
        }
    return {
        "prompts": state.total,
        "finished": state.labelled,
        "failed": state.failed,
        "left": state.remaining,
        **labels,
        "input_tokens": sum(one.input_tokens for one in state.usage.calls),
        "output_tokens": sum(one.output_tokens for one in state.usage.calls),
        "cost": state.cost,
        "requests_in_progress": state.unanswered if is_running else 0,
        "unanswered_requests": 0 if is_running else state.unanswered,
        "models": store.read_models(),
        "unscored": {"counts": dict(state.unscored), "total": state.drawn},
        "doubtful_labels": [asdict(one) for one in state.doubtful_labels],
        **({"open_batches": _list_open_batches(store)} if store.has_batches else {}),
    }


def _list_open_batches(store: Store) -> list[dict[str, Any]]:
    """Return the batches with answers still to be fetched; an id is None until it is known."""
    with store.begin_read() as connection:
        return [{"id": row.id, "requests": len(keys)} for row, keys in read_open_batches(connection)]


def print_status(
    console: Console, state: CollectionStatus, summary: Mapping[str, Any], configuration: Mapping[str, Any]
) -> None:
    """Print the state of a collection: its summary, with details from its configuration."""
    left = f", {state.remaining} left" if state.remaining else ""
    lines = [f"prompts       {state.labelled} of {state.total} finished, {state.failed} failed{left}"]
    n = configuration.get("n", 0)
    if state.unit == "claims" and state.supported is not None:
        answers = state.labelled - state.without_claims
        supported = format_percent(state.supported)
        lines.append(f"claims        {sum(state.candidates)} in {answers} answers, {supported} are supported")
        if state.without_claims:
            lines.append(f"no claims     in {state.without_claims} answers; records leave these out")
    elif state.coverage is not None:
        lines.append(f"attainable    {format_percent(state.coverage)} have a correct candidate among {n}")
    draws = configuration.get("draws")
    if draws is not None and state.labelled:
        mean = sum(state.candidates) / state.labelled
        lines.append(f"drawn         {mean:.1f} of at most {n} candidates a prompt, by {draws}")
        lines.append("              (calibrate with --draws and this same rule)")
    if any(state.candidates):
        lines.append(f"scores        {format_mean_scores(state)} on average")
    lines += [f"note          {one}" for one in describe_unscored(**summary["unscored"])]
    if summary["models"]:
        lines.append(f"drawn by      {', '.join(summary['models'])}")
    lines.append(f"tokens        {summary['input_tokens']:,} in, {summary['output_tokens']:,} out")
    if state.cost is not None:
        lines.append(f"cost          {format_cost(state.cost)}")
    lines += _list_open_requests(summary)
    print_lines(console, lines)
    if not summary["doubtful_labels"]:
        return
    # Of answers or claims whose labels the scores contradict most, for people to check.
    names = UNITS[state.unit].wrong, UNITS[state.unit].correct
    template = (configuration.get("columns") or {}).get("prompt")
    table = make_table("answer", "labelled", "reference", "prompt", texts=4)
    for one in summary["doubtful_labels"]:
        table.add_row(
            format_answer_cell(one["answer"]),
            names[one["correct"]],
            format_answer_cell(one["reference"]),
            format_answer_cell(one["prompt"], template),
        )
    console.print()
    console.print(table)
    console.print()


def _list_open_requests(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines on requests whose answers the store does not hold, live or in batches."""
    if count := summary["requests_in_progress"]:
        yield f"in progress   {count} requests of the run that uses the store"
    if count := summary["unanswered_requests"]:
        yield (
            f"unanswered    {count} requests were started but got no answer that can be read; budgets count "
            "each like the most expensive one answered"
        )
    for one in summary.get("open_batches", ()):
        what = one["id"] or "a batch that was being submitted"
        yield (
            f"waiting for   {what}, {one['requests']:,} requests; the command that submitted it fetches it"
        )
