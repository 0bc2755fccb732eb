"""Draw rules keep the promise, and rules that look at more than the drawn candidates break it.

As in `test_leave_one_out`, each of N + 1 prompts is decided upon by the others, and under every guaranteed
weighting the sum of f(X) (kept - tau) is at least 0, without any tolerance for chance: prompts that a rule
has shortened are exchangeable as the whole ones are. Groups are included.

Each control calibrates on prompts that were shortened in another way than serving can: by looking at labels
or at later draws. Its sum falls below 0.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from langchain_cfc import FeatureMap, PromptRecord
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.draw_rules import DrawRule
from langchain_cfc.records import Provenance, tabulate
from tests.guarantees.promises import make_prompts
from tests.guarantees.test_leave_one_out import ROUND_OFF, sum_leave_one_out_gaps
from tests.lengths import mostly_long, repetitions

N, SIZE = 8, repetitions(40, share=0.3)
RULES = [
    "lead(1, at_most=8)",
    "lead(3, at_most=8)",
    "lead(2, rounds=2+2+4)",
    "below(0.1, at_most=8)",
    "below(0.3, rounds=3+5)",
    "agree(0.75, rounds=2+2+4)",
]
MAPS = ["1", "group(tier)", "hat(mean_score, 4)", "bins(min_score, 3) + group(tier)"]
SEPARATE = Provenance(n=N, verifier={"id": "sequence-probability"})
Shorten = Callable[..., LabelledBatch]

pytestmark = pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")


def make_bag(seed: int) -> list[PromptRecord]:
    return make_prompts(np.random.default_rng(seed), SIZE, n=N)


def measure_gaps(bag: list[PromptRecord], features: str, draws: str, **options: Any) -> dict[str, float]:
    rule = FeatureMap.parse(features).fit(tabulate(make_bag(99)).draws)
    return sum_leave_one_out_gaps(bag, rule, draws=draws, provenance=SEPARATE, **{"alpha": "0.3", **options})


@mostly_long("draws", RULES, quick=3)
@pytest.mark.parametrize(
    "features", [*(pytest.param(one, marks=pytest.mark.long) for one in MAPS[:-1]), MAPS[-1]]
)
def test_draw_rule_promise_holds_for_any_bag_of_prompts(features: str, draws: str) -> None:
    found = measure_gaps(make_bag(MAPS.index(features)), features, draws)
    assert min(found.values()) >= -ROUND_OFF


@mostly_long("set_rule", ["best_prefix", "unique(rank)"], quick=1)
def test_draw_rule_promise_holds_for_every_set_rule(set_rule: str) -> None:
    found = measure_gaps(make_bag(8), "group(tier)", RULES[1], set_rule=set_rule)
    assert min(found.values()) >= -ROUND_OFF


def draw_until_correct(rule: DrawRule, labelled: LabelledBatch, *_: Any, **__: Any) -> LabelledBatch:
    """Look at labels: draw until a candidate is correct."""
    first = labelled.correct.argmax(axis=1) + 1
    return labelled.keep_drawn(np.where(labelled.correct.any(axis=1), first, rule.at_most).astype(np.int64))


def draw_until_best(rule: DrawRule, labelled: LabelledBatch, *_: Any, **__: Any) -> LabelledBatch:
    """Look at later draws: stop at the best of all recorded candidates."""
    del rule
    return labelled.keep_drawn(labelled.draws.scores.argmin(axis=1).astype(np.int64) + 1)


@mostly_long("shorten", [draw_until_correct, draw_until_best], quick=1)
def test_draw_rule_promise_breaks_if_calibration_stops_by_other_information(
    shorten: Shorten, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lowest() -> float:
        return min(measure_gaps(make_bag(seed), "1", "lead(1, at_most=8)")["1"] for seed in (1, 2))

    assert lowest() >= -ROUND_OFF
    module = import_module("langchain_cfc.calibration.calibrate")
    monkeypatch.setattr(module, "replay_prefixes", shorten)
    # Scores for batches would refuse prompts that stop elsewhere than the rule does.
    monkeypatch.setattr(module, "_make_batch_scores", lambda *_: None)
    assert lowest() < -SIZE / 40
