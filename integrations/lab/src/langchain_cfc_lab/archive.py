"""Scored samples in the layout of the paper's published code, read as questions with candidates.

The authors' archive is not part of their repository (github.com/FlynnYe/CFC-LLMs). A folder in its layout, or
the one of a dataset in it, holds

    triviaqa/seed_K/MODEL/samples*_scored.jsonl   one draw per question and seed, as the harness logs samples,
                                                  with `scores.avg_logprob`; of several files those with
                                                  `_prompt` in their names, and the last by name
    gsm8k/gsm8k_with_rm_*.jsonl                   `idx`, `pred`, `verifier_score` (rewards), `score` (labels)
    flick8k/cached_coverage.json                  `data`: `image`, `candidates` (`caption`, `score`) and
                                                  `candidate_coverage` (labels)

and questions are made of it as there, except that a line that cannot be read is an error and not skipped:

- *TriviaQA.* The score is 1 - exp(avg_logprob). Answers are compared in lower case without punctuation and
  the words a, an and the; a blank one is no draw. Only questions with a draw from every seed count.
- *GSM8K.* The score is 1 / (1 + e^reward); the first 5 or 20 draws are used, without merging equal answers.
- *Flickr8k.* The score is as written, not necessarily in [0, 1]; the first 2 or 3 captions are used.

Source: the published code at commit 2fc0be6, whose text is not used.
"""

from __future__ import annotations

import json
import math
import random
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from langchain_cfc.candidates import CandidateBatch, LabelledBatch
from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc_lab.conventions import SUCCESS

# Names of the statistics of the published code; `make_published` says what they are.
ENTROPY, MEAN_LOSS, MAX_LOSS = "published entropy", "published mean loss", "published max loss"
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Question:
    """One question with its draws, in their order.

    Attributes:
        name: Its name in the files.
        answers: The answers, normalised so that equal texts are equal answers.
        scores: The score of each, smaller is better.
        correct: Whether each is correct.
    """

    name: str
    answers: tuple[str, ...]
    scores: tuple[float, ...]
    correct: tuple[bool, ...]

    def keep_first(self, n: int) -> Question:
        """Return the question with its first n draws, or all if there are fewer."""
        return Question(self.name, self.answers[:n], self.scores[:n], self.correct[:n])

    def merge_equal(self) -> Question:
        """Return one candidate per answer in the order of first draws: its mean score, correct if any is."""
        places: dict[str, list[int]] = {}
        for place, answer in enumerate(self.answers):
            places.setdefault(answer, []).append(place)
        scores = (float(np.mean([self.scores[one] for one in some])) for some in places.values())
        correct = (any(self.correct[one] for one in some) for some in places.values())
        return Question(self.name, tuple(places), tuple(scores), tuple(correct))


def normalise_text(text: str) -> str:
    """Return an answer as TriviaQA's is compared in the published code.

    Examples:
        >>> normalise_text("The  U.S. and a Moon!")
        'us and moon'
    """
    words = text.lower().translate(_NO_PUNCTUATION).split()
    return " ".join(word for word in words if word not in {"a", "an", "the"})


def make_drawn(questions: Sequence[Question], *, merges: bool) -> LabelledBatch:
    """Return the questions with every draw a candidate, as this package takes them.

    Scores outside [0, 1] are mapped onto it linearly, by all scores and without labels. With `merges` equal
    answers are known as equal, and are correct if one of them is.
    """
    scores, correct, counts = _pad(questions)
    drawn = np.arange(scores.shape[1]) < counts[:, None]
    low, high = min(0.0, float(scores[drawn].min())), max(1.0, float(scores[drawn].max()))
    codes = None
    if merges:
        padded = [[*one.answers, *range(len(one.answers), scores.shape[1])] for one in questions]
        codes = np.array([[row.index(answer) for answer in row] for row in padded], dtype=np.int64)
        same = codes[:, :, None] == codes[:, None, :]
        correct = np.asarray((same & correct[:, None, :]).any(axis=2), dtype=np.bool_)
    scores = np.where(drawn, (scores - low) / (high - low), 1.0)
    draws = CandidateBatch(scores, codes, None, ({},) * len(questions), drawn=counts)
    return _label(draws, correct, questions)


