"""Frozen outputs: artifacts, results and --json output that a refactoring must leave the same to the byte.

    python benchmarks/frozen.py OUTPUTS                     make all outputs, compare with frozen.sha256
    python benchmarks/frozen.py OUTPUTS --update            the same, and update frozen.sha256
    python benchmarks/frozen.py OUTPUTS --against CHECKOUT  time this checkout and another one in turn

OUTPUTS is a new folder. It keeps all outputs as files, so that those of two checkouts can be compared with
`diff -r`. The exit code is 1 if anything differs, and the names of what differs are printed. Digests are of
one machine: another processor or NumPy may round the last bit of a threshold differently.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script finds only modules of its own folder

if TYPE_CHECKING:
    from langchain_cfc import PromptRecord

DIGESTS = Path(__file__).with_name("frozen.sha256")
# Seconds since 1970 that artifacts and reports are made at.
EPOCH = "1767225600"
# Parts of an output that no two runs share.
VOLATILE_FIELDS = {"seconds", "now", "at", "age_days", "latest", "first", "last"}
CLI_PROGRAM = "from langchain_cfc.cli import main; main()"

# Options of `calibrate` on the demo's recording, by the name of the artifact.
CALIBRATIONS: Mapping[str, Mapping[str, Any]] = {
    "default": {"alpha": "0.2"},
    "levels": {"alpha": ["0.2", "0.3", "0.4"]},
    "may-be-empty": {"alpha": "0.2", "never_empty": False},
    "constant": {"alpha": "0.2", "features": "1"},
    "groups": {"alpha": "0.3", "features": "group(topic)"},
    "hats-and-groups": {"alpha": "0.3", "features": "hat(mean_score, 5) + group(topic)"},
    "bins": {"alpha": "0.2", "features": "bins(mean_score, 4)"},
    "linear": {"alpha": "0.2", "features": "mean_score + min_score"},
    "smallest": {"alpha": "0.2", "features": "hat(min_score, 5)"},
    "best-prefix": {"alpha": "0.3", "set_rule": "best_prefix"},
    "rank": {"alpha": "0.3", "set_rule": "rank"},
    "unique": {"alpha": "0.3", "set_rule": "unique(all)"},
    "at-least-one": {"alpha": "0.3", "set_rule": "at_least_one(all)"},
    "marginal": {"alpha": "0.2", "threshold_rule": "marginal", "features": "1"},
    "grouped": {
        "alpha": "0.4",
        "threshold_rule": "grouped",
        "features": "bins(mean_score, 3)",
        "confident": True,
    },
    "learned": {"alpha": "0.2", "threshold_rule": "learned"},
    "ridge": {"alpha": "0.2", "ridge": 0.01},
    "ridge-on-all": {"alpha": "0.2", "ridge": 0.01, "penalised": "all"},
    "all-rows": {"alpha": "0.2", "window": None},
    "randomised": {"alpha": "0.3", "randomised": True, "never_empty": False},
    "confident": {"alpha": "0.3", "confident": True, "certification_fraction": 0.3},
    "bot": {"max_wrong_rate": "0.2", "features": "1", "certification_fraction": 0.5},
    "five-candidates": {"alpha": "0.3", "n": 5},
    "held-out": {"alpha": "0.2", "test_fraction": 0.4, "seed": "7"},
}
# Commands whose output is kept, by the name of the output, in an order in which each finds what it reads.
COMMANDS: Mapping[str, str] = {
    "demo": "demo --json --out demo/artifact.json",
    "ask": "ask artifacts/held-out.json --replay demo --json",
    "plan": "plan records.jsonl --alpha 0.2 --json",
    "suggest": "suggest records.jsonl --alpha 0.3 --splits 3 --test-fraction 0.2 --jobs 1 --json",
    "calibrate": "calibrate records.jsonl --alpha 0.3 --certification-fraction 0.3 --out called.json --json",
    "inspect": "inspect called.json --json",
    "verify": "inspect called.json --verify --json",
    "certify": "certify called.json records.jsonl --out certified.json --json",
    "evaluate": "evaluate artifacts/held-out.json records.jsonl --json",
    "report": "report artifacts/held-out.json records.jsonl --out report.html --json",
    "compare": "compare records.jsonl --alpha 0.3 --splits 3 --jobs 1 --json",
    "import": "store import records.jsonl store.db --json",
    "status": "status store.db --json",
    "export": "store export store.db exported.jsonl --json",
    "synthetic": "paper synthetic --seeds 2 --jobs 1 --json",
    "triviaqa": "paper triviaqa records.jsonl --splits 2 --jobs 1 --json",
    "agreement": "agreement records.jsonl sheet.csv --artifact called.json --json",
    "monitor": "monitor status artifacts/held-out.json monitor.db --json",
    "collect": "collect --source questions.jsonl --input input --reference reference --id id "
    "--generator frozen_parts:draw --verifier frozen_parts:score "
    # One call at a time: what a prompt draws depends on the order of its draws.
    "--labeler langchain_cfc.labelers:NormalisedMatch -n 4 --concurrency 1 --store collected.db "
    "--out collected.jsonl --json",
}
# The parts that `collect` is given: the candidates of a prompt depend on the prompt alone.
PARTS_MODULE = """
import zlib
from itertools import count

