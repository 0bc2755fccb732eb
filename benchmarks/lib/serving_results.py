"""What a run of `serving.py` finds, as strict data, and the tables and the page of it."""

from __future__ import annotations

from typing import Literal

from benchmarks.lib.in_memory import FEW_DISTINCT, N
from benchmarks.lib.tables import (
    Measurement,
    Sheet,
    Target,
    format_number,
    format_seconds,
    make_target_sheet,
)
from benchmarks.lib.timing import Data, Ratio, Times

_HEAD = """\
# What serving costs beside the model and the verifier

Written by one run of `benchmarks/serving.py`; do not edit. {machine}; {versions}. n = {n}.

Ways that are compared were timed in turn within the run, and every ratio is the median over the rounds with
an interval in brackets (95 % if the rounds were independent). Times are of one machine; the ratios are what
counts. *By hand* is `model.batch([prompt] * n)` and then `judge.batch` of the n pairs: no promise, no
decision, no check.
"""


Way = Literal["invoke", "ainvoke"]


class Overhead(Data):
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


class Waves(Data):
    """`CFCRunnable` under a draw rule that scores between waves, against the same waves by hand.

    Attributes:
        way: `invoke` or `ainvoke`.
        draws: The rule.
        seconds: What the model takes to answer.
        ratio: Ours over by hand.
        control: By hand over by hand.
    """

    way: Way
    draws: str
    seconds: float
    ratio: Ratio
    control: Ratio


class Arithmetic(Data):
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


class LongAnswer(Data):
    """A long answer whose claims are scored, against the same calls in a `RunnableLambda`.

    Attributes:
        sentences: Number of sentences of the answer.
        ratio: Ours, which splits the answer and decides about its sentences, over the calls alone.
        split: Splitting the answer alone.
    """

    sentences: int
    ratio: Ratio
    split: Times

    @property
    def added(self) -> float:
        """Median seconds that splitting, decision and result add."""
        return self.ratio.seconds - self.ratio.other


class Import(Data):
    """A program in a fresh interpreter against another.

    Attributes:
        program: What is imported.
        against: What it is compared with.
        ratio: The one over the other, from start to exit.
    """

    program: str
    against: str
    ratio: Ratio


class Http(Data):
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


class Requests(Data):
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


class ServingResults(Data):
    """The results of one run of the benchmark.

    Attributes:
        versions: Python and packages.
        machine: System, processor architecture and number of cores.
        draw: Seconds that the server takes to answer a prompt.
        verify: Seconds that it takes to judge.
        overhead: In memory.
        waves: Under draw rules.
        arithmetic: By feature map.
        claims: Long answers.
        imports: Fresh interpreters.
        http: Over HTTP.
        requests: What the server counted.
    """

    versions: dict[str, str]
    machine: str
    draw: float
    verify: float
    overhead: tuple[Overhead, ...] = ()
    waves: tuple[Waves, ...] = ()
    arithmetic: tuple[Arithmetic, ...] = ()
    claims: tuple[LongAnswer, ...] = ()
    imports: tuple[Import, ...] = ()
    http: tuple[Http, ...] = ()
    requests: tuple[Requests, ...] = ()


