"""What a collection may cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil

from pydantic import BaseModel, ConfigDict, Field

from langchain_cfc.collect.stages import ModelCalls, Paid
from langchain_cfc.errors import CollectionError, InputError

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
class Taken:
    """What something took, as a budget counts it.

    Attributes:
        tokens: Requests and answers together.
        cost: In money; 0 without prices.
    """

    tokens: int = 0
    cost: float = 0.0

    def plus(self, other: Taken) -> Taken:
        """Both together."""
        return Taken(self.tokens + other.tokens, self.cost + other.cost)

    def times(self, number: float) -> Taken:
        """So many times as much, in whole tokens."""
        return Taken(ceil(self.tokens * number - _ROUNDING), self.cost * number)

    def at_least(self, other: Taken) -> Taken:
        """No less of either; what takes most tokens need not cost most."""
        return Taken(max(self.tokens, other.tokens), max(self.cost, other.cost))


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

    def cost(self, paid: Paid) -> float | None:
        """What was paid, in money.

        Returns:
            The sum; None where there are no prices.

        Raises:
            CollectionError: If a model answered that has no price.
        """
        if not self.prices:
            return None
        return sum(self._price(one) for one in paid.calls)

    def taken(self, paid: Paid) -> Taken:
        """What was paid, as it is counted here.

        Raises:
            CollectionError: If a model answered that has no price.
        """
        return Taken(paid.tokens, self.cost(paid) or 0.0)

    @property
    def assumed(self) -> Taken:
        """What a request is charged that was never answered, where nothing is known of any."""
        highest = max((max(one.input, one.output) for one in self.prices.values()), default=0.0)
        return Taken(_ASSUMED_TOKENS, _ASSUMED_TOKENS * highest / _MILLION)

    def allows(
        self, spent: Paid, dearest: Taken | None, under_way: int, unanswered: Taken | None = None
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
        so_far = self.taken(spent).plus(unanswered or Taken())
        if dearest is None:
            return under_way == 0 and all(taken < most for taken, most in self._limits(so_far))
        more = Taken((under_way + 1) * dearest.tokens, (under_way + 1) * dearest.cost)
        return all(taken <= most for taken, most in self._limits(so_far.plus(more)))

    def check(self, paid: Paid) -> None:
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

    def _limits(self, taken: Taken) -> Iterator[tuple[float, float]]:
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
