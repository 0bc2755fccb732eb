"""What is certified about the claims that an answer shows: at most a share of them is unsupported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from langchain_cfc import CalibrationArtifact, calibrate, evaluate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify_shown_claims
from langchain_cfc.certificates.recomputation import recompute_certificates
from langchain_cfc.certificates.shown_claims import PERCENTS
from langchain_cfc.decision import decide
from langchain_cfc.errors import InputError, UnattainableTargetError
from langchain_cfc.records import ClaimsRecord, Provenance, write_records
from langchain_cfc.runnable import ClaimsResult
from tests.claims.chains import LEFT, make_artifact, make_chain
from tests.claims.worlds import make_answers
from tests.cli.running import run
from tests.factories import plan_first_test, reload_artifact
from tests.lengths import repetitions

RATE = "0.3"
RECORDS = make_answers(np.random.default_rng(1), 1000)
OPTIONS: dict[str, Any] = {"unit": "claims", "max_wrong_rate": RATE, "delta": "0.05"}


@pytest.fixture(scope="module")
def certified() -> CalibrationArtifact:
    return calibrate(RECORDS, **OPTIONS, test_fraction=0.2)


@pytest.fixture(scope="module")
def by_group() -> CalibrationArtifact:
    return calibrate(RECORDS, **OPTIONS, features="group(tier)", wrong_rate_groups=True)


def list_part(artifact: CalibrationArtifact, part: str) -> list[ClaimsRecord]:
    split = artifact.calibration.split
    return [one for one in RECORDS if split.find_part(one.id, None) == part]


def draw_claims(records: list[ClaimsRecord], tickets: dict[str, float], cut: float) -> list[bool]:
    """Draw a claim of each answer that shows one, and return whether it is unsupported."""
    shown = [
        (tickets[one.id], [claim.supported for claim in one.claims if claim.score <= cut]) for one in records
    ]
    return [not sorted(kept)[int(ticket * len(kept))] for ticket, kept in shown if kept]


def has_passed(drawn: list[bool], level: float) -> bool:
    return bool(stats.binom.cdf(sum(drawn), len(drawn), float(RATE)) <= level)


def plan_levels(cuts: list[float], fit: list[ClaimsRecord], size: int, level: float) -> list[float]:
    """Return the own level of each cut: 80 % where 2 may be wrong, and the rest at 30 % of the answers."""
    shares = [np.mean([min(claim.score for claim in one.claims) <= cut for one in fit]) for cut in cuts]
    early = next(n for n in range(3, 1000) if stats.binom.cdf(2, n, float(RATE)) <= 0.8 * level)
    own = [0.0] * len(cuts)
    for answers, part in ((early, 0.8), (0.3 * size, 0.2)):
        own[next(at for at, share in enumerate(shares) if share * size >= answers)] += part * level
    assert early < 0.3 * size
    return own


def test_shown_claims_certificate_equals_an_independent_computation(by_group: CalibrationArtifact) -> None:
    split, certificate = by_group.calibration.split, by_group.certified_bot.certificates[0]
    records, fit = list_part(by_group, "calibration"), list_part(by_group, "fit")
    ids = [one.id for one in records]
    tickets = dict(zip(ids, split.draw_uniforms("shown claim", ids).tolist(), strict=True))
    scores = [claim.score for one in fit for claim in one.claims]
    cuts = [float(np.percentile(scores, percent, method="higher")) for percent in PERCENTS]
    cuts[-1] = 1.0
    tiers = {"1": ("easy", "hard"), "group(tier)=easy": ("easy",), "group(tier)=hard": ("hard",)}
    assert certificate.level == pytest.approx(0.04)
    levels = dict(zip(tiers, (0.02, 0.01, 0.01), strict=True))
    members = {name: [one for one in records if one.metadata["tier"] in tier] for name, tier in tiers.items()}
    passed: dict[str, list[bool]] = {}
    for name, level in levels.items():
        carried = 0.0
        known = [one for one in fit if one.metadata["tier"] in tiers[name]]
        for cut, own in zip(cuts, plan_levels(cuts, known, len(members[name]), level), strict=True):
            carried += own
            wins = has_passed(draw_claims(members[name], tickets, cut), carried)
            passed.setdefault(name, []).append(wins)
            carried = carried if wins else 0.0
    held = [place for place, wins in enumerate(passed["1"]) if wins]
    chosen = max(held, key=lambda place: (sum(wins[place] for wins in passed.values()), place))
    assert held[-1] < len(cuts) - 1  # control: some cut is not certified
    assert certificate.max_score == cuts[chosen]
    assert (certificate.unit, certificate.alpha, certificate.prompts) == ("claims", RATE, len(records))
    assert [one.name for one in certificate.groups] == list(tiers)
    for group in certificate.groups:
        drawn = draw_claims(members[group.name], tickets, cuts[chosen])
        assert (group.prompts, group.answered) == (len(members[group.name]), len(drawn))
        assert group.wrong == sum(drawn)
        assert group.certified == passed[group.name][chosen]
    assert reload_artifact(by_group) == by_group


def test_served_claims_are_those_up_to_the_cut(certified: CalibrationArtifact) -> None:
    certificate = certified.certified_bot.certificates[0]
    labelled = LabelledBatch.from_arrays(
        ["a", "b"], [[0.0, certificate.cut, 1.0], [0.999]], [[True, True, True], [False]]
    )
    decisions = decide(certified, labelled.draws, cut=certificate.cut)
    assert decisions.accepted.tolist() == [[True, True, False], [False, False, False]]
    assert [decisions.find_reason(row) for row in range(2)] == ["answered", "no_claim_kept"]
    # A claim without a verdict has the score 1, and is above every cut.
    assert decide(certified, labelled.draws, cut=1.0).accepted.tolist()[0] == [True, True, False]


def test_labels_of_the_fit_split_do_not_change_the_certificate(certified: CalibrationArtifact) -> None:
    fit = {one.id for one in list_part(certified, "fit")}
    flipped = [
        one.model_copy(
            update={
                "claims": tuple(
                    claim.model_copy(update={"supported": claim.supported != (one.id in fit)})
                    for claim in one.claims
                )
            }
        )
        for one in RECORDS
    ]
    again = calibrate(flipped, **OPTIONS, test_fraction=0.2).certified_bot.certificates[0]
    certificate = certified.certified_bot.certificates[0]
    assert (again.cut, again.groups) == (certificate.cut, certificate.groups)


def test_recomputation_finds_changed_counts_of_claims(by_group: CalibrationArtifact) -> None:
    assert all(one.agrees for one in recompute_certificates(by_group))
    bot = by_group.certified_bot
    everyone, *others = bot.certificates[0].groups
    forged = everyone.model_copy(update={"wrong": everyone.wrong + 20})
    worse = bot.certificates[0].model_copy(update={"groups": (forged, *others)})
    changed = by_group.model_copy(update={"bot": bot.model_copy(update={"certificates": [worse]})})
    failed = [one.bound for one in recompute_certificates(changed) if not one.agrees]
    assert failed == ["p-value, 1"]


# In this world half of the answers make sixty claims with scores of .1 to .5, all of them supported or, in
# 35 % of these answers, none. The others make one claim, which is unsupported and has the score .9. So the
# unsupported share among the claims shown is .35 at every cut below .9, and above .35 from there on. Each
# certificate of the rate .34 is false.
FALSE, UNSUPPORTED = "0.34", 0.35
SIZE = 100
WORLDS = repetitions(2_000, share=0.1)
# A certificate has probability at most 80 % of delta = .125. Their number is binomial; more than this have a
# probability below 1e-6.
MOST_FALSE = int(stats.binom.isf(1e-6, WORLDS, 0.1))
Change = Callable[[list[list[float]], list[list[bool]]], tuple[list[list[float]], list[list[bool]]]]


def draw_world(rng: np.random.Generator, size: int) -> tuple[list[list[float]], list[list[bool]]]:
    """Draw the scores and labels of the claims of some answers."""
    alone, supported = rng.random(size) < 0.5, rng.random(size) >= UNSUPPORTED
    drawn = (rng.integers(1, 6, size=(size, 60)) / 10.0).tolist()
    scores = [[0.9] if single else row for single, row in zip(alone, drawn, strict=True)]
    labels = [
        [False] if single else [bool(right)] * 60 for single, right in zip(alone, supported, strict=True)
    ]
    return scores, labels


def keep_answers(
    scores: list[list[float]], labels: list[list[bool]]
) -> tuple[list[list[float]], list[list[bool]]]:
    return scores, labels


def take_claims_one_by_one(
    scores: list[list[float]], labels: list[list[bool]]
) -> tuple[list[list[float]], list[list[bool]]]:
    """Make each claim an answer of its own."""
    return [[one] for row in scores for one in row], [[one] for row in labels for one in row]


def count_emptied_answers(
    scores: list[list[float]], labels: list[list[bool]]
) -> tuple[list[list[float]], list[list[bool]]]:
    """Let answers that show nothing below .9 count there, with a share of 0."""
    alone = [len(row) == 1 for row in scores]
    added = [[0.0, *row] if single else row for single, row in zip(alone, scores, strict=True)]
    return added, [[True, *row] if single else row for single, row in zip(alone, labels, strict=True)]


def count_certificates(change: Change) -> int:
    """Certify fresh answers again and again, and count the certificates, each of which is false."""
    rng = np.random.default_rng(7)
    made = calibrate(RECORDS, **OPTIONS)
    frozen = made.model_copy(update={"bot": None, "attempts": []})
    count = 0
    for world in range(WORLDS):
        (scores, labels), fit = change(*draw_world(rng, SIZE)), draw_world(rng, 40)
        ids = [f"{world}-{row}" for row in range(len(scores))]
        names = [f"fit-{row}" for row in range(len(fit[0]))]
        try:
            certify_shown_claims(
                frozen,
                LabelledBatch.from_arrays(names, *fit),
                plan_first_test(LabelledBatch.from_arrays(ids, scores, labels)),
                max_wrong_rate=FALSE,
                delta="0.125",
            )
        except UnattainableTargetError:
            continue
        count += 1
    return count


def test_false_shown_claims_certificates_are_as_rare_as_stated() -> None:
    assert 0 < count_certificates(keep_answers) <= MOST_FALSE


@pytest.mark.parametrize("change", [take_claims_one_by_one, count_emptied_answers])
def test_false_shown_claims_certificates_are_frequent_if_counted_wrongly(change: Change) -> None:
    assert count_certificates(change) > MOST_FALSE


def test_cuts_chosen_by_the_labels_that_certify_are_often_false() -> None:
    rng = np.random.default_rng(7)
    fine = 0
    for _ in range(WORLDS):
        scores, labels = draw_world(rng, SIZE)
        shown = [
            [not right for score, right in zip(*row, strict=True) if score <= 0.5]
            for row in zip(scores, labels, strict=True)
        ]
        fine += float(np.mean([np.mean(row) for row in shown if row])) <= float(FALSE)
    assert fine > MOST_FALSE


@pytest.mark.parametrize("changed", [{"at_most": 1}, {"alpha": "0.1"}, {"max_wrong_rate": ["0.1", "0.2"]}])
def test_options_that_shown_claims_do_not_have_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="max_wrong_rate"):
        calibrate(RECORDS, **{**OPTIONS, **changed})


def test_served_claims_state_the_certified_share_alone() -> None:
    artifact = make_artifact(alpha=None, max_wrong_rate=0.3)
    result = make_chain(artifact=artifact).invoke("?")
    assert isinstance(result, ClaimsResult)
    assert result.text == LEFT
    wrong = result.guarantee.wrong_answers
    assert wrong is not None
    assert wrong.claim in result.explain()
    assert "at most 30 % are unsupported on average, with confidence 95 %" in wrong.claim
    assert result.guarantee.sentence == wrong.sentence
    assert "unsupported claim is left" not in result.guarantee.sentence
    assert any("what an answer omits" in one for one in result.guarantee.not_promised)


def test_unattainable_share_of_claims_is_refused_without_counts() -> None:
    records = make_answers(np.random.default_rng(3), 400)
    with pytest.raises(UnattainableTargetError, match="answers that show claims"):
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
    assert "of the claims are shown" in words
    assert max(map(len, (shown.out + shown.err).splitlines())) <= 80
    report = evaluate(CalibrationArtifact.load(out), make_answers(np.random.default_rng(2), 300))
    assert [one.contradicted for one in report.answers] == [False]
