"""What draw rules save and what they cost: mean draws against prompts covered, flagged and answered.

    python benchmarks/draws.py RECORDING:ALPHA ... --splits 40 --jobs 2

Each split calibrates on a random part of the prompts and is judged on the other 40 %, with the default
options: `hat(mean_score, 5)`, sets that are never empty. All rules see the same splits. A recording whose
header does not say so must have a verifier that scores each candidate by itself.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.threads import limit_threads, measure_splits

limit_threads()  # before NumPy is imported

import numpy as np  # noqa: E402 - after the threads are limited

from benchmarks.lib.tables import Sheet, print_sheets  # noqa: E402 - the path comes first
from langchain_cfc import calibrate, read_records  # noqa: E402 - the path comes first
from langchain_cfc._internal.arrays import FloatArray  # noqa: E402 - the path comes first
from langchain_cfc.artifact import tabulate_held_out  # noqa: E402 - the path comes first
from langchain_cfc.candidates import LabelledBatch  # noqa: E402 - the path comes first
from langchain_cfc.certificates.coverage import compute_outcomes  # noqa: E402 - the path comes first
from langchain_cfc.records import Provenance, tabulate  # noqa: E402 - the path comes first

HEADINGS = ("rule", "draws", "kept", "covered", "flagged", "answered", "distinct", "hardest fifth")
PAGE = (
    "Made by `benchmarks/draws.py`, whose docstring says what is compared. *draws*: candidates drawn per "
    "prompt; *kept*: covered or flagged; *covered*: the set holds a correct answer; *answered*: the set is "
    "not empty; *hardest fifth*: kept on the fifth of the prompts with the largest mean score over all n "
    "recorded candidates, which is no part of the promise."
)
# Of the two recordings of the larger model; measured by `draw_rules.replay`.
NEARNESS = (
    "What a rule loses depends on how near the target is to what is attainable. Of the facts 85.5 % "
    "have a correct candidate among ten and 85.3 % among those that `below(0.5)` draws, for a target "
    "of 80 %: half of the draws cost less than a point. Of the word problems it is 66.2 % and 65.4 % "
    "for a target of 60 %: so near to it, eight lost prompts in a thousand flag sixty more, and no "
    "rule that saves 45 % of the draws stays within three points."
)


def list_rules(n: int) -> list[str]:
    """Return a dozen rules of at most n draws."""
    return [
        f"fixed({n})",
        f"fixed({max(1, n // 2)})",
        *(f"lead({lead}, at_most={n})" for lead in (1, 2, 3, 4)),
        f"lead(3, rounds=4+2+{n - 6})",
        *(f"below({score}, at_most={n})" for score in (0.1, 0.3, 0.5, 0.7)),
        f"below(0.5, rounds=3+{n - 3})",
        f"agree(0.8, rounds=3+3+{n - 6})",
        f"agree(1, rounds=4+{n - 4})",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare draw rules, and print a table for each recording."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recordings", nargs="+", help="records and alpha, such as facts.jsonl:0.2")
    parser.add_argument("--splits", type=int, default=40, help="random splits of each recording")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page")
    options = parser.parse_args(arguments)
    sheets = []
    for one in options.recordings:
        path, _, alpha = one.rpartition(":")
        records = read_records(path)
        table = tabulate(records)
        rules = list_rules(table.draws.n)
        provenance = records.provenance or Provenance(n=table.draws.n)
        measure = partial(measure_split, table, alpha, rules, provenance)
        found = measure_splits(measure, options.splits, options.jobs)
        sheets.append(make_sheet(f"{Path(path).stem}, alpha = {alpha}", rules, np.array(found)))
        print_sheets(sheets[-1:])
    if options.page is not None:
        text = "\n".join([f"# Fewer draws\n\n{PAGE}\n\n{NEARNESS}\n", *(one.to_markdown() for one in sheets)])
        options.page.write_text(text, encoding="utf-8")


def make_sheet(name: str, rules: Sequence[str], found: FloatArray) -> Sheet:
    """Make the table of one recording from (splits, rules, figures) measurements."""
    rows = []
    for rule, (draws, *rates, distinct, hardest) in zip(rules, found.mean(axis=0), strict=True):
        figures = [f"{one:.3f}" for one in rates]
        rows.append((rule, f"{draws:.2f}", *figures, f"{distinct:.2f}", f"{hardest:.3f}"))
    return Sheet(name, f"means over {len(found)} splits", HEADINGS, tuple(rows))


def measure_split(
    table: LabelledBatch, alpha: str, rules: Sequence[str], provenance: Provenance, seed: int
) -> list[list[float]]:
    """Calibrate with each rule, and return its figures on the test prompts."""
    scores = dict(zip(table.ids, table.draws.scores.mean(axis=1).tolist(), strict=True))
    measured = []
    for rule in rules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            artifact = calibrate(
                table,
                alpha=alpha,
                draws=rule,
                test_fraction=0.4,
                seed=seed,
                allow_unattainable=True,
                provenance=provenance.model_copy(update={"separate_scores": True}),
            )
        test, _ = tabulate_held_out(artifact, table, "test")
        seen = compute_outcomes(artifact, test, alpha)
        hardest = np.argsort([scores[one] for one in test.ids], kind="stable")[-len(test) // 5 :]
        measured.append(
            [
                float(test.draws.counts.mean()),
                float(seen.kept.mean()),
                float(seen.covered.mean()),
                float(seen.decisions.not_certifiable.mean()),
                float(seen.decisions.answered.mean()),
                float(seen.decisions.distinct_answers.mean()),
                float(seen.kept[hardest].mean()),
            ]
        )
    return measured


if __name__ == "__main__":
    main()
