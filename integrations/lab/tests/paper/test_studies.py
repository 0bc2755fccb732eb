"""The published protocols on made samples: every convention by hand, and the commands that run them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_cfc_lab import STUDIES, StudyName, StudyReport, compare, reproduce_study
from langchain_cfc_lab.archive import (
    Question,
    make_drawn,
    make_published,
    read_flickr8k,
    read_gsm8k,
    read_triviaqa,
    split_halves,
)
from langchain_cfc_lab.conventions import SUCCESS, PublishedTopK, select_plain_rank
from langchain_cfc_lab.methods import Pool, Split
from langchain_cfc_lab.published_solver import PublishedSolver
from langchain_cfc_lab.studies import find_hard, list_methods, rank_normalise

from langchain_cfc import read_records, write_records
from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.thresholds import ConditionalThreshold
from tests.cli.running import run

MODEL = "meta-llama__Llama-2-13b-hf"


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def write_triviaqa(folder: Path, questions: Sequence[Sequence[tuple[str, float, bool]]]) -> Path:
    """Write for each question its (answer, avg_logprob, exact_match) by seed."""
    for seed in range(len(questions[0])):
        rows = [
            {
                "doc_id": number,
                "doc": {"question": f"Question {number}?", "question_id": f"q{number}"},
                "resps": [[draws[seed][0]]],
                "filtered_resps": [draws[seed][0]],
                "exact_match": float(draws[seed][2]),
                "scores": {"avg_logprob": draws[seed][1]},
            }
            for number, draws in enumerate(questions)
        ]
        write_lines(folder / "triviaqa" / f"seed_{seed}" / MODEL / "samples_triviaqa_scored.jsonl", rows)
    return folder


def write_gsm8k(folder: Path, questions: Sequence[tuple[Sequence[float], Sequence[bool]]]) -> Path:
    """Write for each question its rewards and labels, in two files."""
    rows = [
        {
            "idx": number,
            "question": f"Question {number}?",
            "gt": "1",
            "pred": [str(int(label)) for label in labels],
            "verifier_score": list(rewards),
            "score": list(labels),
        }
        for number, (rewards, labels) in enumerate(questions)
    ]
    half = len(rows) // 2
    # The later questions come in the first file: order is by `idx`.
    write_lines(folder / "gsm8k" / "gsm8k_with_rm_0.jsonl", rows[half:])
    write_lines(folder / "gsm8k" / "gsm8k_with_rm_1.jsonl", rows[:half])
    return folder


def write_flickr8k(folder: Path, images: Sequence[tuple[Sequence[float], Sequence[bool]]]) -> Path:
    """Write for each image its captions' scores and labels."""
    rows = [
        {
            "image": f"{number:03}.jpg",
            "candidates": [
                {"caption": f"a dog {place}", "score": score} for place, score in enumerate(scores)
            ],
            "candidate_coverage": list(labels),
        }
        for number, (scores, labels) in enumerate(images)
    ]
    path = folder / "flick8k" / "cached_coverage.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": rows}), encoding="utf-8")
    return folder


def write_archive(folder: Path, size: int = 80) -> Path:
    """Write all three with `size` questions each, whose better answers are more often right."""
    rng = np.random.default_rng(0)
    hard = rng.random(size)
    trivia = [
        [
            (
                f"the answer {'abc'[int(rng.random() < one) + int(rng.random() < one / 2)]}",
                -float(rng.exponential(one)),
                rng.random() > one,
            )
            for _ in range(4)
        ]
        for one in hard
    ]
    for draws in trivia:  # equal answers have equal labels
        labels = {answer: label for answer, _, label in draws}
        draws[:] = [(answer, score, bool(labels[answer])) for answer, score, _ in draws]
    write_triviaqa(folder, trivia)
    rewards = rng.normal(2.0 - 4.0 * hard[:, None], 1.0, (size, 20))
    write_gsm8k(
        folder, list(zip(rewards.tolist(), (rng.random((size, 20)) > hard[:, None]).tolist(), strict=True))
    )
    scores = 2.0 * rng.random((size, 3)) * hard[:, None]
    covered = rng.random((size, 3)) > 0.3 * hard[:, None]
    return write_flickr8k(folder, list(zip(scores.tolist(), covered.tolist(), strict=True)))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive(tmp_path_factory.mktemp("archive"))


