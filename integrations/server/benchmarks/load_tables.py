"""The tables of a run of `load.py`."""

from __future__ import annotations

from statistics import median

from benchmarks.lib.measuring import format_seconds, print_table
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


def print_tables(load: Load) -> None:
    """Print all tables of a run."""
    _print_sides(load)
    _print_saturation(load)
    _print_rounds(load)


def _print_sides(load: Load) -> None:
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
    headings = ("asked", "median", "99th percentile", "added to the median", "added to the 99th", "requests")
    print_table("Latency from when a request was due", headings, rows, note)


def _print_saturation(load: Load) -> None:
    turns = load.saturation
    rows = tuple(
        (SIDES[name], f"{median(rates):.0f} a second", f"{min(rates):.0f} to {max(rates):.0f}")
        for name, rates in (("chain", turns.chain), ("server", turns.server))
    )
    note = f"Each of {CLIENTS} clients asks again as soon as it is answered."
    print_table("Saturation", ("asked", "answers", "rounds"), rows, note)


def _print_rounds(load: Load) -> None:
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
    print_table("Rounds", headings, rows, note)


def _between(one: Interval) -> str:
    low, high = (f"{1e3 * end:.2f}" for end in (one.low, one.high))
    return f"{1e3 * one.value:.2f} ms ({low} to {high})"
