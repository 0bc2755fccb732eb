"""How far a collection has come, for people and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from langchain_cfc.cli.output import percent

if TYPE_CHECKING:
    # Its package needs an extra that `--help` does not.
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
    }


def money(cost: float) -> str:
    """A cost, with more digits where it is less than one."""
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.4f}"


def score_words(standing: Standing) -> str:
    """Mean scores of correct and wrong candidates, as far as there are any."""
    wrong, correct = standing.mean_scores
    said = [("correct", correct), ("wrong", wrong)]
    return "scores " + ", ".join(f"{word} {mean:.2f}" for word, mean in said if mean is not None)


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
        lines.append(f"{'scores':<13} {score_words(standing).removeprefix('scores ')} on average")
    lines.append(f"tokens        {data['input_tokens']:,} in, {data['output_tokens']:,} out")
    if standing.cost is not None:
        lines.append(f"cost          {money(standing.cost)}")
    for line in lines:
        console.print(escape(line), soft_wrap=True)