def make_published(questions: Sequence[Question], *, merges: bool, failure_above: bool) -> LabelledBatch:
    """Return the questions as the published code makes candidates and statistics of them.

    Args:
        questions: The questions, with the draws to use.
        merges: Whether equal answers are one candidate, so that set sizes count distinct answers.
        failure_above: Whether the success score of a question without a correct draw lies above its scores,
            by their range and at least 1e-6 (Flickr8k); otherwise it is 1.

    Returns:
        The batch, with its success scores, the mean and maximum of its candidates' scores, and the entropy of
        the shares of equal answers, divided by the logarithm of their number.
    """
    shown = [one.merge_equal() for one in questions] if merges else list(questions)
    scores, correct, counts = _pad(shown)
    failure = [1.0] * len(shown)
    if failure_above:
        failure = [max(one.scores) + max(max(one.scores) - min(one.scores), 1e-6) for one in shown]
    success = [
        min((score for score, right in zip(one.scores, one.correct, strict=True) if right), default=without)
        for one, without in zip(shown, failure, strict=True)
    ]
    statistics = {
        SUCCESS: np.array(success),
        MEAN_LOSS: np.array([float(np.mean(one.scores)) for one in shown]),
        MAX_LOSS: np.array([max(one.scores) for one in shown]),
        ENTROPY: np.array([compute_entropy(one.answers) for one in questions]),
    }
    draws = CandidateBatch(scores, None, None, ({},) * len(shown), statistics, counts)
    return _label(draws, correct, questions)


def compute_entropy(answers: Sequence[str]) -> float:
    """Return the entropy of the shares of equal answers over the logarithm of their number; 0 for one.

    Examples:
        >>> compute_entropy(["a", "b", "a", "b"]), compute_entropy(["a", "a"])
        (1.0, 0.0)
    """
    shares = np.unique(np.array(answers), return_counts=True)[1] / len(answers)
    logarithms = [math.log(share) for share in shares]  # those of NumPy differ between processors
    return float(-np.sum(shares * logarithms) / math.log(len(shares))) if len(shares) > 1 else 0.0


def split_halves(size: int, seed: int, most: int = 0) -> tuple[list[int], list[int]]:
    """Return the rows that calibrate and are tested on: Python's shuffle, its first `most` rows, halved."""
    rows = list(range(size))
    random.Random(seed).shuffle(rows)  # noqa: S311 - the published code's splits
    chosen = rows[:most] if most else rows
    return chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]


def list_questions(labelled: LabelledBatch) -> list[Question]:
    """Return the questions of labelled candidates of this package, such as those of records."""
    draws, codes = labelled.draws, labelled.draws.answer_codes
    questions = []
    for row, count in enumerate(draws.counts.tolist()):
        names = range(count) if codes is None else codes[row, :count].tolist()
        scores, labels = draws.scores[row, :count].tolist(), labelled.correct[row, :count].tolist()
        questions.append(Question(labelled.ids[row], tuple(map(str, names)), tuple(scores), tuple(labels)))
    return questions


def read_triviaqa(folder: Path) -> list[Question]:
    """Read TriviaQA's samples; see the module. Raises an InputError where one is missing or unreadable."""
    folder = _find_folder(folder, "triviaqa", "seed_*/*/samples*_scored.jsonl")
    models = {path.parent.name for path in folder.glob("seed_*/*/samples*_scored.jsonl")}
    if len(models) > 1:
        msg = f"{folder} holds samples of {', '.join(sorted(models))}: give a folder with those of one model"
        raise InputError(msg)
    with _name_in_errors(f"the names of folders in {folder}"):
        seeds = sorted(folder.glob("seed_*"), key=lambda one: int(one.name.removeprefix("seed_")))
    drawn: dict[str, list[tuple[str, float, bool]]] = {}
    for seed in seeds:
        files = sorted(seed.glob("*/samples*_prompt*_scored.jsonl")) or sorted(
            seed.glob("*/samples*_scored.jsonl")
        )
        if not files:
            msg = f"{seed} holds no MODEL/samples*_scored.jsonl"
            raise InputError(msg)
        seen: set[str] = set()
        for where, entry in _read_lines(files[-1]):
            with _name_in_errors(where):
                document = entry.get("doc", {})
                name = str(entry.get("doc_id", document.get("question_id")))
                answer, scores = _get_response(entry), entry.get("scores") or {}
                text = None if answer is None else normalise_text(answer)
                if name in seen or not text or "avg_logprob" not in scores:
                    seen.add(name)
                    continue
                seen.add(name)
                score = _check_score(1.0 - math.exp(float(scores["avg_logprob"])))
                drawn.setdefault(name, []).append((text, score, bool(entry.get("exact_match"))))
    names = [name for name, draws in drawn.items() if len(draws) == len(seeds)]
    if not names:
        msg = f"no question in {folder} has a scored answer from each of {len(seeds)} seeds"
        raise InputError(msg)
    names.sort(key=lambda one: (one.isdigit(), int(one) if one.isdigit() else 0, one))
    return [Question(name, *zip(*drawn[name], strict=True)) for name in names]


