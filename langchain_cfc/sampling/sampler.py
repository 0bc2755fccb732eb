"""`Sampler`: exactly n candidates for a prompt, by separate requests or by one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config

from langchain_cfc.errors import CFCError, DrawError, InputError, SamplingWarning
from langchain_cfc.execution import (
    Progress,
    Steps,
    add_tags,
    apply_config_limits,
    arun_flow,
    call_each,
    describe_error,
    run_flow,
    unwrap_outcomes,
)
from langchain_cfc.sampling.candidates import DrawnCandidate, make_candidate
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from langchain_cfc.sampling.models import (
    has_model,
    list_hidden_models,
    list_opaque_parts,
    refuse_seed,
    walk_runnables,
    without_streaming_and_cache,
)
from langchain_cfc.sampling.requests import (
    MultipleChoiceRequest,
    SingleUsageModel,
    find_answering_model,
    get_choices_parameter,
    split_generator,
)
from langchain_cfc.sampling.usage import (
    DRAW_TAG,
    SlotObserver,
    UsageRecorder,
    add_handler,
    find_repetition,
    is_same_model,
)

SamplingName: TypeAlias = Literal["requests", "single_request"]

# How often requests that failed are repeated, where others of the same prompt succeeded.
TOP_UPS = 2
# Settings with which a model gives one answer however often it is asked.
_SAME_ANSWER = {"temperature": 0, "top_k": 1}


class Sampler:
    """Draws exactly n candidates from a generator.

    The generator's models neither cache nor stream while they draw. What prepares a request, such as
    retrieval, runs once per prompt. Requests that fail are repeated for their slots, and what the others
    returned is kept: it was paid for. If none succeeds, none is repeated, because then it is not chance. A
    failure must not depend on what the answer would have been, or the candidates left are no sample of what
    the model says.

    Args:
        generator: A chat model or chain.
        sampling: `requests`: n separate requests. `single_request`: one request for n choices, where the
            provider offers that; choices that it does not bring are drawn by separate requests.
        watches_model: Whether to warn if another model answers than was asked for.

    Raises:
        InputError: If the generator fixes a seed, or `single_request` does not suit it.

    Warns:
        SamplingWarning: If a model that caches or streams is out of reach; at the first draw, if the
            temperature is 0 or `top_k` 1; once for each other model that answers than was asked for.
    """

    def __init__(
        self,
        generator: Runnable[Any, Any],
        sampling: SamplingName = "requests",
        *,
        watches_model: bool = True,
    ) -> None:
        stated = compute_fingerprint(generator)
        self._once, self._sampled = split_generator(without_streaming_and_cache(generator))
        # What runs once per prompt may have a seed, and stream: no candidate is in it.
        refuse_seed(self._sampled)
        self._same_answer = next(
            (f"{name} {value}" for name, value in _SAME_ANSWER.items() if stated.get(name) == value), None
        )
        # Several models would answer under several names, and which of them was asked for what is unknown.
        models = sum(isinstance(one, BaseChatModel) for one in walk_runnables(self._sampled))
        self._asked: str | None = stated.get("model") if models == 1 and watches_model else None
        model = find_answering_model(self._sampled)
        # Then the messages themselves state all that callbacks would.
        self._has_plain_messages = model is not None and model.after is None and not has_model(self._once)
        self._choices: Runnable[Any, Any] | None = None
        if sampling == "single_request":
            if model is None:
                msg = (
                    "sampling='single_request' asks a chat model for n choices; this generator is not a chat "
                    "model, nor a sequence whose first model is one. Use sampling='requests'"
                )
                raise InputError(msg)
            self._choices = model.wrap(
                MultipleChoiceRequest(
                    model=SingleUsageModel.of(model.model), parameter=get_choices_parameter(model.model)
                )
            )
        self._after = None if model is None else model.after
        opaque = list_opaque_parts(self._sampled)
        self._functions = [] if has_model(self._sampled) else opaque
        self._is_model_expected = bool(opaque) and has_model(self._sampled)
        hidden = list_hidden_models(self._sampled)
        self._warned: set[str] = {"streaming"} if hidden else set()
        _warn_of_hidden_models(hidden)

    def draw(self, prompt: Any, n: int, config: RunnableConfig | None = None) -> list[DrawnCandidate]:
        """Draw n candidates outside a serving chain, as for calibration records.

        Args:
            prompt: What the generator is invoked with.
            n: Number of candidates, at least 1.
            config: LangChain config; `max_concurrency` bounds the requests at once.

        Returns:
            n candidates in the order of their slots.

        Raises:
            DrawError: If fewer than n could be drawn, one cannot be read as text, or they are visibly not n
                draws, as from a cache or with one fixed seed.
        """
        given = ensure_config(config)
        with apply_config_limits(given):
            return run_flow(self.draw_steps(prompt, n, given, Progress()))

    async def adraw(self, prompt: Any, n: int, config: RunnableConfig | None = None) -> list[DrawnCandidate]:
        """Draw n candidates, asynchronously; see `draw`."""
        given = ensure_config(config)
        with apply_config_limits(given):
            return await arun_flow(self.draw_steps(prompt, n, given, Progress()))

    def draw_steps(
        self,
        prompt: Any,
        n: int,
        config: RunnableConfig,
        progress: Progress,
        recorder: UsageRecorder | None = None,
        *,
        store: CandidateStore | None = None,
        choose_next_wave: Callable[[list[DrawnCandidate]], Steps[int]] | None = None,
    ) -> Steps[list[DrawnCandidate]]:
        """Draw n candidates as a part of a larger flow, or more in waves; see `draw`.

        Args:
            prompt: What the generator is invoked with.
            n: Number of candidates, at least 1; of the first wave, if others may follow.
            config: Config that the runs of the draws inherit.
            progress: Gets an event for each candidate.
            recorder: Records the draws, also where some fail.
            store: Holds candidates that were drawn before, and is given each new one as soon as it is there.
            choose_next_wave: Says after each wave, given all candidates so far, how many more to draw at
                once; 0 stops. Without it the first wave is the only one.

        Returns:
            The candidates in the order of their slots, whenever they were completed.

        Raises:
            DrawError: If fewer than n could be drawn, or one cannot be read as text.
        """
        recorder = recorder or UsageRecorder()
        if not self._has_plain_messages:
            config = add_handler(config, recorder)
        self._warn_before_drawing(n if choose_next_wave is None else n + 1)
        given = prompt
        if self._once is not None:
            given = yield from self._prepare(self._once, prompt, add_tags(config, "cfc:context"))
        known = {} if store is None else store.load(given)
        receive = None if store is None else partial(self._save, store, recorder)
        request = _Request(given, config, progress, receive, {})
        draws: list[DrawnCandidate] = []
        wave = n
        while wave:
            draws += yield from self._draw_wave(
                request, range(len(draws), len(draws) + wave), known, recorder
            )
            repetition = find_repetition(
                draws,
                request.observers,
                choices=0 if self._choices is None else n,  # the first ones came with one request
                is_model_expected=self._is_model_expected,
            )
            if repetition is not None:
                if store is not None:  # or the next run would take them for n draws
                    store.discard()
                msg = (
                    f"{repetition}. Each candidate must be drawn by itself: switch off caches (cache=False "
                    "for a model in a function) and leave fixed seeds out"
                )
                raise DrawError(msg)
            wave = 0 if choose_next_wave is None else (yield from choose_next_wave(draws))
        return draws

    def _draw_wave(
        self,
        request: _Request,
        wave: range,
        known: Mapping[int, DrawnCandidate],
        recorder: UsageRecorder,
    ) -> Steps[list[DrawnCandidate]]:
        """Draw candidates that are not known yet, at once, and return those of all slots of the wave."""
        slots = [slot for slot in wave if slot not in known]
        if not self._has_plain_messages:
            request.observers.update({slot: SlotObserver() for slot in slots})
        is_first = wave.start == 0
        outputs: dict[int, Any] = {}
        failed: list[int] = []
        missing = slots
        for attempt in range(1 + TOP_UPS):
            if not missing:
                break
            by_choices = self._choices is not None and is_first and not attempt
            ask = self._ask_for_choices if by_choices else self._ask_separately
            outputs.update(zip(missing, (yield from ask(request, missing)), strict=True))
            failed = [slot for slot in slots if isinstance(outputs[slot], BaseException)]
            missing = failed if len(failed) < len(slots) or not is_first else []
        if self._has_plain_messages and request.receive is None:  # a store's were recorded one by one
            for slot in slots:
                recorder.record(outputs[slot], drawn=True)
        self._warn_after_drawing(recorder)
        if failed:
            error = outputs[failed[0]]
            raise self._incomplete_error(error, failed[0], len(failed), len(wave)) from error
        return [known[slot] if slot in known else make_candidate(slot, outputs[slot]) for slot in wave]

    def _prepare(self, once: Runnable[Any, Any], prompt: Any, config: RunnableConfig) -> Steps[Any]:
        run, arun = partial(once.invoke, config=config), partial(once.ainvoke, config=config)
        try:
            return unwrap_outcomes((yield call_each(run, arun, [prompt])))[0]
        except CFCError:
            raise
        except Exception as error:
            msg = f"what comes before the model failed with {describe_error(error)}; nothing was drawn"
            raise DrawError(msg) from error

    def _save(self, store: CandidateStore, recorder: UsageRecorder, slot: int, output: Any) -> None:
        """Save a candidate, once its usage is recorded."""
        if self._has_plain_messages:
            recorder.record(output, drawn=True)
        # One that cannot be read is refused together with the others.
        with suppress(DrawError):
            store.save(slot, make_candidate(slot, output))

    def _ask_separately(self, request: _Request, slots: Sequence[int]) -> Steps[list[Any]]:
        """Send one request per slot; return for each slot the generator's output, or the exception."""
        configs = {
            slot: add_handler(request.config, request.observers[slot], DRAW_TAG, f"cfc:candidate:{slot}")
            if slot in request.observers
            else add_tags(request.config, DRAW_TAG, f"cfc:candidate:{slot}")
            for slot in slots
        }

        def run(slot: int) -> Any:
            output = self._sampled.invoke(request.given, configs[slot])
            if request.receive is not None:
                request.receive(slot, output)
            if request.progress.has_listeners:
                request.progress.dispatch("cfc:drawn", {"slot": slot})
            return output

        async def arun(slot: int) -> Any:
            output = await self._sampled.ainvoke(request.given, configs[slot])
            if request.receive is not None:
                request.receive(slot, output)
            if request.progress.has_listeners:
                await request.progress.adispatch("cfc:drawn", {"slot": slot})
            return output

        outputs: list[Any] = yield call_each(run, arun, slots)
        return outputs

    def _ask_for_choices(self, request: _Request, slots: Sequence[int]) -> Steps[list[Any]]:
        """Send one request for as many choices as slots, and separate ones for slots left empty."""
        choices: Any = self._choices
        config = add_tags(request.config, DRAW_TAG)
        (messages,) = yield call_each(
            partial(choices.invoke, config=config, choices=len(slots)),
            partial(choices.ainvoke, config=config, choices=len(slots)),
            [request.given],
        )
        if isinstance(messages, Exception):
            return [messages] * len(slots)
        filled, empty = slots[: len(messages)], slots[len(messages) :]
        for slot in filled:
            yield from request.progress.report("cfc:drawn", {"slot": slot})
        outputs = list(messages[: len(filled)])
        if (after := self._after) is not None:
            configs = [add_tags(config, DRAW_TAG, f"cfc:candidate:{slot}") for slot in filled]
            outputs = yield call_each(
                lambda position: after.invoke(messages[position], configs[position]),
                lambda position: after.ainvoke(messages[position], configs[position]),
                range(len(filled)),
            )
        for slot, output in zip(filled, outputs, strict=True):
            if request.receive is not None and not isinstance(output, Exception):
                request.receive(slot, output)
        return outputs + (yield from self._ask_separately(request, empty)) if empty else outputs

    def _incomplete_error(self, error: Exception, slot: int, failed: int, size: int) -> DrawError:
        """Build the error for candidates that could not be drawn, of which the first is in `slot`."""
        msg = (
            f"{failed} of {size} candidates could not be drawn, first candidate {slot}: "
            f"{describe_error(error)}. Nothing is made of fewer: those left may be no fair sample"
        )
        if not isinstance(error, (CFCError, KeyError, TypeError, ValueError)):
            msg += "; give the generator retries (generator.with_retry()) if this passes"
        if failed == size and self._choices is not None:
            msg += "; if it is the number of choices that is refused, use sampling='requests'"
        return DrawError(msg)

    def _warn_before_drawing(self, n: int) -> None:
        """Warn of a global cache that reaches into functions, and of settings that make candidates equal."""
        if self._functions and get_llm_cache() is not None:
            self._warn_once(
                "cache",
                "a global LLM cache is set, and a model called in a function cannot be taken out of it: all "
                f"candidates would be one if it is called in {', '.join(self._functions)}. Give such a model "
                "cache=False",
            )
        if self._same_answer is not None and n > 1:
            self._warn_once(
                "same answers",
                f"the generator has {self._same_answer}: {n} requests a prompt are paid for, and nearly all "
                "of them give the same answer. Draw with a temperature above 0, and calibrate with it",
            )

    def _warn_after_drawing(self, recorder: UsageRecorder) -> None:
        """Warn of other models that answered, and of models that streamed all the same, as in an agent."""
        for name in recorder.versions:
            if self._asked is not None and not is_same_model(self._asked, name):
                self._warn_once(
                    f"model {name}",
                    f"the generator asks for the model {self._asked!r}, and {name!r} answered: check what "
                    "the endpoint serves under that name",
                )
        if recorder.streamed:
            self._warn_once(
                "streaming",
                "a model streamed while it drew, which cannot be switched off from here: a "
                "listener to token events sees rejected candidates. Give it disable_streaming=True",
            )

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warnings.warn(message, SamplingWarning, stacklevel=3)