def make_split(questions: list[Question], calibration: list[int], test: list[int], *, merges: bool) -> Split:
    drawn = make_published(questions, merges=merges, failure_above=False)
    rows = np.array(calibration), np.array(test)
    return Split(Pool(drawn, measure=False), rows[0][:0], *rows, "1", "all")


def test_triviaqa_merges_equal_answers_in_the_order_of_first_draws(tmp_path: Path) -> None:
    """Scores 1 - exp(logprob): .5 and .75 of "Paris" average to .625; "Rome" is the second candidate."""
    draws = [
        ("Paris", math.log(0.5), False),
        ("Rome!", math.log(0.8), False),
        ("the PARIS", math.log(0.25), True),
    ]
    incomplete = [("Oslo", -1.0, True), (" . ", -1.0, True), ("Oslo", -1.0, True)]
    (question,) = read_triviaqa(write_triviaqa(tmp_path, [draws, incomplete]))
    assert question.answers == ("paris", "rome", "paris")
    merged = question.merge_equal()
    assert merged.answers == ("paris", "rome")
    assert merged.scores == pytest.approx((0.625, 0.2))
    assert merged.correct == (True, False)
    batch = make_published([question], merges=True, failure_above=False)
    # Shares 2/3 and 1/3: entropy .6365 over log 2.
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)) / math.log(2)
    statistics = batch.draws.precomputed
    assert statistics["published entropy"][0] == pytest.approx(entropy)
    assert statistics["published max loss"][0] == pytest.approx(0.625)
    assert statistics[SUCCESS][0] == pytest.approx(0.625)
    # Ours keeps the three draws, and knows which are equal.
    ours = make_drawn([question], merges=True)
    assert ours.draws.answer_codes is not None
    assert ours.draws.answer_codes.tolist() == [[0, 1, 0]]
    assert ours.correct.tolist() == [[True, False, True]]


def test_gsm8k_takes_losses_of_rewards_by_idx_and_its_first_draws(tmp_path: Path) -> None:
    folder = write_gsm8k(tmp_path, [([0.0, 800.0, -800.0], [False, False, True]), ([1.0, 2.0], [True, True])])
    first, second = read_gsm8k(folder / "gsm8k")
    assert first.scores == (0.5, 0.0, 1.0)
    assert second.scores == pytest.approx((1 / (1 + math.e), 1 / (1 + math.e**2)))
    assert first.keep_first(2).correct == (False, False)
    batch = make_published([first, second], merges=False, failure_above=False)
    assert batch.draws.counts.tolist() == [3, 2]
    assert batch.draws.precomputed["published mean loss"][0] == 0.5


def test_flickr8k_puts_failures_above_the_scores_and_ours_maps_scores(tmp_path: Path) -> None:
    images = read_flickr8k(
        write_flickr8k(
            tmp_path, [([2.0, 5.0], [False, False]), ([3.0, 3.0], [False, False]), ([1.0], [True])]
        )
    )
    batch = make_published(images, merges=False, failure_above=True)
    assert batch.draws.precomputed[SUCCESS].tolist() == pytest.approx([8.0, 3.0 + 1e-6, 1.0])
    assert make_drawn(images, merges=False).draws.scores.tolist() == [[0.4, 1.0], [0.6, 0.6], [0.2, 1.0]]


def test_halves_are_those_of_pythons_shuffle() -> None:
    names = [f"q{number}" for number in range(11)]
    random.Random(3).shuffle(names)  # noqa: S311
    calibration, test = split_halves(11, 3)
    assert [f"q{row}" for row in (*calibration, *test)] == names
    assert (len(calibration), len(test)) == (5, 6)
    assert split_halves(11, 3, 4) == (calibration[:2], calibration[2:4])


