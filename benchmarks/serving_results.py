"""What a run of `serving.py` found, as strict data: times in seconds, nothing that names a machine."""

from __future__ import annotations

from typing import Literal

from benchmarks.alternate import Ratio
from benchmarks.results import Part, Times

Way = Literal["invoke", "ainvoke"]


class Overhead(Part):
    """`CFCRunnable` against the same calls by hand, everything in memory.

    Attributes:
        way: `invoke` or `ainvoke`.
        distinct: Number of different answers among the n.
        ratio: Ours over by hand.
        control: By hand over by hand: what the machine adds to a ratio of 1.
    """

    way: Way
    distinct: int
    ratio: Ratio
    control: Ratio


class Arithmetic(Part):
    """Our own arithmetic for one prompt.

    Attributes:
        features: Feature text.
        d: Number of columns.
        decide: Packing the scores and `decide`, for prompts that were not asked before.
        again: The same for prompts that were.
        after: From the return of the verifier to the return of `invoke`, for new prompts: checks, decision,
            result, and the end of LangChain's run.
        plain: The same span of a `RunnableLambda`: the end of a run alone.
        whole: `invoke` with a generator and a verifier that return at once.
        whole_plain: A `RunnableLambda` that calls the same two.
    """

    features: str
    d: int
    decide: Times
    again: Times
    after: Times
    plain: Times
    whole: Times
    whole_plain: Times

    @property
    def own(self) -> float:
        """Median seconds of decision and result: `after` less what LangChain takes to end any run."""
        return self.after.p50 - self.plain.p50


class Import(Part):
    """A program in a fresh interpreter against another.

    Attributes:
        program: What is imported.
        against: What it is compared with.
        ratio: The one over the other, from start to exit.
    """

    program: str
    against: str
    ratio: Ratio


class Http(Part):
    """One prompt over HTTP against the ideal: one latency to draw and one to verify.

    Attributes:
        way: `invoke` or `ainvoke`.
        max_concurrency: As configured; None for LangChain's default.
        ours: `CFCRunnable` over the ideal.
        by_hand: The same calls by hand over the ideal.
    """

    way: Way
    max_concurrency: int | None
    ours: Ratio
    by_hand: Ratio


class Requests(Part):
    """What the server counted for one prompt.

    Attributes:
        way: `invoke` or `ainvoke`.
        distinct: Number of different answers among the n.
        drawn: Requests for candidates.
        judged: Requests for judgements.
        judged_by_hand: The same by hand.
    """

    way: Way
    distinct: int
    drawn: int
    judged: int
    judged_by_hand: int


class Served(Part):
    """One run.

    Attributes:
        versions: Python and packages.
        machine: System, processor architecture and number of cores.
        draw: Seconds that the server takes to answer a prompt.
        verify: Seconds that it takes to judge.
        overhead: In memory.
        arithmetic: By feature map.
        imports: Fresh interpreters.
        http: Over HTTP.
        requests: What the server counted.
    """

    versions: dict[str, str]
    machine: str
    draw: float
    verify: float
    overhead: tuple[Overhead, ...] = ()
    arithmetic: tuple[Arithmetic, ...] = ()
    imports: tuple[Import, ...] = ()
    http: tuple[Http, ...] = ()
    requests: tuple[Requests, ...] = ()
