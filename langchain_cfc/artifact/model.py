"""`CalibrationArtifact`: everything that serving needs, as frozen data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import model_validator

from langchain_cfc.artifact import files
from langchain_cfc.artifact.batch import BatchScores
from langchain_cfc.artifact.content import ArtifactContent
from langchain_cfc.artifact.facts import (
    CertifiedBot,
    Promise,
    make_threshold_rule,
)
from langchain_cfc.artifact.guarantee import (
    build_bot_guarantee,
    build_guarantee,
    list_conditions,
)
from langchain_cfc.artifact.prefixes import has_separate_scores
from langchain_cfc.artifact.signatures import PublicKey, check_signature
from langchain_cfc.artifact.validation import find_problems
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.errors import ArtifactFormatError, CFCError, InputError
from langchain_cfc.guarantee import Binding, Guarantee
from langchain_cfc.records import Provenance
from langchain_cfc.support.arrays import FloatArray
from langchain_cfc.support.display import Summary
from langchain_cfc.support.files import atomic_writer, read_regular
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.suggestions import suggest_file
from langchain_cfc.support.text import pluralize
from langchain_cfc.thresholds import (
    CAP,
    ConditionalThreshold,
    GroupedThreshold,
    Level,
    Thresholds,
    format_alpha,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class CalibrationArtifact(ArtifactContent):
    """A calibrated threshold with everything it depends on. Data only: no code, no prompt or answer text.

    Made by `calibrate`, written by `save`, read by `load`.

    Attributes:
        library_version: Version of this library that made the artifact.
        created_at: Time of creation in ISO 8601, UTC.
        n: Number of candidates per prompt.
        set_rule: Text form of the set rule.
        features: Data form of the fitted feature map.
        levels: One entry per error level, alpha ascending; empty for a bot alone.
        arrays: The numbers that the levels refer to, by name.
        provenance: Header of the calibration records; None means unbound.
        calibration: Facts about the prompts that it was made from.
        pac: The paper's CFC-PAC, by which levels were made stricter; None without it.
        confidence: The confidence with which the guarantee holds for this very artifact; None if it holds on
            average over calibration sets.
        certificates: Certificates about the sets, from held-out prompts; at most one per level.
        bot: The rates that bot mode is certified for; None if none were asked for.
        batch: What batches are answered with; None for claims, and for a certified rate alone, whose artifact
            exists only because its labels passed a test.
        people_certificates: Certificates from people's labels, at most one about the sets of each level and
            one about the answers of each certified rate.
        reference: Histograms of the prompts, to detect drift; empty if there is nothing to compare with.
        draws: Text form of the draw rule, which stops after n candidates at the latest; None if n are always
            drawn.
        attempts: The attempts on the labels that certify something, up to the last one in this artifact; see
            `AttemptLedger`.
    """

    @model_validator(mode="after")
    def _check_content(self) -> CalibrationArtifact:
        # Build every part now, so that an unusable file fails on loading, not on a user's first prompt.
        alphas = [level.alpha for level in self.levels]
        if self.n < 1 or alphas != sorted({format_alpha(alpha) for alpha in alphas}, key=float):
            msg = "expected n >= 1, and levels with alphas ascending in canonical form"
            raise ValueError(msg)
        dimensions, expected = {rule.dimension for rule in self._rules.values()}, self.feature_map.dimension
        if not dimensions <= {expected}:
            msg = f"expected threshold states for {expected} features, got {sorted(dimensions)}"
            raise ValueError(msg)
        _ = self.parsed_set_rule
        problem = next(find_problems(self), None)
        if problem is not None:
            raise ValueError(problem)
        return self

    def __repr__(self) -> str:
        """Return a one-line summary."""
        known = (self._list_promises(), f"n={self.n}", self.digest[:15])
        return f"CalibrationArtifact({', '.join(known)})"

    def _summarise(self) -> Summary:
        facts, bot = self.calibration, [] if self.bot is None else self.bot.certificates
        promises = [*map(self.make_guarantee, self.alphas)]
        promises += [self.make_guarantee(max_wrong_rate=one.max_wrong_rate) for one in bot]
        prompt = self.traits.prompt
        rows = [("field", "value"), ("calibrated on", pluralize(facts.size, prompt))]
        rows.append(("held out", pluralize(facts.held_out_size, prompt)))
        rows += list_conditions(self)
        if self.alphas and self.feature_map.adaptive_alpha is not None:
            rows.append(("stated coverage", self.feature_map.adaptive_alpha.words))
        if self.traits.is_fixed_count and self.n > 1:
            most = "" if self.draws is None else f", at most: {self.draws}"
            rows.append(("candidates", f"{self.n} per {prompt}{most}"))
        if not self.is_bot_alone:
            fitted = f"{self.feature_map.text}, fitted on {pluralize(facts.fit_size, prompt)}"
            rows += [("features", fitted), ("set rule", self.set_rule)]
        rows += [(part, self.name_part(part)) for part in self.traits.parts]
        rows += [("made", f"{self.created_at}, version {self.library_version}"), ("digest", self.digest)]
        heading = f"Calibration artifact {self.digest[:15]}"
        return Summary(heading, [one.summary for one in promises], "Made from", rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw wrong against answered questions of the certification split; see `RiskCurve.plot`.

        Args:
            ax: The matplotlib axis to draw on; by default that of a new figure.

        Returns:
            The axis.

        Raises:
            InputError: If no rate of wrong answers is certified, or it is one of claims.
            MissingExtraError: If matplotlib is not installed.
        """
        return self.certified_bot.risk_curve.plot(ax)

    def list_differing_parts(self, provenance: Provenance | None) -> list[str]:
        """Return which of generator, verifier, answer extractor and splitter differ from calibration."""
        if provenance is None or self.provenance is None:
            return []
        parts = ("generator", "verifier", "answer", "splitter")
        return [part for part in parts if getattr(provenance, part) != getattr(self.provenance, part)]

    def check_draws(self, draws: CandidateBatch) -> None:
        """Refuse prompts with a number of candidates other than n, or than the draw rule would have drawn.

        Raises:
            InputError: For the first such prompt.
        """
        if not self.traits.is_fixed_count:
            return
        if self.draw_rule is None:
            if draws.drawn is None and draws.n == self.n:
                return
            msg = f"the artifact was calibrated with n = {self.n} candidates per prompt, got {draws.n}"
            raise InputError(msg)
        rule = self.draw_rule
        if rule.needs_scores and not has_separate_scores(self.provenance):
            return  # the scores that stopped it are unknown
        wanted = rule.count_draws(draws)
        wrong = np.flatnonzero(wanted != draws.counts)
        if len(wrong):
            row = int(wrong[0])
            msg = (
                f"the artifact was calibrated with draws = {self.draws}, which does not stop after the "
                f"{draws.counts[row]} draws of prompt {row}"
            )
            raise InputError(msg)

    @cached_property
    def _rules(self) -> dict[str, ConditionalThreshold | GroupedThreshold]:
        delta = None if self.confidence is None else format_alpha(self.confidence.level, "delta")
        adaptive = self.feature_map.adaptive_alpha
        return {
            level.alpha: make_threshold_rule(
                level.alpha, level.effective_alpha, delta=delta, pac=self.pac, adaptive=adaptive
            ).restore(self.unpack_state(level.rule))
            for level in self.levels
        }

    def select_level(self, alpha: Level | None = None) -> str:
        """Return the canonical text of a level that the artifact holds; None selects its only level."""
        if isinstance(alpha, str) and alpha in self.alphas:
            return alpha
        return self._find_promise(self.parsed_set_rule.option, alpha).level

    @property
    def promises(self) -> tuple[Promise, ...]:
        """What a chain can serve: certified rates, then the error levels that were asked for, ascending."""
        certificates = [] if self.bot is None else self.bot.certificates
        rates = [Promise("max_wrong_rate", one.max_wrong_rate) for one in certificates]
        return (*rates, *(Promise(self.parsed_set_rule.option, one) for one in self.alphas))

    def _list_promises(self) -> str:
        return ", ".join("=".join(one) for one in self.promises)

    def select_promise(
        self,
        alpha: Level | None = None,
        max_wrong_rate: Level | None = None,
        max_wrong_of_all: Level | None = None,
    ) -> Promise:
        """Return the promise that is named; without a name, the only one.

        Args:
            alpha: Error level, for answer sets.
            max_wrong_rate: Certified rate of wrong answers among the answered questions, for a bot.
            max_wrong_of_all: Rate of wrong answers among all questions, for a bot.

        Returns:
            The promise.

        Raises:
            InputError: If several are named, the artifact does not hold the named one, or none is named
                although it holds several.
        """
        options = {"alpha": alpha, "max_wrong_rate": max_wrong_rate, "max_wrong_of_all": max_wrong_of_all}
        named = {name: value for name, value in options.items() if value is not None}
        if len(named) > 1:
            listed = " and ".join(f"{name} = {value}" for name, value in named.items())
            msg = f"{listed} are different promises: name one of them"
            raise InputError(msg)
        if max_wrong_rate is not None:
            self.certified_bot.find_certificate(max_wrong_rate)  # its error says why a rate is refused
        return self._find_promise(*next(iter(named.items()), (None, None)))

    def _find_promise(self, option: str | None, level: Level | None) -> Promise:
        """Return the promise of an option, or of any, at a level; without a level the only one."""
        held = [one for one in self.promises if option in {None, one.option}]
        if level is None and len(held) == 1:
            return held[0]
        listed = ", ".join(map("=".join, held or self.promises))
        if not held:
            msg = f"the artifact was calibrated without {option}; it holds {listed}"
        elif option is None or level is None:
            # A level alone is asked for as `alpha`, when prompts are measured or solved.
            name = f"before asking any question, name one, such as {'='.join(held[0])}"
            name = name if option is None else f"name one as alpha={held[0].level}"
            msg = f"the artifact holds several promises ({listed}): {name}"
        else:
            named = Promise(option, format_alpha(level, option))
            if named in held:
                return named
            msg = f"the artifact was not calibrated at {' = '.join(named)}; it holds {listed}"
        raise InputError(msg)

    def get_rule(self, alpha: Level | None = None) -> ConditionalThreshold | GroupedThreshold:
        """Return the fitted threshold rule of one level alone; `solve` takes the maximum over levels."""
        return self._rules[self.select_level(alpha)]

    def solve(
        self,
        features: FloatArray,
        alpha: Level | None = None,
        *,
        marginal: bool = False,
    ) -> Thresholds:
        """Compute served thresholds: the running maximum over the levels from the largest alpha to this one.

        Conditional thresholds at two levels may cross; with the running maximum a smaller alpha never gives
        a smaller set. A prompt of a category that the feature map does not know has an infinite threshold.

        Args:
            features: (m, d) features from `feature_map`.
            alpha: Error level; may be omitted if there is only one.
            marginal: Whether to use one threshold for all prompts instead, for comparison.

        Returns:
            The m thresholds.

        Raises:
            InputError: If the artifact does not hold the level, or the features do not fit.
        """
        text = self.select_level(alpha)
        adaptive = self.feature_map.adaptive_alpha
        if marginal:  # it never decreases from a larger alpha to a smaller one
            (one,) = [level.marginal for level in self.levels if level.alpha == text]
            return Thresholds.apply_cap(np.full(len(features), one), np.zeros(len(features)), CAP)
        known = ~self.feature_map.has_unknown_category(features)
        usable = features[known]
        solved = [
            rule.solve(usable, alphas=None if adaptive is None else adaptive.read_alphas(usable, level))
            if isinstance(rule, ConditionalThreshold)
            else rule.solve(usable)
            for level, rule in self._rules.items()
            if float(level) >= float(text)
        ]
        if len(solved) == 1 and known.all():
            return solved[0]
        values, errors = np.full(len(features), np.inf), np.zeros(len(features))
        outside = np.zeros(len(features), dtype=np.bool_)
        values[known] = np.max([one.values for one in solved], axis=0)
        errors[known] = np.max([one.errors for one in solved], axis=0)
        outside[known] = np.any([one.outside for one in solved], axis=0)
        return Thresholds(values, np.where(np.isinf(values), 0.0, errors), outside)

    def make_guarantee(
        self,
        alpha: Level | None = None,
        binding: Binding | None = None,
        *,
        stated_alpha: Level | None = None,
        max_wrong_rate: Level | None = None,
    ) -> Guarantee:
        """Return the guarantee at a level, or about the answers of a bot.

        Args:
            alpha: Error level; may be omitted if there is only one.
            binding: Whether generator and verifier are known to be those calibrated; by default `unbound` or
                `unchecked`.
            stated_alpha: With adaptive levels, the error level stated for one prompt, to get the guarantee of
                this prompt.
            max_wrong_rate: The certified rate of a bot, in place of a level.

        Returns:
            The guarantee as data.

        Raises:
            InputError: If the artifact does not hold the level or the rate, if both are given, or if it never
                states `stated_alpha`.
        """
        if max_wrong_rate is not None:
            level = alpha if stated_alpha is None else stated_alpha
            self.select_promise(level, max_wrong_rate)  # its error says that both are given
            return build_bot_guarantee(self, self.certified_bot.find_certificate(max_wrong_rate), binding)
        stated = None if stated_alpha is None else format_alpha(stated_alpha)
        return build_guarantee(self, self.select_level(alpha), binding, stated)

    @property
    def batch_scores(self) -> BatchScores:
        """What batches are answered with; an InputError if the artifact keeps nothing for them."""
        if self.batch is not None:
            return self.batch
        msg = (
            "the artifact keeps no scores for batches: they need whole answers, no claims, and alpha or "
            "max_wrong_of_all. Calibrate with max_wrong_of_all=0.05, or serve max_wrong_rate"
        )
        raise InputError(msg)

    @property
    def certified_bot(self) -> CertifiedBot:
        """The rates that bot mode is certified for; an InputError if none were asked for."""
        if self.bot is None:
            msg = (
                f"the artifact holds no certified rate; it holds {self._list_promises()}: name that, or "
                "calibrate with max_wrong_rate"
            )
            raise InputError(msg)
        return self.bot

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact atomically.

        Args:
            path: The file; replaced as a whole if it exists.

        Raises:
            InputError: If the folder is missing or cannot be written to, or the disk is full.
        """
        data = self.to_bytes()
        with atomic_writer(path) as file:
            file.write(data)

    def to_bytes(self) -> bytes:
        """Return the bytes that `save` writes and that a signature signs."""
        return files.encode(self.model_dump(mode="json"))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        require_signature: PublicKey | Sequence[PublicKey] | None = None,
    ) -> CalibrationArtifact:
        """Read an artifact; anything but the exact bytes that `save` wrote is refused.

        Args:
            path: The file.
            require_signature: Ed25519 public keys, one of which must have signed the file (`langchain-cfc
                sign`), each as the path of a file or as text, in PEM or OpenSSH format; None for no check.

        Returns:
            The artifact; its thresholds are bit-identical to those of the saved one.

        Raises:
            ArtifactFormatError: If the file is missing, not a regular file, larger than 1 GiB, not an
                artifact, truncated, of an unknown version, or has unknown, missing or invalid fields.
            ArtifactDigestError: If its content was changed after it was saved.
            ArtifactSignatureError: If a signature is required but missing, malformed or by another key.
            InputError: If a required key cannot be read or is not an Ed25519 key.
            MissingExtraError: If a signature is required but `cryptography` is not installed.
        """
        source = os.fspath(path)
        try:
            data = read_regular(Path(path), files.MAX_BYTES)
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or error
            nearest = suggest_file(source) if isinstance(error, FileNotFoundError) else ""
            msg = (
                f"{source}: cannot be read ({reason}); `langchain-cfc calibrate` or `artifact.save(path)` "
                f"writes artifacts{nearest}"
            )
            raise ArtifactFormatError(msg) from error
        if require_signature is not None:
            check_signature(path, data, require_signature)
        content = files.decode(data, source)
        try:
            artifact = cls.model_validate(content)
            if not artifact.promises:
                msg = "it promises nothing: there is neither a level nor a certified rate"
                raise InputError(msg)
            if artifact.digest != files.compute_digest(content):  # such as 2 in place of 2.0
                msg = "it is not in the canonical form of artifacts"
                raise InputError(msg)
        except (ValueError, CFCError) as error:
            problem = files.describe_first_error(error)
            writer = files.explain_writer(content)
            msg = f"{source}: not a valid artifact of version {files.VERSION}: {problem}{writer}"
            raise ArtifactFormatError(msg) from error
        return artifact


def open_artifact(given: object) -> CalibrationArtifact:
    """Return an artifact that is given itself or by the path of its file; refuse anything else.

    Raises:
        ArtifactError: If the file cannot be read.
        InputError: If it is neither.
    """
    if isinstance(given, CalibrationArtifact):
        return given
    if isinstance(given, (str, os.PathLike)):
        return CalibrationArtifact.load(given)
    msg = f"artifact is {short_repr(given)}; expected what calibrate returns, or the path of its file"
    raise InputError(msg)