def test_hard_questions_have_ranks_within_their_half() -> None:
    """Every question has one answer, so that the largest score decides and entropies tie at 0.

    With 41 questions in a half, ranks are 0, 1/40, ..., 1; entropies get all ranks as well, in some order.
    The questions of the test half are all easier than the easiest of the other, and still some are hard.
    """
    questions = [Question(str(row), ("a",), (row / 100,), (True,)) for row in range(82)]
    split = make_split(questions, list(range(41, 82)), list(range(41)), merges=True)
    calibration, test = find_hard(split)
    larger = np.maximum(rank_normalise(np.zeros(41)), np.linspace(0, 1, 41))
    assert calibration.tolist() == (larger >= np.quantile(larger, 0.925)).astype(int).tolist()
    assert test.sum() == calibration.sum() > 0
    # Ranks among all 82 would leave the easier half without one.
    values = np.arange(82) / 81
    assert not (values[:41] >= np.quantile(values[41:], 0.925)).any()


def test_group_thresholds_are_their_own_order_statistics() -> None:
    rng = np.random.default_rng(1)
    questions = [
        Question(str(row), ("a", "b"), tuple(rng.random(2)), (bool(rng.random() < 0.8), True))
        for row in range(120)
    ]
    split = make_split(questions, list(range(60)), list(range(60, 120)), merges=True)
    methods = {one.name: one for one in list_methods(STUDIES["triviaqa"], STUDIES["triviaqa"].main)}
    (hard, of_test), success = find_hard(split), split.pool.draws.precomputed[SUCCESS][:60]
    found = {name: methods[name].make_sets(split, "0.3").thresholds for name in ("CFC-FULL", "Learnt CP")}
    for group in (0, 1):
        ordered = np.sort(success[hard == group])
        size = len(ordered)
        for name, rank in (("CFC-FULL", math.ceil((size + 1) * 0.7)), ("Learnt CP", math.ceil(size * 0.7))):
            thresholds = found[name]
            assert thresholds is not None
            assert set(thresholds[of_test == group]) <= {ordered[min(rank, size) - 1]}
    assert select_plain_rank(np.array([0.4, 0.2, 0.3, 0.1]), 0.25) == 0.3


def test_top_k_takes_the_nearest_k_and_counts_distinct_answers() -> None:
    """Best answers right in 3 of 4, second best in the last: coverages .75 and 1; at .88 K = 2 is nearest."""
    questions = [
        Question(str(row), ("a", "a", "b"), (0.1, 0.3, 0.9), (right, right, not right))
        for row, right in enumerate((True, True, True, False))
    ]
    split = make_split(questions, [0, 1, 2, 3], [0, 3], merges=True)
    topk = PublishedTopK("TopK", "", "", "paper", grid=(1, 2, 3))
    assert topk.make_sets(split, "0.2").sets.accepted.sum(axis=1).tolist() == [1, 1]
    # The third K is no better than the second: every question has two distinct answers.
    assert topk.make_sets(split, "0.1").sets.accepted.sum(axis=1).tolist() == [2, 2]


def test_cut_sets_end_at_their_best_candidate() -> None:
    questions = [
        Question(str(row), ("a", "b", "c"), (0.4, 0.1, 0.2), (True, False, False)) for row in range(40)
    ]
    split = make_split(questions, list(range(20)), list(range(20, 40)), merges=True)
    methods = {one.name: one for one in list_methods(STUDIES["triviaqa"], STUDIES["triviaqa"].main)}
    cut, full = (
        methods[name].make_sets(split, "0.3").sets.accepted[0].tolist() for name in ("CFC", "CFC-FULL")
    )
    assert (cut, full) == ([True, True, False], [True, True, True])


def solve_exactly(features: FloatArray, success: FloatArray, tau: float, asked: FloatArray) -> FloatArray:
    rule = ConditionalThreshold(round(1 - tau, 9), window=None)
    return np.asarray(rule.fit(features, success).solve(asked).values)


def test_exact_mode_is_exact_without_ties() -> None:
    rng = np.random.default_rng(2)
    for tau in (0.7, 0.85, 0.95):
        t = rng.random(200)
        success = 0.5 * t + 0.5 * rng.random(200)
        features, asked = (np.vander(one, 3, increasing=True) for one in (t, rng.random(12)))
        solver = PublishedSolver(features, success, tau)
        found = np.array([solver.compute_threshold(phi) for phi in asked])
        assert found == pytest.approx(solve_exactly(features, success, tau, asked), abs=1e-9)
        assert solver.bisected == 0


