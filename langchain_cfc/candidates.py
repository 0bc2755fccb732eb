"""Candidates of prompts as arrays: `CandidateBatch` for serving, `LabelledBatch` for calibration.

Set rules and feature maps only read a `CandidateBatch`. This keeps calibration and serving exchangeable:
offline the arrays hold thousands of labelled prompts, online a single one, and the code that reads them
cannot tell the difference.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from langchain_cfc.errors import InputError, SamplingWarning
from langchain_cfc.no_answers import is_invisible
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray, find_first_equal, to_float_array
from langchain_cfc.support.normalisation import normalise_answer
from langchain_cfc.support.units import UNITS, Unit

Scalar: TypeAlias = str | int | float | bool
PromptKind: TypeAlias = Literal["text", "messages", "object"]
_PROMPT_KINDS: Mapping[type, PromptKind] = {str: "text", list: "messages", dict: "object"}
_Kind = TypeVar("_Kind", bound=np.generic)
# Standard deviations between the rank sum of correct candidates and its mean above which a warning is given.
_SORTED_SPREADS = 6.0


@dataclass(frozen=True)
class CandidateBatch:
    """The n candidates of N prompts, ordered by request slot.

    Attributes:
        scores: (N, n) verifier scores in [0, 1], smaller is better.
        answer_codes: (N, n) slot of the prompt's first candidate with the same answer; None if unknown.
        lengths: (N, n) number of characters of each answer, 0 for one that is blank or has no verdict; None
            if answers are unknown.
        metadata: N mappings from the metadata function or the records.
        precomputed: (N,) values of statistics, by feature text.
        drawn: (N,) number of candidates of each prompt, in its first slots; None if every prompt has n. The
            others are padding and must not be read: use `split_by_count`, or slots with a finite level.
    """

    scores: FloatArray
    answer_codes: IntArray | None
    lengths: IntArray | None
    metadata: Sequence[Mapping[str, Scalar]]
    precomputed: Mapping[str, FloatArray] = field(default_factory=dict)
    drawn: IntArray | None = None

    @classmethod
    def concatenate(cls, parts: Sequence[CandidateBatch]) -> CandidateBatch:
        """Concatenate parts of a dataset; statistics are dropped, and answers unless all parts have them."""
        drawn = None
        if any(part.drawn is not None for part in parts):
            drawn = np.concatenate([part.counts for part in parts])
        return cls(
            _concatenate_padded([part.scores for part in parts], 1.0),
            _concatenate_known([part.answer_codes for part in parts]),
            _concatenate_known([part.lengths for part in parts]),
            tuple(chain.from_iterable(part.metadata for part in parts)),
            drawn=drawn,
        )

    @classmethod
    def from_arrays(
        cls,
        scores: FloatArray | Sequence[Sequence[float]],
        answers: Sequence[Sequence[str]] | None = None,
        metadata: Sequence[Mapping[str, Scalar]] | None = None,
    ) -> CandidateBatch:
        """Check and pack the candidates of N prompts.

        Args:
            scores: (N, n) verifier scores in [0, 1].
            answers: N lists of n answers (extracted answers if available, else the texts).
            metadata: N mappings; empty by default.

        Returns:
            The packed batch.

        Raises:
            InputError: If shapes disagree, n is 0, or a score is not a finite number in [0, 1].
        """
        matrix = to_float_array(scores, "scores").copy()
        if matrix.ndim != 2 or matrix.shape[1] == 0:  # noqa: PLR2004 - rows and columns
            msg = f"scores must be an (N, n) array with n >= 1, got shape {matrix.shape}"
            raise InputError(msg)
        # NaN fails this test as well.
        bad = ~((matrix >= 0.0) & (matrix <= 1.0))
        if bad.any():
            row, slot = (int(i) for i in np.argwhere(bad)[0])
            msg = f"score of candidate {slot} of prompt {row} is {matrix[row, slot]}; expected one in [0, 1]"
            raise InputError(msg)
        size, n = matrix.shape
        codes = lengths = None
        if answers is not None:
            if len(answers) != size or set(map(len, answers)) - {n}:
                msg = f"answers must be {size} lists of {n} texts, like the scores"
                raise InputError(msg)
            codes, lengths = encode_answers(chain.from_iterable(answers), n)
        if metadata is not None and len(metadata) != size:
            msg = f"metadata must hold {size} mappings, got {len(metadata)}"
            raise InputError(msg)
        if metadata is None:
            metadata = ({},) * size
        return cls(matrix, codes, lengths, tuple(metadata))

    def __len__(self) -> int:
        """The number of prompts N."""
        return len(self.scores)

    @property
    def n(self) -> int:
        """The number of slots per prompt: the largest number of candidates, if numbers differ."""
        return int(self.scores.shape[1])

    @property
    def counts(self) -> IntArray:
        """(N,) number of candidates of each prompt."""
        return np.full(len(self), self.n, dtype=np.int64) if self.drawn is None else self.drawn

    @property
    def is_drawn(self) -> BoolArray:
        """(N, n) whether a slot holds a candidate and not padding."""
        return np.asarray(np.arange(self.n) < self.counts[:, np.newaxis], dtype=np.bool_)

    def split_by_count(self) -> Iterator[tuple[IntArray, CandidateBatch]]:
        """Yield, for each number of candidates, its prompts' row numbers and a batch without padding."""
        for count_ in np.unique(self.counts).tolist():
            rows = np.flatnonzero(self.counts == count_)
            yield rows, self.take(rows).keep_first_candidates(count_)

    def keep_first_candidates(self, n: int) -> CandidateBatch:
        """Return only the first n candidates of each prompt, all of which must have been drawn."""
        return CandidateBatch(
            self.scores[:, :n].copy(),
            None if self.answer_codes is None else self.answer_codes[:, :n].copy(),
            None if self.lengths is None else self.lengths[:, :n].copy(),
            self.metadata,
        )

    @property
    def blank(self) -> BoolArray | None:
        """(N, n) whether a candidate enters no set: its answer is blank, or the verifier had no verdict."""
        return None if self.lengths is None else np.asarray(self.lengths == 0, dtype=np.bool_)

    def take(self, rows: IntArray) -> CandidateBatch:
        """Select prompts by (m,) row numbers."""
        return CandidateBatch(
            self.scores[rows],
            None if self.answer_codes is None else self.answer_codes[rows],
            None if self.lengths is None else self.lengths[rows],
            _select(self.metadata, rows),
            {name: values[rows] for name, values in self.precomputed.items()},
            None if self.drawn is None else self.drawn[rows],
        )


