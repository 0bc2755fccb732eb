"""`CFCRunnable`: draw n candidates, score them, and return the conformal answer set or abstain."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    BaseCallbackManager,
    CallbackManagerForChainRun,
)
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSerializable
from langchain_core.runnables.base import coerce_to_runnable
from langchain_core.runnables.config import merge_configs, patch_config
from pydantic import ConfigDict, PrivateAttr, field_validator

from langchain_cfc._arrays import FloatArray
from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.calls import Call
from langchain_cfc.decision import Decisions, decide
from langchain_cfc.draws import Draws, Scalar
from langchain_cfc.errors import DescriptionError, FingerprintError, FingerprintWarning, VerifierError
from langchain_cfc.fingerprints import compare_fingerprints, fingerprint
from langchain_cfc.guarantee import Binding, Guarantee
from langchain_cfc.runnable.result import CFCResult, ScoredCandidate
from langchain_cfc.sampling import DRAW_TAG, NOSTREAM, Draw, adraw, draw, quiet, total_usage
from langchain_cfc.thresholds import Level
from langchain_cfc.verifiers import VerifierInput, checked_scores, verifier_target

if TYPE_CHECKING:
    from typing_extensions import Self


class CFCRunnable(RunnableSerializable[Any, CFCResult]):
    """A chat model or chain that answers only what it can stand behind.

    Invoked with whatever the generator takes, it draws the artifact's n candidates, scores them with the
    verifier, and returns a `CFCResult`: the answer set that the calibrated threshold admits, or an
    abstention. Anything that fails raises one typed error; no answer is made up from what is left.

    Args:
        generator: The chat model or chain that was calibrated.
        verifier: A Runnable on `{"prompt", "candidates"}` or a function `(prompt, candidates) -> scores`;
            see `langchain_cfc.verifiers`.
        artifact: The calibration artifact.
        answer: Text to extracted answer, a function or Runnable; the one used for the calibration records,
            if there was one.
        metadata: Prompt to metadata mapping, a function or Runnable; needed where the feature map uses
            metadata.
        alpha: Error level where the artifact holds several; may also be given per call,
            `chain.invoke(prompt, alpha=0.1)`.
        generator_id: What the records call the generator (`id` in their provenance), for generators that
            cannot say themselves.
        verifier_id: The same for the verifier.
        answer_id: The same for the answer extractor.
        show_rejected: Whether results hold the texts of rejected candidates. Off by default, for whatever
            streams or stores a result would then pass them on.

    Raises:
        FingerprintError: If generator, verifier or extractor are not those calibrated, or the map's metadata
            function is missing.
        InputError: If `alpha` is not among the artifact's levels.

    Warns:
        FingerprintWarning: If the artifact names a generator, verifier or extractor and the part given does
            not say what it is.
    """

    # Frozen, for what was checked at construction must be what serves.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    generator: Any
    verifier: Any
    artifact: CalibrationArtifact
    answer: Any = None
    metadata: Any = None
    alpha: Level | None = None
    generator_id: str | None = None
    verifier_id: str | None = None
    answer_id: str | None = None
    show_rejected: bool = False

    _drawn_from: Runnable[Any, Any] = PrivateAttr()
    _verify: Call = PrivateAttr()
    _extract: Call | None = PrivateAttr()
    _describe: Call | None = PrivateAttr()
    _guarantees: dict[str, Guarantee] = PrivateAttr()

    @field_validator("generator", mode="before")
    @classmethod
    def _is_runnable(cls, generator: Any) -> Any:
        return coerce_to_runnable(generator)

    def __init__(self, **fields: Any) -> None:
        """Check that what serves is what was calibrated."""
        super().__init__(**fields)
        # Not in `model_post_init`, where pydantic would make an error of its own out of an InputError.
        if self.alpha is not None:
            self.artifact.level(self.alpha)
        keys = self.artifact.feature_map.metadata_keys
        if keys and self.metadata is None:
            msg = (
                f"the artifact's features read the metadata {', '.join(keys)}: pass metadata=, a function "
                "from the prompt to a mapping"
            )
            raise FingerprintError(msg)
        binding = self._bind()
        self._guarantees = {alpha: self.artifact.guarantee(alpha, binding) for alpha in self.artifact.alphas}
        self._drawn_from = quiet(self.generator)
        self._verify = Call("verifier", verifier_target(self.verifier), VerifierError)
        self._extract = None
        if self.answer is not None:
            self._extract = Call("answer extractor", self.answer, DescriptionError)
        self._describe = None
        if self.metadata is not None:
            self._describe = Call("metadata function", self.metadata, DescriptionError)

    def _bind(self) -> Binding:
        """Compare what serves with what was calibrated."""
        self._check_extractor()
        provenance = self.artifact.provenance
        if provenance is None:
            return "unbound"
        parts = {
            "generator": (self.generator, self.generator_id, provenance.generator),
            "verifier": (self.verifier, self.verifier_id, provenance.verifier),
        }
        if self.answer is not None or provenance.answer is not None:
            parts["answer"] = (self.answer, self.answer_id, provenance.answer)
        unknown = [
            name
            for name, (part, given_id, calibrated) in parts.items()
            if compare_fingerprints(name, calibrated, fingerprint(part, given_id)) == "unverified"
        ]
        if unknown:
            ids = ", ".join(f"{name}_id={(parts[name][2] or {}).get('id')!r}" for name in unknown)
            msg = (
                f"nothing says for sure whether {' and '.join(unknown)} are those that the artifact was "
                f"calibrated for, and the guarantee will say so. If they are, state it: {ids}"
            )
            warnings.warn(msg, FingerprintWarning, stacklevel=4)
        return "unverified" if unknown else "matched"

    def _check_extractor(self) -> None:
        """Distinct answers must be told apart as in calibration, wherever the decision depends on them."""
        extracted = bool(self.artifact.calibration.extracted_answers)
        if self.artifact.needs_answers and extracted != (self.answer is not None):
            named = self.artifact.provenance.answer if self.artifact.provenance is not None else None
            was = (
                f"with the answer extractor {named or 'of its records'}"
                if extracted
                else "without an answer extractor"
            )
            msg = (
                f"the artifact was calibrated {was}, and its set rule or features look at distinct answers: "
                f"{'pass that extractor as answer=' if extracted else 'leave answer= out'}"
            )
            raise FingerprintError(msg)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, checked like a new one: what was compared once must be what serves."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        copied = copy.deepcopy(fields) if deep else fields
        return type(self)(**{**copied, **(update or {})})

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> CFCResult:  # noqa: A002 - LangChain's name
        """Answer or abstain.

        Args:
            input: The prompt: whatever the generator takes.
            config: LangChain config; `max_concurrency` bounds the parallel requests.
            **kwargs: `alpha`: error level for this call.

        Returns:
            The answer set or the abstention.

        Raises:
            DrawError: If fewer than n candidates could be drawn.
            VerifierError: If the verifier failed or returned something that is no score.
            DescriptionError: If the answer extractor or the metadata function failed.
            FeatureError: If the feature map does not know the prompt's category.
            InputError: If the level is not among the artifact's.
        """
        return self._call_with_config(self._serve, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> CFCResult:  # noqa: A002 - LangChain's name
        """The same as `invoke`, asynchronously."""
        return await self._acall_with_config(self._aserve, input, config, **kwargs)

    def _serve(
        self,
        prompt: Any,
        run_manager: CallbackManagerForChainRun,
        config: RunnableConfig,
        alpha: Level | None = None,
    ) -> CFCResult:
        level, child = self._level(alpha), partial(_child, config, run_manager)
        metadata = self._describe.run(prompt, child("cfc:metadata")) if self._describe else {}
        draws = draw(self._drawn_from, prompt, [_draw_config(child, slot) for slot in range(self.artifact.n)])
        scores = self._verify.run(VerifierInput(prompt=prompt, candidates=draws), child("cfc:verifier"))
        answers: list[Any] = [one.text for one in draws]
        if self._extract:
            answers = [self._extract.run(text, child("cfc:answer")) for text in answers]
        return self._result(level, draws, scores, answers, metadata)

    async def _aserve(
        self,
        prompt: Any,
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
        alpha: Level | None = None,
    ) -> CFCResult:
        level, child = self._level(alpha), partial(_child, config, run_manager)
        metadata = await self._describe.arun(prompt, child("cfc:metadata")) if self._describe else {}
        configs = [_draw_config(child, slot) for slot in range(self.artifact.n)]
        draws = await adraw(self._drawn_from, prompt, configs)
        scores = await self._verify.arun(
            VerifierInput(prompt=prompt, candidates=draws), child("cfc:verifier")
        )
        answers: list[Any] = [one.text for one in draws]
        if self._extract:
            answers = [await self._extract.arun(text, child("cfc:answer")) for text in answers]
        return self._result(level, draws, scores, answers, metadata)

    def _level(self, alpha: Level | None) -> str:
        """The level of this call, settled before anything is drawn: a later choice would void the promise."""
        return self.artifact.level(self.alpha if alpha is None else alpha)

    def _result(
        self, level: str, draws: Sequence[Draw], scores: Any, answers: Sequence[Any], metadata: Any
    ) -> CFCResult:
        """Check what the user's parts returned, decide, and say it."""
        matrix = np.array([checked_scores(scores, len(draws))])
        texts = [_checked_answer(slot, answer) for slot, answer in enumerate(answers)]
        decisions = decide(self.artifact, Draws.of(matrix, [texts], [_checked_metadata(metadata)]), level)
        distinct = tuple(dict.fromkeys(texts[slot] for slot in decisions.best_first(0, matrix)))
        usage = total_usage(draws)
        return CFCResult(
            abstained=not distinct,
            reason=decisions.reason(0),
            answers=distinct,
            best=distinct[0] if distinct else None,
            threshold=float(decisions.thresholds[0]),
            features=dict(zip(self.artifact.feature_map.names, decisions.features[0].tolist(), strict=True)),
            guarantee=self._guarantees[level],
            candidates=self._candidates(draws, texts, matrix, decisions),
            usage=None if usage is None else dict(usage),
        )

    def _candidates(
        self, draws: Sequence[Draw], texts: Sequence[str], scores: FloatArray, decisions: Decisions
    ) -> tuple[ScoredCandidate, ...]:
        shown = decisions.accepted[0] | self.show_rejected
        return tuple(
            ScoredCandidate(
                slot=slot,
                score=float(scores[0, slot]),
                level=float(level) if np.isfinite(level) else None,
                accepted=bool(decisions.accepted[0, slot]),
                text=draws[slot].text if shown[slot] else None,
                answer=texts[slot] if shown[slot] and self._extract else None,
            )
            for slot, level in enumerate(decisions.levels[0])
        )


