"""`BatchScores`: what an artifact keeps so that a whole batch is answered with few wrong answers on average.

*The selection.* n labelled prompts calibrate. Prompt i has the mean score s_i and is wrong if its best answer
is; a prompt without any answer has nothing to show, so it is not wrong, and its mean score counts as
infinite. The m distinct questions of a batch have mean scores too, infinite without an answer and for a
question whose calls failed. The conformal p-value of question j with a finite score is

    p_j = (1 + the number of wrong prompts i with s_i <= s_j) / (n + 1),

and 1 for an infinite score. The procedure of Benjamini and Hochberg at q answers the k questions of smallest
p-values, for the largest k with k or more p-values of at most q k / m. Since p_j grows with s_j, this is a
cut on the mean score.

*The theorem.* Let the labelled prompts and the questions be exchangeable. Then the expected share of wrong
answers among those given, 0 if none is given, is at most q: over calibration prompts and batches, for every n
and m, and however scores tie.

*Proof.* Let R be the set of questions answered. The expectation is the sum over j of E[1{j in R, j wrong} /
|R|]. Fix j, and replace the other p-values: in p_l with s_l < s_j the leading 1 is dropped, which stands for
j itself, and all others stay. Replace p_j by 0, and let R_j be what is answered then. If j is in R, only
p-values of questions in R have fallen, because those with smaller scores than s_j are in R, too. The
procedure then answers the same questions, so R_j = R. If j is wrong, the new p_l is the number of wrong
prompts with scores of at most s_l among the n + 1 that are the labelled ones and j, divided by n + 1: so
|R_j| depends on these n + 1 as a set only, and on the other questions. Given both, each of the n + 1 is
equally likely to be j. If j is wrong, (n + 1) p_j is the number of wrong ones among the n + 1 with scores of
at most s_j; it is at most x for at most x of the wrong ones, since ties count in full. So Pr(j wrong, p_j <=
q |R_j| / m | set) is at most q |R_j| / m. Divide by |R_j|, take expectations, and add up m questions: at most
q.

*Failures.* Prompts without an answer count in n, so questions without one must count in m. Labelled prompts
whose calls failed are in no file: then let the m' questions whose calls succeed be exchangeable with the n.
The sum has m' terms of at most q / m, and is at most q again.

*What else it needs.* Labels may not choose whether the p-values are used. An artifact that exists only
because its labels certified a rate has fewer wrong prompts of small score than new prompts like these: in a
world of `tests/guarantees/test_batches.py` 12 % of the answers are wrong at q = 10 %. So such an artifact
keeps none.

Sources: Jin and Candes 2023, "Selection by prediction with conformal p-values" (the theorem, with p-values of
this form); Gui, Jin and Ren 2024, "Conformal Alignment: knowing when to trust foundation models with
guarantees" (answers of a model); Benjamini and Hochberg 1995. Random numbers that break ties must be
independent between questions; these p-values need none.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from langchain_cfc.artifact.facts import ArtifactData, PackedArray
from langchain_cfc.records.splits import digest_inputs
from langchain_cfc.support.arrays import BoolArray, FloatArray, IntArray

# Below every mean score: the cut of a batch in which nothing is answered.
NOTHING_ANSWERED = -1.0


class BatchScores(ArtifactData):
    """The scores of wrong answers among the labelled prompts, which make conformal p-values.

    Attributes:
        prompts: Number n of labelled prompts, one of each cluster, whose labels shaped no score.
        wrong_scores: Mean scores of those whose best answer is wrong, ascending.
        inputs: Digests of the inputs of all prompts outside the test split, in base64, 8 bytes each,
            ascending; empty if the inputs are unknown. A batch that holds one of them is refused.
    """

    prompts: Annotated[int, Field(ge=1)]
    wrong_scores: PackedArray
    inputs: str

    @classmethod
    def from_scores(
        cls, prompts: int, wrong_scores: FloatArray, inputs: IntArray | None = None
    ) -> BatchScores:
        """Pack the mean scores of wrong answers, in any order, and the digests of inputs."""
        known = np.empty(0, dtype=np.int64) if inputs is None else np.unique(inputs)
        packed = base64.b64encode(known.astype("<i8").tobytes()).decode("ascii")
        return cls(prompts=prompts, wrong_scores=PackedArray.pack(np.sort(wrong_scores)), inputs=packed)

    @model_validator(mode="after")
    def _check_scores(self) -> BatchScores:
        scores = self.wrong_scores.unpack()
        if scores.ndim != 1 or len(scores) > self.prompts or (np.diff(scores) < 0.0).any():
            msg = "expected a score for each of at most `prompts` wrong answers, ascending"
            raise ValueError(msg)
        if len(scores) and not 0.0 <= scores[0] <= scores[-1] <= 1.0:
            msg = "expected mean scores in [0, 1]"
            raise ValueError(msg)
        inputs = self._unpack_inputs()
        if (inputs[1:] <= inputs[:-1]).any():  # their differences may exceed 64 bits
            msg = "expected distinct digests of inputs, ascending"
            raise ValueError(msg)
        return self

    def _unpack_inputs(self) -> IntArray:
        raw = base64.b64decode(self.inputs, validate=True)
        return np.frombuffer(raw, dtype="<i8").astype(np.int64)

    def recognise(self, inputs: Iterable[object]) -> tuple[IntArray, BoolArray]:
        """Return (m,) digests of inputs given as plain data, and which are those of a labelled prompt."""
        digests = digest_inputs(inputs)
        return digests, np.asarray(np.isin(digests, self._unpack_inputs()), dtype=np.bool_)

    def select(self, mean_scores: FloatArray, max_wrong_share: str) -> tuple[FloatArray, float]:
        """Select the questions of a batch that are answered.

        Args:
            mean_scores: (m,) mean scores of the distinct questions, `inf` for a question without an answer or
                whose calls failed.
            max_wrong_share: q, as decimal text.

        Returns:
            The (m,) p-values, and the cut: questions with at most this mean score are answered.
        """
        m, (share, whole) = len(mean_scores), Fraction(max_wrong_share).as_integer_ratio()
        ranks = 1 + np.searchsorted(self.wrong_scores.unpack(), mean_scores, side="right")
        ranks = np.where(np.isfinite(mean_scores), ranks, self.prompts + 1)
        # p <= q k / m as whole numbers: rank <= floor(q k (n + 1) / m).
        allowed = np.array([share * k * (self.prompts + 1) // (whole * m) for k in range(1, m + 1)])
        passing = np.flatnonzero(np.sort(ranks) <= allowed)
        cut = NOTHING_ANSWERED
        if len(passing):
            cut = float(mean_scores[ranks <= allowed[passing[-1]]].max())
        return ranks / (self.prompts + 1), cut
