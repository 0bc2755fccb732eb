"""`Sampler`: draw exactly n candidates for a prompt, with n separate requests or a single one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config

from langchain_cfc.errors import CFCError, DrawError, InputError, SamplingWarning
from langchain_cfc.execution import (
    Steps,
    add_tags,
    apply_config_limits,
    arun_flow,
    call_each,
    describe_error,
    is_permanent,
    run_flow,
    unwrap_outcomes,
)
from langchain_cfc.execution.failures import is_malformed_response
from langchain_cfc.no_answers import Reasoning
from langchain_cfc.sampling.candidates import DrawnCandidate, make_candidate
from langchain_cfc.sampling.classification import classify_ending, classify_error, is_reading_error
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.sampling.models import (
    has_model,
    list_hidden_models,
    list_opaque_parts,
    may_call_tools,
    refuse_seed,
    without_streaming_and_cache,
)
from langchain_cfc.sampling.requests import (
    find_answering_model,
    get_choices_parameter,
    split_generator,
)
from langchain_cfc.sampling.usage import (
    DRAW_TAG,
    REQUEST,
    SlotObserver,
    UsageRecorder,
    add_handler,
    find_repetition,
)

SamplingName: TypeAlias = Literal["requests", "single_request"]

# How often failed requests are repeated if other requests of the same prompt succeeded.
MAX_REPEATS = 2
# Settings with which a model gives the same answer to every request.
_GREEDY_SETTINGS = {"temperature": 0, "top_k": 1}


class Sampler:
    """Draws exactly n candidates from a generator.

    Caching and streaming of the generator's models are switched off. Steps that prepare a request, such as
    retrieval, run once per prompt. Failed requests are repeated for their slots; candidates already drawn
    are kept, because they were paid for. If all requests of the first wave fail, none is repeated, because
    the cause is then not chance. Assumption: whether a request fails does not depend on the answer that it
    would have given. Otherwise the candidates are not a sample of the model's output.

    Args:
        generator: A chat model or chain.
        sampling: `requests`: n separate requests. `single_request`: one request for n choices, if the
            provider supports that; choices that it does not return are drawn by separate requests.
        reasoning: `strip` removes reasoning between tags, such as <think>, from candidates' texts; `keep`
            leaves it there.

    Raises:
        InputError: If the generator fixes a seed, or does not support `single_request`.

    Warns:
        SamplingWarning: If a model's caching or streaming cannot be switched off; at the first draw, if the
            temperature is 0 or `top_k` 1.
    """

    def __init__(
        self,
        generator: Runnable[Any, Any],
        sampling: SamplingName = "requests",
        *,
        reasoning: Reasoning = "strip",
    ) -> None:
        self._reasoning: Reasoning = reasoning
        stated = compute_fingerprint(generator)
        self._per_prompt, self._per_candidate = split_generator(without_streaming_and_cache(generator))
        # The part that runs once per prompt may have a seed and may stream: it draws no candidate.
        refuse_seed(self._per_candidate)
        self._greedy_setting = next(
            (f"{name} {value}" for name, value in _GREEDY_SETTINGS.items() if stated.get(name) == value), None
        )
        model = find_answering_model(self._per_candidate)
        # If the output is the answering model's own message, it states all that callbacks would report.
        self._has_plain_messages = (
            model is not None and model.after is None and not has_model(self._per_prompt)
        )
        self._choices: Runnable[Any, Any] | None = None
        if sampling == "single_request":
            if model is None:
                msg = (
                    "sampling='single_request' asks a chat model for n choices; this generator is not a chat "
                    "model, nor a sequence whose first model is one. Use sampling='requests'"
                )
                raise InputError(msg)
            self._choices = model.choices
            self._choices_parameter = get_choices_parameter(model.model)
        self._after = None if model is None else model.after
        self._may_call_tools = may_call_tools(self._per_candidate)
        opaque = list_opaque_parts(self._per_candidate)
        self._is_model_expected = bool(opaque) and has_model(self._per_candidate)
        self._warned: set[str] = set()
        if hidden := ", ".join(list_hidden_models(self._per_candidate)):
            self._warn_once(
                "streaming",
                f"cannot reconfigure models in a function's closure: {hidden}. A cache would make all "
                "candidates the same, and streaming would show them to listeners: give the model cache=False "
                "and disable_streaming=True, or pass the model itself",
                stacklevel=5,
            )

    def draw(self, prompt: Any, n: int, config: RunnableConfig | None = None) -> list[DrawnCandidate]:
        """Draw n candidates outside a serving chain, for example for calibration records.

        Args:
            prompt: The generator's input.
            n: Number of candidates, at least 1.
            config: LangChain config; `max_concurrency` limits the number of concurrent requests.

        Returns:
            n candidates in slot order.

        Raises:
            DrawError: If fewer than n could be drawn, one cannot be read as text, or they are visibly not n
                separate draws (from a cache, or with one fixed seed).
        """
        given = ensure_config(config)
        with apply_config_limits(given):
            return run_flow(self.draw_steps(prompt, n, given))

    async def adraw(self, prompt: Any, n: int, config: RunnableConfig | None = None) -> list[DrawnCandidate]:
        """Draw n candidates, asynchronously; see `draw`."""
        given = ensure_config(config)
        with apply_config_limits(given):
            return await arun_flow(self.draw_steps(prompt, n, given))

    def draw_steps(
        self,
        prompt: Any,
        n: int,
        config: RunnableConfig,
        recorder: UsageRecorder | None = None,
        *,
        store: CandidateStore | None = None,
        choose_next_wave: Callable[[list[DrawnCandidate]], Steps[int]] | None = None,
    ) -> Steps[list[DrawnCandidate]]:
        """Draw n candidates, or several waves of candidates, as part of a larger flow; see `draw`.

        Args:
            prompt: The generator's input.
            n: Number of candidates, at least 1; with `choose_next_wave`, the size of the first wave.
            config: Config that the runs of the draws inherit.
            recorder: Records models and usage, even if some draws fail.
            store: Holds candidates drawn earlier, and gets each new candidate as soon as it is drawn.
            choose_next_wave: Called after each wave with all candidates so far; returns the size of the next
                wave, 0 to stop. By default there is only the first wave.

        Returns:
            The candidates in slot order, regardless of the order in which they were drawn.

        Raises:
            DrawError: If fewer than n could be drawn, one cannot be read as text, or they are visibly not
                separate draws; then those in `store` are discarded.
        """
        recorder = recorder or UsageRecorder()
        if not self._has_plain_messages:
            config = add_handler(config, recorder)
        if self._greedy_setting is not None and (n > 1 or choose_next_wave is not None):
            self._warn_once(
                "same answers",
                f"the generator has {self._greedy_setting}: you pay for {max(n, 2)} requests a prompt, and "
                "nearly all of them give the same answer. Draw with a temperature above 0, and calibrate "
                "with it",
            )
        given = prompt
        if self._per_prompt is not None:
            given = yield from self._prepare(self._per_prompt, prompt, add_tags(config, "cfc:context"))
        known = {} if store is None else store.load(given)
        request = _PromptRequest(given, config, recorder, store)
        draws: list[DrawnCandidate] = []
        wave = n
        while wave:
            draws += yield from self._draw_wave(request, range(len(draws), len(draws) + wave), known)
            choices = 0 if self._choices is None else n  # the first ones came with one request
            repetition = find_repetition(
                draws, request.observers, choices=choices, is_model_expected=self._is_model_expected
            )
            if repetition is not None:
                if store is not None:  # otherwise the next run would reuse them
                    store.discard()
                msg = (
                    f"{repetition}. Each candidate must be drawn independently: switch off caches "
                    "(cache=False for a model in a function) and remove fixed seeds"
                )
                raise DrawError(msg)
            wave = 0 if choose_next_wave is None else (yield from choose_next_wave(draws))
        return draws

    def _draw_wave(
        self, request: _PromptRequest, wave: range, known: Mapping[int, DrawnCandidate]
    ) -> Steps[list[DrawnCandidate]]:
        """Draw the candidates of a wave that are not known yet, and return all candidates of the wave."""
        slots = [slot for slot in wave if slot not in known]
        if not self._has_plain_messages:
            request.observers.update({slot: SlotObserver() for slot in slots})
        is_first = wave.start == 0
        outputs: dict[int, Any] = {}
        missing = slots
        for attempt in range(1 + MAX_REPEATS):
            if not missing:
                break
            by_choices = self._choices is not None and is_first and not attempt
            ask = self._ask_for_choices if by_choices else self._ask_separately
            outputs.update(zip(missing, (yield from ask(request, missing)), strict=True))
            missing = [slot for slot in slots if isinstance(outputs[slot], BaseException)]
            if len(missing) == len(slots) and is_first:
                break  # the cause is not chance
            # A reply that the generator's next step cannot read is not drawn again, because that would select
            # among the model's answers.
            for slot in missing:
                if is_reading_error(outputs[slot], has_reply=request.find_reply(slot) is not None):
                    unreadable = DrawnCandidate("", no_answer="unparsable")
                    outputs[slot] = self._receive(request, slot, unreadable)
            missing = [slot for slot in missing if isinstance(outputs[slot], BaseException)]
        if request.recorder.streamed:
            self._warn_once(
                "streaming",
                "a model streamed while it drew, which the sampler cannot switch off: listeners to token "
                "events see rejected candidates. Give the model disable_streaming=True",
            )
        if missing:
            error = outputs[missing[0]]
            raise self._make_incomplete_error(error, missing[0], len(missing), len(wave)) from error
        return [known[slot] if slot in known else self._read(request, slot, outputs[slot]) for slot in wave]

    def _read(self, request: _PromptRequest, slot: int, output: Any) -> DrawnCandidate:
        return make_candidate(
            slot,
            output,
            reply=request.find_reply(slot),
            may_call_tools=self._may_call_tools,
            reasoning=self._reasoning,
        )

    def _prepare(self, once: Runnable[Any, Any], prompt: Any, config: RunnableConfig) -> Steps[Any]:
        run, arun = partial(once.invoke, config=config), partial(once.ainvoke, config=config)
        try:
            return unwrap_outcomes((yield call_each(run, arun, [prompt])))[0]
        except CFCError:
            raise
        except Exception as error:
            msg = f"a step before the model failed with {describe_error(error)}; nothing was drawn"
            raise DrawError(msg) from error

    def _receive(self, request: _PromptRequest, slot: int, output: Any) -> Any:
        """Record the usage of an output; with a store, save its candidate and return that."""
        if self._has_plain_messages:
            request.recorder.record(output, drawn=True)
        # An unreadable candidate is not saved; `_draw_wave` raises its error.
        with suppress(DrawError):
            if request.store is not None:
                candidate = self._read(request, slot, output)
                request.store.save(slot, candidate)
                return candidate
        return output

    def _ask_separately(self, request: _PromptRequest, slots: Sequence[int]) -> Steps[list[Any]]:
        """Send one request per slot; return the generator's output, or the exception, for each slot."""
        configs = {
            slot: add_handler(request.config, request.observers[slot], DRAW_TAG, f"cfc:candidate:{slot}")
            if slot in request.observers
            else add_tags(request.config, DRAW_TAG, f"cfc:candidate:{slot}")
            for slot in slots
        }
        return self._invoke_each(request, self._per_candidate, dict.fromkeys(slots, request.given), configs)

    def _ask_for_choices(self, request: _PromptRequest, slots: Sequence[int]) -> Steps[list[Any]]:
        """Send one request for as many choices as slots, then separate requests for the missing choices."""
        choices: Any = self._choices
        observer = SlotObserver()
        given: dict[str, Any] = {
            "config": add_handler(request.config, observer, DRAW_TAG),
            self._choices_parameter: len(slots),
        }
        (first,) = yield call_each(
            partial(choices.invoke, **given), partial(choices.ainvoke, **given), [request.given]
        )
        messages = observer.choices  # the model returns only the first one, and fails without any
        if messages is None:
            return [first] * len(slots)
        filled, empty = slots[: len(messages)], slots[len(messages) :]
        replies = dict(zip(filled, messages, strict=False))
        request.replies.update(replies)
        if self._after is None:
            outputs = [self._receive(request, slot, message) for slot, message in replies.items()]
        else:
            configs = {slot: add_tags(request.config, DRAW_TAG, f"cfc:candidate:{slot}") for slot in filled}
            outputs = yield from self._invoke_each(request, self._after, replies, configs)
        return outputs + (yield from self._ask_separately(request, empty)) if empty else outputs

    def _invoke_each(
        self,
        request: _PromptRequest,
        part: Runnable[Any, Any],
        inputs: Mapping[int, Any],
        configs: Mapping[int, RunnableConfig],
    ) -> Steps[list[Any]]:
        """Invoke a part of the generator for each slot; return its output, or the exception, for each."""

        def begin() -> None:
            if self._has_plain_messages:
                REQUEST.set({})  # each call has its own context

        def run(slot: int) -> Any:
            begin()
            try:
                output = part.invoke(inputs[slot], configs[slot])
            except Exception as error:  # noqa: BLE001 - raised again unless the model replied
                output = _read_error(request, slot, error)
            return self._receive(request, slot, output)

        async def arun(slot: int) -> Any:
            begin()
            try:
                output = await part.ainvoke(inputs[slot], configs[slot])
            except Exception as error:  # noqa: BLE001 - raised again unless the model replied
                output = _read_error(request, slot, error)
            return self._receive(request, slot, output)

        outputs: list[Any] = yield call_each(run, arun, list(inputs))
        return outputs

    def _make_incomplete_error(self, error: Exception, slot: int, failed: int, size: int) -> DrawError:
        """Return the error for `failed` of `size` candidates that could not be drawn, the first in `slot`."""
        msg = (
            f"{failed} of {size} candidates could not be drawn, first candidate {slot}: "
            f"{describe_error(error)}. The others are not used, because they may not be a fair sample"
        )
        is_local = isinstance(error, (CFCError, KeyError, TypeError, ValueError))
        if is_malformed_response(error) or not (is_local or is_permanent(error)):
            msg += "; if the error is temporary, add retries (generator.with_retry())"
        if failed == size and self._choices is not None:
            msg += "; if the provider refuses the number of choices, use sampling='requests'"
        return DrawError(msg)

    def _warn_once(self, subject: str, message: str, stacklevel: int = 3) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warnings.warn(message, SamplingWarning, stacklevel=stacklevel)