def test_exact_mode_passes_over_ties() -> None:
    """One threshold for all, four scores .1 .5 .5 .9, tau one half: the rank is 3, the score .5.

    The exact mode starts at .5 or .1, skips the tied .5, a change of at most 1e-5, and ends at .9.
    """
    success, one = np.array([0.1, 0.5, 0.5, 0.9]), np.ones((4, 1))
    assert solve_exactly(one, success, 0.5, one[:1]) == pytest.approx([0.5])
    assert PublishedSolver(one, success, 0.5).compute_threshold(one[0]) == pytest.approx(0.9)
    # Without the tie it is right; and a score at the end of a tie has nothing to go to.
    apart = np.array([0.1, 0.5, 0.6, 0.9])
    assert PublishedSolver(one, apart, 0.5).compute_threshold(one[0]) == pytest.approx(0.6)
    last = np.array([0.1, 0.2, 0.3, 0.5, 0.5])
    assert PublishedSolver(np.ones((5, 1)), last, 0.75).compute_threshold(one[0]) == math.inf


@pytest.mark.parametrize("name", ["triviaqa", "gsm8k", "flickr8k"])
def test_study_gives_every_cell_of_the_paper_from_one_folder(name: StudyName, archive: Path) -> None:
    found = reproduce_study(name, archive)
    study = STUDIES[name]
    assert found.questions == 80
    full = [one for one in found.cells if one.kind == "main"]
    assert {one.alpha for one in full} == set(study.alphas)
    assert len(full) == 7 * 3 * len(study.alphas)
    assert {one.kind for one in found.cells} == {"main", "ablation"}
    assert all(one.ours is not None for one in found.cells)
    has_solver = {one.method for one in found.cells if one.solved is not None}
    of_main = (
        {"CFC", "CFC-PAC-FULL"} if name == "triviaqa" else {one.method for one in full if "CFC" in one.method}
    )
    assert has_solver == of_main
    sizes = {(one.alpha, one.method): one.reproduced for one in full if one.metric == "APSS"}
    for alpha in study.alphas:  # cut sets are parts of the full ones
        assert sizes[alpha, "CFC"] <= sizes[alpha, "CFC-FULL"]
    # The figure's groups and the table's coverage are of the same questions.
    gsc = next(
        one for one in full if (one.alpha, one.method, one.metric) == (study.shown_alpha, "ICP", "GSC")
    )
    icp = next(one for one in found.series if one.series == "ICP")
    assert len(icp.reproduced) == (2 if name == "triviaqa" else 5)
    assert 100 * (1 - max(icp.reproduced)) >= gsc.reproduced - 1e-9  # the mean of a group, not of the worst
    again = reproduce_study(name, archive, alphas=study.alphas[:1])
    kept = {one.method: one for one in again.cells if one.kind == "main" and one.metric == "ECR"}
    assert {one.method: one for one in full if one.alpha == study.alphas[0] and one.metric == "ECR"} == kept


def test_figures_of_a_split_equal_plain_arithmetic(archive: Path) -> None:
    """ICP on GSM8K, from the files on: five splits, capped rank, first five draws."""
    questions = [one.keep_first(5) for one in read_gsm8k(archive)]
    covered, sizes = [], []
    for seed in range(5):
        rows = list(questions)
        random.Random(seed).shuffle(rows)  # noqa: S311
        calibration, test = rows[:40], rows[40:]
        success = sorted(
            min((s for s, right in zip(one.scores, one.correct, strict=True) if right), default=1.0)
            for one in calibration
        )
        cut = success[min(math.ceil(41 * 0.8), 40) - 1]
        inside = [[s <= cut for s in one.scores] for one in test]
        pairs = list(zip(inside, test, strict=True))
        covered.append(np.mean([any(np.logical_and(some, one.correct)) for some, one in pairs]))
        sizes.append(np.mean([sum(some) for some in inside]))
    found = {
        one.metric: one.reproduced
        for one in reproduce_study("gsm8k", archive, alphas=["0.2"]).cells
        if (one.kind, one.method) == ("main", "ICP")
    }
    assert found["ECR"] == pytest.approx(100 * np.mean(covered))
    assert found["APSS"] == pytest.approx(np.mean(sizes))


