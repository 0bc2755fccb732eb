"""Calibration at scale: from a records file to a saved artifact, time and memory.

    python -m benchmarks.scale                100,000 prompts x 10 candidates, and as many claims next to them
    python -m benchmarks.scale --quick        a hundredth of all
    python -m benchmarks.scale --only claims  that part alone

The prompts are those of the recording that ships with the package (1,224 short questions, ten sampled answers
each, with the extracted answer, the score, the label and one raw output), again and again under new ids, with
noise on scores and raw outputs so that no two candidates are alike in numbers. Texts are short, mostly 2 to
13 characters; a line of JSON has some 1,360 bytes. For claims, a prompt's candidates, joined by spaces, are
one answer, and each of them is a claim of it with its place.

Every figure is taken in a fresh process. Seconds are those of the work without imports. A bare parse is
`orjson.loads` of every line of the same file, and nothing else; it and the calibration take turns, as do
claims and candidates, and the interval is around the median of the rounds' ratios. Memory is the most that
was resident in the process (`VmHWM`; Linux).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lib.measuring import (
    RATIO_HEADINGS,
    Ratio,
    limit_threads,
    print_table,
    read_memory,
)

if TYPE_CHECKING:
    from langchain_cfc.records import ClaimsRecord, PromptRecord

ROUNDS = 7
NOISE = 0.02
ALPHA = 0.35
# Unsupported claims that the promise allows.
AT_MOST = 5
PARTS = ("lines", "claims")


def main() -> None:
    """Make the files, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a hundredth of all sizes")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 6")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    options = parser.parse_args()
    share = 100 if options.quick else 1
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        lines, claims = (Path(folder, name) for name in ("a.jsonl", "claims.jsonl"))
        if "lines" in options.only:
            _run_step("make_lines", lines, 100_000 // share)
            rows.append(_compare("JSON Lines over a bare parse", lines, "parse_lines", lines, options.rounds))
        if "claims" in options.only:
            _run_step("make_claims", claims, 100_000 // share)
            other = claims.with_name("candidates.jsonl")
            rows.append(_compare("claims over candidates", claims, "calibrate_file", other, options.rounds))
    headings = ("what, over what", "prompts", "file", "peak memory", *RATIO_HEADINGS)
    print_table("From a records file to an artifact", headings, rows)


def _compare(name: str, path: Path, step: str, other: Path, rounds: int) -> tuple[str, ...]:
    """Return the row of a calibration over another step, in turn, with the largest peak."""
    found = [(_run_step("calibrate_file", path), _run_step(step, other)) for _ in range(rounds)]
    ratio = Ratio.of(*([one["seconds"] for one in side] for side in zip(*found, strict=True)))
    largest = max((ours for ours, _ in found), key=lambda ours: ours["peak"] or 0)
    return name, *_describe(largest, path), *ratio.list_cells()


def _describe(found: dict[str, Any], path: Path) -> tuple[str, str, str]:
    peak = "unknown" if found["peak"] is None else f"{found['peak'] / 1e6:,.0f} MB"
    return f"{found['prompts']:,} x {found['n']}", f"{path.stat().st_size / 1e6:,.0f} MB", peak


def parse_lines(path: Path) -> dict[str, Any]:
    """Parse every line of a file, and discard the result."""
    import orjson

    start = time.perf_counter()
    with path.open("rb") as file:
        for line in file:
            orjson.loads(line)
    return {"seconds": time.perf_counter() - start}


def calibrate_file(path: Path) -> dict[str, Any]:
    """Calibrate from a file to a saved artifact."""
    from langchain_cfc import calibrate, read_records
    from langchain_cfc.errors import AttainabilityWarning

    # The easiest questions of the recording are few, and one group of them is beyond this level.
    warnings.simplefilter("ignore", AttainabilityWarning)
    start = time.perf_counter()
    records = read_records(path)
    is_claims = records.provenance is not None and records.provenance.unit == "claims"
    promise: dict[str, Any] = {"unit": "claims", "at_most": AT_MOST} if is_claims else {}
    artifact = calibrate(records, alpha=ALPHA, **promise)
    artifact.save(path.with_suffix(".artifact"))
    seconds = time.perf_counter() - start
    prompts = artifact.calibration.size + artifact.calibration.fit_size
    return {"seconds": seconds, "peak": read_memory("VmHWM"), "prompts": prompts, "n": artifact.n}


def make_lines(path: Path, prompts: int) -> dict[str, Any]:
    """Write the recording again and again as JSON Lines."""
    import numpy as np

    from langchain_cfc.demo import load_recording

    rng = np.random.default_rng(0)
    source = load_recording()
    assert source.provenance is not None  # noqa: S101 - the recording that ships has one
    known = [record.model_dump(mode="json", exclude_defaults=True) for record in source]
    with path.open("w", encoding="utf-8") as file:
        file.write(source.provenance.model_dump_json(exclude_none=True) + "\n")
        for number in range(prompts):
            record = known[number % len(known)]
            noise = rng.normal(0.0, NOISE, len(record["candidates"])).tolist()
            candidates = [_perturb(one, by) for one, by in zip(record["candidates"], noise, strict=True)]
            # Equal questions would count as one.
            own = {"id": f"{record['id']}-{number}", "input": f"{record['input']} ({number})"}
            again = record | own | {"candidates": candidates}
            file.write(json.dumps(again, ensure_ascii=False) + "\n")
    return {}


def _perturb(candidate: dict[str, Any], by: float) -> dict[str, Any]:
    score = round(min(1.0, max(0.0, candidate["score"] + by)), 9)
    outputs = {name: round(value + by, 6) for name, value in candidate["scores"].items()}
    return candidate | {"score": score, "scores": outputs}


def make_claims(path: Path, prompts: int) -> dict[str, Any]:
    """Write the candidates of `make_lines` as claims, and as they are beside them."""
    from langchain_cfc.records import Provenance, read_records, write_records

    candidates = path.with_name("candidates.jsonl")
    make_lines(candidates, prompts)
    write_records(path, map(_make_answer, read_records(candidates)), Provenance(n=1, unit="claims"))
    return {}


def _make_answer(record: PromptRecord) -> ClaimsRecord:
    from langchain_cfc.records import Claim, ClaimsRecord

    claims, end = [], -1
    for one in record.candidates:
        text = str(one.text)
        start, end = end + 1, end + 1 + len(text)
        place: dict[str, Any] = {"start": start, "end": end}
        claims.append(Claim(text=text, score=one.score, supported=one.correct, scores=one.scores, **place))
    answer = " ".join(claim.text for claim in claims)
    fields = record.model_dump(exclude={"candidates"})
    return ClaimsRecord(**fields, answer=answer, claims=tuple(claims))


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    step.__name__: step for step in (parse_lines, calibrate_file, make_lines, make_claims)
}


def _run_step(step: str, *arguments: object) -> dict[str, Any]:
    """Run one step in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.scale", step, *map(str, arguments)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own program
    found: dict[str, Any] = json.loads(run.stdout)
    return found


if __name__ == "__main__":
    limit_threads()
    if len(sys.argv) > 1 and sys.argv[1] in STEPS:
        step, file, *size = sys.argv[1:]
        print(json.dumps(STEPS[step](Path(file), *map(int, size))))
    else:
        main()