def list_targets(served: ServingResults) -> list[Target]:
    """List the targets; the worst row counts."""
    targets = [
        Target(
            f"`{way}` over by hand, in memory",
            limit,
            tuple(
                Measurement(row.ratio.median, f"{row.distinct} distinct answers")
                for row in served.overhead
                if row.way == way
            ),
            unit="x",
        )
        for way, limit in (("invoke", 1.10), ("ainvoke", 1.15))
    ]
    for seconds in sorted({row.seconds for row in served.waves}, reverse=True):
        answers = f"the model takes {format_seconds(seconds)}" if seconds else "the model takes no time"
        found = tuple(
            Measurement(row.ratio.median, f"`{row.way}`, `{row.draws}`")
            for row in served.waves
            if row.seconds == seconds
        )
        targets.append(Target(f"waves of draws over the same by hand, {answers}", 1.10, found, unit="x"))
    own = tuple(Measurement(1e6 * row.own, f"`{row.features}`") for row in served.arithmetic)
    decided = tuple(Measurement(1e6 * row.decide.p50, f"`{row.features}`") for row in served.arithmetic)
    targets.append(Target("scores to decision for a new prompt", 50, decided, unit=" us"))
    targets.append(Target("the same with the result, inside `invoke`", 50, own, unit=" us"))
    added = tuple(Measurement(1e3 * row.added, f"{row.sentences} sentences") for row in served.claims)
    targets.append(Target("added by the claims of a long answer", 5, added, unit=" ms"))
    for program, limit in (("langchain_cfc", 1.3), ("CFCRunnable", 1.6)):
        imported = [row for row in served.imports if row.program == program]
        name = f"importing {program}, over {imported[0].against}" if imported else f"importing {program}"
        ratios = tuple(Measurement(row.ratio.median, "fresh interpreters") for row in imported)
        targets.append(Target(name, limit, ratios, unit="x"))
    waits = tuple(
        Measurement(row.ours.median, _format_call(row.way, row.max_concurrency)) for row in served.http
    )
    targets.append(Target("one prompt over HTTP, over draw + verify", 1.1, waits, unit="x"))
    judged = tuple(
        Measurement(row.judged, f"`{row.way}`, {row.distinct} distinct")
        for row in served.requests
        if row.distinct == FEW_DISTINCT
    )
    targets.append(Target(f"judgements asked for where {FEW_DISTINCT} answers differ", FEW_DISTINCT, judged))
    return targets


def make_sheets(served: ServingResults) -> list[Sheet]:
    """Make all tables, but for parts that were not measured."""
    tables = [
        make_target_sheet(list_targets(served), "The worst row counts."),
        _make_overhead_sheet(served),
        _make_wave_sheet(served),
        _make_arithmetic_sheet(served),
        _make_claims_sheet(served),
        _make_import_sheet(served),
        _make_http_sheet(served),
        _make_request_sheet(served),
    ]
    return [table for table in tables if table.rows]


