"""What a collection will take, before anything is paid."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from langchain_cfc.collect.budget import Budget
from langchain_cfc.collect.stages import ModelCalls, Paid
from langchain_cfc.collect.standing import Standing
from langchain_cfc.records import Example
from langchain_cfc.sampling import SamplingName

# English text; other languages take more.
_CHARACTERS_PER_TOKEN = 4
# Of one answer, where nothing is known.
ASSUMED_OUTPUT = 250


@dataclass(frozen=True)
class Estimate:
    """What is left to do, and what it will take.

    Attributes:
        prompts: Number of prompts that are neither finished nor failed.
        draws: Requests that draw their candidates, if each succeeds at once.
        input_tokens: Tokens of requests.
        output_tokens: Tokens of answers.
        cost: The same in money; None without prices.
        measured_on: Number of finished prompts of the store that this is taken from, verifier and labeler
            included; 0 where it is a rough guess at the draws alone.
    """

    prompts: int
    draws: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    measured_on: int


def estimate(
    examples: Iterable[Example],
    standing: Standing | None,
    *,
    n: int,
    sampling: SamplingName,
    budget: Budget,
    output_tokens: int = ASSUMED_OUTPUT,
) -> Estimate:
    """Estimate what is left.

    Args:
        examples: The whole dataset.
        standing: What the store holds of it; None where there is no store yet.
        n: Number of candidates for each prompt.
        sampling: How they are drawn.
        budget: With the prices.
        output_tokens: Of one candidate, where the store holds none yet.

    Returns:
        From what finished prompts took, if there are any. Else a token is taken for four characters of a
        prompt, every candidate for `output_tokens`, and verifier and labeler for nothing; the cost is None
        unless there is just one price.

    Raises:
        CollectionError: If a model of the store has no price.
    """
    sizes = [len(_text(example)) for example in examples]
    measured = 0 if standing is None else standing.labelled
    left = max(0, len(sizes) - measured - (0 if standing is None else standing.failed))
    requests = left * (1 if sampling == "single_request" else n)
    if standing is not None and measured:
        calls = [_scaled(one, left / measured) for one in standing.spent.calls]
    else:
        per_prompt = sum(sizes) / len(sizes) / _CHARACTERS_PER_TOKEN if sizes else 0.0
        # By the name of the one price, if there is just one: who will answer is not known yet.
        name = next(iter(budget.prices)) if len(budget.prices) == 1 else ""
        calls = [ModelCalls(name, True, round(per_prompt * requests), output_tokens * left * n)]
    known = measured > 0 or len(budget.prices) == 1
    return Estimate(
        prompts=left,
        draws=requests,
        input_tokens=sum(one.input_tokens for one in calls),
        output_tokens=sum(one.output_tokens for one in calls),
        cost=budget.cost(Paid(tuple(calls))) if known else None,
        measured_on=measured,
    )


def _scaled(calls: ModelCalls, share: float) -> ModelCalls:
    return replace(
        calls,
        input_tokens=round(calls.input_tokens * share),
        output_tokens=round(calls.output_tokens * share),
    )


def _text(example: Example) -> str:
    return example.input if isinstance(example.input, str) else json.dumps(example.input, ensure_ascii=False)