def _child(
    config: RunnableConfig,
    run_manager: CallbackManagerForChainRun | AsyncCallbackManagerForChainRun,
    name: str,
) -> RunnableConfig:
    """Config of a child run that streams into no graph: a judge may quote the candidate that it rejects."""
    callbacks: BaseCallbackManager = run_manager.get_child(name)
    return merge_configs(patch_config(config, callbacks=callbacks), RunnableConfig(tags=[NOSTREAM]))


def _draw_config(child: Callable[[str], RunnableConfig], slot: int) -> RunnableConfig:
    return merge_configs(child(f"cfc:candidate:{slot}"), RunnableConfig(tags=[DRAW_TAG]))


def _checked_answer(slot: int, answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    msg = (
        f"the answer extractor returned a {type(answer).__name__} for candidate {slot}; expected text, an "
        "empty one where there is no answer"
    )
    raise DescriptionError(msg)


def _checked_metadata(metadata: Any) -> Mapping[str, Scalar]:
    if isinstance(metadata, Mapping) and all(
        isinstance(key, str) and isinstance(value, (str, int, float, bool)) for key, value in metadata.items()
    ):
        return metadata
    msg = f"the metadata function returned {metadata!r:.80}; expected a mapping to text, numbers or booleans"
    raise DescriptionError(msg)
