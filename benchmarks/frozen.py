"""Frozen outputs: what a change of structure must leave as it is.

    python benchmarks/frozen.py            make all outputs in a temporary folder, compare with frozen.json
    python benchmarks/frozen.py --update   the same, and update frozen.json

frozen.json holds options of `calibrate` and commands, and what they gave: thresholds and decisions on fixed
prompts, numbers of guarantees and certificates, texts of answers, and figures that a user reads. A field may
vanish, but no decision may change. Numbers have 12 significant digits, so that another processor
agrees. `removed` lists what is not compared any more. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_cfc import CalibrationArtifact, CFCResult, PromptRecord
    from langchain_cfc.guarantee import Guarantee
    from langchain_cfc.records import ClaimsRecord, Records

FROZEN = Path(__file__).with_name("frozen.json")
CLI_PROGRAM = "from langchain_cfc.cli import main; main()"

# Claims with a larger score are unsupported.
SUPPORTED_BELOW = 0.6
_draws_of: dict[str, int] = defaultdict(int)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the outputs, and compare their projections with the stored ones."""
    parser = argparse.ArgumentParser(description="Outputs that a change of structure must leave as they are.")
    parser.add_argument("--update", action="store_true", help="take these outputs for what is right")
    options = parser.parse_args(arguments)
    stored = json.loads(FROZEN.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        found = make_outputs(Path(folder), stored)
    if options.update:
        FROZEN.write_text(_format({**stored, **found}), encoding="utf-8")
        return 0
    different = [
        f"{name}: {key}\n  was {known.get(key)}\n  now {made.get(key)}"
        for part in found
        for name, made in found[part].items()
        for known in [stored[part][name]]
        for key in sorted({*known, *made})
        if known.get(key) != made.get(key)
    ]
    print("\n".join([*different, f"{len(different)} differences"]))
    return int(bool(different))


def make_outputs(outputs: Path, stored: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Calibrate, serve and run all commands in a folder.

    Args:
        outputs: An empty folder.
        stored: The options of all artifacts and the figures of all commands, as in frozen.json.

    Returns:
        The same, with the projections of what was made now.
    """
    from langchain_cfc import calibrate, write_records
    from langchain_cfc.demo import load_recording

    found: dict[str, dict[str, Any]] = {"artifacts": {}, "commands": {}}
    source = load_recording()
    records = list(source)
    write_records(outputs / "records.jsonl", records, source.provenance)
    write_records(outputs / "first.jsonl", records[::2], source.provenance)
    write_records(outputs / "second.jsonl", records[1::2], source.provenance)
    (outputs / "artifacts").mkdir()
    for name, one in stored["artifacts"].items():
        served = _write_variant(name, records, source, outputs / f"{name}.jsonl")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            artifact = calibrate(
                served.read_all(), provenance=served.provenance, **_make_options(one["options"])
            )
            artifact.save(outputs / "artifacts" / f"{name}.json")
            made = {"attainable": _list_attainable(artifact), **_serve(artifact, served)}
        found["artifacts"][name] = {"options": one["options"], **made}
    _record_results(outputs, records)
    _write_sheet(records, outputs / "sheet.csv")
    questions = ({"id": f"q{number}", "input": f"{number}?", "reference": "1"} for number in range(40))
    lines = (f"{json.dumps(one)}\n" for one in questions)
    (outputs / "questions.jsonl").write_text("".join(lines), encoding="utf-8")
    for name, one in stored["commands"].items():
        printed = _run_command(outputs, one["command"])
        made = {
            place or "top": [_write_row(*(item.get(key) for key in keys)) for item in _find(printed, place)]
            for place, keys in one["figures"].items()
        }
        found["commands"][name] = {"command": one["command"], "figures": one["figures"], **made}
    return found


def _make_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `calibrate`."""
    from langchain_cfc.guarantee import PaperPAC

    return {name: PaperPAC(*value) if name == "pac" else value for name, value in options.items()}


def draw(prompt: str) -> str:
    """Draw a candidate for the command `collect`; the draws of a prompt depend on the prompt alone."""
    _draws_of[prompt] += 1
    return str((zlib.crc32(prompt.encode()) + _draws_of[prompt]) % 3)


def score(prompt: str, candidates: Sequence[Any]) -> list[float]:
    """Score candidates for the command `collect`."""
    return [zlib.crc32((prompt + one.text).encode()) / 2**32 for one in candidates]


def _write_variant(name: str, records: Sequence[PromptRecord], source: Records, path: Path) -> Records:
    """Write the records that an artifact is calibrated on, if these are not the demo's, and open them."""
    from langchain_cfc.records import Provenance, read_records, write_records

    if name.startswith("claims"):
        write_records(path, map(_make_answer, range(400)), Provenance(n=1, unit="claims"))
    elif name == "clusters":
        clustered = [one.model_copy(update={"cluster": f"c{row // 3}"}) for row, one in enumerate(records)]
        write_records(path, clustered, source.provenance)
    else:
        return source
    return read_records(path)


def _make_answer(row: int) -> ClaimsRecord:
    """Make an answer of three claims."""
    from langchain_cfc.records import Claim, ClaimsRecord

    scores = (0.1, 0.2 + row % 7 / 10, 0.3 + row % 5 / 8)
    claims = tuple(
        Claim(text=text, start=start, end=start + len(text), score=one, supported=one < SUPPORTED_BELOW)
        for text, start, one in zip((f"{row:03}.", "b.", "c."), (0, 5, 8), scores, strict=True)
    )
    return ClaimsRecord(id=str(row), input=str(row), answer=f"{row:03}. b. c.", claims=claims)


def _list_attainable(artifact: CalibrationArtifact) -> list[str]:
    """Return the sizes of the parts, and the attainable coverage of all groups."""
    facts = artifact.calibration
    return [
        _write_row(facts.size, facts.fit_size, facts.attainable_coverage),
        *(_write_row(one.name, one.size, one.attainable, one.smallest_alpha) for one in facts.groups),
    ]


def _serve(artifact: CalibrationArtifact, source: Records) -> dict[str, Any]:
    """Serve every twelfth prompt under every promise of an artifact; the first six are shown."""
    from langchain_cfc import CFCRunnable
    from langchain_cfc.demo.replay import make_replay_parts

    parts = make_replay_parts(source)
    found: dict[str, Any] = {}
    for promise in artifact.promises:
        name, value = promise
        chain = CFCRunnable(artifact=artifact, **{name: value}, **parts)
        results = [chain.invoke(record.input) for record in list(source.read_all())[::12]]
        # The decisions of a bot use no threshold.
        has_threshold = name == "alpha"
        thresholds = [one.threshold for one in results] if has_threshold else []
        reasons = Counter(one.reason for one in results)
        promised = f"{name} {value}"
        found[f"{promised} guarantee"] = _project_guarantee(results[0].guarantee)
        found[f"{promised} served"] = [
            *(_write_row(count, reason) for reason, count in sorted(reasons.items())),
            _write_row(sum(_mark_kept(one).count("1") for one in results), "kept"),
            _write_row("thresholds", *thresholds),
        ]
        found[f"{promised} prompts"] = [
            _write_row(_mark_kept(one), one.reason, one.best) for one in results[:9]
        ]
    return found


def _mark_kept(result: CFCResult) -> str:
    """Return 1 for each candidate or claim that is kept, and 0 for each other one."""
    kept = [one.accepted for one in result.candidates] or [one.kept for one in getattr(result, "claims", ())]
    return "".join("01"[one] for one in kept)


def _project_guarantee(guarantee: Guarantee) -> list[str]:
    """Return the numbers of a guarantee, and the counts of what is certified about a bot."""
    known = guarantee.stated_coverage, guarantee.calibration_size, guarantee.failure_probability
    rows = [_write_row(*known)]
    one = guarantee.wrong_answers
    if one is not None:
        rows.append(_write_row(one.max_wrong_rate, one.delta, one.level, one.prompts, one.cut))
        rows += [_write_row(each.name, each.prompts, each.answered, each.wrong) for each in one.groups]
    return rows


def _record_results(outputs: Path, records: Sequence[PromptRecord]) -> None:
    """Serve the prompts held out by an artifact, and record the results in a monitor."""
    from langchain_cfc_monitor import CFCMonitor

    from langchain_cfc.demo import demo_chain

    chain = demo_chain(outputs / "artifacts" / "held-out.json")
    split = chain.artifact.calibration.split
    with CFCMonitor(chain.artifact, outputs / "monitor.db") as monitor:
        for record in records:
            if split.find_part(record.id, record.cluster) == "test":
                monitor.record(chain.invoke(record.input), record.id)


def _write_sheet(records: Sequence[PromptRecord], path: Path) -> None:
    """Write a sheet of 100 candidates that says yes to those with an even number of characters."""
    from langchain_cfc_collect import write_review

    write_review(records, 100, path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        heading, *rows = csv.reader(file)
    with path.open("w", encoding="utf-8", newline="") as file:
        filled = [[*row[:-1], "no" if len(row[-2]) % 2 else "yes"] for row in rows]
        csv.writer(file).writerows([heading, *filled])


def _run_command(folder: Path, command: str) -> Any:
    """Run a command in a folder, and return the JSON that it prints."""
    ran = subprocess.run(  # noqa: S603 - the commands of this file
        [sys.executable, "-c", CLI_PROGRAM, *shlex.split(command)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(FROZEN.parent), *sys.path]), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return json.loads(ran.stdout)
    except ValueError as error:
        msg = f"{command} printed no JSON (exit code {ran.returncode}): {ran.stdout}{ran.stderr}"
        raise SystemExit(msg) from error


def _find(value: Any, place: str) -> list[Any]:
    """Return the objects at a place, such as `certificates.shares`; of a list every item."""
    found = [value]
    for key in place.split(".") if place else ():
        inner = [one[key] for one in found if one.get(key) is not None]
        found = [item for one in inner for item in (one if isinstance(one, list) else [one])]
    return found


def _write_row(*values: Any) -> str:
    return " ".join(_write_value(one) for one in values)


def _write_value(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _format(stored: Mapping[str, Any]) -> str:
    """Return JSON with one line for each projection."""
    text = json.dumps(stored, indent=1, ensure_ascii=False)
    text = re.sub(r"\n {4,}|\n {3}(?=[\]}])", "", text)  # each projection on a line of its own
    return re.sub(r"\n +(?=}|\"(?:options|command|figures)\")", " ", text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