def find_prompt_kinds(inputs: Iterable[object]) -> frozenset[PromptKind]:
    """Return the kinds of prompts that records hold: texts, lists of messages or JSON objects."""
    return frozenset(_PROMPT_KINDS[kind] for kind in {type(one) for one in inputs})


@dataclass(frozen=True)
class LabelledBatch:
    """Candidates with labels, ids and clusters, for calibration and evaluation only.

    Attributes:
        draws: The candidates of N prompts.
        correct: (N, n) whether each candidate is correct (the paper's A(X, y)).
        ids: N record ids.
        clusters: N cluster names (conversation, set of paraphrases); None for a prompt without a cluster.
        recorded: Number of recorded candidates per prompt; `draws` holds the first n of them.
        extracted: Whether the answers come from an extractor (True) or are the texts (False); None if mixed.
        prompt_kinds: The kinds of the prompts, `text`, `messages` and `object`; None if unknown.
        inputs: (N,) digests of the prompts, equal for prompts that say the same; None if unknown.
        unit: `answers`, or `claims` if the slots of `draws` hold the claims of one answer per prompt and
            `correct` says which of them are supported.
    """

    draws: CandidateBatch
    correct: BoolArray
    ids: tuple[str, ...]
    clusters: tuple[str | None, ...]
    recorded: int | None = None
    extracted: bool | None = False
    prompt_kinds: frozenset[PromptKind] | None = None
    inputs: IntArray | None = None
    unit: Unit = "answers"

    def __post_init__(self) -> None:
        """Reject labels whose shapes do not match the candidates."""
        is_same_shape = self.draws.scores.shape == self.correct.shape
        if not (is_same_shape and len(self.ids) == len(self.clusters) == len(self.draws)):
            msg = "labels, ids and clusters must have as many entries as the candidates"
            raise InputError(msg)

    @classmethod
    def from_arrays(
        cls,
        ids: Sequence[str],
        scores: FloatArray | Sequence[Sequence[float]],
        correct: BoolArray | Sequence[Sequence[bool]],
        answers: Sequence[Sequence[str]] | None = None,
        *,
        clusters: Sequence[str | None] | None = None,
        metadata: Sequence[Mapping[str, Scalar]] | None = None,
        extracted: bool | None = False,
        prompt_kinds: frozenset[PromptKind] | None = None,
    ) -> LabelledBatch:
        """Check and pack N labelled prompts, such as a batch read from a database.

        Args:
            ids: N distinct, non-empty ids.
            scores: (N, n) verifier scores in [0, 1], smaller is better; for claims one row per answer, with
                the scores of its one or more claims. Shorter rows are padded.
            correct: (N, n) whether each candidate is correct, or each claim is supported.
            answers: N lists of n answers (extracted answers if available, else the texts); None for claims.
            clusters: N cluster names, None for a prompt without a cluster; none by default.
            metadata: N mappings; empty by default.
            extracted: Whether the answers come from an extractor; None if only some do.
            prompt_kinds: The kinds of the prompts, see `find_prompt_kinds`; None if unknown.

        Returns:
            The batch, with all candidates counted as recorded.

        Raises:
            InputError: If lengths differ, an answer has no claim, or a value is out of range.
        """
        if answers is None:
            draws, labels = _pack_claims(scores, correct, metadata)
        else:
            draws, labels = CandidateBatch.from_arrays(scores, answers, metadata), _check_labels(correct)
        return cls(
            draws,
            labels,
            *_check_names(ids, clusters),
            recorded=None if answers is None else draws.n,
            extracted=extracted,
            prompt_kinds=prompt_kinds,
            unit="claims" if answers is None else "answers",
        )

    @classmethod
    def concatenate(cls, parts: Iterable[LabelledBatch]) -> LabelledBatch:
        """Concatenate one or more parts of a dataset; raise an InputError if they do not fit together."""
        several = list(parts)
        sizes = {(part.unit, part.draws.n * UNITS[part.unit].is_fixed_count) for part in several}
        if len(sizes) != 1 or len({part.recorded for part in several}) != 1:
            msg = "a dataset needs at least one part, and all parts need the same n"
            raise InputError(msg)
        first = several[0]
        extracted = {part.extracted for part in several}
        kinds = [part.prompt_kinds for part in several]
        inputs = [part.inputs for part in several if part.inputs is not None]
        whole = cls(
            CandidateBatch.concatenate([part.draws for part in several]),
            _concatenate_padded([part.correct for part in several], False),
            tuple(chain.from_iterable(part.ids for part in several)),
            tuple(chain.from_iterable(part.clusters for part in several)),
            first.recorded,
            first.extracted if len(extracted) == 1 else None,
            None if None in kinds else frozenset().union(*(one for one in kinds if one is not None)),
            None if len(inputs) < len(several) else np.concatenate(inputs),
            first.unit,
        )
        _check_distinct(whole.ids)
        return whole

    def __len__(self) -> int:
        """The number of prompts N."""
        return len(self.draws)

    @property
    def names(self) -> tuple[str, ...]:
        """Ids and cluster names, by which the prompts can be recognised later."""
        return list_ids_and_clusters(self.ids, self.clusters)

    def take(self, rows: IntArray) -> LabelledBatch:
        """Select prompts by (m,) row numbers."""
        return replace(
            self,
            draws=self.draws.take(rows),
            correct=self.correct[rows],
            ids=_select(self.ids, rows),
            clusters=_select(self.clusters, rows),
            inputs=None if self.inputs is None else self.inputs[rows],
        )

    def keep_first_candidates(self, n: int) -> LabelledBatch:
        """Return only the first n candidates of each prompt; `recorded` is unchanged."""
        if not 1 <= n <= self.draws.n:
            msg = (
                f"n is {n}; expected at least 1 and at most {self.draws.n}, the recorded number of candidates"
            )
            raise InputError(msg)
        fewer = self.draws.keep_first_candidates(n)
        return replace(self, draws=fewer, correct=self.correct[:, :n].copy())

    def keep_drawn(self, drawn: IntArray) -> LabelledBatch:
        """Keep the first `drawn[i]` candidates of prompt i, and overwrite the others with padding.

        Padding has score 1, a distinct blank answer and the label wrong, so no later draw can leak into a
        result. If every prompt keeps all n candidates, the batch is returned unchanged.
        """
        n = self.draws.n
        if (drawn == n).all():
            return self
        draws = replace(self.draws, drawn=drawn, precomputed={})
        held, codes, lengths = draws.is_drawn, draws.answer_codes, draws.lengths
        draws = replace(
            draws,
            scores=np.where(held, draws.scores, 1.0),
            answer_codes=None if codes is None else np.where(held, codes, np.arange(n)),
            lengths=None if lengths is None else np.where(held, lengths, 0),
        )
        return replace(self, draws=draws, correct=self.correct & held)


