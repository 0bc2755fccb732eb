"""How far a collection has come, for people and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from langchain_cfc.cli.output import percent
from langchain_cfc.collect.bar import money, score_words
from langchain_cfc.collect.standing import Standing


def standing_data(standing: Standing) -> dict[str, Any]:
    """What a store holds, as plain data."""
    wrong, correct = standing.mean_scores
    return {
        "prompts": standing.total,
        "finished": standing.labelled,
        "failed": standing.failed,
        "left": standing.left,
        "pass_at_n": standing.coverage,
        "mean_score_correct": correct,
        "mean_score_wrong": wrong,
        "input_tokens": sum(one.input_tokens for one in standing.spent.calls),
        "output_tokens": sum(one.output_tokens for one in standing.spent.calls),
        "cost": standing.cost,
        "unanswered_requests": standing.unanswered,
    }


def say_standing(console: Console, standing: Standing, n: int) -> None:
    """Print what a store holds.

    Args:
        console: Where to.
        standing: What it holds.
        n: Number of candidates for each prompt.
    """
    data = standing_data(standing)
    left = f", {standing.left} left" if standing.left else ""
    lines = [
        f"prompts       {standing.labelled} of {standing.total} finished, {standing.failed} failed{left}"
    ]
    if standing.coverage is not None:
        lines.append(f"attainable    {percent(standing.coverage)} have a correct one among {n} candidates")
        lines.append(f"scores        {score_words(standing)} on average")
    lines.append(f"tokens        {data['input_tokens']:,} in, {data['output_tokens']:,} out")
    if standing.cost is not None:
        lines.append(f"cost          {money(standing.cost)}")
    if standing.unanswered:
        lines.append(
            f"unanswered    {standing.unanswered} requests were begun and their answers never received; "
            "budgets count them like the dearest that were answered"
        )
    for line in lines:
        console.print(escape(line), soft_wrap=True)
