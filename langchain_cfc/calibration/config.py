"""`CalibrationConfig`: every option of `calibrate` in one frozen object.

`calibrate`, the commands that are printed, the advice of a report and a monitor's recalibration all take
their options from here, so that none of them can forget one.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from langchain_cfc.artifact import CalibrationArtifact, ThresholdRuleName
from langchain_cfc.features import FeatureMap
from langchain_cfc.guarantee.stability import PaperStability
from langchain_cfc.thresholds import WINDOW, Level, format_alpha

# Options whose name on the command line is another one.
_FLAGS = {"stability": "stability-delta"}
# Decimals, written in their canonical form.
_LEVELS = {"alpha", "max_wrong_rate", "delta"}
# Stated on the command line even where they have their defaults.
_ALWAYS = ("alpha", "features", "set_rule", "seed")


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig:
    """The options of `calibrate`, unchecked: names, meaning and defaults are those of its arguments.

    The labelled prompts and their provenance are no options. `calibrate` checks what is asked for.
    """

    alpha: Level | Sequence[Level] | None = None
    features: str | FeatureMap = "hat(mean_score, 5)"
    set_rule: str = "all"
    never_empty: bool = True
    threshold_rule: ThresholdRuleName = "conditional"
    combine: Sequence[str] | None = None
    n: int | None = None
    cap: float = 2.0
    window: int | None = WINDOW
    ridge: float = 0.0
    penalised: Literal["slopes", "all"] = "slopes"
    stability: PaperStability | None = None
    shift: str | None = None
    randomised: bool = False
    confident: bool = False
    max_wrong_rate: Level | None = None
    wrong_rate_groups: bool = False
    delta: Level | None = None
    seed: str | int = 0
    fit_fraction: float | None = None
    test_fraction: float = 0.0
    certification_fraction: float | None = None
    within_clusters: Literal["one", "all"] = "one"
    allow_unattainable: bool = False

    @classmethod
    def from_artifact(cls, artifact: CalibrationArtifact) -> CalibrationConfig:
        """Return the options that make an artifact again out of the same records.

        A feature map that was fitted then is given as text, to be fitted on the same fit split; one that came
        fitted is given as it is.

        Args:
            artifact: The artifact.

        Returns:
            Its options, levels in canonical form.
        """
        facts, confidence, ridge = artifact.calibration, artifact.confidence, artifact.ridge
        certificate = None if artifact.policy is None else artifact.policy.certificate
        level_chosen = artifact.policy is not None and artifact.policy.level_chosen
        # Confidence and a policy of one artifact have the same delta.
        deltas = [one.delta for one in (confidence, certificate) if one is not None]
        return cls(
            alpha=None if level_chosen else artifact.alphas,
            features=artifact.feature_map if facts.map_came_fitted else artifact.feature_map.text,
            set_rule=artifact.set_rule,
            never_empty=artifact.never_empty,
            threshold_rule=artifact.threshold_rule,
            combine=None if artifact.combination is None else artifact.combination.names,
            n=artifact.n if artifact.n < facts.recorded_candidates else None,
            cap=artifact.cap,
            window=WINDOW if facts.window is None else facts.window or None,
            ridge=0.0 if ridge is None else ridge.strength,
            penalised="slopes" if ridge is None else ridge.penalised,
            stability=artifact.stability,
            shift=artifact.shift,
            randomised=artifact.randomised,
            confident=confidence is not None,
            max_wrong_rate=None if certificate is None else certificate.max_wrong_rate,
            wrong_rate_groups=certificate is not None and len(certificate.groups) > 1,
            delta=deltas[0] if deltas else None,
            seed=facts.split.seed,
            # A share of 0 was not needed then, and may be for other options.
            fit_fraction=facts.split.fit or None,
            test_fraction=facts.split.test,
            certification_fraction=facts.split.certification or None,
            within_clusters=facts.within_clusters,
            allow_unattainable=facts.allow_unattainable,
        )

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `calibrate`."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def only_in_python(self) -> tuple[str, ...]:
        """What the command line cannot express, in words; empty where `command` says everything."""
        stability = self.stability
        problems = {
            "the feature map came fitted, and the command fits its text": not isinstance(self.features, str),
            "the constant of the stability slack is not 1": stability is not None
            and stability != PaperStability.from_constant(delta=stability.delta),
            "a verifier's name holds a comma or space at its ends": any(
                "," in name or name != name.strip() for name in self.combine or ()
            ),
        }
        return tuple(words for words, found in problems.items() if found)

    def command(self, records: Sequence[str], out: str | None = None) -> str:
        """Return the command that calibrates with these options.

        Args:
            records: Files or stores with the labelled prompts.
            out: Where to write the artifact; None for the command's default.

        Returns:
            The command, quoted for a shell. What it cannot express, `only_in_python` names.
        """
        words = ["langchain-cfc", "calibrate", *records]
        if out is not None:
            words += ["--out", out]
        for one in fields(self):
            value = getattr(self, one.name)
            is_default = str(value) == str(one.default)
            if not is_default or (one.name in _ALWAYS and value is not None):
                words += _flag(one.name, value)
        return shlex.join(words)


def _flag(name: str, value: Any) -> list[str]:
    """One option as the words of a command line."""
    if name == "never_empty":  # on by default
        return ["--allow-empty"]
    flag = f"--{_FLAGS.get(name, name.replace('_', '-'))}"
    if value is True:
        return [flag]
    if name in _LEVELS:
        several = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
        return [word for one in several for word in (flag, format_alpha(one))]
    if name == "combine":
        value = ",".join(value)
    elif isinstance(value, FeatureMap):
        value = value.text
    elif isinstance(value, PaperStability):
        value = value.delta
    elif value is None:  # the one option with a default that None differs from: a window of all prompts
        value = 0
    return [flag, str(value)]