def warn_if_sorted(labelled: LabelledBatch) -> None:
    """Warn if the candidates seem to be sorted, so that correct ones mostly come first or last.

    Independent draws are exchangeable: every order of a prompt's candidates is equally likely. So, given the
    number of correct candidates, the sum of their positions has the mean and variance of Wilcoxon's rank sum
    (1945, "Individual comparisons by ranking methods"). The sum over all prompts has to be `_SORTED_SPREADS`
    standard deviations from its mean for a warning; by the normal approximation, one data set in 500 million
    is.

    Args:
        labelled: N prompts with all their recorded candidates, of which only the first will be used.

    Warns:
        SamplingWarning: If the candidates do not seem to be in the order in which they were drawn.
    """
    correct, n = labelled.correct, labelled.draws.n
    right = correct.sum(axis=1)
    found = float((correct * (np.arange(n) - (n - 1) / 2)).sum())
    spread = float(np.sqrt((right * (n - right)).sum() * (n + 1) / 12))
    if abs(found) > _SORTED_SPREADS * spread:
        where = "first" if found < 0 else "last"
        msg = (
            f"correct candidates mostly come {where}. Only the first candidates are used here, "
            "so they must be in the order in which they were drawn: do not sort them by score or label"
        )
        warnings.warn(msg, SamplingWarning, stacklevel=3)