class CandidateStore(Protocol):
    """Stores the candidates of one prompt, so that an interrupted run need not draw them again."""

    def load(self, prepared: Any) -> Mapping[int, DrawnCandidate]:
        """Return the stored candidates by slot, if they were drawn with the same prepared input."""

    def save(self, slot: int, draw: DrawnCandidate) -> None:
        """Save a candidate; called as soon as it is drawn."""

    def discard(self) -> None:
        """Discard all candidates of the prompt, because the sampler rejected them."""


@dataclass(frozen=True)
class _PromptRequest:
    """Data shared by all requests of one prompt."""

    given: Any  # the prepared input
    config: RunnableConfig  # inherited by the runs of the draws
    recorder: UsageRecorder
    store: CandidateStore | None
    # Of model calls, by slot; empty if the messages state everything.
    observers: dict[int, SlotObserver] = field(default_factory=dict)
    replies: dict[int, BaseMessage] = field(default_factory=dict)  # the choices of a single request, by slot

    def find_reply(self, slot: int) -> BaseMessage | None:
        """Return the answering model's message for a slot; None if it was not seen, or is the output."""
        observer = self.observers.get(slot)
        return self.replies.get(slot) if observer is None or observer.reply is None else observer.reply


def _read_error(request: _PromptRequest, slot: int, error: Exception) -> DrawnCandidate:
    """Return the candidate that an error stands for; raise the error if the request itself failed."""
    kind = classify_error(error, has_reply=request.find_reply(slot) is not None)
    if kind is None:
        raise error
    reply = request.find_reply(slot)
    return DrawnCandidate("", no_answer=(reply and classify_ending(reply)) or kind)
