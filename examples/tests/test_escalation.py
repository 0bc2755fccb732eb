"""The cascade of two models and a person: its README, its figures and its claims."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

from examples.tests.running import run_readme_commands
from langchain_cfc.certificates.bounds import lower_bound
from tests.lengths import repetitions

if TYPE_CHECKING:
    from cascade import FirstTier, Split

pytestmark = pytest.mark.usefixtures("modules_of_example")

EXAMPLE = Path(__file__).parents[2] / "examples" / "escalation"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")

# The questions that the fixed cheap tier passes on are exchangeable, those that certify and those that test.
# So the certificate of the strong tier is false with probability at most DELTA, and a true one is
# contradicted by a lower bound at LEVEL with probability at most LEVEL. Splits by different seeds are
# independent given the recording: `MOST` contradictions or more have a probability below 1e-6.
SPLITS, LEVEL = 80, 0.025
MOST = int(stats.binom.isf(1e-6, SPLITS, 0.05 + LEVEL)) + 1


@pytest.fixture(scope="module")
def calibrated() -> tuple[Split, FirstTier]:
    from cascade import FirstTier, Split
    from two_models import CHEAP

    split = Split.of(CHEAP, 0)
    return split, FirstTier.of(CHEAP, split)


@pytest.mark.long
def test_escalation_readme_commands_print_the_quoted_output() -> None:
    ran = run_readme_commands(README, EXAMPLE.parents[1])
    assert not ran.stderr
    printed = re.findall(r"```text\n(.*?)```", README, re.DOTALL)[0]
    assert ran.stdout == printed


def test_served_cascade_equals_the_measured_cascade(
    calibrated: tuple[Split, FirstTier],
) -> None:
    from cascade import certify_second_tier, decide_questions
    from cascade_served import Person, ServedQuestion, serve
    from two_models import CHEAP, STRONG

    split, first = calibrated
    artifact = certify_second_tier(STRONG, split, first)
    size = repetitions(len(split.test), share=0.2)
    expected = [ServedQuestion("cheap", not wrong) for wrong in first.on_test.wrong[:size]]
    passed_on = np.flatnonzero(~first.on_test.answered[:size])
    second = decide_questions(artifact, STRONG, split.test[passed_on])
    for row, answered, right in zip(passed_on, second.answered, ~second.wrong, strict=True):
        expected[row] = ServedQuestion("strong", bool(right)) if answered else ServedQuestion("person", None)

    person = Person()
    asked = [CHEAP.records[row] for row in split.test[:size].tolist()]
    assert serve(first.artifact, artifact, asked, person) == expected
    waiting = [one.input for one, got in zip(asked, expected, strict=True) if got.tier == "person"]
    assert person.questions == waiting
    assert {one.tier for one in expected} == {"cheap", "strong", "person"}


def test_strong_tier_is_certified_only_on_questions_passed_on(
    calibrated: tuple[Split, FirstTier],
) -> None:
    from cascade import certify_second_tier, certify_tier, decide_questions
    from two_models import CHEAP, STRONG

    split, first = calibrated
    parts = [set(rows.tolist()) for rows in (split.first, split.second, split.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(CHEAP.table)
    assert CHEAP.table.ids == STRONG.table.ids
    facts = certify_second_tier(STRONG, split, first).calibration
    passed_on = split.second[~decide_questions(first.artifact, CHEAP, split.second).answered]
    assert facts.size + facts.fit_size == len(passed_on) < len(split.second)
    expected = certify_tier(STRONG, passed_on, "0.2").calibration
    assert facts.digests == expected.digests
    naive = certify_second_tier(STRONG, split, first, naive=True).calibration
    assert naive.size + naive.fit_size == len(split.second)


@pytest.mark.long
def test_strong_tier_keeps_its_rate_and_the_naive_tier_does_not() -> None:
    from cascade import RATE_STRONG, FirstTier, Split, certify_second_tier, decide_questions
    from two_models import CHEAP, STRONG

    contradicted = {False: 0, True: 0}
    for seed in range(SPLITS):
        split = Split.of(CHEAP, seed)
        first = FirstTier.of(CHEAP, split)
        for naive in contradicted:
            artifact = certify_second_tier(STRONG, split, first, naive=naive)
            seen = decide_questions(artifact, STRONG, split.test[~first.on_test.answered])
            least = lower_bound(int(seen.wrong.sum()), int(seen.answered.sum()), LEVEL)
            contradicted[naive] += least > float(RATE_STRONG)
    assert contradicted[False] < MOST
    # The negative control, put to the same check.
    assert contradicted[True] >= MOST


@pytest.mark.long
def test_escalation_readme_table_equals_the_mean_of_fifty_splits() -> None:
    from cascade_table import WAYS, compute_mean, format_table, measure_splits

    assert (
        format_table({name: compute_mean(rows) for name, rows in measure_splits(WAYS, 50).items()}) in README
    )


def test_escalation_recording_has_the_stated_digest_and_licence() -> None:
    unpacked = gzip.decompress((EXAMPLE / "cheap.jsonl.gz").read_bytes())
    note = (EXAMPLE / "DATA.md").read_text(encoding="utf-8")
    assert hashlib.sha256(unpacked).hexdigest() in note
    assert "Apache-2.0" in note
