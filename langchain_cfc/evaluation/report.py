"""The report shape that `demo`, `evaluate` and `compare` share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class GroupReport(BaseModel):
    """What happened in one guaranteed weighting of the test prompts.

    Attributes:
        name: Name of the weighting.
        words: The same for people.
        n: Sum of its weights: a number of prompts for a group.
        coverage: Weighted share of prompts whose returned set holds a correct answer.
        kept_promise: Weighted share covered or flagged as not certifiable: the guaranteed event.
        kept_promise_ci: Two-sided Clopper-Pearson interval; those of all groups hold together with
            confidence 95 % (Bonferroni). Approximate, by effective size, for soft groups.
        not_certifiable_rate: Weighted share flagged.
        mean_set_size: Weighted mean number of candidates returned.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    words: str
    n: float
    coverage: float
    kept_promise: float
    kept_promise_ci: tuple[float, float]
    not_certifiable_rate: float
    mean_set_size: float


class MethodReport(BaseModel):
    """What happened under one threshold rule, over all test prompts.

    Attributes:
        coverage: Share of prompts whose returned set holds a correct answer.
        coverage_ci: Its two-sided 95 % Clopper-Pearson interval.
        kept_promise: Share covered or flagged as not certifiable: the guaranteed event.
        kept_promise_ci: Its interval.
        not_certifiable_rate: Share flagged as not certifiable.
        not_certifiable_ci: Its interval.
        refused_rate: Share flagged only because the artifact keeps too few calibration prompts to know the
            threshold; part of `not_certifiable_rate`.
        abstention_rate: Share of prompts without an answer, flagged ones included.
        abstention_ci: Its interval.
        mean_set_size: Mean number of candidates returned.
        mean_distinct_answers: Mean number of distinct answers returned.
        groups: The guaranteed weightings that hold test prompts, in the order of the feature map.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    coverage: float
    coverage_ci: tuple[float, float]
    kept_promise: float
    kept_promise_ci: tuple[float, float]
    not_certifiable_rate: float
    not_certifiable_ci: tuple[float, float]
    refused_rate: float = 0.0
    abstention_rate: float
    abstention_ci: tuple[float, float]
    mean_set_size: float
    mean_distinct_answers: float
    groups: list[GroupReport]


class AnswersReport(BaseModel):
    """What happened in bot mode, where the artifact holds a certified policy.

    Attributes:
        alpha: Level of the sets that it answers from.
        max_wrong_rate: The certified bound on the share of wrong answers.
        answered: Number of test prompts answered.
        answered_rate: Their share of all test prompts.
        wrong: How many of them got a wrong best answer.
        wrong_rate: Their share of the answered ones; 0 where none is answered.
        wrong_rate_ci: Its two-sided 95 % Clopper-Pearson interval.
        contradicted: Whether so many are wrong with probability below 2.5 % at most, if the rate is certified
            truly.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float
    max_wrong_rate: float
    answered: int
    answered_rate: float
    wrong: int
    wrong_rate: float
    wrong_rate_ci: tuple[float, float]
    contradicted: bool


class EvaluationReport(BaseModel):
    """How an artifact did on labelled prompts that it was not calibrated on.

    Attributes:
        alpha: Error level.
        target_coverage: 1 - alpha.
        n_calibration: Number of calibration prompts.
        n_test: Number of test prompts.
        n_candidates: Number of candidates per prompt.
        attainable_coverage: Share of test prompts with a correct candidate that can enter the set.
        test_prompts: Which prompts of the records were used, in words.
        artifact_digest: Digest of the artifact.
        guarantee: `conditional`, `marginal`, `certified` or `heuristic`: what the artifact promises at all.
        contradicted: Names of the groups (`1` is all prompts) on which the artifact's own rule kept its
            promise, or what is certified over all prompts, too rarely for chance; empty where nothing
            contradicts it.
        methods: By threshold rule; the artifact's own, and `marginal` to compare with.
        answers: What happened in bot mode; None where the artifact holds no certified policy.
        n_unknown_category: Number of test prompts of a category that was not calibrated on. The artifact's
            own rule flags them, unless it is the marginal one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float
    target_coverage: float
    n_calibration: int
    n_test: int
    n_candidates: int
    attainable_coverage: float
    test_prompts: str
    artifact_digest: str
    guarantee: str
    contradicted: list[str]
    methods: dict[str, MethodReport]
    answers: AnswersReport | None = None
    n_unknown_category: int = 0
