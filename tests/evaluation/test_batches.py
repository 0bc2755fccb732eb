"""Random batches of the test prompts in an evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from langchain_cfc import calibrate, evaluate
from langchain_cfc.certificates import replay_batches
from langchain_cfc.decision import compute_bot_scores, decide
from langchain_cfc.records import tabulate
from tests.recordings import list_facts


def test_figures_are_those_of_decisions_on_batches() -> None:
    artifact = calibrate(list_facts()[:400], max_wrong_of_all="0.1")
    test = tabulate(list_facts()[400:600])
    scores = compute_bot_scores(artifact, test.draws)
    assert artifact.batch is not None
    cut = artifact.batch.select(scores, "0.1")[1]
    decisions = decide(artifact, test.draws, cut=cut)
    right = test.correct[np.arange(len(test)), decisions.best]
    (whole,) = [
        one for one in evaluate(artifact, test).batches if (one.size, one.max_wrong_share) == (200, 0.1)
    ]
    answered = decisions.answered
    assert whole.answered == pytest.approx(answered.mean())
    assert whole.wrong == pytest.approx((answered & ~right).sum() / answered.sum())
    assert whole.answered_spread == pytest.approx((whole.answered, whole.answered))
    small = [one for one in evaluate(artifact, test).batches if one.size == 20]
    assert [one.answered_spread[0] < one.answered < one.answered_spread[1] for one in small] == [True] * 3


def test_without_kept_scores_the_other_prompts_decide() -> None:
    """Of two prompts, and by the scores of two others; some wrong ones are answered."""
    scores, wrong = np.array([0.1, 0.2, 0.3, 0.4]), np.array([False, False, True, True])
    found = replay_batches(scores, wrong, "0.5", 2)
    assert found.labelled == 2
    assert 0.0 < found.wrong < 0.5
    # Without an answer nothing is answered.
    assert replay_batches(np.full(4, np.inf), wrong & False, "0.9", 2).answered == 0.0


def test_small_test_parts_and_artifacts_of_sets_or_without_scores_have_no_figures() -> None:
    records = list_facts()
    alone = calibrate(records[:400], max_wrong_rate="0.3")
    of_sets = calibrate(records[:400], alpha="0.2", features="1")
    assert [evaluate(one, records[400:600]).batches for one in (alone, of_sets)] == [(), ()]
    few = evaluate(calibrate(records[:400], max_wrong_of_all="0.1"), records[400:430])
    assert {one.size for one in few.batches} == {20}
