"""What a collection may cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from math import ceil

from pydantic import BaseModel, ConfigDict, Field

from langchain_cfc.collect.stages import ModelCalls, Stage, Usage
from langchain_cfc.collect.status import CollectionStatus
from langchain_cfc.collect.store import Store
from langchain_cfc.errors import CollectionError, InputError
from langchain_cfc.records import Example
from langchain_cfc.sampling import SamplingName

_MILLION = 1_000_000
# The price of models that have none of their own.
ANY_MODEL = "*"
# Of a request and its answer, where none was ever answered.
_ASSUMED_TOKENS = 500
# So that a third of three tokens is one.
_ROUNDING = 1e-9


class Price(BaseModel):
    """What a model takes for a million tokens, in whatever currency.

    Attributes:
        input: For requests.
        output: For answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)


@dataclass(frozen=True)
class TokensUsed:
    """What something took, as a budget counts it.

    Attributes:
        tokens: Requests and answers together.
        cost: In money; 0 without prices.
    """

    tokens: int = 0
    cost: float = 0.0

    def plus(self, other: TokensUsed) -> TokensUsed:
        """Both together."""
        return TokensUsed(self.tokens + other.tokens, self.cost + other.cost)

    def times(self, number: float) -> TokensUsed:
        """So many times as much, in whole tokens."""
        return TokensUsed(ceil(self.tokens * number - _ROUNDING), self.cost * number)

    def at_least(self, other: TokensUsed) -> TokensUsed:
        """No less of either; what takes most tokens need not cost most."""
        return TokensUsed(max(self.tokens, other.tokens), max(self.cost, other.cost))


