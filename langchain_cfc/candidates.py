"""`CandidateBatch`: what calibration and serving both know about prompts, as arrays.

Set rules and feature maps read this and nothing else, which is what keeps calibration and serving
exchangeable: offline the arrays hold thousands of labelled prompts, online a single one, and the code in
between cannot tell the difference.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, overload

import numpy as np

from langchain_cfc._internal.arrays import BoolArray, FloatArray, IntArray
from langchain_cfc.errors import InputError

Scalar: TypeAlias = str | int | float | bool
PromptKind: TypeAlias = Literal["text", "messages", "object"]
_KINDS: Mapping[type, PromptKind] = {str: "text", list: "messages", dict: "object"}
_KINDS_OF_JSON: Mapping[str, PromptKind] = {'"': "text", "[": "messages", "{": "object"}


@dataclass(frozen=True, eq=False)
class JsonMetadata(Sequence[Mapping[str, Scalar]]):
    """The metadata of N prompts as JSON, texts that come again held once; parsed only when it is looked at.

    A million prompts have a million mappings, but mostly few different ones, and features read them one by
    one.

    Attributes:
        texts: Different JSON objects of texts, finite numbers and booleans.
        codes: (N,) position among the texts of each prompt's.

    >>> JsonMetadata.of(['{"topic": "art"}', "{}", '{"topic": "art"}'])[2]["topic"]
    'art'
    """

    texts: Sequence[str]
    codes: IntArray

    @classmethod
    def of(cls, texts: Iterable[str]) -> JsonMetadata:
        """Tell texts apart."""
        known: dict[str, int] = {}
        codes = [known.setdefault(text, len(known)) for text in texts]
        return cls(tuple(known), np.array(codes, dtype=np.int64))

    @classmethod
    def joined(cls, parts: Iterable[JsonMetadata]) -> JsonMetadata:
        """The metadata of several parts of a dataset, one after the other."""
        known: dict[str, int] = {}
        codes: list[IntArray] = []
        for part in parts:
            own = [known.setdefault(text, len(known)) for text in part.texts]
            codes.append(np.array(own, dtype=np.int64)[part.codes])
        return cls(tuple(known), np.concatenate(codes))

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> Mapping[str, Scalar]: ...

    @overload
    def __getitem__(self, row: slice) -> JsonMetadata: ...

    def __getitem__(self, row: int | slice) -> Mapping[str, Scalar] | JsonMetadata:
        if isinstance(row, slice):
            return JsonMetadata(self.texts, self.codes[row])
        return _parsed(self.texts[self.codes[row]])

    def __iter__(self) -> Iterator[Mapping[str, Scalar]]:
        return (_parsed(self.texts[code]) for code in self.codes.tolist())

    def take(self, rows: IntArray) -> JsonMetadata:
        """The metadata of some of the prompts; `rows` is (m,) row numbers."""
        return JsonMetadata(self.texts, self.codes[rows])


@dataclass(frozen=True)
class CandidateBatch:
    """The n candidates of N prompts, ordered by request slot.

    Attributes:
        scores: (N, n) verifier scores in [0, 1], smaller is better.
        answer_codes: (N, n) slot of the first candidate of the same prompt with the same answer; None where
            unknown.
        lengths: (N, n) number of characters of each answer, 0 for a blank one; None where unknown.
        metadata: N mappings of what the prompt's metadata function (or record) says.
        measured: (N,) values of statistics, by their feature text, that need not be computed again.
    """

    scores: FloatArray
    answer_codes: IntArray | None
    lengths: IntArray | None
    metadata: Sequence[Mapping[str, Scalar]]
    measured: Mapping[str, FloatArray] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[CandidateBatch]) -> CandidateBatch:
        """The draws of several parts of a dataset, one after the other; answers where all parts have them."""
        return cls(
            np.concatenate([part.scores for part in parts]),
            _all_or_none([part.answer_codes for part in parts]),
            _all_or_none([part.lengths for part in parts]),
            _metadata([part.metadata for part in parts]),
        )

    @classmethod
    def of(
        cls,
        scores: FloatArray | Sequence[Sequence[float]],
        answers: Sequence[Sequence[str]] | None = None,
        metadata: Sequence[Mapping[str, Scalar]] | None = None,
    ) -> CandidateBatch:
        """Check and pack the candidates of N prompts.

        Args:
            scores: (N, n) verifier scores in [0, 1].
            answers: N lists of n answers (extracted answers where there are any, else the texts).
            metadata: N mappings; empty ones if left out.

        Returns:
            The packed draws.

        Raises:
            InputError: If shapes disagree, n is 0, or a score is not a finite number in [0, 1].
        """
        try:
            matrix = np.array(scores, dtype=np.float64)
        except (TypeError, ValueError) as error:
            msg = "scores must be N lists of n numbers each"
            raise InputError(msg) from error
        if matrix.ndim != 2 or matrix.shape[1] == 0:  # noqa: PLR2004 - rows and columns
            msg = f"scores must be an (N, n) array with n >= 1, got shape {matrix.shape}"
            raise InputError(msg)
        # Written so that NaN fails it as well.
        bad = ~((matrix >= 0.0) & (matrix <= 1.0))
        if bad.any():
            row, slot = (int(i) for i in np.argwhere(bad)[0])
            msg = f"score of candidate {slot} of prompt {row} is {matrix[row, slot]}; expected one in [0, 1]"
            raise InputError(msg)
        size, n = matrix.shape
        codes = lengths = None
        if answers is not None:
            if len(answers) != size or any(len(row_) != n for row_ in answers):
                msg = f"answers must be {size} lists of {n} texts, like the scores"
                raise InputError(msg)
            codes = np.array([answer_codes(row_) for row_ in answers], dtype=np.int64).reshape(size, n)
            lengths = np.array([[answer_length(a) for a in row_] for row_ in answers], dtype=np.int64)
            lengths = lengths.reshape(size, n)
        if metadata is not None and len(metadata) != size:
            msg = f"metadata must hold {size} mappings, got {len(metadata)}"
            raise InputError(msg)
        if metadata is None:
            metadata = ({},) * size
        return cls(
            matrix, codes, lengths, metadata if isinstance(metadata, JsonMetadata) else tuple(metadata)
        )

    def __len__(self) -> int:
        """The number of prompts N."""
        return len(self.scores)

    @property
    def n(self) -> int:
        """The number of candidates per prompt."""
        return int(self.scores.shape[1])

    @property
    def blank(self) -> BoolArray | None:
        """(N, n) whether a candidate gives no answer: its answer is blank; None where answers are unknown."""
        return None if self.lengths is None else np.asarray(self.lengths == 0, dtype=np.bool_)

    def take(self, rows: IntArray) -> CandidateBatch:
        """The same draws for some of the prompts."""
        return CandidateBatch(
            self.scores[rows],
            None if self.answer_codes is None else self.answer_codes[rows],
            None if self.lengths is None else self.lengths[rows],
            self.metadata.take(rows) if isinstance(self.metadata, JsonMetadata) else _of(self.metadata, rows),
            {name: values[rows] for name, values in self.measured.items()},
        )


def kinds_of_prompts(inputs: Iterable[object]) -> frozenset[PromptKind]:
    """Return the kinds of prompts as records hold them."""
    return frozenset(_KINDS[kind] for kind in {type(one) for one in inputs})


def kinds_of_json_prompts(inputs: Iterable[str]) -> frozenset[PromptKind]:
    """Return the kinds of prompts that are written as JSON."""
    return frozenset(_KINDS_OF_JSON[first] for first in {one.lstrip()[:1] for one in inputs})


@dataclass(frozen=True)
class LabelledBatch:
    """Draws with what only calibration and evaluation may see.

    Attributes:
        draws: The candidates of N prompts.
        correct: (N, n) whether each candidate is correct (the paper's A(X, y)).
        ids: N record ids.
        clusters: N cluster names (conversation, set of paraphrases); None where a prompt stands alone.
        recorded: Number of candidates that were recorded; the draws hold the first n of them.
        extracted: Whether an extractor made the answers, or they are the texts themselves; None where some
            are the one and some the other.
        raw: (N, n) raw outputs of each verifier that may be combined, by its name.
        weights: (N,) in (0, 1], where prompts were chosen to be labelled with unequal probabilities: the
            smallest of these probabilities, for whatever prompt, divided by the prompt's own; None where all
            are equal.
        prompt_kinds: The kinds of the prompts, `text`, `messages` and `object`; None where they are unknown.
    """

    draws: CandidateBatch
    correct: BoolArray
    ids: tuple[str, ...]
    clusters: tuple[str | None, ...]
    recorded: int | None = None
    extracted: bool | None = False
    raw: Mapping[str, FloatArray] = field(default_factory=dict)
    weights: FloatArray | None = None
    prompt_kinds: frozenset[PromptKind] | None = None

    def __post_init__(self) -> None:
        """Refuse labels that do not fit the draws."""
        if self.weights is not None:
            _check_weights(self.weights, self.clusters)
        shapes = {self.draws.scores.shape, self.correct.shape, *(one.shape for one in self.raw.values())}
        if not (len(shapes) == 1 and len(self.ids) == len(self.clusters) == len(self.draws)):
            msg = "labels, ids, clusters and raw outputs must match the draws in number"
            raise InputError(msg)

    @classmethod
    def of(
        cls,
        ids: Sequence[str],
        scores: FloatArray | Sequence[Sequence[float]],
        correct: BoolArray | Sequence[Sequence[bool]],
        answers: Sequence[Sequence[str]],
        *,
        clusters: Sequence[str | None] | None = None,
        metadata: Sequence[Mapping[str, Scalar]] | None = None,
        raw: Mapping[str, FloatArray | Sequence[Sequence[float]]] | None = None,
        extracted: bool | None = False,
        weights: FloatArray | Sequence[float] | None = None,
        prompt_kinds: frozenset[PromptKind] | None = None,
    ) -> LabelledBatch:
        """Check and pack N labelled prompts, such as a batch out of a database; see `joined`.

        Args:
            ids: N different ids, none empty.
            scores: (N, n) verifier scores in [0, 1], smaller is better.
            correct: (N, n) whether each candidate is correct.
            answers: N lists of n answers (extracted answers where there are any, else the texts).
            clusters: N cluster names, None where a prompt stands alone; all alone if left out.
            metadata: N mappings, perhaps a `JsonMetadata`; empty ones if left out.
            raw: (N, n) finite raw outputs of verifiers, by name.
            extracted: Whether an extractor made the answers; None where it made some.
            weights: N numbers in (0, 1], where prompts were chosen to be labelled with unequal probabilities:
                the smallest of these probabilities, for whatever prompt, divided by the prompt's own.
            prompt_kinds: The kinds of the prompts, see `kinds_of_prompts`; None where they are unknown.

        Returns:
            The prompts, all their candidates recorded.

        Raises:
            InputError: If anything differs in number, or a value is not what it should be.
        """
        draws = CandidateBatch.of(scores, answers, metadata)
        labels = np.asarray(correct)
        if labels.dtype != np.bool_:
            msg = f"correct must hold True and False only, got an array of type {labels.dtype}"
            raise InputError(msg)
        _check_named([*ids, *(cluster for cluster in clusters or () if cluster is not None)])
        _check_different(ids)
        outputs = {name: _finite(name, values) for name, values in (raw or {}).items()}
        alone = (None,) * len(draws)
        names = alone if clusters is None else tuple(clusters)
        counted = None if weights is None else _floats(weights)
        return cls(draws, labels, tuple(ids), names, draws.n, extracted, outputs, counted, prompt_kinds)

    @classmethod
    def joined(cls, parts: Iterable[LabelledBatch]) -> LabelledBatch:
        """Parts of a dataset as one."""
        several = list(parts)
        if len({(part.draws.n, part.recorded, tuple(part.raw)) for part in several}) != 1:
            msg = "parts of one dataset must be at least one, with equal n and the same raw outputs"
            raise InputError(msg)
        first = several[0]
        extracted = {part.extracted for part in several}
        alike = all(part.weights is None for part in several)
        kinds = [part.prompt_kinds for part in several]
        whole = cls(
            CandidateBatch.joined([part.draws for part in several]),
            np.concatenate([part.correct for part in several]),
            tuple(chain.from_iterable(part.ids for part in several)),
            tuple(chain.from_iterable(part.clusters for part in several)),
            first.recorded,
            first.extracted if len(extracted) == 1 else None,
            {name: np.concatenate([part.raw[name] for part in several]) for name in first.raw},
            None if alike else np.concatenate([_counted(part) for part in several]),
            None if None in kinds else frozenset().union(*(one for one in kinds if one is not None)),
        )
        _check_different(whole.ids)
        return whole

    def __len__(self) -> int:
        """The number of prompts N."""
        return len(self.draws)

    @property
    def names(self) -> tuple[str, ...]:
        """What the prompts can be recognised by later: their ids, and their clusters."""
        return names_of(self.ids, self.clusters)

    def take(self, rows: IntArray) -> LabelledBatch:
        """The same for some of the prompts; `rows` is (m,) row numbers."""
        return LabelledBatch(
            self.draws.take(rows),
            self.correct[rows],
            _of(self.ids, rows),
            _of(self.clusters, rows),
            self.recorded,
            self.extracted,
            {name: outputs[rows] for name, outputs in self.raw.items()},
            None if self.weights is None else self.weights[rows],
            self.prompt_kinds,
        )

    def first_slots(self, n: int) -> LabelledBatch:
        """The same prompts with their first n candidates only."""
        check_slots(n, self.draws.n)
        draws = self.draws
        fewer = CandidateBatch(
            draws.scores[:, :n].copy(),
            None if draws.answer_codes is None else draws.answer_codes[:, :n].copy(),
            None if draws.lengths is None else draws.lengths[:, :n].copy(),
            draws.metadata,
        )
        raw = {name: outputs[:, :n].copy() for name, outputs in self.raw.items()}
        return replace(self, draws=fewer, correct=self.correct[:, :n].copy(), raw=raw)


def check_alike(labelled: LabelledBatch) -> None:
    """Refuse prompts that count differently, where nobody heeds it."""
    if labelled.weights is not None:
        msg = (
            "these prompts were chosen to be labelled with unequal probabilities, which only calibrate, "
            "certify and evaluate heed: give a fair sample of them, such as SplitPlan.fair makes"
        )
        raise InputError(msg)


def _check_weights(weights: FloatArray, clusters: Sequence[str | None]) -> None:
    """Refuse weights that are no shares of a probability, or of prompts that are chosen together."""
    if weights.shape != (len(clusters),):
        msg = f"weights must be {len(clusters)} numbers, got an array of shape {weights.shape}"
        raise InputError(msg)
    wrong = np.flatnonzero(~((weights > 0.0) & (weights <= 1.0)))
    if len(wrong):
        row = int(wrong[0])
        msg = f"the weight of prompt {row} is {weights[row]}; expected one in (0, 1]"
        raise InputError(msg)
    if any(cluster is not None for cluster in clusters):
        msg = "prompts of a cluster have no weights: choose one of each cluster, and leave clusters out"
        raise InputError(msg)


def _floats(weights: Any) -> FloatArray:
    try:
        return np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"weights must be numbers in (0, 1]: {error}"
        raise InputError(msg) from error


def _counted(part: LabelledBatch) -> FloatArray:
    return np.ones(len(part)) if part.weights is None else part.weights


def names_of(ids: Sequence[str], clusters: Iterable[str | None]) -> tuple[str, ...]:
    """What prompts can be recognised by later: their ids, and their clusters, each once."""
    known = dict.fromkeys(f"cluster:{cluster}" for cluster in clusters if cluster is not None)
    return (*ids, *known)


def check_slots(n: int, recorded: int) -> None:
    """Refuse a number of candidates to use that was not recorded."""
    if not 1 <= n <= recorded:
        msg = f"n is {n}; expected at least 1 and at most {recorded}, the recorded number of candidates"
        raise InputError(msg)


def answer_length(answer: str) -> int:
    """Return the number of characters of an answer, 0 for one of whitespace alone."""
    return 0 if answer.isspace() else len(answer)


def answer_codes(answers: Sequence[str]) -> list[int]:
    """The slot of the first candidate with the same answer, for each of n answers of one prompt."""
    first: dict[str, int] = {}
    return [first.setdefault(answer, slot) for slot, answer in enumerate(answers)]


def _of(items: Sequence[Any], rows: IntArray) -> tuple[Any, ...]:
    return tuple(map(items.__getitem__, rows.tolist()))


def _all_or_none(parts: Sequence[IntArray | None]) -> IntArray | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _metadata(parts: Sequence[Sequence[Mapping[str, Scalar]]]) -> Sequence[Mapping[str, Scalar]]:
    as_json = [part for part in parts if isinstance(part, JsonMetadata)]
    return JsonMetadata.joined(as_json) if len(as_json) == len(parts) else tuple(chain.from_iterable(parts))


def _check_named(names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            msg = f"ids and clusters must be texts, none of them empty; got {name!r}"
            raise InputError(msg)


def _check_different(ids: Sequence[str]) -> None:
    if len(set(ids)) < len(ids):
        name, count = Counter(ids).most_common(1)[0]
        msg = f"the id {name!r} comes {count} times; expected ids to differ"
        raise InputError(msg)


def _finite(name: str, values: FloatArray | Sequence[Sequence[float]]) -> FloatArray:
    try:
        outputs = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        msg = f"raw outputs of {name!r} must be N lists of n numbers each"
        raise InputError(msg) from error
    if not np.isfinite(outputs).all():
        msg = f"raw outputs of {name!r} must be finite numbers"
        raise InputError(msg)
    return outputs


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Mapping[str, Scalar]:
    # Shared by all who ask, so nobody may change it.
    entries: dict[str, Scalar] = json.loads(text)
    return MappingProxyType(entries)
