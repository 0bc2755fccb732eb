"""Serve one prompt: draw, score, compute features and threshold, return a set or abstain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from langchain_core.runnables import RunnableConfig

from langchain_cfc.artifact import CalibrationArtifact, Promise, has_separate_scores
from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.decision import Decisions, decide
from langchain_cfc.execution import Steps
from langchain_cfc.guarantee import Guarantee
from langchain_cfc.no_answers import Unscored
from langchain_cfc.runnable.binding import ModelVersionWatcher
from langchain_cfc.runnable.redraws import DrawRegister, Same, digest_prompt
from langchain_cfc.runnable.result import PARSED, CFCResult, ClaimsResult
from langchain_cfc.sampling import DrawnCandidate, Sampler, UsageRecorder
from langchain_cfc.sampling.candidates import Description
from langchain_cfc.sampling.token_counts import sum_usage
from langchain_cfc.sampling.usage import add_handler
from langchain_cfc.verifiers.base import CandidateScorer, IncrementalScorer, VerifierScores
from langchain_cfc.verifiers.prompts import convert_to_calibrated_kind

if TYPE_CHECKING:
    from langchain_cfc.claims import ClaimSplitter, Span


@dataclass(frozen=True)
class ServedPromise:
    """A promise with what serving under it needs.

    Attributes:
        promise: The promise.
        cut: The cut of a bot with a certified rate; None for everything else.
        guarantees: Guarantees by the error level that is stated for a prompt; None is the key of the
            guarantee that refers to no particular prompt.
    """

    promise: Promise
    cut: float | None
    guarantees: Mapping[float | None, Guarantee]


@dataclass(frozen=True)
class ScoredPrompt:
    """What was drawn for a prompt and how it was scored: all that a decision needs. Plain data.

    Attributes:
        draws: The candidates.
        scored: Their scores; for claims, those of the claims of the first candidate.
        texts: The extracted answers, or the candidates' texts; None for claims.
        spans: The claims.
        common: Fields of the result that no decision changes.
    """

    draws: Sequence[DrawnCandidate]
    scored: VerifierScores
    texts: Sequence[str] | None
    spans: Sequence[Span]
    common: Mapping[str, Any]

    @property
    def batch(self) -> CandidateBatch:
        """The prompt as arrays."""
        batch = CandidateBatch.from_arrays(
            np.array([self.scored.scores]),
            None if self.texts is None else [self.texts],
            [self.common["metadata"]],
        )
        if self.texts is None:
            return replace(batch, drawn=np.array([len(self.spans)]))
        unscored = [verdict is None for verdict in self.scored.verdicts]
        return replace(batch, lengths=np.where(unscored, 0, np.asarray(batch.lengths)))


def count_unscored(
    draws: Sequence[DrawnCandidate], scored: VerifierScores, claims: Sequence[DrawnCandidate] | None
) -> dict[Unscored, int]:
    """Count the draws and claims that are no answer by kind, and those of which no verdict was readable."""
    counts: Counter[Unscored] = Counter(
        one.no_answer for one in [*draws, *(claims or ())] if one.no_answer is not None
    )
    judged = draws if claims is None else claims
    unjudged = scored.verdicts.count(None) - sum(one.no_answer is not None for one in judged)
    if unjudged > 0:
        counts["no_verdict"] = unjudged
    return dict(counts)


@dataclass(frozen=True)
class ServingPipeline:
    """The checked parts of a `CFCRunnable`, with the flow that serves one prompt.

    Attributes:
        artifact: The calibration artifact.
        sampler: Draws the candidates.
        scorer: Scores them.
        description: Extracts answers and computes the prompt's metadata.
        versions: Watches which models answer.
        show_rejected: Whether results include the texts of rejected candidates, or of dropped claims.
        generator: What the generator states about itself, as text.
        unstated: The generator if that does not tell it from others, otherwise None.
        splitter: Splits an answer into claims; None if the unit is whole answers.
    """

    artifact: CalibrationArtifact
    sampler: Sampler
    scorer: CandidateScorer
    description: Description
    versions: ModelVersionWatcher
    show_rejected: bool
    generator: str
    unstated: Any = None
    splitter: ClaimSplitter | None = None

    def serve_once(
        self,
        prompt: Any,
        promise: ServedPromise,
        config: RunnableConfig,
        register: DrawRegister | None,
    ) -> Steps[CFCResult]:
        """Serve a prompt; if it was served before and the register has the result, return that.

        Raises:
            PromptKindError: If the prompt is of another kind than the calibration prompts.
            InputError: If it was served before with other settings.
        """
        prompt = convert_to_calibrated_kind(prompt, self.artifact.calibration.prompt_kinds)
        if register is None:
            return (yield from self.serve(prompt, promise, config))
        return (
            yield from register.draw_once(
                (self.artifact.digest, self.generator, digest_prompt(prompt), Same(self.unstated)),
                (*promise.promise, self.show_rejected),
                partial(self.serve, prompt, promise, config),
                str((config.get("configurable") or {}).get("thread_id", "")),
            )
        )

    def serve(self, prompt: Any, promise: ServedPromise, config: RunnableConfig) -> Steps[CFCResult]:
        """Return the answer set or the abstention for a prompt.

        `promise` is fixed before the first draw; choosing it later would void the guarantee.
        """
        return self.decide(promise, (yield from self.draw_and_score(prompt, config)))

    def draw_and_score(self, prompt: Any, config: RunnableConfig) -> Steps[ScoredPrompt]:
        """Draw the candidates of a prompt and score them, without a decision.

        Runs under `config` must not stream into a graph, because a judge may quote the candidate that it
        rejects.
        """
        metadata = yield from self.description.describe_prompt(prompt, config)
        recorder = UsageRecorder()
        # Recorded separately: a verifier that itself draws candidates must not count as an answering model.
        judging = UsageRecorder()
        scorer = IncrementalScorer(
            self.scorer,
            self.description,
            prompt,
            config,
            judging=add_handler(config, judging, "cfc:verifier"),
            scored_separately=self._scored_separately,
        )
        rule = self.artifact.draw_rule
        draws = yield from self.sampler.draw_steps(
            prompt,
            self.artifact.n if rule is None else rule.first_wave,
            config,
            recorder,
            choose_next_wave=None if rule is None else partial(scorer.choose_next_wave, rule),
        )
        self.versions.check(recorder.versions)
        spans: Sequence[Span] = ()
        claims = None
        if self.splitter is None:
            scored = yield from scorer.score(draws)
        else:
            spans, claims = yield from self.splitter.make_candidates(draws[0], config)
            scored = yield from scorer.score_claims(claims, draws)
        unscored = count_unscored(draws, scored, claims)
        common = {
            "metadata": dict(metadata),
            "models": tuple(recorder.versions),
            "unscored": unscored or None,
            "usage": sum_usage([recorder.usage, judging.usage]),
        }
        texts = None
        if self.splitter is None:
            texts = yield from self.description.extract_answers(draws, config, scorer.answers)
        return ScoredPrompt(draws, scored, texts, spans, common)

    @cached_property
    def _scored_separately(self) -> bool:
        return bool(has_separate_scores(self.artifact.provenance))

    def decide(self, promise: ServedPromise, one: ScoredPrompt) -> CFCResult:
        """Return the answer set or the abstention for a prompt that was drawn and scored."""
        if one.texts is None:
            return self._decide_claims(promise, one)
        draws, texts = one.draws, one.texts
        decisions = decide(self.artifact, one.batch, promise.promise.level, cut=promise.cut)
        # The best spelling of each distinct answer, by its code.
        spelled: dict[int, str] = {}
        for slot in decisions.list_best_first(0).tolist() if decisions.answered[0] else ():
            spelled.setdefault(int(np.asarray(decisions.draws.answer_codes)[0, slot]), texts[slot])
        answers = tuple(spelled.values())
        # Validating all candidates at once, as plain data, is faster than building them one by one.
        result = CFCResult.model_validate(
            {
                "abstained": not answers,
                "reason": decisions.find_reason(0),
                "answers": answers,
                "best": answers[0] if answers else None,
                "candidates": self._list_candidates(draws, texts, one.scored, decisions, list(spelled)),
                **self._describe_decision(promise, decisions),
                **one.common,
            }
        )
        inside = decisions.accepted[0].tolist()
        parsed = {
            slot: one.parsed for slot, one in enumerate(draws) if inside[slot] and one.parsed is not None
        }
        if parsed:
            result.__dict__[PARSED] = parsed
        return result

    def _describe_decision(self, promise: ServedPromise, decisions: Decisions) -> dict[str, Any]:
        """Return a result's fields on threshold, features, unknown categories and guarantee."""
        feature_map, features = self.artifact.feature_map, decisions.features[0]
        described = {
            "features": dict(zip(feature_map.names, features.tolist(), strict=True)),
            "guarantee": promise.guarantees[None],
        }
        if promise.cut is None:  # a cut uses no threshold and no flags
            described |= {
                "threshold": float(decisions.thresholds[0]),
                "unknown_categories": feature_map.find_unknown_keys(features),
                "guarantee": promise.guarantees[float(decisions.stated_alphas[0])],
            }
        return described

    def _decide_claims(self, promise: ServedPromise, one: ScoredPrompt) -> ClaimsResult:
        # Imported late: few chains split answers.
        from langchain_cfc.claims import restore_text

        kept: list[bool] = []
        described: dict[str, Any] = {
            "reason": "no_claims",
            "threshold": math.inf if promise.cut is None else None,
            "features": {},
            "guarantee": promise.guarantees[None],
        }
        if one.spans:
            decisions = decide(self.artifact, one.batch, promise.promise.level, cut=promise.cut)
            kept = decisions.accepted[0].tolist()
            described = {
                "reason": decisions.find_reason(0),
                **self._describe_decision(promise, decisions),
            }
        answer = one.draws[0].text
        text = restore_text(answer, one.spans, kept) or None
        return ClaimsResult.model_validate(
            {
                "abstained": text is None,
                "answers": () if text is None else (text,),
                "best": text,
                "text": text,
                "full_text": answer if self.show_rejected else None,
                "candidates": (),
                "claims": tuple(
                    {
                        "start": span.start,
                        "end": span.end,
                        "score": score,
                        "kept": is_kept,
                        "text": span.text if is_kept or self.show_rejected else None,
                    }
                    for span, is_kept, score in zip(one.spans, kept, one.scored.scores, strict=True)
                ),
                **described,
                **one.common,
            }
        )

    def _list_candidates(
        self,
        draws: Sequence[DrawnCandidate],
        texts: Sequence[str],
        scored: VerifierScores,
        decisions: Decisions,
        answers: Sequence[int],
    ) -> tuple[dict[str, Any], ...]:
        """Return the fields of the result's `ScoredCandidate` objects, in draw order.

        Without `show_rejected` a candidate has a text only if it is accepted and gives one of the answers,
        which are given by their codes.
        """
        inside: list[bool] = decisions.accepted[0].tolist()
        levels: list[float] = decisions.levels[0].tolist()
        batch = decisions.draws
        codes, lengths = np.asarray(batch.answer_codes)[0].tolist(), np.asarray(batch.lengths)[0].tolist()
        shown = [
            self.show_rejected or (is_in and code in answers)
            for is_in, code in zip(inside, codes, strict=True)
        ]
        has_extractor = self.description.has_extractor
        return tuple(
            [
                {
                    "slot": slot,
                    "score": scored.scores[slot],
                    "scores": scored.outputs[slot] if scored.outputs is not None else None,
                    "level": level if level < math.inf else None,
                    "accepted": inside[slot],
                    "text": draws[slot].text if shown[slot] else None,
                    "data": draws[slot].data if shown[slot] else None,
                    "answer": texts[slot] if has_extractor and shown[slot] else None,
                    "same_as": same_as,
                    "length": length,
                    "unscored": draws[slot].no_answer
                    or ("no_verdict" if scored.verdicts[slot] is None else None),
                }
                for slot, (level, same_as, length) in enumerate(zip(levels, codes, lengths, strict=True))
            ]
        )
