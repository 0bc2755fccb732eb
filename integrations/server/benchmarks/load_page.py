"""The page of a run of `load.py`, and what it should have found."""

from __future__ import annotations

from statistics import median

from benchmarks.lib.tables import Measurement, Sheet, Target, format_number, format_seconds
from integrations.server.benchmarks.asking import CLIENTS
from integrations.server.benchmarks.bot import DELAY
from integrations.server.benchmarks.load_results import Interval, Load

MEDIAN, TAIL = 0.5, 0.99
SIDES = {
    "chain": "the chain, called directly",
    "server": "the server",
    "delayed": "control: the server, 20 ms added on purpose",
    "nothing": "floor: a server that answers without reading",
}

HEAD = """\
# What the server adds to calling the chain

Written by one run of `integrations/server/benchmarks/load.py`; do not edit. {machine}; {versions}.

The chain's model and verifier answer at once, n = 10 different candidates, artifact `{features}` saved
and loaded. The server is `langchain-cfc serve` in a process of its own, with authentication, metrics and
logs on. The peer is a process that calls `await chain.ainvoke`, its heap frozen (`gc.freeze()`) when it
has begun, so that its own pauses for garbage are short. Both are asked by {clients} clients, the server
over connections that are kept, at the same times: Poisson arrivals, {least} to {most} requests a second in
all, in every round half of what the server reached as it began, when each client asked again as soon as
it was answered; for the machine was not always as fast. Latency counts from when a request was due, so
waiting behind a slow request, or for a slow client, counts too. The server and the
chain had one core, the clients over HTTP the other.

Sides took turns, {rounds} rounds of {seconds:g} s each, every other one backwards. Quantiles are of all
rounds together; an added quantile is the difference of the two, with an interval by resampling rounds in
pairs (95 % if the rounds were independent).
"""


def make_targets(load: Load) -> list[Target]:
    """Make the targets that the server should reach."""
    return [
        Target(
            f"added to the {name}",
            limit,
            (Measurement(1e3 * load.compare_quantiles("server", share).value, ""),),
            unit=" ms",
        )
        for name, share, limit in (("median", MEDIAN, 5.0), ("99th percentile", TAIL, 25.0))
    ]


def make_sheets(load: Load) -> list[Sheet]:
    """Make all tables of a run."""
    return [_targets(load), _sides(load), _saturation(load), _rounds(load)]


def make_page(load: Load) -> str:
    """Make the page of a run as Markdown."""
    from benchmarks.lib.in_memory import FEATURES
    from integrations.server.benchmarks.load import compute_rate

    rates = [compute_rate(rate) for rate in load.saturation.server]
    head = HEAD.format(
        machine=load.machine,
        versions=", ".join(f"{name} {version}" for name, version in load.versions.items()),
        features=FEATURES,
        clients=CLIENTS,
        least=f"{min(rates):.0f}",
        most=f"{max(rates):.0f}",
        rounds=len(load.rounds["server"]),
        seconds=load.seconds,
    )
    return "\n".join([head, *(sheet.to_markdown() for sheet in make_sheets(load))])


def _targets(load: Load) -> Sheet:
    rows = []
    for figure, share in zip(make_targets(load), (MEDIAN, TAIL), strict=True):
        measured = _between(load.compare_quantiles("server", share))
        rows.append(
            (figure.name, f"at most {format_number(figure.limit)}{figure.unit}", measured, figure.verdict)
        )
    return Sheet(
        "Figures to reach",
        "What the server adds to the chain's own latency.",
        ("figure", "wanted", "measured", "verdict"),
        tuple(rows),
    )


def _sides(load: Load) -> Sheet:
    rows = tuple(
        (
            label,
            _between(load.compute_quantile(name, MEDIAN)),
            _between(load.compute_quantile(name, TAIL)),
            _between(load.compare_quantiles(name, MEDIAN)) if name in {"server", "delayed"} else "-",
            _between(load.compare_quantiles(name, TAIL)) if name in {"server", "delayed"} else "-",
            f"{sum(len(one.seconds) for one in load.rounds[name]):,}",
        )
        for name, label in SIDES.items()
    )
    note = (
        f"The control must show {DELAY * 1e3:g} ms beyond the server's own. The floor is what clients and "
        "the machine take by themselves: epoll wakes up to a millisecond late."
    )
    return Sheet(
        "Latency from when a request was due",
        note,
        ("asked", "median", "99th percentile", "added to the median", "added to the 99th", "requests"),
        rows,
    )


def _saturation(load: Load) -> Sheet:
    turns = load.saturation
    rows = tuple(
        (SIDES[name], f"{median(rates):.0f} a second", f"{min(rates):.0f} to {max(rates):.0f}")
        for name, rates in (("chain", turns.chain), ("server", turns.server))
    )
    return Sheet(
        "Saturation",
        f"Each of {CLIENTS} clients asks again as soon as it is answered.",
        ("asked", "answers", "rounds"),
        rows,
    )


def _rounds(load: Load) -> Sheet:
    rows = []
    for turn, (chain, server) in enumerate(zip(load.rounds["chain"], load.rounds["server"], strict=True)):
        latencies = [sorted(one.seconds) for one in (chain, server)]
        rows.append(
            (
                str(turn + 1),
                *(format_seconds(one[len(one) // 2]) for one in latencies),
                *(format_seconds(one[int(TAIL * len(one))]) for one in latencies),
                *(f"{one.own:.2f} and {one.others:.2f}" for one in (chain, server)),
                f"{server.load:.1f}",
            )
        )
    note = (
        "The machine was not ours alone. *Cores*: kept busy by the side's own processes, and by whatever "
        "else ran, the idle sides included. *Load*: processes that wanted a core, mean of the last minute."
    )
    headings = (
        "round",
        "chain, median",
        "server, median",
        "chain, 99th",
        "server, 99th",
        "cores, chain",
        "cores, server",
        "load",
    )
    return Sheet("Rounds", note, headings, tuple(rows))


def _between(one: Interval) -> str:
    low, high = (f"{1e3 * end:.2f}" for end in (one.low, one.high))
    return f"{1e3 * one.value:.2f} ms ({low} to {high})"
