"""The parts of `.ci/mutants` in Python: choose mutants, and report which survived, by file and line."""

from __future__ import annotations

import ast
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
    """Print what was killed by package, and each survivor; return 1 if too many survived."""
    names = Path(chosen).read_text("utf-8").split()
    codes: dict[str, int | None] = {}
    for file in MUTANTS.glob("langchain_cfc/**/*.py.meta"):
        codes |= json.loads(file.read_text("utf-8"))["exit_code_by_key"]
    survivors = [name for name in names if codes.get(name) in {SURVIVED, UNTESTED}]
    total, left = (Counter(name.split(".")[1] for name in one) for one in (names, survivors))
    for package in PACKAGES:
        print(f"{package:13} {total[package] - left[package]} of {total[package]} mutants killed")
    for name in survivors:
        place, change = describe(name)
        print(f"{place}: {change}")
    killed = 1 - len(survivors) / len(names)
    print(f"{killed:.1%} of {len(names)} mutants killed; {TARGET:.0%} are wanted")
    return int(killed < TARGET)


def describe(name: str) -> tuple[str, str]:
    """Return the file and line of a mutant, and what it changes."""
    command = [sys.executable, "-m", "mutmut", "show", name]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = shown.splitlines()
    file = next(line.split()[1] for line in lines if line.startswith("--- "))
    changed = [line[1:].strip() for line in lines if re.match(r"[-+](?![-+])", line)]
    [start] = re.findall(r"^@@ -(\d+)", shown, re.MULTILINE)[:1] or ["1"]
    after = lines[next(i for i, line in enumerate(lines) if line.startswith("@@")) + 1 :]
    offset = next(i for i, line in enumerate(after) if line[:1] in {"-", "+"})
    return f"{file}:{find_line(file, name) + int(start) - 1 + offset}", " -> ".join(changed)


def find_line(file: str, name: str) -> int:
    """Return the line of the function that a mutant is of."""
    # mutmut names them `x_function__mutmut_1` and `xǁClassǁmethod__mutmut_1`.
    path = re.sub(r"__mutmut_\d+$", "", name.rpartition(".")[2])[1:]
    owner, _, function = path.strip("ǁ").rpartition("ǁ")
    body: ast.AST = ast.parse(Path(file).read_text("utf-8"))
    if owner:
        body = next(one for one in ast.walk(body) if isinstance(one, ast.ClassDef) and one.name == owner)
    else:
        function = function.removeprefix("_")
    found = (one for one in ast.walk(body) if isinstance(one, ast.FunctionDef) and one.name == function)
    return next(found).lineno


if __name__ == "__main__":
    action, argument = sys.argv[1:]
    if action == "choose":
        choose(argument)
    else:
        sys.exit(report(argument))
