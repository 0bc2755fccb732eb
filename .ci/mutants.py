"""The parts of `.ci/mutants` in Python: choose mutants, and show those that survived."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

PACKAGES = ("thresholds", "decision", "certificates", "calibration")
MUTANTS = Path("mutants")
SEED = 1
# The share of mutants that tests must kill.
TARGET = 0.9
# Exit codes of pytest by which mutmut says that no test failed, and that none calls the function.
SURVIVED, UNTESTED = 0, 33


def choose(count: str) -> None:
    """Print the names of mutants, so many of each package, or all."""
    names: dict[str, list[str]] = defaultdict(list)
    for file in sorted(MUTANTS.glob("langchain_cfc/**/*.py")):
        module = file.relative_to(MUTANTS).with_suffix("")
        found = re.findall(r"^\s*def (x\S*?__mutmut_\d+)\(", file.read_text("utf-8"), re.MULTILINE)
        names[module.parts[1]] += [".".join([*module.parts, name]) for name in found]
    draw = random.Random(SEED)  # noqa: S311 - a sample, and no secret
    for package in PACKAGES:
        of_package = names[package]
        chosen = of_package if count == "all" else draw.sample(of_package, min(int(count), len(of_package)))
        print(*chosen, sep="\n")


def report(chosen: str) -> int:
    """Print what was killed by package, and the change of each survivor; return 1 if too many survived."""
    names = Path(chosen).read_text("utf-8").split()
    codes: dict[str, int | None] = {}
    for file in MUTANTS.glob("langchain_cfc/**/*.py.meta"):
        codes |= json.loads(file.read_text("utf-8"))["exit_code_by_key"]
    survivors = [name for name in names if codes.get(name) in {SURVIVED, UNTESTED}]
    total, left = (Counter(name.split(".")[1] for name in one) for one in (names, survivors))
    for package in PACKAGES:
        print(f"{package:13} {total[package] - left[package]} of {total[package]} mutants killed")
    for name in survivors:
        subprocess.run([sys.executable, "-m", "mutmut", "show", name], check=True)
    killed = 1 - len(survivors) / len(names)
    print(f"{killed:.1%} of {len(names)} mutants killed; {TARGET:.0%} are wanted")
    return int(killed < TARGET)


if __name__ == "__main__":
    action, argument = sys.argv[1:]
    if action == "choose":
        choose(argument)
    else:
        sys.exit(report(argument))