from langchain_core.runnables import RunnableLambda

_calls = {}


def draw(prompt):
    slot = next(_calls.setdefault(prompt, count()))
    return str((zlib.crc32(prompt.encode()) + slot) % 3)


def score(prompt, candidates):
    return [zlib.crc32((prompt + one.text).encode()) / 2**32 for one in candidates]


draw = RunnableLambda(draw)
"""
QUESTION = "What is the capital of Peru?"
# Files that the commands write, kept like what they print.
WRITTEN_FILES = (
    "demo/artifact.json",
    "called.json",
    "certified.json",
    "report.html",
    "exported.jsonl",
    "collected.jsonl",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the outputs and compare their digests, or time two checkouts."""
    parser = argparse.ArgumentParser(description="Outputs that a change of structure must leave as they are.")
    parser.add_argument("outputs", type=Path, help="new folder for all outputs")
    parser.add_argument("--update", action="store_true", help="take these outputs for what is right")
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="time this checkout and that one instead"
    )
    parser.add_argument("--rounds", type=int, default=9, help="of the timing, at least 6")
    options = parser.parse_args(arguments)
    outputs = options.outputs.absolute()
    outputs.mkdir(parents=True)
    if options.against is not None:
        return _compare_times(outputs, options.against.absolute(), options.rounds)
    found = make_outputs(outputs)
    if options.update:
        DIGESTS.write_text("".join(f"{value}  {name}\n" for name, value in found.items()), encoding="utf-8")
        return 0
    lines = DIGESTS.read_text(encoding="utf-8").splitlines()
    known = {name: value for value, name in (line.split("  ") for line in lines)}
    different = sorted(name for name in {*known, *found} if known.get(name) != found.get(name))
    for name in different:
        print(f"differs: {name}")
    print(f"{len(found) - len(different)} of {len(known)} outputs are the same")
    return int(bool(different))


def make_outputs(outputs: Path) -> dict[str, str]:
    """Write all outputs into a folder.

    Args:
        outputs: The folder.

    Returns:
        The SHA-256 digest of each file that is compared, by its path within the folder.
    """
    from langchain_cfc_monitor import CFCMonitor

    from langchain_cfc import calibrate, write_records
    from langchain_cfc.demo import demo_chain, load_recording

    os.environ["SOURCE_DATE_EPOCH"] = EPOCH
    source = load_recording()
    records = list(source)
    write_records(outputs / "records.jsonl", records, source.provenance)
    (outputs / "artifacts").mkdir()
    for name, options in CALIBRATIONS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            artifact = calibrate(records, provenance=source.provenance, **options)
        artifact.save(outputs / "artifacts" / f"{name}.json")
    chain = demo_chain(outputs / "artifacts" / "held-out.json")
    split = chain.artifact.calibration.split
    monitor = CFCMonitor(chain.artifact, outputs / "monitor.db")
    with (outputs / "results.jsonl").open("w", encoding="utf-8") as file, monitor:
        for record in records:
            if split.find_part(record.id, record.cluster) == "test":
                result = chain.invoke(record.input)
                monitor.record(result, record.id)
                file.write(json.dumps(_drop_volatile(result.model_dump(mode="json")), sort_keys=True) + "\n")
    _write_sheet(records, outputs / "sheet.csv")
    (outputs / "frozen_parts.py").write_text(PARTS_MODULE, encoding="utf-8")
    questions = ({"id": f"q{number}", "input": f"{number}?", "reference": "1"} for number in range(40))
    (outputs / "questions.jsonl").write_text(
        "".join(f"{json.dumps(one)}\n" for one in questions), encoding="utf-8"
    )
    (outputs / "printed").mkdir()
    for name, command in COMMANDS.items():
        _write_printed(outputs, name, _run_command(ROOT, outputs, name, command))
    return {name: _compute_digest(outputs / name) for name in _list_compared(outputs)}


