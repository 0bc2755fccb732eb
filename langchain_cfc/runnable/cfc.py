"""`CFCRunnable`: draw n candidates, score them, and return the conformal answer set or abstain."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.utils.pydantic import create_model_v2
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SkipValidation,
    field_serializer,
    field_validator,
)

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.candidates import Unit
from langchain_cfc.claims import ClaimSplitter, SentenceSplitter, Splitter
from langchain_cfc.errors import AbstentionError, FingerprintError, InputError
from langchain_cfc.execution import (
    CallLimits,
    ConcurrencyLimiter,
    Progress,
    RunManager,
    Steps,
    Target,
    apply_limits,
    arun_flow,
    arun_with_timeout,
    find_limiter,
    make_child_config,
    run_flow,
    run_with_timeout,
)
from langchain_cfc.execution.langgraph_compat import NOSTREAM, detached_from_graph
from langchain_cfc.guarantee import AnswerPolicy, Binding, Guarantee, restrict_to_policy
from langchain_cfc.runnable.binding import ModelVersionWatcher, check_binding, list_calibrated_models
from langchain_cfc.runnable.policies import AnsweringRunnable, refuse_repeated_draws
from langchain_cfc.runnable.result import CFCResult, ClaimsResult
from langchain_cfc.runnable.serving import ServingPipeline, make_scorer
from langchain_cfc.sampling import Sampler, SamplingName, resolve_generator
from langchain_cfc.sampling.candidates import Description
from langchain_cfc.thresholds import Level
from langchain_cfc.verifiers import Verifier, VerifierEnsemble

if TYPE_CHECKING:
    from langchain_core.runnables.graph import Graph
    from typing_extensions import Self

# Fields that hold the user's own objects.
_PARTS = ("generator", "verifier", "splitter", "answer", "metadata")


class CFCRunnable(AnsweringRunnable[CFCResult]):
    """A chat model or chain that returns calibrated answer sets, or abstains.

    Invoked with whatever the generator takes, it draws the artifact's n candidates, or those that the
    artifact's draw rule wants, scores them with the
    verifier, and returns a `CFCResult`: the answer set that the calibrated threshold admits, or an
    abstention. A failure raises one typed error; no answer is made from the candidates that are left.

    Args:
        generator: The chat model or chain that was calibrated, or a model's name such as
            `openai:gpt-4o-mini`.
        verifier: A Runnable on `{"prompt", "candidates"}` or a function `(prompt, candidates) -> scores`;
            see `langchain_cfc.verifiers`. Where the artifact combines several, a mapping of them by name.
        artifact: The calibration artifact.
        output: `answers` for sets of whole answers, or `claims` where the artifact was calibrated with
            `unit="claims"`: then the first of the artifact's n answers is split into claims, those that the
            threshold reaches are dropped, and a `ClaimsResult` holds what is left.
        splitter: With claims, what splits an answer: a function or Runnable from its text to spans, see
            `langchain_cfc.claims`. By default a `SentenceSplitter`.
        answer: Text to extracted answer, a function or Runnable; the one used for the calibration records,
            if there was one.
        metadata: Prompt to metadata mapping, a function or Runnable; needed where the feature map uses
            metadata.
        alpha: Error level where the artifact holds several; may also be given per call,
            `chain.invoke(prompt, alpha=0.1)`.
        sampling: `requests` draws by n separate requests; `single_request` by one request for n choices,
            where the provider offers that, and by separate ones for choices that it does not bring.
        max_answers: Sets of more distinct answers are withheld, with the reason `too_many_answers`. No
            guarantee speaks of them: a correct answer that they hold is lost.
        min_agreement: How many of the n candidates must give the best answer; else the set is withheld, with
            the reason `too_little_agreement`.
        bot: Answer or abstain by the artifact's certified policy, which fixes `alpha`, `max_answers` and
            `min_agreement`; results then carry both guarantees, about the sets and about wrong answers.
        max_wrong_rate: In bot mode the certified rate to answer by, where the artifact holds several. It is
            fixed here, before any question: choosing it by the answers would void it.
        max_concurrency: Most calls of generator and verifier at once, over all prompts and threads that this
            runnable serves. A config's `max_concurrency` holds for its own call or batch in the same way.
        timeout: Seconds that a prompt may take.
        generator_id: What the records call the generator (`id` in their provenance), for generators that
            do not state it themselves.
        verifier_id: The same for the verifier.
        answer_id: The same for the answer extractor.
        splitter_id: The same for the splitter.
        show_rejected: Whether results hold the texts of rejected candidates. Off by default, because whatever
            streams or stores a result would then pass them on.
        on_abstain: `return` returns an abstention as a result, which `or_else` acts on; `raise` raises an
            `AbstentionError` that holds it, for code that handles errors, such as `with_fallbacks`.

    Raises:
        FingerprintError: If generator, verifier or extractor are not those calibrated, or the map's metadata
            function is missing.
        InputError: If `alpha` is not among the artifact's levels, the artifact holds no policy for `bot` or
            one is given beside it, `max_wrong_rate` is not certified or not given although several are, the
            generator has a fixed seed, or `single_request` does not suit it.
        MissingExtraError: If the generator is given by name and LangChain's `langchain` is not installed.

    Warns:
        FingerprintWarning: If the artifact names a generator, verifier or extractor and the part given does
            not state its identity.
        SamplingWarning: If a model that caches or streams is out of reach.
    """

    # Frozen, because what was checked at construction must be what serves.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", frozen=True)

    generator: SkipValidation[Runnable[Any, Any]]
    verifier: SkipValidation[Verifier | VerifierEnsemble]
    artifact: CalibrationArtifact
    output: Unit = "answers"
    splitter: SkipValidation[Splitter | None] = None
    answer: SkipValidation[Target | None] = None
    metadata: SkipValidation[Target | None] = None
    alpha: Level | None = None
    sampling: SamplingName = "requests"
    max_answers: int | None = Field(default=None, ge=1)
    min_agreement: int | None = Field(default=None, ge=1)
    bot: bool = False
    max_wrong_rate: Level | None = None
    max_concurrency: int | None = Field(default=None, ge=1)
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    generator_id: str | None = None
    verifier_id: str | None = None
    answer_id: str | None = None
    splitter_id: str | None = None
    show_rejected: bool = False
    on_abstain: Literal["return", "raise"] = "return"

    _pipeline: ServingPipeline = PrivateAttr()
    _limiter: ConcurrencyLimiter | None = PrivateAttr()

    @property
    def OutputType(self) -> type[CFCResult]:  # noqa: N802 - LangChain's name
        """The output type, for schemas."""
        return CFCResult if self.output == "answers" else ClaimsResult

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """Return the schema by which `as_tool` and API servers ask this chain.

        Args:
            config: LangChain config.

        Returns:
            The generator's schema where that has named fields, such as the variables of a prompt template;
            else a text, which every chat model takes. `invoke` takes whatever the generator takes.
        """
        schema: type[Any] = self.generator.get_input_schema(config)
        described = schema.model_json_schema()
        if described.get("type") == "object" and described.get("properties"):
            return schema
        return create_model_v2(self.get_name("Input"), root=str)

    def guarantee_of(self, message: AIMessage) -> Guarantee:
        """Return the whole guarantee of a message that this chain answered with.

        Args:
            message: What `as_answer` or a `CFCChatModel` around this chain returned.

        Returns:
            The guarantee as the result carried it.

        Raises:
            InputError: If the message states no guarantee, or that of another artifact or level.
        """
        stated = (message.response_metadata.get("cfc") or {}).get("guarantee")
        if stated is None:
            msg = (
                "the message states no guarantee: it is not an answer of a CFCRunnable, or a fallback gave it"
            )
            raise InputError(msg)
        guarantees = self._make_guarantees(self._pipeline.policy, stated["binding"])
        same = ("alpha", "stated_coverage", "artifact_digest")
        rate = (stated.get("wrong_answers") or {}).get("max_wrong_rate")
        guarantee = next(
            (
                one
                for one in guarantees.values()
                if all(getattr(one, key) == stated.get(key) for key in same)
                and (None if one.wrong_answers is None else one.wrong_answers.max_wrong_rate) == rate
            ),
            None,
        )
        if guarantee is None:
            msg = (
                f"the message was answered under alpha = {stated['alpha']} of the artifact "
                f"{stated['artifact_digest']}, which is not what this chain serves; ask the chain that did"
            )
            raise InputError(msg)
        return guarantee

    def with_retry(self, **kwargs: Any) -> Runnable[Any, CFCResult]:
        """Return a chain that is asked again after an error; see `Runnable.with_retry`.

        Raises:
            InputError: If it would be asked again after an abstention: a guarantee holds for the first draw,
                and not for the first that is answered.
        """
        if self.on_abstain == "raise":
            refuse_repeated_draws(kwargs.get("retry_if_exception_type", (Exception,)))
        return super().with_retry(**kwargs)

    @field_validator("generator", mode="before")
    @classmethod
    def _is_runnable(cls, generator: Any) -> Any:
        return resolve_generator(generator)

    @field_validator("verifier", mode="before")
    @classmethod
    def _is_verifier(cls, verifier: Any) -> Any:
        return VerifierEnsemble(verifier) if isinstance(verifier, Mapping) else verifier

    def __init__(self, **fields: Any) -> None:
        """Check that what serves is what was calibrated."""
        super().__init__(**fields)
        # Not in `model_post_init`, where pydantic would make an error of its own out of an InputError.
        artifact = self.artifact
        if self.alpha is not None:
            artifact.level(self.alpha)
        keys = artifact.metadata_keys
        if keys and self.metadata is None:
            msg = (
                f"the artifact reads the metadata {', '.join(keys)}: pass metadata=, a function "
                "from the prompt to a mapping"
            )
            raise FingerprintError(msg)
        policy = self._read_policy()
        scorer = make_scorer(self.verifier, artifact)
        splitter = self._choose_splitter()
        parts = {
            "generator": (self.generator, self.generator_id),
            "verifier": (self.verifier, self.verifier_id),
            "answer": (self.answer, self.answer_id),
        }
        if splitter is not None:
            parts["splitter"] = (splitter, self.splitter_id)
        binding = check_binding(artifact, parts)
        self._limiter = None if self.max_concurrency is None else ConcurrencyLimiter(self.max_concurrency)
        is_model_known = bool(list_calibrated_models(artifact))
        self._pipeline = ServingPipeline(
            artifact=artifact,
            # Where the records say who answered, `ModelVersionWatcher` compares with that.
            sampler=Sampler(self.generator, self.sampling, watches_model=not is_model_known),
            scorer=scorer,
            description=Description(self.answer, self.metadata),
            guarantees=self._make_guarantees(policy, binding),
            versions=ModelVersionWatcher(artifact) if is_model_known else None,
            policy=policy,
            show_rejected=self.show_rejected,
            splitter=None if splitter is None else ClaimSplitter(splitter),
        )

    def _choose_splitter(self) -> Splitter | None:
        """Return what splits answers into claims, None for whole answers; refuse what does not suit."""
        unit = self.artifact.unit
        if self.output != unit:
            msg = f"the artifact was calibrated for {unit}: pass output={unit!r}"
            raise InputError(msg)
        of_answers, of_claims = ("answer", "max_answers", "min_agreement"), ("splitter", "splitter_id")
        unsuitable = of_answers if unit == "claims" else of_claims
        for name in unsuitable:
            if getattr(self, name) is not None:
                msg = f"{name} has no meaning with output={unit!r}: leave it out"
                raise InputError(msg)
        if unit == "answers":
            return None
        return SentenceSplitter() if self.splitter is None else self.splitter

    def __repr_args__(self) -> Any:
        """Show parts by their name alone: headers, addresses and bodies of a model may hold secrets."""
        for name, value in super().__repr_args__():
            yield name, _get_name(value) if name in _PARTS else value

    @field_serializer(*_PARTS)
    def _dump_part(self, part: Any) -> str | None:
        return _get_name(part)

    def _read_policy(self) -> AnswerPolicy:
        if self.min_agreement is not None and self.min_agreement > self.artifact.n:
            msg = f"min_agreement is {self.min_agreement}, but only {self.artifact.n} candidates are drawn"
            raise InputError(msg)
        if not self.bot:
            if self.max_wrong_rate is not None:
                msg = (
                    "max_wrong_rate says by which certified policy to answer: give it together with bot=True"
                )
                raise InputError(msg)
            return AnswerPolicy(max_answers=self.max_answers, min_agreement=self.min_agreement or 1)
        certificate = self.artifact.certified_policy.find_certificate(self.max_wrong_rate)
        if (self.alpha, self.max_answers, self.min_agreement) != (None, None, None):
            msg = (
                "bot mode follows the artifact's certified policy: leave alpha, max_answers and "
                "min_agreement out"
            )
            raise InputError(msg)
        return certificate.policy

    def _make_guarantees(
        self, policy: AnswerPolicy, binding: Binding
    ) -> dict[tuple[str, float | None], Guarantee]:
        """Return the guarantees of each level that may be asked for; see `ServingPipeline.guarantees`."""
        artifact = self.artifact
        found: dict[tuple[str, float | None], Guarantee] = {}
        for alpha in (self._resolve_level(None),) if self.bot else artifact.alphas:
            for stated in (None, *artifact.list_stated_levels(alpha)):
                if self.bot:
                    guarantee = artifact.bot_guarantee(
                        binding, stated_alpha=stated, max_wrong_rate=self.max_wrong_rate
                    )
                else:
                    guarantee = artifact.guarantee(alpha, binding, stated_alpha=stated)
                    if policy != AnswerPolicy():
                        guarantee = restrict_to_policy(guarantee, policy)
                found[alpha, None if stated is None else float(stated)] = guarantee
        return found

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of an answer set at this runnable's level, as every result carries it.

        Where levels are adaptive, results carry that of their prompt.
        """
        return self._pipeline.guarantees[self._resolve_level(None), None]

    def get_graph(self, config: RunnableConfig | None = None) -> Graph:
        """Return generator, verifier and decision as a graph; see `Runnable.get_graph`."""
        del config  # the graph does not depend on it
        # Drawing is rare, and its modules cost a tenth of the import.
        from langchain_cfc.runnable._drawing import draw_serving_graph

        draws = self.artifact.draws or f"{self.artifact.n} draws"
        return draw_serving_graph(self, generator=self.generator, verifier=self.verifier, draws=draws)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, checked like a new one: what was compared once must be what serves."""
        fields = self._get_fields()
        copied = copy.deepcopy(fields) if deep else fields
        return type(self)(**{**copied, **(update or {})})

    def __copy__(self) -> Self:
        """Return `model_copy()`."""
        return self.model_copy()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return `model_copy(deep=True)`."""
        return type(self)(**copy.deepcopy(self._get_fields(), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields; the copy is checked again when it is made from them."""
        return partial(type(self), **self._get_fields()), ()

    def _get_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> CFCResult:  # noqa: A002 - LangChain's name
        """Return the answer set of a prompt, or an abstention.

        Args:
            input: The prompt, of the kind that the calibration prompts have: a text, messages or an object.
                One human message of text alone may stand for a text.
            config: LangChain config; `max_concurrency` bounds the calls of generator and verifier together.
            **kwargs: `alpha`: error level for this call.

        Returns:
            The answer set or the abstention.

        Raises:
            DrawError: If fewer than n candidates could be drawn.
            VerifierError: If the verifier failed or returned something that is no score.
            SplitterError: If an answer could not be split into claims.
            DescriptionError: If the answer extractor or the metadata function failed.
            ServingTimeoutError: If it took longer than `timeout`.
            FeatureError: If the prompt's metadata lacks what the feature map reads.
            PromptKindError: If the prompt is of another kind than the calibration prompts.
            InputError: If the level is not among the artifact's.
            AbstentionError: If it abstains, with `on_abstain="raise"`.
        """
        return self._call_with_config(self._serve, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> CFCResult:  # noqa: A002 - LangChain's name
        """Return the answer set of a prompt, asynchronously; see `invoke`."""
        return await self._acall_with_config(self._aserve, input, config, **kwargs)

    def _serve(
        self,
        prompt: Any,
        run_manager: CallbackManagerForChainRun,
        config: RunnableConfig,
        alpha: Level | None = None,
    ) -> CFCResult:
        steps, limits = self._start(prompt, run_manager, config, alpha)
        with limits:
            run = partial(run_flow, steps)
            return self._finish(run() if self.timeout is None else run_with_timeout(run, self.timeout))

    async def _aserve(
        self,
        prompt: Any,
        run_manager: AsyncCallbackManagerForChainRun,
        config: RunnableConfig,
        alpha: Level | None = None,
    ) -> CFCResult:
        steps, limits = self._start(prompt, run_manager, config, alpha)
        with limits:
            return self._finish(await arun_with_timeout(arun_flow(steps), self.timeout))

    def _start(
        self, prompt: Any, run_manager: RunManager, config: RunnableConfig, alpha: Level | None
    ) -> tuple[Steps[CFCResult], AbstractContextManager[None]]:
        """Return the flow that serves a prompt, and the limits within which it runs."""
        child = detached_from_graph(make_child_config(config, run_manager, NOSTREAM))
        steps = self._pipeline.serve(prompt, self._resolve_level(alpha), child, Progress(run_manager))
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        return steps, apply_limits(CallLimits(self._limiter or find_limiter(config), deadline), child)

    def _finish(self, result: CFCResult) -> CFCResult:
        if result.abstained and self.on_abstain == "raise":
            raise AbstentionError(result)
        return result

    def _resolve_level(self, alpha: Level | None) -> str:
        if not self.bot:
            return self.artifact.level(self.alpha if alpha is None else alpha)
        certified = self.artifact.certified_policy.find_certificate(self.max_wrong_rate).alpha
        if alpha is not None and self.artifact.level(alpha) != certified:
            msg = (
                f"bot mode answers from the sets at alpha = {certified}, which its policy was certified with"
            )
            raise InputError(msg)
        return certified


def _get_name(part: Any) -> str | None:
    """Return what a part is called in the code: a function by its name, anything else by its class."""
    if part is None:
        return None
    return str(getattr(part, "__name__", None) or type(part).__name__)
