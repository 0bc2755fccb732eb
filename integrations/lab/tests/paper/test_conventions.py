"""The paper's feature maps by name, and the conventions that its tables leave open, on examples by hand."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from langchain_cfc_lab import list_published_cells, reproduce_study
from langchain_cfc_lab.methods import Pool, Split, TopK
from langchain_cfc_lab.studies import SETTINGS, _find_patterns

from langchain_cfc import FeatureMap, read_records
from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.records import tabulate

RECORDING = Path(str(files("langchain_cfc") / "demo" / "facts.jsonl.gz"))


@pytest.fixture(scope="module")
def table() -> LabelledBatch:
    return tabulate(read_records(RECORDING))


def label_draws(draws: CandidateBatch, correct: list[list[bool]]) -> LabelledBatch:
    ids = tuple(map(str, range(len(draws))))
    return LabelledBatch(draws, np.array(correct), ids, (None,) * len(draws), draws.n)


def test_hard_group_setting_equals_a_calculation_by_hand() -> None:
    """Twenty prompts: entropy is highest in prompt 0, then 1, then tied; the largest score rises with i.

    Ranks, which tied prompts share, are 20, 19 and 18 eighteen times for entropy, and i + 1 for the score.
    The larger of the two is 20 for prompts 0 and 19, 19 for 1 and 18, and 18 for all others. Of these twenty,
    the 92.5th percentile lies at place 0.925 x 19 = 17.6, above the 18th and below the 19th smallest: 20.
    """
    answers = [["a", "b", "c", "d", "e"], ["a", "a", "b", "c", "d"], *([["a"] * 5] * 18)]
    scores = [[0.01, 0.01, 0.01, 0.01, (i + 1) / 100] for i in range(20)]
    draws = CandidateBatch.from_arrays(scores, answers=answers)
    fitted = FeatureMap.parse(SETTINGS["hard-group"].features).fit(draws)
    hard = np.flatnonzero(fitted.transform(draws)[:, 1])
    assert hard.tolist() == [0, 19]
    # A new prompt is held against the same cut-offs: hard by either, or by none.
    new = CandidateBatch.from_arrays(
        [[0.01] * 5, [0.01, 0.01, 0.01, 0.01, 0.2], [0.19] * 5],
        answers=[["a", "b", "c", "d", "e"], ["a"] * 5, ["a", "a", "b", "c", "d"]],
    )
    assert fitted.transform(new)[:, 1].tolist() == [1.0, 1.0, 0.0]


def test_top_k_of_distinct_answers_equals_a_calculation_by_hand() -> None:
    """Prompt 0 says one answer four times, prompt 1 gives four; so two answers are 1 and 2, not 2 and 2."""
    draws = CandidateBatch.from_arrays(
        [[0.3, 0.1, 0.2, 0.4], [0.4, 0.3, 0.2, 0.1]], answers=[["a"] * 4, ["a", "b", "c", "d"]]
    )
    labelled = label_draws(draws, [[True] * 4, [False, False, True, False]])
    rows, sizes = np.arange(2), {}
    for distinct in (False, True):
        split = Split(Pool(labelled), rows[:0], rows, rows, "1", "all")
        topk = TopK("TopK", "", "", "paper", reaching=True, distinct=distinct)
        output = topk.make_sets(split, "0.2")
        sizes[distinct] = output.sets.accepted.sum(axis=1).tolist()
        # One needs its second best answer to be covered.
        assert output.sets.distinct_answers.tolist() == [1, 2]
    assert sizes == {False: [2, 2], True: [1, 2]}


def test_reproduce_study_count_changes_only_sizes_and_top_k(table: LabelledBatch) -> None:
    drawn, distinct = (
        reproduce_study("triviaqa", table, alpha=["0.2"], splits=1, count=count)
        for count in ("drawn", "distinct")
    )
    for name in ("ICP", "CFC", "CFC-PAC-FULL", "conditional"):
        assert drawn.comparison.methods[name] == distinct.comparison.methods[name]
    topk = [one.comparison.methods["TopK"] for one in (drawn, distinct)]
    assert topk[1].mean_set_size == topk[1].mean_distinct_answers < topk[0].mean_set_size
    assert [one.count for one in (drawn, distinct)] == ["drawn", "distinct"]


def test_paper_icp_sizes_are_those_of_distinct_answers(table: LabelledBatch) -> None:
    """Its sets hold fewer than two at every level, here too if distinct answers are counted; draws do not."""
    found = reproduce_study("triviaqa", table, alpha=["0.2", "0.3"], splits=1)
    last = {
        count: _find_patterns(list_published_cells("triviaqa"), found.comparison.sweep, count)[-1]
        for count in ("drawn", "distinct")
    }
    assert last["distinct"].statement == "ICP's sets hold fewer than two on average"
    assert (last["distinct"].published, last["distinct"].here) == ((6, 6), (2, 2))
    assert last["drawn"].here == (0, 2)


def test_reproduce_study_uses_at_most_twenty_candidates(table: LabelledBatch) -> None:
    some = table.take(np.arange(300))
    codes = some.draws.answer_codes
    assert codes is not None
    answers = [[str(code) for code in row] * 3 for row in codes.tolist()]
    draws = CandidateBatch.from_arrays(np.tile(some.draws.scores, 3), answers=answers)
    found = reproduce_study(
        "triviaqa", label_draws(draws, np.tile(some.correct, 3).tolist()), alpha=["0.4"], splits=1
    )
    assert found.comparison.n_candidates == 20


def test_reproduce_study_distinct_needs_answers() -> None:
    draws = CandidateBatch.from_arrays([[0.1, 0.2]] * 4)
    with pytest.raises(InputError, match="distinct answers cannot be counted"):
        reproduce_study("flickr8k", label_draws(draws, [[True, False]] * 4), count="distinct")