def check_unit(labelled: LabelledBatch) -> LabelledBatch:
    """Return the prompts unchanged; raise an InputError if they hold claims, for callers without support."""
    if labelled.unit == "claims":
        msg = (
            "these records hold the claims of one answer each, which only calibrate and compare "
            "(unit='claims'), evaluate, report and certify support: pass records with several candidates"
        )
        raise InputError(msg)
    return labelled


def list_ids_and_clusters(ids: Sequence[str], clusters: Iterable[str | None]) -> tuple[str, ...]:
    """Return ids and distinct cluster names, by which prompts can be recognised later."""
    known = dict.fromkeys(f"cluster:{cluster}" for cluster in clusters if cluster is not None)
    return (*ids, *known)


def encode_answers(answers: Iterable[str], n: int) -> tuple[IntArray, IntArray]:
    """Encode the answers of N prompts as answer codes and lengths.

    Args:
        answers: N * n answers, prompt by prompt.
        n: Number of candidates per prompt, at least 1.

    Returns:
        (N, n) slots of the first candidate of the same prompt whose answer has the same normal form (see
        `normalise_answer`; signs alone are compared as they are), and (N, n) numbers of characters, 0 for an
        answer that shows nothing; see `is_invisible`.

    Examples:
        >>> codes, lengths = encode_answers(["Rome", " ", "rome.", "Oslo", "Lima", "Oslo"], 3)
        >>> codes.tolist(), lengths.tolist()
        ([[0, 1, 0], [0, 1, 0]], [[4, 0, 5], [4, 4, 4]])
    """
    texts = list(answers)
    forms: dict[str, int] = {}
    numbers = {text: forms.setdefault(normalise_answer(text) or text, len(forms)) for text in set(texts)}
    lengths = {text: 0 if is_invisible(text) else len(text) for text in numbers}
    known, shown = (
        np.fromiter(map(of_text.__getitem__, texts), np.int64, len(texts)).reshape(-1, n)
        for of_text in (numbers, lengths)
    )
    return find_first_equal(known), shown


