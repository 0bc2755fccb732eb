"""What is certified about the claims that an answer shows: at most a share of them is unsupported."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import CalibrationArtifact, calibrate, evaluate
from langchain_cfc.calibration.config import CLAIM_ALPHAS
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify_shown_claims
from langchain_cfc.certificates.coverage import compute_outcomes
from langchain_cfc.decision import decide
from langchain_cfc.errors import UnattainableTargetError
from langchain_cfc.records import Provenance, tabulate, write_records
from langchain_cfc.runnable import ClaimsResult
from tests.claims.chains import LEFT, make_artifact, make_chain
from tests.claims.worlds import make_answers
from tests.cli.running import run
from tests.factories import plan_first_test, reload_artifact
from tests.lengths import repetitions

RATE = "0.3"
Change = Callable[[LabelledBatch], LabelledBatch]


def _keep(labelled: LabelledBatch) -> LabelledBatch:
    return labelled


@pytest.fixture(scope="module")
def certified() -> CalibrationArtifact:
    records = make_answers(np.random.default_rng(1), 1000)
    return calibrate(records, unit="claims", max_wrong_rate=RATE, features="group(tier)", test_fraction=0.2)


def test_shown_claims_counts_equal_an_independent_computation(certified: CalibrationArtifact) -> None:
    records = [
        one
        for one in make_answers(np.random.default_rng(1), 1000)
        if certified.calibration.split.find_part(one.id, None) == "certification"
    ]
    labelled = tabulate(records, claims=True)
    kept = decide(certified, labelled.draws).accepted.tolist()
    tickets = certified.calibration.split.draw_uniforms("shown claim", labelled.ids).tolist()
    answered = wrong = 0
    for record, row, ticket in zip(records, kept, tickets, strict=True):
        shown = [claim for claim, inside in zip(record.claims, row, strict=False) if inside]
        if shown:
            answered += 1
            wrong += not shown[math.floor(ticket * len(shown))].supported
    certificate = certified.certified_bot.certificates[0]
    everyone = certificate.groups[0]
    assert (everyone.prompts, everyone.answered, everyone.wrong) == (len(records), answered, wrong)
    assert stats.binom.cdf(wrong, answered, float(RATE)) <= 0.05
    assert certificate.unit == "claims"
    assert reload_artifact(certified) == certified


def test_shown_claims_are_those_of_the_last_level_before_the_first_failure() -> None:
    records = make_answers(np.random.default_rng(1), 1000)
    options: dict[str, Any] = {"unit": "claims", "features": "group(tier)", "seed": 3}
    made = calibrate(records, max_wrong_rate=RATE, **options)
    plan = made.calibration.split
    table = tabulate(records, claims=True)
    parts = plan.list_rows(table)
    tuning, tests = (table.take(parts[name]) for name in ("calibration", "certification"))
    levels = calibrate(tuning, alpha=CLAIM_ALPHAS, **{**options, "features": made.feature_map})

    def count(labelled: LabelledBatch, alpha: str) -> tuple[int, int, int]:
        alone = levels.with_levels([one for one in levels.levels if one.alpha == alpha])
        seen = compute_outcomes(alone, labelled, alpha)
        answered = seen.decisions.answered
        return int(answered.sum()), int((seen.wrong & answered).sum()), int(seen.decisions.accepted.sum())

    def expect(alpha: str) -> tuple[float, int]:
        answered, wrong, shown = count(tuning, alpha)
        share = len(tests) / len(tuning)
        answered, wrong = math.floor(answered * share), math.ceil(wrong * share)
        return float(stats.binom.cdf(min(wrong, answered), answered, float(RATE))), -shown

    chain: list[str] = []
    for alpha in sorted(CLAIM_ALPHAS, key=expect):
        if not chain or count(tuning, alpha)[2] > count(tuning, chain[-1])[2]:
            chain.append(alpha)
    passed = [
        stats.binom.cdf(wrong, answered, float(RATE)) <= 0.04
        for answered, wrong, _ in (count(tests, one) for one in chain)
    ]
    assert True in passed
    assert False in passed  # control: some level is not certified
    assert made.alphas == (chain[passed.index(False) - 1],)


def certify_often(change: Change = _keep) -> tuple[int, float]:
    """Certify one frozen artifact on fresh answers again and again.

    All claims of an answer are supported or none. Returned are how often a level is certified, and the true
    share of unsupported claims among those shown, averaged over answers.
    """
    rng = np.random.default_rng(7)
    records = make_answers(rng, 300, mean=10.0, together=True)
    frozen = calibrate(records, unit="claims", alpha="0.5", at_most=4, features="1")
    tuning = tabulate(records, claims=True)
    world = tabulate(make_answers(rng, 4_000, mean=10.0, together=True), claims=True)
    seen = compute_outcomes(frozen, world, "0.5")
    shown = seen.decisions.accepted.sum(axis=1)
    unsupported = (seen.decisions.accepted & ~world.correct).sum(axis=1)
    true = float((unsupported[shown > 0] / shown[shown > 0]).mean())
    certified = 0
    for repetition in range(REPETITIONS):
        drawn = world.take(rng.integers(len(world), size=150))
        # Ids of their own, so that which claim is drawn from an answer differs, too.
        drawn = replace(drawn, ids=tuple(f"{repetition}-{row}" for row in range(150)))
        try:
            certify_shown_claims(
                frozen, tuning, plan_first_test(change(drawn)), max_wrong_rate=FALSE, delta="0.125"
            )
        except UnattainableTargetError:
            continue
        certified += 1
    return certified, true


# The true share at alpha = 0.5 is just above the rate, so that each certificate is false, and has probability
# at most delta = 0.1. Their number is binomial; more than `MOST_FALSE` have a probability below 1e-6.
FALSE = "0.348"
REPETITIONS = repetitions(200, share=0.3)
MOST_FALSE = int(stats.binom.isf(1e-6, REPETITIONS, 0.1))


def test_false_shown_claims_certificates_are_as_rare_as_stated() -> None:
    certified, true = certify_often()
    assert true > float(FALSE)
    assert 0 < certified <= MOST_FALSE


def test_claims_of_one_answer_taken_as_independent_break_certificates() -> None:
    def take_one_by_one(labelled: LabelledBatch) -> LabelledBatch:
        """Make each claim an answer of its own; its threshold is the same, because the features are "1"."""
        inside = labelled.draws.is_drawn
        scores, supported = labelled.draws.scores[inside], labelled.correct[inside]
        ids = [f"{labelled.ids[row]}-{slot}" for row, slot in zip(*np.nonzero(inside), strict=True)]
        return LabelledBatch.from_claims(
            ids, scores[:, np.newaxis].tolist(), supported[:, np.newaxis].tolist()
        )

    certified, _ = certify_often(take_one_by_one)
    assert certified > MOST_FALSE


def test_served_claims_state_the_certified_share_alone() -> None:
    artifact = make_artifact(alpha=None, max_wrong_rate=0.5)
    result = make_chain(artifact=artifact).invoke("?")
    assert isinstance(result, ClaimsResult)
    assert result.text == LEFT
    wrong = result.guarantee.wrong_answers
    assert wrong is not None
    assert wrong.claim in result.explain()
    assert "at most 50 % are unsupported on average, with confidence 95 %" in wrong.claim
    assert result.guarantee.sentence == wrong.sentence
    assert "unsupported claim is left" not in result.guarantee.sentence
    assert any("what an answer omits" in one for one in result.guarantee.not_promised)


def test_unattainable_share_of_claims_is_refused_without_counts() -> None:
    records = make_answers(np.random.default_rng(3), 400)
    with pytest.raises(UnattainableTargetError, match="claims, one from each answer"):
        calibrate(records, unit="claims", max_wrong_rate=0.02, features="1")


def test_commands_report_the_certified_share_of_claims(tmp_path: Path) -> None:
    path, out = tmp_path / "records.jsonl", tmp_path / "artifact.json"
    write_records(path, make_answers(np.random.default_rng(1), 1000), Provenance(n=1, unit="claims"))
    options = ["--unit", "claims", "--max-wrong-rate", RATE, "--test-fraction", "0.2", "--out", str(out)]
    shown = run("calibrate", path, "--features", "1", *options)
    assert shown.code == 0, shown.err
    words = " ".join((shown.out + shown.err).split())
    assert "Of the claims that an answer shows, at most 30 % are unsupported on average" in words
    shown = run("inspect", out, "--details")
    assert shown.code == 0, shown.err
    assert "candidate" not in shown.out + shown.err
    assert "extractor" not in shown.out + shown.err
    shown = run("evaluate", out, path)
    assert shown.code == 0, shown.err
    words = " ".join(shown.out.split())
    assert "at most unsupported" in words
    assert max(map(len, (shown.out + shown.err).splitlines())) <= 80
    report = evaluate(CalibrationArtifact.load(out), make_answers(np.random.default_rng(2), 300))
    assert [one.contradicted for one in report.answers] == [False]
