"""`Contest`: options tried and judged, and those set aside with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from langchain_cfc.calibration.attainability import smallest_alpha, target_is_attainable
from langchain_cfc.calibration.checks import check_answers
from langchain_cfc.comparison.jobs import Progress, each_split
from langchain_cfc.comparison.methods import CAP
from langchain_cfc.errors import CalibrationError, InputError, UnattainableTargetError
from langchain_cfc.features import FeatureMap, naming
from langchain_cfc.records import Provenance
from langchain_cfc.suggestion.choosing import Judged, features
from langchain_cfc.suggestion.options import Option
from langchain_cfc.suggestion.report import Unusable
from langchain_cfc.suggestion.trials import TEST, Trials, Tried, first_line
from langchain_cfc.thresholds import exact_tau

# An option that flags more than this share of the prompts that have a correct candidate is none.
MOST_WITHHELD = 0.5


@dataclass(frozen=True, eq=False)
class Contest:
    """Where options are tried.

    Attributes:
        trials: The selection prompts, the groups and the level; options are put in when they are tried.
        splits: Number of inner splits.
        jobs: Number of processes.
        progress: Wraps the splits while options are tried.
        provenance: What the records say of themselves.
        unusable: What has been set aside so far.
    """

    trials: Trials
    splits: int
    jobs: int
    progress: Progress
    provenance: Provenance | None
    unusable: list[Unusable] = field(default_factory=list)

    @property
    def calibrating(self) -> int:
        """Number of prompts that calibrate in an inner split, on average."""
        return round(len(self.trials.pool.labelled) * (1.0 - TEST) * (1.0 - self.trials.fit))

    def within_reach(self, set_rules: Sequence[str]) -> list[str]:
        """The set rules under which the level is within reach of an inner split.

        Raises:
            UnattainableTargetError: If it is under none.
            CalibrationError: If none suits the labels.
        """
        found = []
        refused: list[tuple[int, str]] = []
        for rule in set_rules:
            try:
                self._check_answers(needed=rule.startswith("unique"))
                reachable = self.trials.pool.success_scores(rule, CAP) < CAP
            except InputError as error:
                self._set_aside(f"set rule {rule}", first_line(error))
                continue
            reached = int(reachable.sum())
            if self._attainable(reached):
                found.append(rule)
                continue
            refused.append((reached, rule))
            self._set_aside(f"set rule {rule}", self._out_of_reach(reached, rule))
        if not found and refused:
            raise UnattainableTargetError(self._out_of_reach(*max(refused, key=lambda one: one[0])))
        if not found:
            raise self.nothing_left()
        return found

    def usable(self, maps: Sequence[str]) -> list[str]:
        """The feature maps that can be fitted on the selection prompts."""
        problems = {text: self._problem_of(text) for text in maps}
        for text, problem in problems.items():
            if problem is not None:
                self._set_aside(text, problem)
        return [text for text, problem in problems.items() if problem is None]

    def _problem_of(self, feature_text: str) -> str | None:
        pool = self.trials.pool
        try:
            self._check_answers(needed=FeatureMap.parse(feature_text).needs_answers)
            with naming(pool.labelled.ids):
                pool.features(feature_text, np.arange(len(pool.labelled)))
        except InputError as error:
            return first_line(error)
        return None

    def tried(self, options: Sequence[Option]) -> list[Judged]:
        """Try options on every inner split.

        Args:
            options: The options.

        Returns:
            Those that can be used, with what they did.
        """
        trials = replace(self.trials, options=tuple(options))
        seen = each_split(trials.measured, self.splits, self.jobs, self.progress) if options else []
        tau = float(exact_tau(trials.alpha))
        judged = []
        for place, option in enumerate(options):
            found = [trial[place] for trial in seen]
            failed = next((one for one in found if isinstance(one, str)), None)
            if failed is not None:
                self._set_aside(option.words, failed)
                continue
            tried = [one for one in found if isinstance(one, Tried)]
            one = Judged.of(option, tried, trials.groups.words, tau)
            if one.withheld > MOST_WITHHELD:
                self._set_aside(option.words, _withheld(one))
            else:
                judged.append(one)
        return judged

    def nothing_left(self) -> CalibrationError:
        """What to raise where nothing can be used."""
        listed = "\n".join(f"- {one.what}: {one.reason}" for one in self.unusable)
        size = len(self.trials.pool.labelled)
        return CalibrationError(f"no option can be used on the {size} selection prompts:\n{listed}")

    def _check_answers(self, *, needed: bool) -> None:
        check_answers(self.trials.pool.labelled, self.provenance, needed=needed)

    def _attainable(self, reached: int) -> bool:
        return target_is_attainable(self.trials.alpha, self.calibrating, self._in_a_split(reached))

    def _in_a_split(self, reached: int) -> int:
        return int(Fraction(reached * self.calibrating, len(self.trials.pool.labelled)))

    def _out_of_reach(self, reached: int, rule: str) -> str:
        size = len(self.trials.pool.labelled)
        inside = self._in_a_split(reached)
        least = (
            f"Smallest alpha here: {smallest_alpha(self.calibrating, inside):g}"
            if inside
            else "No alpha would do"
        )
        return (
            f"alpha = {self.trials.alpha} is out of reach: {reached} of {size} selection prompts have a "
            f"correct candidate that can enter the set by {rule} (attainable coverage {reached / size:.3f}), "
            f"and about {self.calibrating} calibrate in an inner split. {least}. Draw more candidates, "
            "improve the model, choose a larger alpha, or raise fit_fraction"
        )

    def _set_aside(self, what: str, reason: str) -> None:
        self.unusable.append(Unusable(what=what, reason=reason))


def _withheld(one: Judged) -> str:
    return (
        f"flags {100 * one.withheld:.0f} % of the prompts that have a correct candidate: too few prompts for "
        f"{features(one.shown.columns)} at this level"
    )