def _write_sheet(records: Sequence[PromptRecord], path: Path) -> None:
    """Write a sheet of 100 candidates that says yes to those with an even number of characters."""
    from langchain_cfc_collect import write_review

    write_review(records, 100, path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        heading, *rows = csv.reader(file)
    with path.open("w", encoding="utf-8", newline="") as file:
        filled = [[*row[:-1], "no" if len(row[-2]) % 2 else "yes"] for row in rows]
        csv.writer(file).writerows([heading, *filled])


def _list_compared(outputs: Path) -> Iterator[str]:
    for folder in ("artifacts", "printed"):
        yield from sorted(f"{folder}/{path.name}" for path in (outputs / folder).iterdir())
    yield from ("results.jsonl", *WRITTEN_FILES)


def _compute_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run_command(checkout: Path, folder: Path, name: str, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a checkout in a folder; `ask` asks the question."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(checkout), str(folder)]),
        "SOURCE_DATE_EPOCH": EPOCH,
        "COLUMNS": "80",
    }
    question = [QUESTION] if name == "ask" else []
    return subprocess.run(  # noqa: S603 - the commands of this file
        [sys.executable, "-c", CLI_PROGRAM, *command.split(), *question],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _write_printed(outputs: Path, name: str, ran: subprocess.CompletedProcess[str]) -> None:
    """Keep the JSON and the exit code of a command."""
    try:
        printed: Any = _drop_volatile(json.loads(ran.stdout))
    except ValueError as error:
        msg = f"{name} printed no JSON (exit code {ran.returncode}): {ran.stdout}{ran.stderr}"
        raise SystemExit(msg) from error
    text = json.dumps({"exit": ran.returncode, "printed": printed}, indent=1, sort_keys=True)
    (outputs / "printed" / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _drop_volatile(value: Any) -> Any:
    """Return JSON without what no two runs share."""
    if isinstance(value, dict):
        return {name: _drop_volatile(one) for name, one in value.items() if name not in VOLATILE_FIELDS}
    if isinstance(value, list):
        return [_drop_volatile(one) for one in value]
    return value


def _compare_times(outputs: Path, other: Path, rounds: int) -> int:
    """Time commands of two checkouts in turn, and print the ratios."""
    from benchmarks.lib.measuring import Ratio
    from langchain_cfc.demo import load_recording
    from langchain_cfc.records import write_records

    source = load_recording()
    write_records(outputs / "records.jsonl", list(source), source.provenance)
    timed = {
        "list of commands": "--help",
        "demo": "demo --out demo.json",
        "calibrate": "calibrate records.jsonl --alpha 0.3 --test-fraction 0.2 --out artifact.json",
        "ask": "ask demo.json --replay demo",
        "evaluate": "evaluate artifact.json records.jsonl",
    }
    for name, command in timed.items():
        seconds: dict[Path, list[float]] = {ROOT: [], other: []}
        for number in range(-1, rounds):
            for checkout in (ROOT, other) if number % 2 else (other, ROOT):
                start = time.perf_counter()
                ran = _run_command(checkout, outputs, name, command)
                if ran.returncode not in {0, 1}:
                    raise SystemExit(ran.stdout + ran.stderr)
                if number >= 0:
                    seconds[checkout].append(time.perf_counter() - start)
        ratio = Ratio.of(seconds[ROOT], seconds[other])
        interval = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        print(f"{name:18} {interval}  {ratio.seconds:.2f} s against {ratio.other:.2f} s")
    shutil.rmtree(outputs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
