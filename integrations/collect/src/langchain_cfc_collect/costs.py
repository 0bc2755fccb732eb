"""Stages of a prompt, usage of models, prices, and the budget of a collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from langchain_cfc.errors import CollectionError, InputError
from langchain_cfc.sampling import UsageRecorder


class Stage(IntEnum):
    """Last finished stage of a prompt; each stage is paid for once."""

    OPEN = 0
    DRAWN = 1
    SCORED = 2
    LABELLED = 3


@dataclass(frozen=True)
class ModelCalls:
    """Requests that one model answered, with their tokens."""

    model: str  # name that the model reports; empty if it reports none
    drew: bool  # whether candidates are among the answers
    input_tokens: int  # tokens of the requests; 0 if the model does not report them
    output_tokens: int  # tokens of the answers; 0 if the model does not report them
    answered: int = 0  # number of answered requests

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """All of this that can be added up; calls that drew count as one draw."""
        return self.drew, self.input_tokens, self.output_tokens, self.answered


@dataclass(frozen=True)
class Usage:
    """Usage of models, for example by one stage, whether the stage succeeded or not.

    Attributes:
        calls: Answered requests by model.
        unreported: Number of answered requests whose tokens the model did not report.
    """

    calls: tuple[ModelCalls, ...] = ()
    unreported: int = 0

    @classmethod
    def from_recorder(cls, recorder: UsageRecorder) -> Usage:
        """Return the usage of all calls that a recorder has seen."""
        calls = []
        for name, answered in recorder.answers.items():
            usage = recorder.usages.get(name)
            tokens = (0, 0) if usage is None else (usage["input_tokens"], usage["output_tokens"])
            calls.append(ModelCalls(name, name in recorder.versions, *tokens, answered))
        return cls(tuple(calls), recorder.silent)

    @classmethod
    def from_models(cls, names: Sequence[str]) -> Usage:
        """Return the usage of candidates for which only the names of the models are known."""
        return cls(tuple(ModelCalls(name, drew=True, input_tokens=0, output_tokens=0) for name in names))

    def __bool__(self) -> bool:
        """Whether there is any; most stages of most collections use no model."""
        return bool(self.calls)

    def __add__(self, other: Usage) -> Usage:
        return self._add(other, 1)

    def __sub__(self, other: Usage) -> Usage:
        """Return the part of this usage that is not in `other`, by model."""
        return self._add(other, -1)

    def _add(self, other: Usage, factor: int) -> Usage:
        if not other:
            return self
        merged = {one.model: one for one in self.calls}
        for one in other.calls:
            known = merged.get(one.model, ModelCalls(one.model, False, 0, 0))
            sums = (a + factor * b for a, b in zip(known.counts, one.counts, strict=True))
            drew, *counts = (max(0, total) for total in sums)
            merged[one.model] = ModelCalls(one.model, bool(drew), *counts)
        calls = (one for one in merged.values() if any(one.counts))
        return Usage(tuple(calls), max(0, self.unreported + factor * other.unreported))

    @property
    def answered(self) -> int:
        """Number of answered requests."""
        return sum(one.answered for one in self.calls)

    @property
    def tokens(self) -> int:
        """Number of tokens of all requests and answers."""
        return sum(one.input_tokens + one.output_tokens for one in self.calls)


# For English text; other languages need more tokens.
CHARACTERS_PER_TOKEN = 4
# Assumed tokens of one answer before any answer is known, and names of settings that limit them.
_ASSUMED_OUTPUT = 250
_OUTPUT_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_MILLION = 1_000_000
# What a budget counts: tokens of requests and answers together, and their cost, which is 0 without prices.
Charge: TypeAlias = npt.NDArray[np.float64]
# Key of the price for models without a price of their own.
ANY_MODEL = "*"
# Assumed tokens of a request and its answer together, if no request was ever answered.
_ASSUMED_TOKENS = 500


def assume_output(settings: Mapping[str, Any]) -> int:
    """Return the assumed tokens of one answer: at most the limit in the settings or request of a model."""
    limits = [one for name in _OUTPUT_LIMITS if isinstance(one := settings.get(name), int) and one > 0]
    return min([_ASSUMED_OUTPUT, *limits])


class Price(BaseModel):
    """Price of a model per million tokens, in any currency.

    Attributes:
        input: Price of a million tokens in requests.
        output: Price of a million tokens in answers.
        batch: Share of both prices that is charged for requests in the provider's batches, from 0 to 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)
    batch: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)


