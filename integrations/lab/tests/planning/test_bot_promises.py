"""What a bot would answer under each promise, estimated from the fit split alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
from langchain_cfc_lab import compare_bot_promises

from langchain_cfc import calibrate, evaluate
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.records import tabulate
from langchain_cfc.records.splits import make_split_plan
from tests.cli.running import run
from tests.recordings import list_facts


def make_pilot(size: int, answered_rightly: float) -> LabelledBatch:
    """Prompts of one candidate each, of which those with the larger scores are wrong."""
    scores = np.random.default_rng(0).permutation(size)[:, np.newaxis] / size
    ids = [str(row) for row in range(size)]
    return LabelledBatch.from_arrays(ids, scores, scores < answered_rightly, [["x"]] * size)


def test_promises_answer_what_their_rules_allow_on_the_fit_split() -> None:
    found = compare_bot_promises(make_pilot(2000, 0.8))
    assert len(found) == 9
    for one in found:
        assert abs(one.wrong_of_all - one.answered * one.wrong_of_answered) < 1e-12
        # 80 % are right, and all of the wrong ones look worse than these.
        limit = {"max_wrong_of_all": 0.8 + one.rate}.get(one.promise, 0.8 / (1 - one.rate))
        assert 0.7 < one.answered <= limit + 0.03
    of_all = [one for one in found if one.promise == "max_wrong_of_all"]
    assert all(one.rate - 0.01 < one.wrong_of_all <= one.rate for one in of_all)


def test_promises_read_no_label_outside_the_fit_split() -> None:
    pilot = make_pilot(500, 0.7)
    others = make_split_plan(0, fit=0.2, test=0.2).list_rows(pilot)["calibration"]
    changed = pilot.correct.copy()
    changed[others] = ~changed[others]
    assert compare_bot_promises(replace(pilot, correct=changed)) == compare_bot_promises(pilot)
    assert compare_bot_promises(make_pilot(30, 0.7)) == ()


def test_rate_of_all_answers_about_what_is_estimated() -> None:
    records = list_facts()
    estimated = next(
        one.answered
        for one in compare_bot_promises(tabulate(records))
        if (one.promise, one.rate) == ("max_wrong_of_all", 0.05)
    )
    bot = calibrate(records, max_wrong_of_all="0.05", fit_fraction=0.2, test_fraction=0.2)
    answered = evaluate(bot, records).methods["conditional"].mean_set_size
    # Two shares of some 200 prompts each, within about three standard errors of their difference.
    assert abs(answered - estimated) < 3 * (2 * 0.25 / 195) ** 0.5


def test_plan_shows_the_promises_and_records_a_look_at_the_fit_split(tmp_path: Path) -> None:
    pilot = tmp_path / "facts.jsonl.gz"
    shutil.copy(str(files("langchain_cfc") / "demo" / "facts.jsonl.gz"), pilot)
    shown = run("plan", pilot, "--alpha", "0.2")
    assert "to choose from" in shown.out
    assert shown.out.count("% wrong of all, on average") == 3
    assert len(json.loads(run("plan", pilot, "--alpha", "0.2", "--json").out)["promises"]) == 9
    assert list(tmp_path.glob("*.attempts.json"))