def make_page(served: ServingResults) -> str:
    """Make the page of a run as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in served.versions.items())
    head = _HEAD.format(machine=served.machine, versions=versions, n=N)
    return "\n".join([head, *(sheet.to_markdown() for sheet in make_sheets(served))])


def _make_overhead_sheet(served: ServingResults) -> Sheet:
    rows = tuple(
        (f"`{row.way}`", str(row.distinct), *_format_times(row.ratio, row.control)) for row in served.overhead
    )
    note = (
        "Chat model and judge answer at once. Control: by hand over by hand, which is 1 but for what the"
        " machine adds."
    )
    headings = ("call", "distinct answers", "ratio", "ours", "by hand", "control", "rounds")
    return Sheet("Overhead in memory", note, headings, rows)


def _make_wave_sheet(served: ServingResults) -> Sheet:
    rows = tuple(
        (
            f"`{row.way}`",
            f"`{row.draws}`",
            format_seconds(row.seconds) if row.seconds else "0",
            *_format_times(row.ratio, row.control),
        )
        for row in served.waves
    )
    note = (
        "Draw rules that no candidate stops, so that every prompt takes all waves; each wave is scored before"
        " the next, by hand as well. *model*: how long the chat model takes to answer; the judge answers at"
        " once. By hand checks no score and asks no rule."
    )
    headings = ("call", "draws", "model", "ratio", "ours", "by hand", "control", "rounds")
    return Sheet("Waves of a draw rule", note, headings, rows)


def _make_arithmetic_sheet(served: ServingResults) -> Sheet:
    rows = tuple(
        (
            f"`{row.features}`",
            str(row.d),
            *(
                f"{format_seconds(times.p50)} / {format_seconds(times.p90)}"
                for times in (row.decide, row.again, row.after)
            ),
            format_seconds(row.plain.p50),
            format_seconds(row.own),
            format_seconds(row.whole.p50),
            format_seconds(row.whole_plain.p50),
        )
        for row in served.arithmetic
    )
    note = (
        "One prompt, p50 / p90. Calibrated on the recording that ships, each prompt's ten candidates taken"
        " twice; timed on prompts held out, by an artifact just loaded that had answered a hundred others."
        " *decide*: packing the scores and the decision, for new prompts and for the same asked again."
        " *after*: from the verifier's return to the return of `invoke`, new prompts; *run's end*: the same"
        " span of a `RunnableLambda`; *own*: the first less the second, the decision and the result. *whole*:"
        " `invoke` with a generator and a verifier that return at once, messages with their token counts;"
        " *plain*: a `RunnableLambda` that calls the same two."
    )
    headings = ("features", "d", "decide", "again", "after", "run's end", "own", "whole", "plain")
    return Sheet("Own arithmetic", note, headings, rows)


def _make_claims_sheet(served: ServingResults) -> Sheet:
    rows = tuple(
        (
            str(row.sentences),
            format_seconds(row.added),
            format_seconds(row.split.p50),
            format_seconds(row.ratio.seconds),
            format_seconds(row.ratio.other),
            str(row.ratio.rounds),
        )
        for row in served.claims
    )
    note = (
        'One answer with `output="claims"`, by a model and a verifier that return at once; calibrated on the'
        " recording of long answers. *added*: ours less a `RunnableLambda` that calls the same two, which is"
        " splitting, decision and result; *split*: the splitter alone."
    )
    headings = ("sentences", "added", "split", "ours", "plain", "rounds")
    return Sheet("Claims of a long answer", note, headings, rows)


def _make_import_sheet(served: ServingResults) -> Sheet:
    rows = tuple((row.program, row.against, *_format_times(row.ratio)) for row in served.imports)
    note = "Fresh interpreters, from start to exit, with compiled files in place."
    headings = ("import", "against", "ratio", "the one", "the other", "rounds")
    return Sheet("Imports", note, headings, rows)


def _make_http_sheet(served: ServingResults) -> Sheet:
    rows = tuple(
        (
            f"`{row.way}`",
            "default" if row.max_concurrency is None else str(row.max_concurrency),
            _format_ratio(row.ours),
            _format_ratio(row.by_hand),
            str(row.ours.rounds),
        )
        for row in served.http
    )
    note = (
        "ChatOpenAI as generator and as judge, all answers distinct, against a server in its own process"
        f" that takes {format_number(served.draw)} s to answer and {format_number(served.verify)} s to"
        " judge, however many ask. Ratios to the sum of the two; what ours and by hand have in common beyond"
        " 1 is the clients' own work. LangChain's default for `invoke` is as many threads as cores and four"
        " more."
    )
    headings = ("call", "max_concurrency", "ours", "by hand", "rounds")
    return Sheet("Over HTTP", note, headings, rows)


def _make_request_sheet(served: ServingResults) -> Sheet:
    rows = tuple(
        (
            f"`{row.way}`",
            str(row.distinct),
            str(row.drawn),
            str(row.judged),
            str(row.judged_by_hand),
            str(row.judged_by_hand - row.judged),
        )
        for row in served.requests
    )
    headings = ("call", "distinct answers", "drawn", "judged", "judged by hand", "saved")
    return Sheet("Requests", "What the server counted for one prompt.", headings, rows)


def _format_call(way: str, bound: int | None) -> str:
    return f"`{way}`, max_concurrency {'default' if bound is None else bound}"


def _format_times(ratio: Ratio, *controls: Ratio) -> tuple[str, ...]:
    """Return the cells of a ratio: the ratio itself, both times, the ratios of controls, and the rounds."""
    times = (format_seconds(ratio.seconds), format_seconds(ratio.other))
    return _format_ratio(ratio), *times, *map(_format_ratio, controls), str(ratio.rounds)


def _format_ratio(ratio: Ratio) -> str:
    return f"{ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
