"""The page of a run of `serving.py`, and what it should have found."""

from __future__ import annotations

from benchmarks.alternate import Ratio
from benchmarks.figures import Figure, Found
from benchmarks.in_memory import FEW, N
from benchmarks.serving_results import Served
from benchmarks.sheet import Sheet, number, span

HEAD = """\
# What serving costs beside the model and the verifier

Written by one run of `benchmarks/serving.py`; do not edit. {machine}; {versions}. n = {n}.

Ways that are compared were timed in turn within the run, and every ratio is the median over the rounds with
an interval in brackets (95 % if the rounds were independent). Times are of one machine; the ratios are what
counts. *By hand* is `model.batch([prompt] * n)` and then `judge.batch` of the n pairs: no promise, no
decision, no check.
"""


def figures(served: Served) -> list[Figure]:
    """The figures to reach; the worst row counts."""
    made = [
        Figure(
            f"`{way}` over by hand, in memory",
            limit,
            tuple(
                Found(row.ratio.median, f"{row.distinct} distinct answers")
                for row in served.overhead
                if row.way == way
            ),
            unit="x",
        )
        for way, limit in (("invoke", 1.10), ("ainvoke", 1.15))
    ]
    own = tuple(Found(1e6 * row.own, f"`{row.features}`") for row in served.arithmetic)
    decided = tuple(Found(1e6 * row.decide.p50, f"`{row.features}`") for row in served.arithmetic)
    made.append(Figure("scores to decision for a new prompt", 50, decided, unit=" us"))
    made.append(Figure("the same with the result, inside `invoke`", 50, own, unit=" us"))
    for program, limit in (("langchain_cfc", 1.3), ("CFCRunnable", 1.6)):
        found = [row for row in served.imports if row.program == program]
        name = f"importing {program}, over {found[0].against}" if found else f"importing {program}"
        ratios = tuple(Found(row.ratio.median, "fresh interpreters") for row in found)
        made.append(Figure(name, limit, ratios, unit="x"))
    waits = tuple(Found(row.ours.median, _bound(row.way, row.max_concurrency)) for row in served.http)
    made.append(Figure("one prompt over HTTP, over draw + verify", 1.1, waits, unit="x"))
    judged = tuple(
        Found(row.judged, f"`{row.way}`, {row.distinct} distinct")
        for row in served.requests
        if row.distinct == FEW
    )
    made.append(Figure(f"judgements asked for where {FEW} answers differ", FEW, judged))
    return made


def sheets(served: Served) -> list[Sheet]:
    """All tables; those of parts that were not measured are left out."""
    tables = [_targets(served), _overhead(served), _arithmetic(served), _imports(served)]
    tables += [_http(served), _requests(served)]
    return [table for table in tables if table.rows]


def page(served: Served) -> str:
    """The page as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in served.versions.items())
    head = HEAD.format(machine=served.machine, versions=versions, n=N)
    return "\n".join([head, *(sheet.markdown() for sheet in sheets(served))])


def _targets(served: Served) -> Sheet:
    rows = []
    for figure in figures(served):
        worst = figure.worst
        said = "-" if worst is None else f"{number(worst.value)}{figure.unit}"
        where = "-" if worst is None else worst.where
        rows.append(
            (figure.name, f"at most {number(figure.limit)}{figure.unit}", said, where, figure.verdict)
        )
    headings = ("figure", "wanted", "measured", "worst at", "verdict")
    return Sheet("Figures to reach", "The worst row counts.", headings, tuple(rows))


def _overhead(served: Served) -> Sheet:
    rows = tuple(
        (
            f"`{row.way}`",
            str(row.distinct),
            _said(row.ratio),
            span(row.ratio.seconds),
            span(row.ratio.other),
            _said(row.control),
            str(row.ratio.rounds),
        )
        for row in served.overhead
    )
    note = (
        "Chat model and judge answer at once. Control: by hand over by hand, which is 1 but for what the"
        " machine adds."
    )
    headings = ("call", "distinct answers", "ratio", "ours", "by hand", "control", "rounds")
    return Sheet("Overhead in memory", note, headings, rows)


def _arithmetic(served: Served) -> Sheet:
    rows = tuple(
        (
            f"`{row.features}`",
            str(row.d),
            *(f"{span(times.p50)} / {span(times.p90)}" for times in (row.decide, row.again)),
            f"{span(row.after.p50)} / {span(row.after.p90)}",
            span(row.plain.p50),
            span(row.own),
            span(row.whole.p50),
            span(row.whole_plain.p50),
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


def _imports(served: Served) -> Sheet:
    rows = tuple(
        (
            row.program,
            row.against,
            _said(row.ratio),
            span(row.ratio.seconds),
            span(row.ratio.other),
            str(row.ratio.rounds),
        )
        for row in served.imports
    )
    note = "Fresh interpreters, from start to exit, with compiled files in place."
    headings = ("import", "against", "ratio", "the one", "the other", "rounds")
    return Sheet("Imports", note, headings, rows)


def _http(served: Served) -> Sheet:
    rows = tuple(
        (
            f"`{row.way}`",
            "default" if row.max_concurrency is None else str(row.max_concurrency),
            _said(row.ours),
            _said(row.by_hand),
            str(row.ours.rounds),
        )
        for row in served.http
    )
    note = (
        "ChatOpenAI as generator and as judge, all answers distinct, against a server in its own process"
        f" that takes {number(served.draw)} s to answer and {number(served.verify)} s to judge, however many"
        " ask. Ratios to the sum of the two; what ours and by hand have in common beyond 1 is the clients'"
        " own work. LangChain's default for `invoke` is as many threads as cores and four more."
    )
    headings = ("call", "max_concurrency", "ours", "by hand", "rounds")
    return Sheet("Over HTTP", note, headings, rows)


def _requests(served: Served) -> Sheet:
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


def _bound(way: str, bound: int | None) -> str:
    return f"`{way}`, max_concurrency {'default' if bound is None else bound}"


def _said(ratio: Ratio) -> str:
    return f"{ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
