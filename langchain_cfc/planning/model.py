"""`Plan`: the shape of what `plan_from_pilot` and `plan_from_assumptions` return."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

Verdict: TypeAlias = Literal["attainable", "uncertain", "out of reach"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GroupPlan(_Data):
    """What a target takes in one group of prompts. Numbers of prompts count clusters as one prompt.

    Attributes:
        name: `all prompts`, or a group as calibration and evaluation name it, such as
            `group(topic)=capital`.
        share: Share of the prompts that belong to it, in (0, 1].
        pilot_size: Number of its pilot prompts; None for stated assumptions.
        attainable: Share of its prompts with a correct candidate among n: the estimate, or the assumption.
        attainable_ci: Two-sided 95 % Clopper-Pearson interval of it; None for stated assumptions.
        smallest_alpha_expected: 1 - attainable; error levels above it are attainable by the estimate.
        smallest_alpha_certain: Error levels above it are attainable with 95 % certainty: 1 - the one-sided
            lower Clopper-Pearson bound. None for stated assumptions.
        verdict: `attainable` (the one-sided 95 % lower bound exceeds the target, so that alpha >
            smallest_alpha_certain), `out of reach` (the upper one is below it) or `uncertain`. An assumption
            counts as both bounds, and at the target itself as out of reach.
        smallest_n: The smallest number of candidates whose estimate exceeds the target; None where no number
            recorded does, and for stated assumptions.
        minimum_calibration: Smallest number of its calibration prompts at which a threshold below the cap is
            to be expected. None, as in the fields below, where the estimate does not exceed the target.
        recommended_calibration: From so many on, coverage given the calibration prompts is at least target -
            slack with probability 1 - delta, and so is a threshold below the cap, the latter unless the
            verdict is `uncertain`.
        certifiable_chance: Probability that its threshold stays below the cap, so that its prompts are
            answered, with the recommended number of calibration prompts and if the estimate is right.
        prompts_needed: Labelled prompts of all groups that give it, on average, so many for calibration.
    """

    name: str
    share: float
    pilot_size: int | None
    attainable: float
    attainable_ci: tuple[float, float] | None
    smallest_alpha_expected: float
    smallest_alpha_certain: float | None
    verdict: Verdict
    smallest_n: int | None
    minimum_calibration: int | None
    recommended_calibration: int | None
    certifiable_chance: float | None
    prompts_needed: int | None


class AttainableAt(_Data):
    """Attainable coverage with another number of candidates.

    Attributes:
        n: Number of candidates per prompt.
        attainable: Estimated share of all prompts with a correct candidate among n.
        groups: The same by name of the group.
    """

    n: int
    attainable: float
    groups: dict[str, float]


class Plan(_Data):
    """How many labelled prompts a target takes, at what cost, and in which groups it is within reach.

    Attributes:
        alpha: Error level.
        target_coverage: 1 - alpha.
        n: Number of candidates per prompt that is planned with.
        slack: By how much coverage, given the calibration prompts, may fall short of the target.
        delta: How often it may fall shorter.
        calibration_share: Share of the labelled prompts that calibrates: (1 - test) (1 - fit).
        groups: All prompts first, then the groups.
        by_n: How the number of candidates moves the attainable coverage; empty for stated assumptions.
        labelled_prompts: The most that all prompts or any group needs; groups that cannot reach the target by
            the estimate do not count. None where all prompts together cannot.
        expected_cost: Of labelling so many, in the unit of the costs given; None likewise.
        advice: What to do about it, in sentences.
    """

    alpha: float
    target_coverage: float
    n: int
    slack: float
    delta: float
    calibration_share: float
    groups: list[GroupPlan]
    by_n: list[AttainableAt]
    labelled_prompts: int | None
    expected_cost: float | None
    advice: list[str]