@dataclass(frozen=True)
class Budget:
    """What all prompts of a store may take together, earlier runs and requests without an answer included.

    A prompt is begun only if the budget would also hold if it, and each one under way, took as much as the
    dearest so far; as long as none is finished, one goes ahead, unless all is spent. So it is exceeded at
    most by what prompts under way take beyond the dearest before them.

    Args:
        max_tokens: Most tokens, requests and answers together; None for no limit.
        max_cost: Highest cost; None for no limit.
        prices: By the beginning of what models call themselves, the longest that fits; `*` for all others.

    Raises:
        InputError: If a cost is to be kept to without prices, or a limit is not above 0.
    """

    max_tokens: int | None = None
    max_cost: float | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what could not be kept to."""
        if self.max_cost is not None and not self.prices:
            msg = "a highest cost can only be kept to with the prices of the models: give them as well"
            raise InputError(msg)
        for name, most in (("max_tokens", self.max_tokens), ("max_cost", self.max_cost)):
            if most is not None and not most > 0:
                msg = f"{name} is {most!r}; expected a number above 0"
                raise InputError(msg)

    @property
    def limited(self) -> bool:
        """Whether there is anything to keep to."""
        return self.max_tokens is not None or self.max_cost is not None

    def cost(self, paid: Usage) -> float | None:
        """What was paid, in money.

        Returns:
            The sum; None where there are no prices.

        Raises:
            CollectionError: If a model answered that has no price.
        """
        if not self.prices:
            return None
        return sum(self._price(one) for one in paid.calls)

    def taken(self, paid: Usage) -> TokensUsed:
        """What was paid, as it is counted here.

        Raises:
            CollectionError: If a model answered that has no price.
        """
        return TokensUsed(paid.tokens, self.cost(paid) or 0.0)

    @property
    def assumed(self) -> TokensUsed:
        """What a request is charged that was never answered, where nothing is known of any."""
        highest = max((max(one.input, one.output) for one in self.prices.values()), default=0.0)
        return TokensUsed(_ASSUMED_TOKENS, _ASSUMED_TOKENS * highest / _MILLION)

    def allows(
        self, spent: Usage, dearest: TokensUsed | None, under_way: int, unanswered: TokensUsed | None = None
    ) -> bool:
        """Whether one more prompt may be begun.

        Args:
            spent: What all prompts took so far.
            dearest: What no prompt took more of; None as long as none is finished.
            under_way: How many prompts are not finished yet.
            unanswered: What requests may have taken whose answers were not received; nothing by default.
        """
        if not self.limited:
            return True
        so_far = self.taken(spent).plus(unanswered or TokensUsed())
        if dearest is None:
            return under_way == 0 and all(taken < most for taken, most in self._limits(so_far))
        more = TokensUsed((under_way + 1) * dearest.tokens, (under_way + 1) * dearest.cost)
        return all(taken <= most for taken, most in self._limits(so_far.plus(more)))

    def check(self, paid: Usage) -> None:
        """Refuse to go on where nobody says what is spent.

        Raises:
            CollectionError: If a model answered without saying what it took, and there is a limit.
        """
        if self.limited and paid.silent:
            msg = (
                f"{paid.silent} of {paid.answered} answers do not say how many tokens they took, so the "
                "budget cannot be kept to: let the model report its usage, or set no limit"
            )
            raise CollectionError(msg)

    def _limits(self, taken: TokensUsed) -> Iterator[tuple[float, float]]:
        """What was taken, beside the most that may be."""
        pairs = ((taken.tokens, self.max_tokens), (taken.cost, self.max_cost))
        return ((amount, most) for amount, most in pairs if most is not None)

    def _price(self, calls: ModelCalls) -> float:
        fitting = [name for name in self.prices if name != ANY_MODEL and calls.model.startswith(name)]
        price = self.prices.get(max(fitting, key=len) if fitting else ANY_MODEL)
        if price is None:
            msg = f"the model {calls.model!r} answered, and there is no price for it: add one, or one for '*'"
            raise CollectionError(msg)
        return (calls.input_tokens * price.input + calls.output_tokens * price.output) / _MILLION


_STAGES = (Stage.DRAWN, Stage.SCORED, Stage.LABELLED)


class Spending:
    """What all prompts of a store took, in this run and before.

    Requests whose answers were never received, since the process died or a connection broke, are charged like
    the dearest one that was answered for the same stage. So a run that is killed again and again cannot spend
    without bound.

    Args:
        budget: What may be taken.
        store: Where what was taken before is written.

    Attributes:
        paid: What models said that they took.
    """

    def __init__(self, budget: Budget, store: Store) -> None:
        self._budget = budget
        history = store.history()
        self.paid = store.paid()
        self._lost = {stage: history.unanswered.get(stage, 0) for stage in _STAGES}
        self._requests = {stage: history.requests.get(stage, 0) for stage in _STAGES}
        self._finished = {stage: stage in history.finished for stage in _STAGES}
        self._dearest_prompt = {stage: self._sum(history.prompts.get(stage, ())) for stage in _STAGES}
        self._dearest_request = {stage: self._sum(history.calls.get(stage, ())) for stage in _STAGES}

    @property
    def cost(self) -> float | None:
        """What was paid, in money; None without prices."""
        return self._budget.cost(self.paid)

    @property
    def unanswered(self) -> int:
        """How many requests may have been answered without the answer having been received."""
        return sum(self._lost.values())

    def requests(self, stage: Stage) -> int:
        """How many requests a stage takes at most, going by all prompts so far; 1 where none was finished."""
        return self._requests[stage] if self._finished[stage] else max(1, self._requests[stage])

    def allows(self, under_way: int) -> bool:
        """Whether one more prompt may be begun while so many are under way."""
        return self._budget.allows(self.paid, self._dearest, under_way, self._charged)

    def charge(self, stage: Stage, paid: Usage, lost: int) -> None:
        """Count a stage of a prompt that is finished, or has failed.

        Args:
            stage: The stage.
            paid: What its models said that they took.
            lost: How many requests failed that may have been answered.

        Raises:
            CollectionError: If what was taken cannot be known.
        """
        self._budget.check(paid)
        self.paid = self.paid.plus(paid)
        self._lost[stage] += lost
        self._finished[stage] = True
        self._requests[stage] = max(self._requests[stage], paid.answered)
        taken = self._budget.taken(paid)
        if paid.answered:
            each = taken.times(1 / paid.answered)
            self._dearest_request[stage] = self._dearest_request[stage].at_least(each)
        whole = taken.plus(self._dearest_request[stage].times(lost))
        self._dearest_prompt[stage] = self._dearest_prompt[stage].at_least(whole)

    @property
    def _dearest(self) -> TokensUsed | None:
        """What no prompt has taken more of; None as long as none is finished."""
        if not self._finished[Stage.LABELLED]:
            return None
        return reduce(TokensUsed.plus, self._dearest_prompt.values(), TokensUsed())

    @property
    def _charged(self) -> TokensUsed:
        """What requests without an answer may have taken."""
        return reduce(
            TokensUsed.plus, (self._each(stage).times(self._lost[stage]) for stage in _STAGES), TokensUsed()
        )

    def _each(self, stage: Stage) -> TokensUsed:
        known = self._dearest_request[stage]
        # A stage that was finished without any request makes none.
        return known if known.tokens or self._finished[stage] else self._budget.assumed

    def _sum(self, calls: Iterable[ModelCalls]) -> TokensUsed:
        return self._budget.taken(Usage(tuple(calls)))


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
    standing: CollectionStatus | None,
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
        cost=budget.cost(Usage(tuple(calls))) if known else None,
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
