"""Small samples in the published layout, written for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
