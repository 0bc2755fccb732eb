"""`Suggestion`: what was chosen, why, and what it was chosen from, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from langchain_cfc.calibration import CalibrationConfig


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class JudgedOption(_Data):
    """What an option did over the inner splits.

    Attributes:
        features: The feature map.
        set_rule: The set rule.
        combine: Verifiers whose raw outputs made the score; None for the recorded score.
        columns: Number of its features.
        gap: Target coverage less the kept promise of the group that keeps it most rarely on average over the
            splits, at least 0.
        gap_error: Approximate standard error of that group's kept promise; see `suggest`.
        group: The group, in words.
        size: Mean number of distinct answers shown, where a flagged prompt counts as all its n candidates.
        kept_promise: Mean share of prompts covered or flagged.
        not_certifiable_rate: Mean share flagged.
        abstention_rate: Mean share without an answer, flagged ones included.
    """

    features: str
    set_rule: str
    combine: list[str] | None
    columns: int
    gap: float
    gap_error: float
    group: str
    size: float
    kept_promise: float
    not_certifiable_rate: float
    abstention_rate: float


class RunnerUp(_Data):
    """What the rule would have chosen, were it not for the winner.

    Attributes:
        features: The feature map.
        set_rule: The set rule.
        combine: Verifiers whose raw outputs made the score; None for the recorded score.
        lost: Why it lost, in words.
    """

    features: str
    set_rule: str
    combine: list[str] | None
    lost: str


class Unusable(_Data):
    """What could not be judged.

    Attributes:
        what: A feature map, a set rule, or an option.
        reason: Why.
    """

    what: str
    reason: str


class Suggestion(_Data):
    """What to calibrate with, and why.

    Attributes:
        alpha: Error level that was selected for, as decimal text.
        target_coverage: 1 - alpha.
        features: The feature map.
        set_rule: The set rule.
        combine: Verifiers to combine; None for the recorded score.
        reason: Why, in words.
        runner_up: The second best; None where there was a single option.
        options: All that were judged, in the order in which the rule would choose them.
        unusable: What could not be.
        notes: What a reader has to know.
        prompts: Number of prompts selected on.
        digest: SHA-256 over the ids of the fit split: an artifact that was made by these settings holds the
            same under `calibration.digests["fit"]`.
        groups: Number of groups that gaps were looked for in.
        tolerance: What counts as one standard error of a gap: the median of the options'.
        splits: Number of inner splits.
        n: Number of candidates to use; None for all.
        seed: Of the split, like all that follows.
        fit_fraction: Share of the prompts not held out that was selected on.
        test_fraction: Share of all prompts held out for evaluation.
        certification_fraction: Share of the others held out for certificates.
        command: The command to run next.
    """

    alpha: str
    target_coverage: float
    features: str
    set_rule: str
    combine: list[str] | None
    reason: str
    runner_up: RunnerUp | None
    options: list[JudgedOption]
    unusable: list[Unusable]
    notes: list[str]
    prompts: int
    digest: str
    groups: int
    tolerance: float
    splits: int
    n: int | None
    seed: str
    fit_fraction: float
    test_fraction: float
    certification_fraction: float
    command: str

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `calibrate` beside the records."""
        return {
            "alpha": self.alpha,
            "features": self.features,
            "set_rule": self.set_rule,
            "combine": self.combine,
            "n": self.n,
            "seed": self.seed,
            "fit_fraction": self.fit_fraction,
            "test_fraction": self.test_fraction,
            "certification_fraction": self.certification_fraction or None,
        }

    def for_records(self, paths: Sequence[str]) -> Suggestion:
        """The same with a command that names these files."""
        return self.model_copy(update={"command": CalibrationConfig(**self.settings).command(paths)})