class CandidateStore(Protocol):
    """Stores candidates one by one, so that those of an unfinished prompt need not be drawn again."""

    def load(self, prepared: Any) -> Mapping[int, DrawnCandidate]:
        """Return candidates by slot that were drawn with the same prepared input."""

    def save(self, slot: int, draw: DrawnCandidate) -> None:
        """Save a candidate as soon as it is there."""

    def discard(self) -> None:
        """Discard all candidates of the prompt, which were refused."""


@dataclass(frozen=True)
class _Request:
    """What all requests of one prompt share."""

    given: Any  # the prepared input
    config: RunnableConfig  # what the runs of the draws inherit
    progress: Progress  # gets an event for each candidate
    receive: Callable[[int, Any], None] | None  # called with slot and output as soon as a candidate is there
    observers: dict[int, SlotObserver]  # of model calls, by slot; none where messages state all


def _warn_of_hidden_models(hidden: Iterable[str]) -> None:
    if listed := ", ".join(hidden):
        msg = (
            f"out of reach, for no copy can be made of what a function has closed over: {listed}. "
            "Its cache would make all candidates the same, and its streaming would show them to "
            "listeners: give it cache=False and disable_streaming=True, or pass the model itself"
        )
        warnings.warn(msg, SamplingWarning, stacklevel=5)
