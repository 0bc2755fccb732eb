"""`CFCRunnable`: draw n candidates, score them, and return the conformal answer set or abstain."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.utils.pydantic import create_model_v2
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SkipValidation,
    ValidationError,
    field_serializer,
    field_validator,
)

from langchain_cfc.artifact import CalibrationArtifact, Promise
from langchain_cfc.artifact.model import open_artifact
from langchain_cfc.errors import AbstentionError, FingerprintError, InputError
from langchain_cfc.execution import ConcurrencyLimiter, Target
from langchain_cfc.execution.limits import RunManager
from langchain_cfc.guarantee import Binding, Guarantee
from langchain_cfc.no_answers import Reasoning
from langchain_cfc.runnable.answering import PROMISES, AnsweringRunnable, refuse_share_of_one
from langchain_cfc.runnable.binding import ModelVersionWatcher, check_binding, make_argument_error
from langchain_cfc.runnable.redraws import find_register, start_registers
from langchain_cfc.runnable.result import CFCResult, ClaimsResult
from langchain_cfc.runnable.running import Flow, FlowRunner
from langchain_cfc.runnable.serving import ServedPromise, ServingPipeline
from langchain_cfc.sampling import Sampler, SamplingName, resolve_generator
from langchain_cfc.sampling.candidates import Description
from langchain_cfc.sampling.code_identity import name_in_words
from langchain_cfc.sampling.comparison import compare_fingerprints
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.support.units import UNITS, Unit
from langchain_cfc.thresholds import Level
from langchain_cfc.verifiers import Verifier, VerifierEnsemble
from langchain_cfc.verifiers.base import CandidateScorer

if TYPE_CHECKING:
    from typing_extensions import Self

    from langchain_cfc.claims import ClaimSplitter
    from langchain_cfc.runnable.batch import BatchResult, BatchServer

# Fields that hold the user's own objects; shown and serialised by name only.
_PART_FIELDS = ("generator", "verifier", "splitter", "answer", "metadata")


class CFCRunnable(AnsweringRunnable[CFCResult]):
    """A chat model or chain that keeps what its artifact promises, or abstains.

    It takes the same input as the generator. It draws the artifact's n candidates (or as many as the
    artifact's draw rule asks for), scores them with the verifier, and returns a `CFCResult`. Under a
    certified rate of wrong answers (`calibrate(max_wrong_rate=...)`) it is a bot: it gives the best answer,
    or abstains. Otherwise it gives the answer set that the calibrated threshold admits, or abstains. If a
    call fails, it raises one typed error; it never answers from the remaining candidates.

    An artifact that holds one promise is served under it. Of several, one must be named, by `alpha`,
    `max_wrong_rate` or `max_wrong_of_all`, here or for one call: `chain.invoke(prompt, max_wrong_rate=0.05)`,
    or `chain.bind(alpha=0.1)`. It is fixed before the candidates are drawn: choosing it after seeing answers
    would void it.

    Args:
        generator: The chat model or chain that was calibrated, or a model's name such as
            `openai:gpt-4o-mini`.
        verifier: A Runnable on `{"prompt", "candidates"}` or a function `(prompt, candidates) -> scores`;
            see `langchain_cfc.verifiers`. If several were calibrated, the same `VerifierEnsemble`; a
            mapping by name has equal weights.
        artifact: The calibration artifact, or the path of its file.
        output: `answers` for sets of whole answers, or `claims` if the artifact was calibrated with
            `unit="claims"`: then the first of the artifact's n answers is split into claims, the claims that
            the threshold reaches are dropped, and the rest is returned as a `ClaimsResult`.
        splitter: For claims only: a function or Runnable from an answer's text to spans, see
            `langchain_cfc.claims`. Default: `SentenceSplitter`.
        answer: Answer extractor: a function or Runnable from text to extracted answer. Must be the one used
            for the calibration records, if any.
        metadata: A function or Runnable from prompt to metadata mapping; required if the feature map uses
            metadata.
        alpha: Error level of the answer sets, if the artifact holds other promises too.
        sampling: `requests` sends n separate requests. `single_request` sends one request for n choices, if
            the provider supports that, and separate requests for any choices it does not return.
        reasoning: `strip` removes complete reasoning between tags, such as <think>, from candidates' texts
            before they are compared, scored and served; `keep` leaves it there. Must be as in calibration.
        max_wrong_rate: Certified rate of wrong answers, if the artifact holds other promises too.
        max_wrong_of_all: Rate of wrong answers among all questions, if the artifact holds other promises too.
        max_concurrency: Maximum number of concurrent generator and verifier calls, over all prompts and
            threads that this runnable serves. A config's `max_concurrency` limits its own call or batch.
        timeout: Time limit per prompt, in seconds.
        generator_id: The generator's `id` in the provenance of the calibration records, for generators that
            do not state it themselves.
        verifier_id: The same for the verifier.
        answer_id: The same for the answer extractor.
        splitter_id: The same for the splitter.
        show_rejected: Whether results and errors include the texts of what is not answered: of rejected
            candidates and, for a bot, of all but the best answer. Off by default, because
            anything that streams or stores a result or an error would expose them.
        on_abstain: `return` returns an abstention as a result, which `or_else` acts on; `raise` raises an
            `AbstentionError` that holds the result, for error handling such as `with_fallbacks`.

    Raises:
        ArtifactError: If the file of the artifact cannot be read.
        FingerprintError: If the generator, verifier, extractor or splitter is not the calibrated one, or the
            feature map needs metadata and there is no metadata function.
        InputError: If an argument is missing, unknown or invalid; if the artifact does not hold the promise
            that is named; if none is named although it
            holds several and one of them is a certified rate; if the generator has a fixed seed; or if it
            does not support `single_request`.
        MissingExtraError: If the generator is given by name and LangChain's `langchain` is not installed.

    Warns:
        FingerprintWarning: If the artifact names a generator, verifier or extractor and the part given does
            not state its identity.
        SamplingWarning: If a model's caching or streaming cannot be switched off.
    """

    # Frozen, so that the parts checked at construction are the parts that serve.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    generator: SkipValidation[Runnable[Any, Any]]
    verifier: SkipValidation[Verifier | VerifierEnsemble]
    artifact: CalibrationArtifact
    output: Unit = "answers"
    splitter: SkipValidation[Target | None] = None
    answer: SkipValidation[Target | None] = None
    metadata: SkipValidation[Target | None] = None
    alpha: Level | None = None
    sampling: SamplingName = "requests"
    reasoning: Reasoning = "strip"
    max_wrong_rate: Level | None = None
    max_wrong_of_all: Level | None = None
    max_concurrency: int | None = Field(default=None, ge=1)
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    generator_id: str | None = None
    verifier_id: str | None = None
    answer_id: str | None = None
    splitter_id: str | None = None
    show_rejected: bool = False
    on_abstain: Literal["return", "raise"] = "return"

    _pipeline: ServingPipeline = PrivateAttr()
    _promises: dict[Promise, ServedPromise] = PrivateAttr()
    _runner: FlowRunner = PrivateAttr()
    _binding: Binding = PrivateAttr()

    @property
    def OutputType(self) -> type[CFCResult]:  # noqa: N802 - LangChain's name
        """The output type, for schemas."""
        return CFCResult if self.output == "answers" else ClaimsResult

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """Return the input schema that `as_tool` and API servers use.

        Args:
            config: LangChain config.

        Returns:
            The generator's schema if it has named fields, such as the variables of a prompt template;
            otherwise a string, which every chat model accepts. `invoke` accepts any input of the generator.
        """
        schema: type[Any] = self.generator.get_input_schema(config)
        described = schema.model_json_schema()
        if described.get("type") == "object" and described.get("properties"):
            return schema
        return create_model_v2(self.get_name("Input"), root=str)

    @field_validator("generator", mode="before")
    @classmethod
    def _resolve_generator(cls, generator: Any) -> Any:
        return resolve_generator(generator)

    @field_validator("verifier", mode="before")
    @classmethod
    def _wrap_verifiers(cls, verifier: Any) -> Any:
        return VerifierEnsemble(verifier) if isinstance(verifier, Mapping) else verifier

    @field_validator("artifact", mode="before")
    @classmethod
    def _load_artifact(cls, artifact: Any) -> CalibrationArtifact:
        return open_artifact(artifact)

    def __init__(self, **fields: Any) -> None:
        """Check that the given parts are the calibrated ones, and build the pipeline."""
        refuse_share_of_one(fields)
        start_registers()
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise make_argument_error(type(self), error) from None
        # Not in `model_post_init`, where pydantic would turn an InputError into its own error.
        artifact = self.artifact
        keys = artifact.feature_map.metadata_keys
        if keys and self.metadata is None:
            msg = (
                f"the artifact reads the metadata {', '.join(keys)}: pass metadata=, a function "
                "from the prompt to a mapping"
            )
            raise FingerprintError(msg)
        if artifact.bot is not None or any(one is not None for one in self._own_promise.values()):
            self._select_promise()
        scorer = CandidateScorer(self.verifier)
        splitter = self._choose_splitter()
        parts = {
            "generator": (self.generator, self.generator_id),
            "verifier": (self.verifier, self.verifier_id),
            "answer": (self.answer, self.answer_id),
            "splitter": (splitter and splitter.part, self.splitter_id),
        }
        parts = {name: parts[name] for name in UNITS[artifact.unit].parts}
        self._binding = check_binding(artifact, parts, self.reasoning)
        stated = compute_fingerprint(self.generator, reasoning=self.reasoning)
        is_stated = compare_fingerprints("generator", stated, stated) is None
        limiter = None if self.max_concurrency is None else ConcurrencyLimiter(self.max_concurrency)
        self._runner = FlowRunner(limiter, self.timeout, self.show_rejected)
        self._pipeline = ServingPipeline(
            artifact=artifact,
            sampler=Sampler(self.generator, self.sampling, reasoning=self.reasoning),
            scorer=scorer,
            description=Description(self.answer, self.metadata),
            versions=ModelVersionWatcher(artifact),
            show_rejected=self.show_rejected,
            generator=canonical_json(stated),
            unstated=None if is_stated else self.generator,
            splitter=splitter,
        )
        self._promises = {one: self._make_served_promise(one) for one in artifact.promises}

    def _choose_splitter(self) -> ClaimSplitter | None:
        """Return the splitter, None for whole answers; refuse arguments that the unit does not allow."""
        unit = self.artifact.unit
        if self.output != unit:
            msg = f"the artifact was calibrated for {unit}: pass output={unit!r}"
            raise InputError(msg)
        parts = UNITS[unit].parts
        for part in ("answer", "splitter"):
            for name in (part, f"{part}_id"):
                if part not in parts and getattr(self, name) is not None:
                    msg = f"{name} has no meaning with output={unit!r}: leave it out"
                    raise InputError(msg)
        if "splitter" not in parts:
            return None
        # Imported late: few chains split answers.
        from langchain_cfc.claims import ClaimSplitter, SentenceSplitter

        return ClaimSplitter(SentenceSplitter() if self.splitter is None else self.splitter)

    def __repr_args__(self) -> Any:
        """Show parts by name only: a model's headers, addresses and request bodies may hold secrets."""
        for name, value in super().__repr_args__():
            yield name, _get_name(value) if name in _PART_FIELDS else value

    @field_serializer(*_PART_FIELDS)
    def _dump_part(self, part: Any) -> str | None:
        return _get_name(part)

    @property
    def _batches(self) -> BatchServer:
        # Imported late, because most runnables serve no batch.
        from langchain_cfc.runnable.batch import BatchServer

        verifier = canonical_json(compute_fingerprint(self.verifier))
        return BatchServer(self._pipeline, self._runner, self._binding, verifier)

    def _make_served_promise(self, promise: Promise) -> ServedPromise:
        """Return a promise with its cut, and its guarantee for every level that may be stated."""
        artifact, alpha, rate = self.artifact, promise.level, promise.max_wrong_rate
        binding = self._binding
        stated = (None, *artifact.list_stated_levels(alpha))
        keys = [None if one is None else float(one) for one in stated]
        if rate is not None:
            cut = artifact.certified_bot.find_certificate(rate).cut
            made = artifact.make_guarantee(binding=binding, max_wrong_rate=rate)
            return ServedPromise(promise, cut, dict.fromkeys(keys, made))
        of_sets = [artifact.make_guarantee(alpha, binding, stated_alpha=one) for one in stated]
        return ServedPromise(promise, None, dict(zip(keys, of_sets, strict=True)))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee under this runnable's promise, which every result carries.

        With adaptive levels, each result carries the guarantee of its own prompt instead.
        """
        return self._promises[self._select_promise()].guarantees[None]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the given changes, checked like a new runnable."""
        fields = copy.deepcopy(self._get_fields()) if deep else self._get_fields()
        return type(self)(**{**fields, **(update or {})})

    def __copy__(self) -> Self:
        """Return `model_copy()`."""
        return self.model_copy()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return `model_copy(deep=True)`."""
        return type(self)(**copy.deepcopy(self._get_fields(), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields only, so that unpickling constructs the runnable and repeats all checks."""
        return partial(type(self), **self._get_fields()), ()

    def _get_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> CFCResult:  # noqa: A002 - LangChain's name
        """Return the answer set of a prompt, or an abstention.

        Args:
            input: The prompt, of the same kind as the calibration prompts: a text, messages or an object.
                A single human message with text only may replace a text.
            config: LangChain config; `max_concurrency` limits generator and verifier calls together.
            **kwargs: `alpha`, `max_wrong_rate` or `max_wrong_of_all`: the promise to serve this call under.

        Returns:
            The answer set or the abstention.

        Raises:
            DrawError: If fewer than n candidates could be drawn.
            VerifierError: If the verifier failed or returned an invalid score.
            SplitterError: If an answer could not be split into claims.
            DescriptionError: If the answer extractor or the metadata function failed.
            ServingTimeoutError: If it took longer than `timeout`.
            FeatureError: If the prompt's metadata lacks what the feature map reads.
            PromptKindError: If the prompt is of another kind than the calibration prompts.
            InputError: If the artifact does not hold the promise that is named, or none is named although it
                holds several.
            AbstentionError: If it abstains, with `on_abstain="raise"`.
        """
        return self._call_with_config(self._serve, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> CFCResult:  # noqa: A002 - LangChain's name
        """Return the answer set of a prompt, asynchronously; see `invoke`."""
        return await self._acall_with_config(self._aserve, input, config, **kwargs)

    def answer_batch(
        self,
        inputs: Sequence[Any],
        max_wrong_share: Level = 0.05,
        config: RunnableConfig | None = None,
        *,
        journal: str | os.PathLike[str] | None = None,
    ) -> BatchResult:
        """Answer those questions of a batch for which few answers are wrong on average.

        Of the answered questions at most the share `max_wrong_share` gets a wrong answer, on average over
        calibration sets and batches (Jin and Candes 2023; see `BatchScores`). Nothing is shown before all
        questions are scored. A question whose calls fail is not answered, and counts. Equal questions count
        once. `on_abstain` has no meaning here.

        Args:
            inputs: Two or more different prompts as for `invoke`, none of them a calibration prompt, chosen
                without looking at their scores or right answers.
            max_wrong_share: The share, 0 < share < 1, chosen before anything is drawn.
            config: LangChain config; with `max_concurrency` as many calls and questions run at a time.
            journal: A file that keeps what was drawn and scored, so that the same call goes on after it was
                stopped. It holds candidates, also those that are not answered.

        Returns:
            The results in the order of the inputs, with p-values and the promise.

        Raises:
            InputError: If the artifact keeps no scores for batches, there are fewer than two different
                questions, some are calibration prompts or of another kind than those, or the journal belongs
                to another batch.
            CFCError: If something fails that is no failed call.
        """
        call: Any = self._call_with_config  # LangChain declares it for the output of `invoke`
        asked = {"max_wrong_share": max_wrong_share, "journal": journal}
        answered: BatchResult = call(self._batches.answer, list(inputs), config, **asked)
        return answered

    async def aanswer_batch(
        self,
        inputs: Sequence[Any],
        max_wrong_share: Level = 0.05,
        config: RunnableConfig | None = None,
        *,
        journal: str | os.PathLike[str] | None = None,
    ) -> BatchResult:
        """Answer a batch asynchronously; see `answer_batch`."""
        call: Any = self._acall_with_config  # as in `answer_batch`
        asked = {"max_wrong_share": max_wrong_share, "journal": journal}
        answered: BatchResult = await call(self._batches.aanswer, list(inputs), config, **asked)
        return answered

    def _serve(
        self,
        prompt: Any,
        run_manager: CallbackManagerForChainRun,
        config: RunnableConfig,
        **named: Level | None,
    ) -> CFCResult:
        flow = self._make_flow(prompt, run_manager, named)
        return self._check_abstention(self._runner.run(flow, run_manager, config))

    async def _aserve(
        self,
        prompt: Any,
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
        **named: Level | None,
    ) -> CFCResult:
        flow = self._make_flow(prompt, run_manager, named)
        return self._check_abstention(await self._runner.arun(flow, run_manager, config))

    def _make_flow(
        self, prompt: Any, run_manager: RunManager, named: Mapping[str, Level | None]
    ) -> Flow[CFCResult]:
        """Return the flow that serves a prompt under the promise that the call names."""
        promise = self._promises[self._select_promise(**named)]
        register = find_register(run_manager)
        return lambda config: self._pipeline.serve_once(prompt, promise, config, register)

    def _check_abstention(self, result: CFCResult) -> CFCResult:
        if result.abstained and self.on_abstain == "raise":
            raise AbstentionError(result)
        return result

    @property
    def _own_promise(self) -> dict[str, Level | None]:
        return {name: getattr(self, name) for name in PROMISES}

    def _select_promise(self, **named: Level | None) -> Promise:
        """Return the promise of a call: the one that it names, otherwise this runnable's own."""
        refuse_share_of_one(named)
        is_named = any(one is not None for one in named.values())
        return self.artifact.select_promise(**(named if is_named else self._own_promise))


def _get_name(part: Any) -> str | None:
    """Return a part's name in the code: a function's name, or the class name of anything else."""
    # LangChain names a RunnableLambda like its function.
    known = getattr(part, "name", None) if isinstance(part, RunnableLambda) else None
    return known if part is None or known else name_in_words(part)
