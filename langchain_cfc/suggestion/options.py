"""What there is to choose from: feature map x set rule x verifiers, an *option*."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from langchain_cfc._arrays import FloatArray
from langchain_cfc.draws import Draws, LabelledDraws
from langchain_cfc.features import FeatureMap
from langchain_cfc.features.bases import Group

# Each in a word. Few, and unlike each other: the more there are, the luckier the luckiest is.
DEFAULT_MAPS = {
    "1": "one threshold for all prompts",
    "mean_score": "a line in the mean score",
    "mean_score^2": "a parabola in it",
    "hat(mean_score, 5)": "a broken line in it, where neighbours share what they learn",
    "bins(mean_score, 5)": "fifths of it, each on its own",
    "hat(min_score, 5)": "a broken line in the best score",
    "mean_score + std_score": "the mean score, and how far scores spread",
    "hard(mean_score, 0.8)": "the hardest fifth, and the others",
}
ANSWER_MAPS = {
    "hat(entropy, 5)": "a broken line in the disagreement of answers",
    "hat(top_share, 5)": "a broken line in the share of the most frequent answer",
    "hard(entropy, max_score, 0.925)": "the paper's hard group on TriviaQA",
}
# Under `unique(...)` the same distinct answers enter at the same thresholds, so that nothing told here tells
# it from what it wraps; `rank` forgets how far scores lie apart.
DEFAULT_SET_RULES = ("all", "best_prefix")
MOST_KEYS = 3
MOST_CATEGORIES = 10


@dataclass(frozen=True)
class Option:
    """One way to calibrate.

    Attributes:
        features: The feature map.
        set_rule: The set rule.
        combine: Verifiers whose raw outputs make the score; None for the recorded score.
    """

    features: str
    set_rule: str
    combine: tuple[str, ...] | None = None

    @property
    def words(self) -> str:
        """What it is, on one line."""
        scored = "" if self.combine is None else f", scored by {' + '.join(self.combine)}"
        return f"{self.features} with {self.set_rule}{scored}"


def default_maps(draws: Draws) -> tuple[str, ...]:
    """Feature maps worth trying.

    Args:
        draws: The prompts to select on.

    Returns:
        Maps of scores; of answers, where they are known; and of metadata, where a key has few categories.
    """
    maps = [*DEFAULT_MAPS, *(ANSWER_MAPS if draws.answer_codes is not None else ())]
    for key in list(_keys_of_few_categories(draws))[:MOST_KEYS]:
        maps += [key, f"hat(mean_score, 5) + {key}"]
    return tuple(maps)


def _keys_of_few_categories(draws: Draws) -> Iterable[str]:
    entries = list(draws.metadata)
    for key in entries[0] if entries else ():
        values = {one.get(key) for one in entries}
        if None not in values and 1 < len(values) <= MOST_CATEGORIES:
            yield Group(key).text


def canonical_maps(texts: Sequence[str]) -> tuple[str, ...]:
    """The same maps in canonical text, each once."""
    return tuple(dict.fromkeys(FeatureMap.parse(text).text for text in texts))


def combinations(verifiers: Sequence[str], same: Sequence[str] = ()) -> tuple[tuple[str, ...], ...]:
    """Each verifier alone, and all together.

    Args:
        verifiers: Their names.
        same: Those that say the same as the recorded score, which is tried anyway.
    """
    alone = [(name,) for name in verifiers if name not in same]
    return (*alone, tuple(verifiers)) if len(verifiers) > 1 else tuple(alone)


def saying_the_same(labelled: LabelledDraws) -> list[str]:
    """The verifiers whose raw outputs order all candidates as the recorded scores do, or the other way round.

    Such is the log-probability that a score was made of. Alone it makes the same sets wherever thresholds do
    not depend on the unit of scores.
    """
    scores = labelled.draws.scores.ravel()
    return [name for name, outputs in labelled.raw.items() if _monotone(scores, outputs.ravel())]


def _monotone(scores: FloatArray, outputs: FloatArray) -> bool:
    """Whether outputs only rise, or only fall, with scores; equal scores may have any."""
    rising = (directed[np.lexsort((directed, scores))] for directed in (outputs, -outputs))
    return any(bool((ordered[1:] >= ordered[:-1]).all()) for ordered in rising)
