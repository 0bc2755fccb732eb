"""Collections by a draw rule: how much is drawn, and how the records calibrate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import CallPolicy, CollectionOptions, Components, Store, collect
from langchain_core.runnables import RunnableLambda

from integrations.collect.tests.sharing import tabulate_store
from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate
from langchain_cfc.errors import InputError
from langchain_cfc.records import Example
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import SelfConsistency
from tests.cli.running import run
from tests.lengths import mostly_long

RULES = ["lead(2, at_most=6)", "agree(0.75, rounds=2+2+2)", "below(0.35, at_most=6)"]
IDS = {"generator_id": "letters", "verifier_id": "hash", "labeler_id": "first"}
# One call at a time, so that the n-th call for a prompt is its n-th slot.
ONE_CALL_AT_A_TIME = CollectionOptions(call_policy=CallPolicy(concurrency=1), on_progress=lambda _: None)
SIZE = 30


def hash_parts(*parts: object) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=4).digest(), "big")


@dataclass
class Letters:
    """A chain that answers the k-th call about a prompt with a letter that follows from both.

    Attributes:
        drawn: How often it was asked about each prompt.
        scored: How many candidates of each prompt were scored.
        broken: Prompt and call that raise once.
    """

    drawn: Counter[str] = field(default_factory=Counter)
    scored: Counter[str] = field(default_factory=Counter)
    broken: set[tuple[str, int]] = field(default_factory=set)

    def generate(self, prompt: str) -> str:
        call = self.drawn[prompt]
        if (prompt, call) in self.broken:
            self.broken.discard((prompt, call))
            msg = "no answer"
            raise ValueError(msg)
        self.drawn[prompt] += 1
        # Every other prompt is easy.
        return (
            "aaaab"[hash_parts(prompt, call) % 5]
            if hash_parts(prompt) % 2
            else "abcd"[hash_parts(prompt, call) % 4]
        )

    def verify(self, prompt: str, candidates: list[DrawnCandidate]) -> list[float]:
        self.scored[prompt] += len(candidates)
        return [(hash_parts(prompt, one.text) % 50 + 50 * (one.text != "a")) / 100 for one in candidates]

    def make_parts(self, **fields: Any) -> Components:
        def verify(prompt: str, candidates: list[DrawnCandidate]) -> list[float]:
            return self.verify(prompt, candidates)

        verify.separate_scores = True  # type: ignore[attr-defined]
        own: dict[str, Any] = {
            "generator": RunnableLambda(self.generate),
            "verifier": verify,
            "labeler": lambda prompt, reference, candidates: [  # noqa: ARG005 - its signature
                one.text == reference for one in candidates
            ],
            **IDS,
        }
        return Components(**{**own, **fields})


EXAMPLES = [Example(id=f"p{number}", input=f"question {number}", reference="a") for number in range(SIZE)]


def collect_by(letters: Letters, store: Path, **fields: Any) -> None:
    assert collect(EXAMPLES, letters.make_parts(**fields), store, ONE_CALL_AT_A_TIME).complete


def calibrate_from(store: Path, **options: Any) -> CalibrationArtifact:
    with Store(store) as opened:
        table, provenance = tabulate_store(opened), opened.read_provenance()
    defaults: dict[str, Any] = {"alpha": 0.4, "features": "1", "allow_unattainable": True}
    return calibrate(table, provenance=provenance, **{**defaults, **options})


@mostly_long("rule", RULES, quick=1)
def test_draw_rule_collection_calibrates_like_a_replay_of_all_draws(rule: str, tmp_path: Path) -> None:
    fewer, every = Letters(), Letters()
    collect_by(fewer, tmp_path / "fewer.db", draws=rule)
    collect_by(every, tmp_path / "all.db", n=6)
    assert every.drawn.total() == 6 * SIZE
    assert fewer.drawn.total() < 0.8 * every.drawn.total()
    assert fewer.scored == fewer.drawn  # nothing is scored twice
    ours = calibrate_from(tmp_path / "fewer.db", draws=rule)
    theirs = calibrate_from(tmp_path / "all.db", draws=rule)
    different = {"created_at", "provenance"}
    assert ours.model_dump(exclude=different) == theirs.model_dump(exclude=different)
    assert ours.provenance is not None
    assert ours.provenance.draws == rule


@mostly_long("rule", RULES, quick=1)
def test_retry_between_waves_draws_no_candidate_twice(rule: str, tmp_path: Path) -> None:
    whole = Letters()
    collect_by(whole, tmp_path / "whole.db", draws=rule)
    late = {(prompt, count - 1) for prompt, count in whole.drawn.items() if count > 3}
    assert len(late) >= 5
    letters, store = Letters(broken=set(late)), tmp_path / "store.db"
    first = collect(EXAMPLES, letters.make_parts(draws=rule), store, ONE_CALL_AT_A_TIME)
    collect(EXAMPLES, letters.make_parts(draws=rule), store, replace(ONE_CALL_AT_A_TIME, retry_failed=True))
    assert letters.drawn == whole.drawn
    with Store(store) as ours, Store(tmp_path / "whole.db") as theirs:
        assert list(ours.read_records()) == list(theirs.read_records())
        assert first.status.failed <= len(late)


def test_serving_by_a_draw_rule_draws_the_collected_candidates(tmp_path: Path) -> None:
    rule, letters = RULES[2], Letters()
    collect_by(letters, tmp_path / "fewer.db", draws=rule)
    artifact = calibrate_from(tmp_path / "fewer.db", draws=rule)
    again = Letters()
    parts = again.make_parts(draws=rule)
    chain = CFCRunnable(
        generator=parts.generator,
        verifier=parts.verifier,
        artifact=artifact,
        generator_id="letters",
        verifier_id="hash",
    )
    with Store(tmp_path / "fewer.db") as store:
        records = list(store.read_records())[:20]
    for record in records:
        result = chain.invoke(record.input, {"max_concurrency": 1})
        assert [one.score for one in result.candidates] == [one.score for one in record.candidates]
        assert result.guarantee.binding == "matched"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"draws": RULES[0], "n": 6}, "draws cannot be combined with n"),
        ({"draws": RULES[0], "unit": "claims"}, "draws cannot be combined with unit"),
        ({"draws": "fixed(6)"}, "use n=6 instead"),
        ({"draws": "lead"}, "examples of draw rules"),
        (
            {"draws": RULES[2], "verifier": SelfConsistency(), "verifier_id": None},
            "always stops after one draw",
        ),
        ({}, "n is None; expected a whole number"),
    ],
)
def test_collect_refuses_invalid_draw_rules_before_drawing(
    fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    letters = Letters()
    with pytest.raises(InputError, match=problem):
        collect(EXAMPLES, letters.make_parts(**fields), tmp_path / "store.db", ONE_CALL_AT_A_TIME)
    assert not letters.drawn


def test_collect_command_accepts_a_draw_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"question {number}\n" for number in range(40))
    Path("questions.csv").write_text(f"question\n{rows}", "utf-8")
    source = "--source questions.csv --question question --reference question --store store.db"
    parts = "--generator tests.fakes:NumberedModel --verifier SelfConsistency --labeler NormalisedMatch"
    rest = ("--set", "generator.arguments.echoing=true", "--out", "records.jsonl", "--draws", RULES[0])
    options = ("collect", *source.split(), *parts.split(), *rest)
    ran = run(*options)
    assert ran.code == 0, ran.out + ran.err
    assert f"of at most 6 candidates a prompt, by {RULES[0]}" in ran.out
    assert f"--draws '{RULES[0]}' --max-wrong-rate" in " ".join(ran.out.split())
    run(*options, "-n", "6").assert_refused("found both of n and draws")


def test_notice_on_scores_works_with_unequal_numbers_of_draws(tmp_path: Path) -> None:
    letters = Letters()
    examples = [Example(id=f"p{number}", input=f"question {number}", reference="a") for number in range(120)]
    notices: list[str] = []
    options = CollectionOptions(on_progress=lambda _: None, on_notice=notices.append)
    parts = letters.make_parts(draws=RULES[0], verifier=point_the_wrong_way)
    assert collect(examples, parts, tmp_path / "store.db", options).complete
    assert len(set(letters.drawn.values())) > 1
    (notice,) = notices
    assert "the scores point the wrong way" in notice


def point_the_wrong_way(_: str, candidates: list[DrawnCandidate]) -> list[float]:
    return [0.9 if one.text == "a" else 0.1 for one in candidates]


point_the_wrong_way.separate_scores = True  # type: ignore[attr-defined]
