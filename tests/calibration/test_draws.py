"""Calibration with a draw rule: prefixes of the records, whose scores must not depend on later draws."""

from __future__ import annotations

import functools
import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda

from langchain_cfc import CFCRunnable, PromptRecord, calibrate, evaluate
from langchain_cfc.artifact import CalibrationArtifact, has_separate_scores, tabulate_draws
from langchain_cfc.calibration import CalibrationConfig
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.certificates import certify
from langchain_cfc.decision import decide
from langchain_cfc.draw_rules import parse_draw_rule, replay
from langchain_cfc.errors import InputError
from langchain_cfc.records import Provenance, Records, read_records, tabulate, write_records
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.verifiers import SelfConsistency, SequenceProbability, VerifierEnsemble, from_evaluator
from tests.factories import drawn_candidates, reload_artifact
from tests.fakes import slot_of
from tests.guarantees.promises import make_prompts
from tests.lengths import mostly_long, repetitions

SEPARATE = Provenance(n=8, verifier={"id": "sequence-probability"})
pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")

RULES = ["lead(2, at_most=8)", "below(0.2, at_most=6)", "agree(0.8, rounds=2+2+4)"]


@functools.cache
def make_records(seed: int = 0, size: int = 120) -> list[PromptRecord]:
    return make_prompts(np.random.default_rng(seed), size, n=8)


def calibrate_with(
    draws: str | None, records: Any = None, provenance: Provenance | None = SEPARATE, **options: Any
) -> Any:
    given = {"alpha": "0.3", "features": "1", "allow_unattainable": True, **options}
    return calibrate(records or make_records(), draws=draws, provenance=provenance, **given)


@mostly_long("draws", RULES, quick=1)
def test_draw_rule_artifact_decides_as_on_each_prefix_alone(draws: str) -> None:
    artifact = reload_artifact(calibrate_with(draws, features="hat(mean_score, 3)"))
    assert artifact.draws == draws
    table = tabulate_draws(artifact, make_records(1, 60))
    counts = table.draws.counts
    assert len(set(counts.tolist())) > 1
    together = decide(artifact, table.draws)
    whole = tabulate(make_records(1, 60))
    for row, count in enumerate(counts.tolist()):
        alone = whole.take(np.array([row])).keep_first_candidates(count)
        single = decide(artifact, alone.draws)
        assert single.thresholds[0] == together.thresholds[row]
        np.testing.assert_array_equal(single.accepted[0], together.accepted[row, :count])
        assert not together.accepted[row, count:].any()


def test_evaluate_states_the_mean_number_of_draws() -> None:
    artifact = calibrate_with(RULES[0])
    report = evaluate(artifact, make_records(1, 60))
    assert report.mean_draws == tabulate_draws(artifact, make_records(1, 60)).draws.counts.mean()
    assert 2.0 <= (report.mean_draws or 0.0) < 8.0
    certified = certify(artifact, make_records(2, 200), provenance=SEPARATE)
    assert reload_artifact(certified).certificates[0].prompts == 200
    plain = evaluate(calibrate_with("fixed(8)"), make_records(1))
    assert plain.mean_draws is None
    mean = f"{report.mean_draws:.1f}"
    assert report.describe_draws("candidates each") == f"at most 8 candidates each, {mean} on average"
    assert plain.describe_draws("candidates each") == "8 candidates each"


def test_attainable_coverage_ignores_labels_after_the_last_draw() -> None:
    artifact = calibrate_with("below(0.2, at_most=8)")
    table = tabulate(make_records())
    counts = tabulate_draws(artifact, make_records()).draws.counts
    attainable = [bool(table.correct[row, :count].any()) for row, count in enumerate(counts.tolist())]
    assert artifact.calibration.attainable_coverage == pytest.approx(np.mean(attainable))
    assert np.mean(attainable) < table.correct.any(axis=1).mean()


