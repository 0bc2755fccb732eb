"""`Executor`: draws, scores and labels the prompts of a collection, with the same code as in serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from langchain_core.callbacks import CallbackManager
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.artifact import check_first_wave, has_separate_scores
from langchain_cfc.claims import ClaimSplitter, SentenceSplitter, Splitter
from langchain_cfc.draw_rules import DrawRule, parse_draw_rule
from langchain_cfc.errors import CFCError, CollectionError, InputError, StoreError
from langchain_cfc.execution import (
    CallLimits,
    ConcurrencyLimiter,
    Steps,
    Target,
    apply_limits,
    arun_flow,
    list_causes,
)
from langchain_cfc.labelers import CandidateLabeling, Labeler, LabelerInput
from langchain_cfc.no_answers import Reasoning
from langchain_cfc.records import Example, LabelledRecord, Provenance
from langchain_cfc.sampling import DrawnCandidate, Sampler, SamplingName, resolve_generator
from langchain_cfc.sampling.candidates import Description
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.sampling.usage import add_handler
from langchain_cfc.support.units import Unit
from langchain_cfc.verifiers import Verifier, VerifierEnsemble, VerifierInput
from langchain_cfc.verifiers.base import CandidateScorer, IncrementalScorer, VerifierScores
from langchain_cfc_collect.calls import CallPolicy, StageCalls
from langchain_cfc_collect.costs import Usage
from langchain_cfc_collect.stages import Journal, Labels, Outcome, StoredPrompt, make_record

_CHOICES = {
    "unit": get_args(Unit),
    "sampling": get_args(SamplingName),
    "reasoning": get_args(Reasoning),
}


@dataclass(frozen=True)
class Components:
    """Components that make records: those of `CFCRunnable`, and the labeler.

    Attributes:
        generator: The chat model or chain, or a model's name such as `openai:gpt-4o-mini`.
        verifier: One verifier, or several, whose mean is the `score`: a mapping by name for equal weights, or
            a `VerifierEnsemble`.
        labeler: The labeler of the candidates.
        n: Number of candidates per prompt, at least 1; None with `draws`, which states the maximum.
        unit: `answers` to score and label candidates, or `claims` to score and label the claims of the first
            candidate. The other candidates are then only for verifiers that compare answers.
        splitter: With claims, splits an answer, as in `CFCRunnable`; by default a `SentenceSplitter`.
        answer: Answer extractor, from text to answer; None without one.
        metadata: Metadata function of the prompt, as in serving; None to use only the dataset's metadata.
        draws: A rule that stops drawing, such as `lead(3, at_most=10)`; see `parse_draw_rule`. Fewer
            candidates are drawn, scored and labelled, and only this rule can be calibrated then. An
            extractor that asks a model is called between the waves, and again for the labels.
        sampling: How candidates are drawn, see `CFCRunnable`.
        reasoning: Whether reasoning in candidates' texts is removed, likewise.
        generator_id: Name of the generator in the records, if it cannot name itself.
        verifier_id: Name of the verifier, likewise.
        labeler_id: Name of the labeler, likewise.
        answer_id: Name of the answer extractor, likewise.
        splitter_id: Name of the splitter, likewise.
    """

    generator: Runnable[Any, Any] | Callable[[Any], Any] | str
    verifier: Verifier | VerifierEnsemble | Mapping[str, Verifier]
    labeler: Labeler
    n: int | None = None
    unit: Unit = "answers"
    splitter: Splitter | None = None
    answer: Target | None = None
    metadata: Target | None = None
    draws: str | None = None
    sampling: SamplingName = "requests"
    reasoning: Reasoning = "strip"
    generator_id: str | None = None
    verifier_id: str | None = None
    labeler_id: str | None = None
    answer_id: str | None = None
    splitter_id: str | None = None


class Executor:
    """Runs the stages of prompts in this process.

    Args:
        components: The components that draw, score and label.
        policy: Limits, rates and retries of the calls of all prompts together; None for the defaults.
        config: LangChain config that all runs inherit, such as callbacks that trace them.
        make_calls: Factory for the object that makes the calls of one stage, from its journal, and applies
            all limits; None to make live calls.

    Attributes:
        configuration: Everything that affects records, as plain data.

    Raises:
        InputError: If n is less than 1, the draw rule cannot be used, the generator has a fixed seed, or a
            component does not suit `unit`.
        CFCError: If a component has a wrong type.
    """

    configuration: Mapping[str, Any]

    def __init__(
        self,
        components: Components,
        policy: CallPolicy | None = None,
        config: RunnableConfig | None = None,
        make_calls: Callable[[Any], StageCalls] | None = None,
    ) -> None:
        _check_options(components)
        policy = policy or CallPolicy()
        self._limiter = ConcurrencyLimiter(policy.concurrency) if make_calls is None else None
        self._make_calls = make_calls or partial(StageCalls, policy, policy.create_rate_limiter())
        self._rule = _parse_rule(components)
        n = components.n if self._rule is None else self._rule.at_most
        if not isinstance(n, int) or n < 1:
            msg = f"n is {n!r}; expected a whole number of candidates, at least 1"
            raise InputError(msg)
        generator = resolve_generator(components.generator)
        verifier: Any = components.verifier
        if isinstance(verifier, Mapping):
            verifier = VerifierEnsemble(verifier)
        self._n = n
        self._scorer = CandidateScorer(verifier)
        self._labelling = CandidateLabeling(components.labeler)
        splitter = _choose_splitter(components)
        self._splitter = None if splitter is None else ClaimSplitter(splitter)
        self._sampler = Sampler(generator, components.sampling, reasoning=components.reasoning)
        self._description = Description(components.answer, components.metadata)
        # With the handlers that the environment asks for; to look for them in every stage is expensive.
        manager = CallbackManager.configure((config or {}).get("callbacks"))
        self._config: RunnableConfig = {**(config or {}), "callbacks": manager if manager.handlers else None}
        provenance = Provenance(
            n=n,
            draws=None if self._rule is None else self._rule.text,
            generator=compute_fingerprint(generator, components.generator_id, components.reasoning),
            verifier=compute_fingerprint(verifier, components.verifier_id),
            labeler=compute_fingerprint(components.labeler, components.labeler_id),
            answer=_compute_optional_fingerprint(components.answer, components.answer_id),
            unit=None if splitter is None else "claims",
            splitter=_compute_optional_fingerprint(splitter, components.splitter_id),
        )
        separate = getattr(verifier, "separate_scores", None)
        stated = provenance.model_copy(update={"separate_scores": separate})
        self._scored_separately = bool(has_separate_scores(stated))
        if self._rule is not None:
            check_first_wave(self._rule, stated)
        self.configuration = {
            **provenance.model_dump(exclude={"format", "version"}),
            **({} if separate is None else {"separate_scores": separate}),
            "sampling": components.sampling,
            "metadata": _compute_optional_fingerprint(components.metadata),
        }

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Draw n candidates, or as many as a draw rule asks for, without redrawing those in the journal."""
        recorder, rule = journal.recorder, self._rule
        draw = partial(
            self._sampler.draw_steps,
            example.input,
            config=self._config,
            recorder=recorder,
            store=journal,
        )
        if rule is None:
            return await self._run(draw(n=self._n), journal)
        scorer = IncrementalScorer(
            self._scorer,
            self._description,
            example.input,
            add_handler(self._config, recorder),
            judging=add_handler(self._config, recorder, "cfc:verifier"),
            scored_separately=self._scored_separately,
        )

        def choose_next_wave(draws: list[DrawnCandidate]) -> Steps[int]:
            wave = yield from scorer.choose_next_wave(rule, draws)
            journal.announce(sum(slot not in journal.drawn for slot in range(len(draws), len(draws) + wave)))
            return wave

        def draw_and_score() -> Steps[list[DrawnCandidate]]:
            draws = yield from draw(n=rule.first_wave, choose_next_wave=choose_next_wave)
            if rule.needs_scores:  # the rule does not score the last possible wave
                yield from scorer.score(draws)
            return draws

        outcome = await self._run(draw_and_score(), journal)
        is_scored = rule.needs_scores and not isinstance(outcome.result, CFCError)
        return replace(outcome, scores=scorer.scores) if is_scored else outcome

    async def split(self, answer: DrawnCandidate, journal: Journal) -> Outcome:
        """Split the first answer of a prompt into claims."""
        if self._splitter is None:
            msg = 'these components keep whole answers: split needs unit="claims"'
            raise InputError(msg)
        steps = self._splitter.split(answer, add_handler(self._config, journal.recorder))
        return await self._run(steps, journal)

    def score_without_calls(self, prompt: StoredPrompt) -> VerifierScores | None:
        """Score as `score` does, at once and untraced; None if the verifier makes calls, or fails."""
        return self._scorer.score_without_calls(_make_verifier_input(prompt))

    async def score(self, prompt: StoredPrompt, journal: Journal) -> Outcome:
        """Score the candidates of a prompt, or the claims of the first one."""
        given = _make_verifier_input(prompt)
        steps = self._scorer.score(given, add_handler(self._config, journal.recorder, "cfc:verifier"))
        return await self._run(steps, journal)

    async def label(self, prompt: StoredPrompt, journal: Journal) -> Outcome:
        """Label candidates or claims, extract the answers of candidates and compute the prompt's metadata."""
        if self._description.has_extractor:  # which may ask a model, but not by the calls of the stage
            await journal.flush()
        return await self._run(
            self._label_steps(prompt, add_handler(self._config, journal.recorder)), journal
        )

    async def make_record(self, example: Example, drawn: Outcome) -> LabelledRecord | None:
        """Split, score and label what was drawn for a prompt at once, for runs that keep no stages.

        Args:
            example: The prompt.
            drawn: The outcome of `draw`.

        Returns:
            The record; None for an answer without claims.

        Raises:
            CFCError: If a stage failed, or the labeler leaves the prompt without labels for now.
        """
        draws: list[DrawnCandidate] = _unwrap(drawn)
        prompt = StoredPrompt(0, example, draws)
        if self._splitter is not None:
            prompt = replace(prompt, claims=_unwrap(await self.split(draws[0], Journal())))
            if not prompt.claims:
                return None
        scores = drawn.scores or _unwrap(await self.score(prompt, Journal()))
        labels = _unwrap(await self.label(prompt, Journal()))
        if labels is None:
            msg = f"prompt {example.id!r} has no labels yet: collect into a store, which waits for them"
            raise CollectionError(msg)
        return make_record(replace(prompt, scores=scores, labels=labels))

    async def _run(self, steps: Steps[Any], journal: Journal) -> Outcome:
        calls = self._make_calls(journal)
        result: Any
        try:
            with apply_limits(CallLimits(self._limiter, attempts=calls.acall), self._config):
                result = await arun_flow(steps)
        except CFCError as error:
            # A journal that cannot be written fails inside the call that waits for it. The run ends then: to
            # the prompt, nothing has happened.
            for cause in list_causes(error):
                if isinstance(cause, StoreError):
                    raise cause from None
            result = error
        return Outcome(result, Usage.from_recorder(journal.recorder))

    def _label_steps(self, prompt: StoredPrompt, config: RunnableConfig) -> Steps[Labels]:
        example, draws = prompt.example, list(prompt.candidates)
        metadata = yield from self._description.describe_prompt(example.input, config)
        answers = yield from self._description.extract_answers(draws, config)
        extracted = answers if self._description.has_extractor else None
        given = LabelerInput(
            id=example.id, prompt=example.input, reference=example.reference, candidates=draws
        )
        labels = yield from self._labelling.label_candidates(given, extracted, config)
        return Labels(labels, extracted, metadata)


