"""The cascade of two models and a person: its README, its figures and its claims."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from langchain.chat_models import init_chat_model
from scipy import stats

from examples.tests.running import run_readme_commands
from langchain_cfc import CFCRunnable, write_records
from langchain_cfc.certificates.bounds import lower_bound
from langchain_cfc.errors import DrawError
from langchain_cfc.records import Provenance
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from tests.lengths import repetitions
from tests.serving.openai_server import Script, serving

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


@pytest.mark.long
def test_cascade_figure_shows_costs_of_both_ways(tmp_path: Path) -> None:
    from cascade_figure import draw_figure
    from cascade_table import compute_mean, measure_splits

    rows = measure_splits(["cascade", "strong model alone"], 1)
    one = compute_mean(rows["cascade"])
    figure = draw_figure({"0.2": one, "0.3": one}, compute_mean(rows["strong model alone"]))
    figure.savefig(tmp_path / "cascade.png")
    costs = [np.asarray(line.get_xdata(), dtype=float) for line in figure.axes[0].get_lines()]
    assert [len(line) for line in costs] == [2, 2, 1]
    assert costs[0][0] == pytest.approx(one.cost)
    assert costs[0][0] > costs[1][0]


def test_cascade_works_with_a_model_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cascade import FirstTier, Split, certify_second_tier
    from two_models import CHEAP, STRONG

    monkeypatch.setenv("OPENAI_API_KEY", "none")
    script = replace(Script.of(CHEAP.records), model="cheap-model")
    with serving(script) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        # As `collect` would have written them: the header states the model and its settings.
        collected = Provenance(
            n=10,
            generator=compute_fingerprint(init_chat_model("openai:cheap-model", temperature=0.7)),
            verifier={"id": "sequence-probability"},
        )
        write_records(tmp_path / "mine.jsonl", CHEAP.records, collected)
        mine = replace(CHEAP, path=tmp_path / "mine.jsonl", model="openai:cheap-model")
        split = Split.of(mine, 0)
        first = FirstTier.of(mine, split)
        waiting: list[str] = []
        cheap = CFCRunnable(artifact=first.artifact, **mine.parts())
        strong = CFCRunnable(artifact=certify_second_tier(STRONG, split, first), **STRONG.parts())
        chain = cheap.or_else(strong.or_else(waiting.append))
        rows = [*np.flatnonzero(first.on_test.answered)[:3], *np.flatnonzero(~first.on_test.answered)[:3]]
        results = [chain.invoke(mine.records[split.test[row]].input, {"max_concurrency": 1}) for row in rows]
    assert len(script.requests) == 6 * mine.n
    assert [one.guarantee.artifact_digest for one in results[:3]] == [first.artifact.digest] * 3
    assert all(one.guarantee.binding == "matched" for one in results[:3])
    # Past the cheap one it is the strong one's set, or the person's.
    later = [one for one in results[3:] if one is not None]
    assert len(later) + len(waiting) == 3
    assert first.artifact.digest not in {one.guarantee.artifact_digest for one in later}


def test_cascade_refuses_questions_that_were_not_recorded(
    calibrated: tuple[Split, FirstTier],
) -> None:
    from two_models import CHEAP

    _, first = calibrated
    chain = CFCRunnable(artifact=first.artifact, **CHEAP.parts()).or_else(lambda _: "a person")
    with pytest.raises(DrawError, match="was not recorded"):
        chain.invoke("Who wrote this?")


def test_escalation_recording_has_the_stated_digest_and_licence() -> None:
    unpacked = gzip.decompress((EXAMPLE / "cheap.jsonl.gz").read_bytes())
    note = (EXAMPLE / "DATA.md").read_text(encoding="utf-8")
    assert hashlib.sha256(unpacked).hexdigest() in note
    assert "Apache-2.0" in note