def read_gsm8k(folder: Path) -> list[Question]:
    """Read GSM8K's samples; see the module. Raises an InputError where one is missing or unreadable."""
    folder = _find_folder(folder, "gsm8k", "gsm8k_with_rm_*.jsonl")
    questions = []
    for path in sorted(folder.glob("gsm8k_with_rm_*.jsonl")):
        for where, entry in _read_lines(path):
            with _name_in_errors(where):
                parts = (entry.get(key) or () for key in ("pred", "verifier_score", "score"))
                drawn = list(zip(*parts, strict=False))
                if not drawn:
                    continue
                answers, rewards, labels = zip(*drawn, strict=True)
                losses = tuple(_check_score(_invert(float(reward))) for reward in rewards)
                name = str(int(entry["idx"]))
                questions.append(Question(name, tuple(map(str, answers)), losses, tuple(map(bool, labels))))
    return sorted(questions, key=lambda one: int(one.name))


def read_flickr8k(folder: Path) -> list[Question]:
    """Read Flickr8k's captions; see the module. Raises an InputError where one is unreadable."""
    name = "flickr8k" if (folder / "flickr8k").is_dir() else "flick8k"
    path = _find_folder(folder, name, "cached_coverage.json") / "cached_coverage.json"
    questions = []
    with _name_in_errors(str(path)):
        for row in json.loads(path.read_text(encoding="utf-8"))["data"]:
            drawn = list(zip(row.get("candidates") or (), row.get("candidate_coverage") or (), strict=False))
            if drawn:
                captions = tuple(str(one["caption"]) for one, _ in drawn)
                scores = tuple(_check_score(float(one["score"]), math.inf) for one, _ in drawn)
                labels = tuple(bool(label) for _, label in drawn)
                questions.append(Question(str(row["image"]), captions, scores, labels))
    return sorted(questions, key=lambda one: one.name)


def _find_folder(folder: Path, name: str, pattern: str) -> Path:
    """Return the dataset's folder, `folder` itself or the one of that name in it, with files of a pattern."""
    for one in (folder / name, folder):
        if next(one.glob(pattern), None) is not None:
            return one
    msg = f"neither {folder} nor {folder / name} holds {pattern}, as the authors' archive does"
    raise InputError(msg)


def _read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file, each with the name of its line."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}, line {number}"
                with _name_in_errors(where):
                    entry = dict(json.loads(line))
                yield where, entry


@contextmanager
def _name_in_errors(where: str) -> Iterator[None]:
    """Turn what a value of the wrong form raises into an InputError that says where it is."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        msg = f"{where} is not in the published layout ({type(error).__name__}: {error})"
        raise InputError(msg) from error


def _get_response(entry: Mapping[str, Any]) -> str | None:
    """Return the answer of a logged sample: filtered if there is one, else the first response."""
    for key in ("filtered_resps", "resps"):
        first = next(iter(entry.get(key) or ()), None)
        if key == "resps" and isinstance(first, list):
            first = next(iter(first), None)
        if isinstance(first, str):
            return first
    return None


def _check_score(score: float, most: float = 1.0) -> float:
    if not -most <= score <= most or (most == 1.0 and score < 0.0) or math.isinf(score):
        msg = f"the score is {score}"
        raise ValueError(msg)
    return score


def _invert(reward: float) -> float:
    """Return 1 / (1 + e^reward) without overflow."""
    tail = math.exp(-abs(reward))
    return tail / (1.0 + tail) if reward >= 0.0 else 1.0 / (1.0 + tail)


def _pad(questions: Sequence[Question]) -> tuple[FloatArray, BoolArray, IntArray]:
    """Return (N, n) scores and labels with padding, and (N,) numbers of candidates."""
    counts = np.array([len(one.scores) for one in questions], dtype=np.int64)
    held = np.arange(counts.max()) < counts[:, None]
    scores, correct = np.full(held.shape, np.inf), np.zeros(held.shape, dtype=np.bool_)
    scores[held] = [score for one in questions for score in one.scores]
    correct[held] = [label for one in questions for label in one.correct]
    return scores, correct, counts


def _label(draws: CandidateBatch, correct: BoolArray, questions: Sequence[Question]) -> LabelledBatch:
    names = tuple(one.name for one in questions)
    return LabelledBatch(draws, correct, names, (None,) * len(names), draws.n)