def score_by_agreement(codes: IntArray, counts: IntArray | None = None) -> FloatArray:
    """Compute self-consistency scores: 1 - the share of the prompt's candidates with the same answer.

    Args:
        codes: (N, n) numbers that are equal for equal answers of a prompt; -1 for a blank answer, which
            agrees with none.
        counts: (N,) numbers of candidates drawn, the first ones of a prompt; by default all n.

    Returns:
        (N, n) scores in [0, 1 - 1/n], computed as a count divided by n, which rounds only once; 1 for a blank
        answer. What was not drawn has no meaning.

    Examples:
        >>> score_by_agreement(np.array([[0, 0, -1, 0]])).tolist()
        [[0.25, 0.25, 1.0, 0.25]]
    """
    n = codes.shape[1]
    drawn = np.full((len(codes), 1), n) if counts is None else counts[:, np.newaxis]
    differ = codes[:, :, np.newaxis] != codes[:, np.newaxis, :]
    others = (differ & (np.arange(n) < drawn)[:, np.newaxis]).sum(axis=2)
    return np.asarray(np.where(codes < 0, 1.0, others / drawn), dtype=np.float64)


def _select(items: Sequence[Any], rows: IntArray) -> tuple[Any, ...]:
    return tuple(map(items.__getitem__, rows.tolist()))


def _concatenate_padded(parts: Sequence[NDArray[_Kind]], padding: Any) -> NDArray[_Kind]:
    """Concatenate (m, n) arrays, padding the narrower ones to the width of the widest."""
    widest = max(part.shape[1] for part in parts)
    return np.concatenate(
        [
            part
            if part.shape[1] == widest
            else np.pad(part, ((0, 0), (0, widest - part.shape[1])), constant_values=padding)
            for part in parts
        ]
    )


def _concatenate_known(parts: Sequence[IntArray | None]) -> IntArray | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _pack_claims(
    scores: Sequence[Sequence[float]] | FloatArray,
    supported: Sequence[Sequence[bool]] | BoolArray,
    metadata: Sequence[Mapping[str, Scalar]] | None,
) -> tuple[CandidateBatch, BoolArray]:
    """Pack the claims of N answers, with padding for answers with fewer claims than the longest one."""
    counts = np.array([len(row) for row in scores], dtype=np.int64)
    if [len(row) for row in supported] != counts.tolist() or not counts.all():
        msg = "every answer needs at least one claim, and a score and a label of each"
        raise InputError(msg)
    held = np.arange(counts.max(initial=1)) < counts[:, np.newaxis]
    padded, labels = np.ones(held.shape), np.zeros(held.shape, dtype=np.bool_)
    padded[held] = to_float_array(list(chain.from_iterable(scores)), "scores")
    labels[held] = _check_labels(list(chain.from_iterable(supported)))
    return replace(CandidateBatch.from_arrays(padded, metadata=metadata), drawn=counts), labels


def _check_labels(labels: ArrayLike) -> BoolArray:
    array = np.asarray(labels)
    if array.dtype != np.bool_:
        msg = f"labels must be True or False, got an array of type {array.dtype}"
        raise InputError(msg)
    return array


def _check_names(
    ids: Sequence[str], clusters: Sequence[str | None] | None
) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """Return ids and clusters, None for each prompt by default, after checking that they can be names."""
    names: list[object] = [*ids, *(one for one in clusters or () if one is not None)]
    for name in names:
        if not isinstance(name, str) or not name:
            msg = f"ids and clusters must be non-empty texts; got {name!r}"
            raise InputError(msg)
    _check_distinct(ids)
    return tuple(ids), (None,) * len(ids) if clusters is None else tuple(clusters)


def _check_distinct(ids: Sequence[str]) -> None:
    if len(set(ids)) < len(ids):
        name, count = Counter(ids).most_common(1)[0]
        msg = f"the id {name!r} occurs {count} times; ids must be distinct"
        raise InputError(msg)
