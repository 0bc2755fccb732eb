"""Hostile records, and the reports that tests look at."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_lab.report import HardestPrompts, find_hardest_prompts

from langchain_cfc import CalibrationArtifact, Candidate, PromptRecord, calibrate, evaluate
from langchain_cfc.artifact import tabulate_draws
from langchain_cfc.demo import ALPHA, FEATURES, SET_RULE, TEST_FRACTION, load_recording
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.records import ClaimsRecord, LabelledRecord
from tests.factories import make_answer

# Long answers, each with its claims.
RECORDS = Path(__file__).parents[4] / "examples/long_answers/records.jsonl.gz"
# Each would do something, or look like something else, if it were not shown as the text that it is.
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</style></title></svg><script>window.hacked = 2</script>",
    "\"><img src=x onerror='window.hacked = 3'>",
    "{{ 7 * 7 }} {% raw %} $x^2$ \\frac{a}{b} &lt;b&gt; &amp;",
    "שלום עולם، مرحبا \u202eright to left\u202c",
    "family 👨‍👩‍👧‍👦, flag 🇵🇪, accent e\u0301\u0301\u0301",
    "null \x00, bell \x07, delete \x7f, next line \x85, line separator \u2028",
    "wide" * 2500,
)
TOPICS = HOSTILE[:3]


def make_hostile_records(size: int = 300, n: int = 4, seed: int = 0) -> list[PromptRecord]:
    """Prompts of `n` candidates, harder by topic, whose every text is hostile."""
    rng = np.random.default_rng(seed)
    records = []
    for row in range(size):
        topic = row % len(TOPICS)
        right = rng.random(n) < (0.85, 0.6, 0.35)[topic]
        scores = np.clip(rng.beta(2, 5, n) + 0.35 * ~right, 0.0, 1.0)
        candidates = tuple(
            Candidate(
                text=f"{HOSTILE[int(rng.integers(len(HOSTILE)))]} {slot}",
                score=float(score),
                correct=bool(correct),
            )
            for slot, (score, correct) in enumerate(zip(scores, right, strict=True))
        )
        records.append(
            PromptRecord(
                id=f"{row} {HOSTILE[row % len(HOSTILE)]}",
                input=HOSTILE[(row + 3) % len(HOSTILE)],
                cluster=f"{seed}-{row}",
                metadata={"topic": TOPICS[topic]},
                candidates=candidates,
            )
        )
    return records


def make_hostile_answers(size: int = 300, n: int = 5, seed: int = 0) -> list[ClaimsRecord]:
    """Answers of `n` claims, less often supported by topic, whose every text is hostile."""
    rng = np.random.default_rng(seed)
    records = []
    for row in range(size):
        supported = rng.random(n) < (0.9, 0.7, 0.5)[row % len(TOPICS)]
        texts = [
            f"{HOSTILE[int(one)]} {slot}." for slot, one in enumerate(rng.integers(len(HOSTILE) - 1, size=n))
        ]
        scores = np.clip(rng.beta(2, 5, n) + 0.35 * ~supported, 0.0, 1.0)
        records.append(
            make_answer(
                f"{row} {HOSTILE[row % len(HOSTILE)]}",
                *zip(texts, scores.tolist(), supported.tolist(), strict=True),
                separator=" ",
                input=HOSTILE[(row + 3) % len(HOSTILE)],
                cluster=f"{seed}-{row}",
                metadata={"topic": TOPICS[row % len(TOPICS)]},
            )
        )
    return records


def make_prompt(
    name: str, *candidates: tuple[float, str, bool], topic: str = "a", **changes: Any
) -> PromptRecord:
    """A prompt with candidates (score, text, correct)."""
    made = tuple(Candidate(score=score, text=text, correct=correct) for score, text, correct in candidates)
    return PromptRecord(
        id=name, **{"input": name, "metadata": {"topic": topic}, "candidates": made, **changes}
    )


@dataclass(frozen=True)
class Case:
    """An artifact with its evaluation and hardest prompts."""

    artifact: CalibrationArtifact
    evaluation: EvaluationReport
    hardest: HardestPrompts


def make_case(records: Sequence[LabelledRecord], **options: Any) -> Case:
    """Calibrate on a part of records and evaluate on the rest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttainabilityWarning)  # the page itself says which groups
        artifact = calibrate(records, **{"alpha": 0.3, "test_fraction": 0.4, **options})
    table = tabulate_draws(artifact, records)
    alpha = artifact.alphas[-1] if artifact.alphas else None
    return Case(
        artifact,
        evaluate(artifact, table, alpha=alpha),
        find_hardest_prompts(artifact, table, alpha, texts=records),
    )


HOSTILE_FEATURES = "mean_score + group(topic)"


@pytest.fixture(scope="session")
def facts() -> Case:
    """The recording that ships, as the demo calibrates it."""
    source = load_recording()
    return make_case(
        list(source),
        alpha=ALPHA,
        features=FEATURES,
        set_rule=SET_RULE,
        test_fraction=TEST_FRACTION,
        provenance=source.provenance,
    )


@pytest.fixture(scope="session")
def bot() -> Case:
    """The same with a bot beside the sets."""
    source = load_recording()
    return make_case(
        list(source),
        alpha=["0.2", "0.3"],
        features="mean_score",
        set_rule=SET_RULE,
        max_wrong_rate="0.1",
        provenance=source.provenance,
    )


@pytest.fixture(scope="session")
def hostile() -> Case:
    return make_case(make_hostile_records(), features=HOSTILE_FEATURES)


@pytest.fixture(scope="session")
def claims() -> Case:
    return make_case(make_hostile_answers(), unit="claims", at_most=1, features=HOSTILE_FEATURES)
