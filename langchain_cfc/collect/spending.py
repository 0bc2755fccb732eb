"""`Spending`: what a store has taken so far, with what it may have taken unseen, against its budget."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from langchain_cfc.collect.budget import Budget, Taken
from langchain_cfc.collect.stages import ModelCalls, Paid, Stage
from langchain_cfc.collect.store import Store

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

    def charge(self, stage: Stage, paid: Paid, lost: int) -> None:
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
    def _dearest(self) -> Taken | None:
        """What no prompt has taken more of; None as long as none is finished."""
        if not self._finished[Stage.LABELLED]:
            return None
        return reduce(Taken.plus, self._dearest_prompt.values(), Taken())

    @property
    def _charged(self) -> Taken:
        """What requests without an answer may have taken."""
        return reduce(Taken.plus, (self._each(stage).times(self._lost[stage]) for stage in _STAGES), Taken())

    def _each(self, stage: Stage) -> Taken:
        known = self._dearest_request[stage]
        # A stage that was finished without any request makes none.
        return known if known.tokens or self._finished[stage] else self._budget.assumed

    def _sum(self, calls: Iterable[ModelCalls]) -> Taken:
        return self._budget.taken(Paid(tuple(calls)))
