"""A process that passes results to a monitor at a rate, and prints the name of each.

python -m integrations.monitor.tests.writing STORE ARTIFACT NAME RESULTS RATE
"""

from __future__ import annotations

import sys
import time

from langchain_cfc_monitor import CFCMonitor

from langchain_cfc import CalibrationArtifact
from langchain_cfc.demo import demo_chain, load_recording


def say_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(store: str, artifact: str, name: str, *pace: str) -> None:
    """Pass results to a monitor at a rate, and print the name of each."""
    results, rate = map(float, pace)
    held = CalibrationArtifact.load(artifact)
    result = demo_chain(held).invoke(next(iter(load_recording())).input)
    monitor = CFCMonitor(held, store)
    say_line("ready")
    sys.stdin.readline()
    began = time.perf_counter()
    for number in range(int(results)):
        monitor.record(result, f"{name}-{number}")
        say_line(f"{name}-{number}")
        ahead = (number + 1) / rate - (time.perf_counter() - began)
        if ahead > 0.0:
            time.sleep(ahead)
    monitor.close()
    say_line(f"done {time.perf_counter() - began}")


if __name__ == "__main__":
    main(*sys.argv[1:])