def test_paper_command_prints_each_cell_with_ours_and_takes_records(archive: Path, tmp_path: Path) -> None:
    ran = run("paper", "gsm8k", "--samples", str(archive), "--alpha", "0.2", "--jobs", "1")
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    said = " ".join(ran.out.split())
    assert "80 questions with up to 20 draws" in said
    assert "alpha = 0.2 paper code solved ours" in said
    assert "CFC-PAC-FULL GSC" in said
    ran = run("paper", "triviaqa", "--samples", str(archive), "--alpha", "0.4", "--jobs", "1", "--json")
    found = StudyReport.model_validate_json(ran.out)
    assert any("no single new question has a group" in one for one in found.words)
    some = list(read_records(str(files("langchain_cfc") / "demo" / "facts.jsonl.gz")))[:60]
    write_records(tmp_path / "some.jsonl", some)
    ran = run("paper", "triviaqa", str(tmp_path / "some.jsonl"), "--alpha", "0.4", "--jobs", "1")
    assert ran.code == 0, ran.err
    assert "60 questions with up to 10 draws" in ran.out
    ran = run("paper", "flickr8k", "--samples", str(archive), "--alpha", "0.5")
    assert "has the levels 0.01, 0.02, 0.03; got 0.5" in " ".join(ran.err.split())
    ran = run("paper", "flickr8k")
    assert ran.code != 0
    assert "Tables 6, 12 and 13" in " ".join(ran.err.split())


def test_conditional_sets_are_larger_on_the_shipped_recording() -> None:
    """In distinct answers, though they cover no more prompts."""
    recording = read_records(str(files("langchain_cfc") / "demo" / "facts.jsonl.gz"))
    features = STUDIES["triviaqa"].main.ours
    found = compare(recording, alpha=["0.2", "0.3"], methods=["ICP", "CFC-FULL"], features=features, splits=2)
    for level in found.sweep:
        sizes = [level.methods[name].figures["mean_distinct_answers"].mean for name in ("CFC-FULL", "ICP")]
        assert sizes[0] > sizes[1] + 0.5
        assert level.methods["CFC-FULL"].coverage <= level.methods["ICP"].coverage + 0.01


TRIVIAQA = f"triviaqa/seed_1/{MODEL}/samples_triviaqa_scored.jsonl"
GSM8K = "gsm8k/gsm8k_with_rm_0.jsonl"
FLICKR8K = "flick8k/cached_coverage.json"


@pytest.mark.parametrize(
    ("name", "place", "text", "problem"),
    [
        ("triviaqa", TRIVIAQA, "{", "samples_triviaqa_scored.jsonl, line 1"),
        ("triviaqa", TRIVIAQA, "", "from each of 4 seeds"),
        ("triviaqa", "triviaqa/seed_0/other/samples_scored.jsonl", "", "of meta.*, other: give a folder"),
        ("triviaqa", "triviaqa/seed_9/empty", "", "seed_9 holds no MODEL/samples"),
        ("gsm8k", GSM8K, '{"pred": ["1"], "verifier_score": ["x"], "score": [1]}', "could not convert"),
        ("gsm8k", GSM8K, '{"pred": ["1"], "verifier_score": [NaN], "score": [1], "idx": 1}', "score is nan"),
        ("flickr8k", FLICKR8K, '{"rows": []}', "cached_coverage.json is not in the published"),
        ("flickr8k", FLICKR8K, '{"data": []}', "at least 20 questions, and there are 0"),
    ],
)
def test_samples_that_cannot_be_read_are_one_error(
    name: StudyName, place: str, text: str, problem: str, tmp_path: Path
) -> None:
    folder = write_archive(tmp_path)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=problem):
        reproduce_study(name, folder)


def test_missing_samples_name_the_layout(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither .* nor .*gsm8k holds gsm8k_with_rm_\*\.jsonl"):
        reproduce_study("gsm8k", tmp_path)
    write_lines(tmp_path / "gsm8k" / "gsm8k_with_rm_0.jsonl", [json.loads('{"pred": [], "idx": 0}')])
    with pytest.raises(InputError, match="at least 20 questions"):
        reproduce_study("gsm8k", tmp_path)