@dataclass(frozen=True)
class Budget:
    """Limits for all prompts of a store together, including earlier runs and requests without an answer.

    A prompt is started only if the budget would hold even if this prompt and each prompt in progress used as
    much as the most expensive prompt so far. Until one prompt is finished, only one runs at a time, and only
    if the budget is not used up. So the budget can be exceeded only by the amount that prompts in progress
    use beyond the most expensive prompt before them.

    Args:
        max_tokens: Maximum number of tokens, requests and answers together; None for no limit.
        max_cost: Maximum cost; None for no limit.
        prices: Prices by prefix of the name that models report, the longest match wins; `*` for all others.

    Raises:
        InputError: If `max_cost` is given without prices, or a limit is not above 0.
    """

    max_tokens: int | None = None
    max_cost: float | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the limits."""
        if self.max_cost is not None and not self.prices:
            msg = "max_cost needs the prices of the models: give prices as well"
            raise InputError(msg)
        limits: dict[str, Any] = {"max_tokens": self.max_tokens, "max_cost": self.max_cost}
        for name, limit in limits.items():
            if limit is not None and not (isinstance(limit, int | float) and limit > 0):
                msg = f"{name} is {limit!r}; expected a number above 0"
                raise InputError(msg)

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return self.max_tokens is not None or self.max_cost is not None

    def compute_cost(self, usage: Usage, batched: Usage | None = None) -> float | None:
        """Return the cost of usage, of which the part `batched` is charged at batch prices.

        None without prices; raises `CollectionError` if a model has no price.
        """
        if not self.prices:
            return None
        full = sum(map(self._price_calls, usage.calls))
        reduced = () if batched is None else batched.calls
        saved = sum((1.0 - self._find_price(one).batch) * self._price_calls(one) for one in reduced)
        return max(0.0, full - saved)

    def count(self, usage: Usage, batched: Usage | None = None) -> Charge:
        """Return the charge of usage; raises `CollectionError` if a model has no price."""
        return np.array([usage.tokens, self.compute_cost(usage, batched) or 0.0])

    def is_kept_by(self, charge: Charge, *, is_used_up: bool = True) -> bool:
        """Return whether a charge is within the limits, or below them unless they may be used up."""
        limits = np.array([self.max_tokens or np.inf, self.max_cost or np.inf])
        return bool(np.all(charge <= limits if is_used_up else charge < limits))

    @property
    def assumed_request(self) -> Charge:
        """Assumed charge of a request without an answer, if no request was ever answered."""
        highest = max((max(one.input, one.output) for one in self.prices.values()), default=0.0)
        return _ASSUMED_TOKENS * np.array([1.0, highest / _MILLION])

    def check_reported(self, usage: Usage, *, drew: bool = False) -> None:
        """Raise `CollectionError` if there is a limit and a model did not report its tokens.

        The same if candidates were drawn and no model was seen, as in a function that sends its own requests.
        """
        if self.is_limited and drew and not usage.answered:
            msg = (
                "the generator calls no model that LangChain reports, so the budget cannot be enforced: call "
                "a model of LangChain, or set no limit"
            )
            raise CollectionError(msg)
        if self.is_limited and usage.unreported:
            msg = (
                f"{usage.unreported} of {usage.answered} answers do not report how many tokens they used, "
                "so the budget cannot be enforced: let the model report its usage, or set no limit"
            )
            raise CollectionError(msg)

    def _find_price(self, calls: ModelCalls) -> Price:
        matching = [name for name in self.prices if name != ANY_MODEL and calls.model.startswith(name)]
        price = self.prices.get(max(matching, key=len) if matching else ANY_MODEL)
        if price is None:
            msg = f"the model {calls.model!r} answered, but has no price: add one, or one for '*'"
            raise CollectionError(msg)
        return price

    def _price_calls(self, calls: ModelCalls) -> float:
        price = self._find_price(calls)
        return (calls.input_tokens * price.input + calls.output_tokens * price.output) / _MILLION


class BudgetTracker:
    """Tracks the usage of all prompts of a store, in this run and earlier ones, against a budget.

    A request whose answer was not received is charged like the most expensive answered request of its stage.
    So a run that is killed again and again cannot spend without limit.

    Args:
        budget: The budget.
        usage: Usage of earlier runs.
        batched: The part of it that is charged at batch prices.
        finished: Stages that at least one prompt has finished.
    """

    def __init__(self, budget: Budget, usage: Usage, batched: Usage, finished: Iterable[Stage]) -> None:
        self.budget = budget
        self.usage, self.batched = usage, batched
        self._finished = set(finished)
        self._lost: Counter[Stage] = Counter()
        # The largest number of requests of a prompt, and the largest charges, by stage.
        self._requests: Counter[Stage] = Counter()
        self._largest_prompt = {stage: np.zeros(2) for stage in Stage}
        self._largest_request = {stage: np.zeros(2) for stage in Stage}

    def add_earlier(self, stage: Stage, usage: Usage, lost: int) -> None:
        """Count `lost` requests of a stage of a prompt in earlier runs, and learn from its usage."""
        self._lost[stage] += lost
        self._keep_largest(stage, usage, 0)

    def _keep_largest(self, stage: Stage, usage: Usage, lost: int) -> None:
        if not usage and not lost:
            return
        self._requests[stage] = max(self._requests[stage], usage.answered)
        charge, request = self.budget.count(usage), self._largest_request
        if usage.answered:
            request[stage] = np.maximum(request[stage], charge / usage.answered)
        charge += request[stage] * lost
        self._largest_prompt[stage] = np.maximum(self._largest_prompt[stage], charge)

    def expected_requests(self, stage: Stage) -> int:
        """Return the largest number of requests of a stage so far; at least 1 if it was never finished."""
        return max(self._requests[stage], 0 if stage in self._finished else 1)

    def allows(self, in_progress: int) -> bool:
        """Return whether one more prompt may be started."""
        if not self.budget.is_limited:
            return True
        so_far = self.budget.count(self.usage) + self._estimate_lost()
        if Stage.LABELLED not in self._finished:
            return in_progress == 0 and self.budget.is_kept_by(so_far, is_used_up=False)
        return self.budget.is_kept_by(so_far + sum(self._largest_prompt.values()) * (in_progress + 1))

    def _estimate_lost(self) -> Charge:
        charged = np.zeros(2)
        for stage, count in self._lost.items():
            largest = self._largest_request[stage]
            # A stage that has finished without using any tokens makes no requests.
            is_known = largest[0] or stage in self._finished
            charged += (largest if is_known else self.budget.assumed_request) * count
        return charged

    def allows_requests(self, usage: Usage, batched: Usage) -> bool:
        """Return whether the budget holds with further usage, of which `batched` is at batch prices."""
        if not self.budget.is_limited:
            return True
        used = self.budget.count(self.usage + usage, self.batched + batched)
        return self.budget.is_kept_by(used + self._estimate_lost())

    def add_answers(self, stage: Stage, usage: Usage, batched: Usage, lost: int) -> None:
        """Count usage of answers before their stage ends, and `lost` requests that got none.

        `batched` is the part of the usage at batch prices.
        """
        self.usage += usage
        self.batched += batched
        self._lost[stage] += lost

    def add_stage(self, stage: Stage, usage: Usage, lost: int, paid: Usage) -> None:
        """Count the usage and `lost` requests of a stage that finished or failed.

        `paid` is the part of the usage that was counted before. Raises `CollectionError` if tokens or prices
        are unknown.
        """
        self.budget.check_reported(usage)
        self.add_answers(stage, usage - paid, Usage(), lost)
        self._finished.add(stage)
        self._keep_largest(stage, usage, lost)

    @property
    def cost(self) -> float | None:
        """Cost of the usage so far; None without prices."""
        return self.budget.compute_cost(self.usage, self.batched)

    @property
    def unanswered(self) -> int:
        """Number of requests whose answers were not received."""
        return sum(self._lost.values())