def _unwrap(outcome: Outcome) -> Any:
    """Return the result of a stage if it succeeded; otherwise raise its error."""
    if isinstance(outcome.result, CFCError):
        raise outcome.result
    return outcome.result


def _make_verifier_input(prompt: StoredPrompt) -> VerifierInput:
    given = VerifierInput(prompt=prompt.example.input, candidates=list(prompt.candidates))
    if prompt.claims is not None:
        given["answers"] = list(prompt.draws or ())
    return given


def _compute_optional_fingerprint(part: Any, name: str | None = None) -> dict[str, Any] | None:
    """Return the fingerprint of a component, or None if there is no component."""
    return None if part is None else compute_fingerprint(part, name)


def _parse_rule(components: Components) -> DrawRule | None:
    """Return the draw rule, or None if every prompt gets n candidates."""
    if components.draws is None:
        return None
    if components.n is not None or components.unit == "claims":
        what = "n" if components.n is not None else 'unit="claims"'
        msg = f"draws cannot be combined with {what}: the rule determines how many whole answers are drawn"
        raise InputError(msg)
    rule = parse_draw_rule(components.draws)
    if rule.stored_text is None:
        msg = f"draws = {rule.text} never stops before its last draw: use n={rule.at_most} instead"
        raise InputError(msg)
    return rule


def _check_options(components: Components) -> None:
    """Refuse options that a later step, such as serving, would refuse once all is paid for."""
    for name, known in _CHOICES.items():
        if (value := getattr(components, name)) not in known:
            msg = f"{name} is {value!r}; expected {' or '.join(map(repr, known))}"
            raise InputError(msg)
    for name, value in vars(components).items():
        if name.endswith("_id") and not isinstance(value, str | None):
            msg = f"{name} is {value!r}; expected a name"
            raise InputError(msg)


def _choose_splitter(components: Components) -> Splitter | None:
    """Return the splitter of claims, None for whole answers; raise if a component does not suit `unit`."""
    unit = components.unit
    for name in ("answer",) if unit == "claims" else ("splitter", "splitter_id"):
        if getattr(components, name) is not None:
            msg = f"{name} has no meaning with unit={unit!r}: leave it out"
            raise InputError(msg)
    if unit == "answers":
        return None
    return SentenceSplitter() if components.splitter is None else components.splitter
