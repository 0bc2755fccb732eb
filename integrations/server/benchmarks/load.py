"""What the server adds to calling the chain, at half of the load that it can take.

    python integrations/server/benchmarks/load.py

The server runs as users start it. Its peer is a process that calls `await chain.ainvoke`, the same chain on
the same saved artifact. Both are asked by the same 50 clients at the same times: Poisson arrivals from a
fixed seed, at half the rate that the server reached just before, when each client asked again as soon as it
was answered. Latency counts from when a request was due. The two take turns in rounds, the first of one
round being the second of the next.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:  # a script finds only modules of its own folder
    sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from integrations.server.benchmarks.asking import Asker
    from integrations.server.benchmarks.load_results import Load, Round

PACKAGES = (
    "langchain-cfc",
    "langchain-cfc-server",
    "langchain-core",
    "fastapi",
    "starlette",
    "uvicorn",
    "h11",
    "pydantic",
)


@dataclass(frozen=True)
class Plan:
    """How many rounds to measure, and for how long.

    Attributes:
        rounds: Rounds, each of all sides.
        seconds: Of one side in one round.
        saturated: Seconds of one side at saturation, in one round.
    """

    rounds: int = 20
    seconds: float = 4.0
    saturated: float = 2.0


QUICK = Plan(rounds=6, seconds=2.0, saturated=1.5)
SEED = 8


@contextmanager
def sides() -> Iterator[dict[str, tuple[Asker, tuple[int, ...]]]]:
    """Start all askers; yield them by what they ask, with the processes that take part."""
    from integrations.server.benchmarks import bot
    from integrations.server.benchmarks.asking import (
        CLIENT_CPU,
        SERVER_CPU,
        pin,
        start_asker,
        start_floor_server,
    )
    from integrations.server.tests.parts import COMMAND, run_server

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "artifact.json"
        bot.make_artifact().save(path)
        os.environ[bot.ARTIFACT] = str(path)
        env = {bot.ARTIFACT: str(path)}
        module = "integrations.server.benchmarks.bot"
        with (
            run_server(env, "--name", "chain", models=f"{module}:make_chain", command=COMMAND) as server,
            run_server(
                env, "--name", "chain", models=f"{module}:make_delayed_chain", command=COMMAND
            ) as delayed,
            start_floor_server(SERVER_CPU) as nothing,
            start_asker(server.port, CLIENT_CPU) as ours,
            start_asker(delayed.port, CLIENT_CPU) as slow,
            start_asker(nothing, CLIENT_CPU) as floor,
            start_asker(None, SERVER_CPU) as direct,
        ):
            for one in (server, delayed):
                pin(one.process.pid, SERVER_CPU)
            yield {
                "server": (ours, (ours.pid, server.process.pid)),
                "chain": (direct, (direct.pid,)),
                "delayed": (slow, (slow.pid, delayed.process.pid)),
                "nothing": (floor, (floor.pid,)),
            }


def measure(plan: Plan) -> Load:
    """Measure rounds, each of saturation first and then of half of it."""
    from integrations.server.benchmarks.load_results import Load, Round, Saturation

    with sides() as found:

        def measure_round(name: str, rate: float, turn: int) -> Round:
            asker, processes = found[name]
            before = measure_busy_seconds(processes)
            seconds = asker.measure_latencies(rate, plan.seconds, SEED + turn)
            total, own, wall = (
                after - was for after, was in zip(measure_busy_seconds(processes), before, strict=True)
            )
            return Round(
                seconds=tuple(seconds),
                own=own / wall,
                others=max(0.0, total - own) / wall,
                load=measure_load(),
            )

        rates: dict[str, list[float]] = {"chain": [], "server": []}
        for name in rates:
            found[name][0].measure_saturation(1.0)  # imports and caches
        rounds: dict[str, list[Round]] = {name: [] for name in found}
        for turn in range(plan.rounds):
            for name, reached in rates.items():
                reached.append(found[name][0].measure_saturation(plan.saturated))
                if not reached[-1]:
                    msg = f"the {name} answered nothing in {plan.saturated:g} s: this machine is too busy"
                    raise RuntimeError(msg)
            for name in order_names(list(found), turn):
                rounds[name].append(measure_round(name, compute_rate(rates["server"][turn]), turn))
    return Load(
        seconds=plan.seconds,
        saturation=Saturation(server=tuple(rates["server"]), chain=tuple(rates["chain"])),
        rounds={name: tuple(kept) for name, kept in rounds.items()},
    )


def compute_rate(saturation: float) -> float:
    """Return the rate of a round: half of its own saturation, for the machine is not always as fast."""
    return saturation / 2


def order_names(names: list[str], turn: int) -> list[str]:
    """Return the names, every other turn backwards."""
    return names if turn % 2 == 0 else names[::-1]


def measure_busy_seconds(processes: Sequence[int]) -> tuple[float, float, float]:
    """Return the seconds that the machine's cores have worked, that some processes have, and of the clock."""
    ticks = os.sysconf("SC_CLK_TCK")
    first, *_ = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    user, nice, system, _, _, *interrupts = (int(part) for part in first.split()[1:9])
    total = user + nice + system + sum(interrupts)
    own = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        own += int(fields[11]) + int(fields[12])
    return total / ticks, own / ticks, time.monotonic()


def measure_load() -> float:
    """Return the number of processes that wanted a core, by the mean of the last minute."""
    return os.getloadavg()[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure rounds of all sides, and print the tables."""
    from benchmarks.lib.measuring import describe_run, limit_threads

    limit_threads()
    parser = argparse.ArgumentParser(description="What the server adds to calling the chain.")
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    parser.add_argument("--rounds", type=int, help="another number of rounds")
    options = parser.parse_args(arguments)
    from integrations.server.benchmarks.load_tables import print_tables

    plan = QUICK if options.quick else Plan()
    found = measure(plan if options.rounds is None else replace(plan, rounds=options.rounds))
    print(describe_run(PACKAGES))
    print_tables(found)


if __name__ == "__main__":
    main()