@pytest.mark.parametrize(
    ("verifier", "stated", "separate"),
    [
        ({"id": "sequence-probability"}, None, True),
        ({"method": "model-judge"}, None, True),
        ({"method": "self-consistency", "agreement": "equal"}, None, False),
        ({"id": "mine"}, None, None),
        ({"id": "mine"}, True, True),
        ({"id": "mine"}, False, False),
        (None, None, None),
    ],
)
def test_draw_rule_requires_scores_of_separate_candidates(
    verifier: dict[str, Any] | None, stated: bool | None, separate: bool | None
) -> None:
    provenance = Provenance(n=8, verifier=verifier, separate_scores=stated)
    assert has_separate_scores(provenance) is separate
    if separate:
        assert calibrate_with(RULES[0], provenance=provenance).draws == RULES[0]
        return
    problem = "do not say whether" if separate is None else "compares the candidates"
    with pytest.raises(InputError, match=problem):
        calibrate_with(RULES[0], provenance=provenance)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"draws": "lead(2, at_most=9)"}, "may draw 9 candidates, but these prompts have 8"),
        ({"draws": "lead(2)"}, "at_most=. or .rounds="),
    ],
)
def test_calibrate_refuses_a_draw_rule_that_records_cannot_replay(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        calibrate_with(**options)


def test_fixed_draw_rule_uses_the_first_candidates() -> None:
    fixed = calibrate_with("fixed(6)")
    first = [one.model_copy(update={"candidates": one.candidates[:6]}) for one in make_records()]
    plain = calibrate_with(None, first, SEPARATE.model_copy(update={"n": 6}))
    assert (fixed.draws, fixed.n) == (None, 6)
    assert (fixed.levels, fixed.arrays) == (plain.levels, plain.arrays)


def test_decide_refuses_candidates_that_the_draw_rule_would_not_draw() -> None:
    artifact = calibrate_with(RULES[0])
    table = tabulate(make_records(1, 20))
    with pytest.raises(InputError, match="does not stop after the 8 draws"):
        decide(artifact, table.draws)
    with pytest.raises(InputError, match="does not stop after the 1 draws"):
        decide(artifact, table.keep_first_candidates(1).draws)
    other = tabulate_draws(calibrate_with(RULES[2]), make_records(1, 20))
    with pytest.raises(InputError, match="another rule has shortened these prompts"):
        evaluate(artifact, other)
    plain = calibrate(make_records(), alpha="0.3", features="1", allow_unattainable=True)
    with pytest.raises(InputError, match="can be used only with this rule"):
        evaluate(plain, other)


def test_prompts_shortened_by_the_same_draw_rule_calibrate_and_test() -> None:
    artifact = calibrate_with(RULES[0])
    shortened: LabelledBatch = tabulate_draws(artifact, make_records())
    again = calibrate_with(RULES[0], shortened)
    assert again.levels == artifact.levels
    assert evaluate(artifact, tabulate_draws(artifact, make_records(1))) == evaluate(
        artifact, make_records(1)
    )


def test_artifact_refuses_a_forged_draw_rule() -> None:
    artifact = calibrate_with(RULES[0])
    forged: list[tuple[dict[str, Any], str]] = [
        ({"draws": "lead(2,at_most=8)"}, "canonical form"),
        ({"draws": "fixed(8)"}, "canonical form"),
        ({"draws": "lead(2, at_most=7)"}, "not a rule of at most 8"),
        ({"provenance": Provenance(n=8, verifier={"id": "mine"})}, "do not say whether"),
    ]
    for update, problem in forged:
        with pytest.raises(ValueError, match=problem):
            CalibrationArtifact.model_validate({**artifact.model_dump(), **update})


def test_config_from_artifact_reproduces_the_draw_rule() -> None:
    artifact = calibrate_with(RULES[2], adaptive_alpha=True, features="hat(mean_score, 3)")
    config = CalibrationConfig.from_artifact(artifact)
    assert config.draws == RULES[2]
    again = calibrate(make_records(), **config.to_arguments(), provenance=SEPARATE)
    assert again.levels == artifact.levels
    assert "--draws 'agree(0.8, rounds=2+2+4)'" in config.format_command(["r.jsonl"])
    assumed = artifact.make_guarantee().assumptions
    assert any("fixed before the records were seen: agree(0.8" in one for one in assumed)


@pytest.mark.parametrize(
    ("parts", "separate"),
    [
        (
            {
                "probable": SequenceProbability(),
                "alike": from_evaluator(lambda _prompt, _text: 0.5),
            },
            True,
        ),
        ({"probable": SequenceProbability(), "votes": SelfConsistency()}, False),
        ({"probable": SequenceProbability(), "mine": lambda _prompt, draws: [0.5] * len(draws)}, None),
        ({"votes": SelfConsistency(), "mine": lambda _prompt, draws: [0.5] * len(draws)}, False),
    ],
)
def test_ensemble_scores_separately_if_all_its_verifiers_do(
    parts: dict[str, Any], separate: bool | None
) -> None:
    assert VerifierEnsemble(parts).separate_scores is separate


class Judge:
    """A verifier that scores each candidate by itself, by its text and the prompt."""

    fingerprint: ClassVar[dict[str, str]] = {"id": "sequence-probability"}

    def __call__(self, prompt: str, candidates: list[DrawnCandidate]) -> list[float]:
        """Score by a hash, which nothing else influences."""
        return [zlib.crc32(f"{prompt}/{one.text}".encode()) % 1000 / 1000 for one in candidates]


def add_outputs(records: list[PromptRecord], seen: int = 8) -> list[PromptRecord]:
    """The records with the outputs of two verifiers on their first candidates, of which one compares them."""
    made = []
    for record in records:
        candidates = record.candidates[:seen]
        drawn = drawn_candidates(*(one.answer_key for one in candidates))
        votes = SelfConsistency().invoke({"prompt": record.id, "candidates": drawn})
        judged = Judge()(record.id, drawn)
        outputs = [{"votes": vote, "judge": score} for vote, score in zip(votes, judged, strict=True)]
        scored = tuple(
            one.model_copy(update={"scores": each, "score": math.fsum(each.values()) / 2})
            for one, each in zip(candidates, outputs, strict=True)
        )
        made.append(record.model_copy(update={"candidates": scored, "input": record.id}))
    return made


ENSEMBLE: dict[str, Any] = {"votes": SelfConsistency(), "judge": Judge()}
BOTH = Provenance(
    n=8,
    generator={"id": "recorded"},
    verifier=compute_fingerprint(VerifierEnsemble(ENSEMBLE)),
    separate_scores=VerifierEnsemble(ENSEMBLE).separate_scores,
)


def stop_by_rule(records: list[PromptRecord], draws: str, path: Path) -> Records:
    """The records as a collection by the rule leaves them, scored by the ensemble."""
    counts = parse_draw_rule(draws).count_draws(tabulate(records).draws).tolist()
    few = [add_outputs([one], count)[0] for one, count in zip(records, counts, strict=True)]
    write_records(path, few, BOTH.model_copy(update={"draws": draws}))
    return read_records(path)


@mostly_long("draws", [RULES[0], RULES[2]], quick=1)
def test_ensemble_serves_the_scores_of_records_stopped_by_the_draw_rule(draws: str, tmp_path: Path) -> None:
    few = stop_by_rule(make_records(size=200), draws, tmp_path / "few.jsonl")
    new = stop_by_rule(make_records(1, repetitions(200, share=0.3)), draws, tmp_path / "new.jsonl")
    artifact = reload_artifact(calibrate_with(draws, few, few.provenance, features="hat(mean_score, 3)"))
    table = tabulate_draws(artifact, new)
    decisions = decide(artifact, table.draws)
    # A record holds only what the rule left, and nothing further is drawn.
    texts = {record.input: [one.answer_key for one in record.candidates] for record in new}

    def draw(prompt: str, config: RunnableConfig) -> str:
        return texts[prompt][slot_of(config.get("tags"), 0)]

    chain = CFCRunnable(
        generator=RunnableLambda(draw),
        generator_id="recorded",
        verifier=ENSEMBLE,
        artifact=artifact,
        max_concurrency=1,
    )
    for row, (record, count) in enumerate(zip(new, table.draws.counts.tolist(), strict=True)):
        result = chain.invoke(str(record.input))
        assert [one.score for one in result.candidates] == table.draws.scores[row, :count].tolist()
        assert [one.scores for one in result.candidates] == [one.scores for one in record.candidates]
        assert [one.accepted for one in result.candidates] == decisions.accepted[row, :count].tolist()
        assert result.threshold == decisions.thresholds[row]


@pytest.mark.parametrize("draws", [RULES[0], "below(0.3, rounds=2+2+4)", "fixed(6)"])
def test_draw_rule_refuses_all_candidates_of_an_ensemble_that_compares_them(draws: str) -> None:
    with pytest.raises(InputError, match="compares the candidates of a prompt"):
        calibrate_with(draws, add_outputs(make_records()), BOTH)


def test_tabulate_n_refuses_a_table_that_a_draw_rule_stopped() -> None:
    stopped = replay(parse_draw_rule(RULES[0]), tabulate(make_records()))
    with pytest.raises(InputError, match="a draw rule stopped drawing these candidates"):
        tabulate(stopped, n=3, provenance=SEPARATE)
    # The first two were drawn for every prompt.
    drawn = tabulate(stopped, n=2, provenance=SEPARATE)
    assert calibrate(drawn, alpha="0.6", features="1", provenance=SEPARATE).n == 2


@pytest.mark.parametrize(
    ("draws", "collected", "certifies"),
    [
        ("below(0.5, at_most=8)", False, False),
        ("below(0.5, at_most=8)", True, True),
        ("fixed(4)", False, True),
    ],
)
def test_fit_labels_certify_only_if_they_cannot_have_chosen_the_rule(
    draws: str, collected: bool, certifies: bool
) -> None:
    # Collected: records that were drawn by the rule had it before there was any label.
    provenance = SEPARATE.model_copy(update={"draws": draws}) if collected else SEPARATE
    table = tabulate(make_records(0, 300))
    options = {"alpha": None, "max_wrong_rate": 0.9, "fit_fraction": 0.5}

    def count_answers(correct: Any) -> Any:
        artifact = calibrate_with(draws, replace(table, correct=correct), provenance, **options)
        return artifact.certified_bot.certificates[0].groups[0]

    split = calibrate_with(draws, table, provenance, **options).calibration.split
    flipped = table.correct.copy()
    flipped[split.list_rows(table)["fit"]] ^= True
    # The counts differ only if labels of the fit split are among those counted.
    assert (count_answers(table.correct) == count_answers(flipped)) != certifies
