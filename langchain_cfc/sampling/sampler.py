"""`Sampler`: exactly n candidates for a prompt, by separate requests or by one."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

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
from langchain_cfc.fingerprints import compute_fingerprint
from langchain_cfc.sampling.candidates import DrawnCandidate, make_candidate
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
    returned is kept: it was paid for. If none succeeds, none is repeated, for then it is not chance. A
    failure must not depend on what the answer would have been, or the candidates left are no sample of what
    the model says.

    Args:
        generator: A chat model or chain.
        sampling: `requests`: n separate requests. `single_request`: one request for n choices, where the
            provider offers that; choices that it does not bring are drawn by separate requests.
        watches_model: Whether to warn of another model that answers than was asked for.

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
        self._always_same = next(
            (f"{name} {value}" for name, value in _SAME_ANSWER.items() if stated.get(name) == value), None
        )
        self._asked: str | None = stated.get("model")
        self._other_models: set[str] = set()
        parts = split_generator(without_streaming_and_cache(generator))
        # What runs once per prompt may have a seed, and stream: no candidate is in it.
        refuse_seed(parts.sampled)
        self._once = parts.once
        self._separate = _SeparateRequests(parts.sampled)
        self._first = (
            _SingleRequest(parts.sampled, self._separate) if sampling == "single_request" else self._separate
        )
        found = find_answering_model(parts.sampled)
        self._says_all = found is not None and found.after is None and not has_model(parts.once)
        # Several models would answer under several names, and which of them was asked for what is unknown.
        models = sum(isinstance(one, BaseChatModel) for one in walk_runnables(parts.sampled))
        if models != 1 or not watches_model:
            self._asked = None
        opaque = list_opaque_parts(parts.sampled)
        self._functions = [] if has_model(parts.sampled) else opaque
        self._is_model_expected = bool(opaque) and has_model(parts.sampled)
        hidden = list_hidden_models(parts.sampled)
        self._told_of_streaming = bool(hidden)
        _warn_of_hidden(hidden)

    def draw(self, prompt: Any, n: int, config: RunnableConfig | None = None) -> list[DrawnCandidate]:
        """Draw n candidates by themselves, as for calibration records.

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
            return run_flow(self.draws(prompt, n, given, Progress()))

    async def adraw(self, prompt: Any, n: int, config: RunnableConfig | None = None) -> list[DrawnCandidate]:
        """The same as `draw`, asynchronously."""
        given = ensure_config(config)
        with apply_config_limits(given):
            return await arun_flow(self.draws(prompt, n, given, Progress()))

    def draws(
        self,
        prompt: Any,
        n: int,
        config: RunnableConfig,
        progress: Progress,
        witness: UsageRecorder | None = None,
        *,
        keeper: CandidateStore | None = None,
    ) -> Steps[list[DrawnCandidate]]:
        """Draw n candidates, as a part of something larger.

        Args:
            prompt: What the generator is invoked with.
            n: Number of candidates, at least 1.
            config: Config that the runs of the draws inherit.
            progress: Told of each candidate.
            witness: Sees the draws, also where some fail; the config must be that of `witnessed`. One of its
                own if left out.
            keeper: Knows candidates that were drawn before, and is given each new one as soon as it is there.

        Returns:
            n candidates in the order of their slots, whenever they were completed.

        Raises:
            DrawError: If fewer than n could be drawn, or one cannot be read as text.
        """
        if witness is None:
            witness = UsageRecorder()
            config = self.witnessed(config, witness)
        self._warn_of_cache()
        self._warn_of_same_answers(n)
        given = prompt
        if self._once is not None:
            given = yield from self._prepared(self._once, prompt, add_tags(config, "cfc:context"))
        known = {} if keeper is None else keeper.known(given)
        receive = _ignored if keeper is None else partial(self._keep, keeper, witness)
        slots = [slot for slot in range(n) if slot not in known]
        observers = {} if self._says_all else {slot: SlotObserver() for slot in slots}
        hooks = DrawHooks(receive, observers)
        outputs: dict[int, Any] = dict(known)
        if slots:
            found = yield from self._first.ask(given, slots, config, progress, hooks)
            outputs.update(zip(slots, found, strict=True))
        for _ in range(TOP_UPS):
            if missing := _missing(outputs, slots):
                found = yield from self._separate.ask(given, missing, config, progress, hooks)
                outputs.update(zip(missing, found, strict=True))
        # A keeper was given each of them already.
        self._look(witness, [outputs[slot] for slot in slots] if keeper is None else ())
        _check([outputs[slot] for slot in range(n)], self._first.hint)
        draws = [known[slot] if slot in known else make_candidate(slot, outputs[slot]) for slot in range(n)]
        try:
            self._refuse_repetition(draws, observers)
        except DrawError:
            if keeper is not None:  # or the next run would take them for n draws
                keeper.discard()
            raise
        return draws

    def _keep(self, keeper: CandidateStore, witness: UsageRecorder, slot: int, output: Any) -> None:
        """Give a candidate to its keeper, once its usage is counted."""
        if self._says_all:
            witness.note(output, drawn=True)
        # One that cannot be read is refused together with the others.
        with suppress(DrawError):
            keeper.keep(slot, make_candidate(slot, output))

    def _prepared(self, once: Runnable[Any, Any], prompt: Any, config: RunnableConfig) -> Steps[Any]:
        run, arun = partial(once.invoke, config=config), partial(once.ainvoke, config=config)
        try:
            return unwrap_outcomes((yield call_each(run, arun, [prompt])))[0]
        except CFCError:
            raise
        except Exception as error:
            msg = f"what comes before the model failed with {describe_error(error)}; nothing was drawn"
            raise DrawError(msg) from error

    def witnessed(self, config: RunnableConfig, witness: UsageRecorder) -> RunnableConfig:
        """The config of draws with somebody who listens to them, unless their messages say it all.

        Args:
            config: Config of the draws.
            witness: Who listens.
        """
        return config if self._says_all else witness.heard_in(config)

    def _look(self, witness: UsageRecorder, outputs: Sequence[Any]) -> None:
        """Look at what was seen; say it, once, where a model streamed all the same, as one in an agent does.

        Warns:
            SamplingWarning: If one did.
        """
        if self._says_all:
            for output in outputs:
                witness.note(output, drawn=True)
        self._warn_of_other_models(witness.versions)
        if witness.streamed and not self._told_of_streaming:
            self._told_of_streaming = True
            msg = (
                "a model streamed while it drew, which cannot be switched off from here: whoever listens to "
                "token events sees rejected candidates. Give it disable_streaming=True"
            )
            warnings.warn(msg, SamplingWarning, stacklevel=2)

    def _refuse_repetition(
        self, draws: Sequence[DrawnCandidate], observers: Mapping[int, SlotObserver]
    ) -> None:
        """Refuse candidates that are visibly not n draws; the choices of one request are."""
        if self._first is not self._separate:
            return
        found = find_repetition(draws, observers, is_model_expected=self._is_model_expected)
        if found is not None:
            msg = (
                f"{found}. The guarantee is about n candidates that are drawn one by one: switch off caches "
                "(cache=False for a model in a function) and leave fixed seeds out"
            )
            raise DrawError(msg)

    def _warn_of_same_answers(self, n: int) -> None:
        """Once, where the model's settings make all candidates the same."""
        if self._always_same is not None and n > 1:
            setting, self._always_same = self._always_same, None
            msg = (
                f"the generator has {setting}: {n} requests a prompt are paid for, and nearly all of them "
                "give the same answer. Draw with a temperature above 0, and calibrate with it"
            )
            warnings.warn(msg, SamplingWarning, stacklevel=2)

    def _warn_of_other_models(self, answered: Iterable[str]) -> None:
        """Once for each model that answered in place of the one asked for."""
        for name in answered:
            if self._asked is None or name in self._other_models or is_same_model(self._asked, name):
                continue
            self._other_models.add(name)
            msg = (
                f"the generator asks for the model {self._asked!r}, and {name!r} answered: check what the "
                "endpoint serves under that name"
            )
            warnings.warn(msg, SamplingWarning, stacklevel=2)

    def _warn_of_cache(self) -> None:
        """Once, where a model inside a function may be answered from LangChain's global cache."""
        if self._functions and get_llm_cache() is not None:
            listed, self._functions = ", ".join(self._functions), []
            msg = (
                "a global LLM cache is set, and a model called in a function cannot be taken out of it: "
                f"all candidates would be one if it is called in {listed}. Give such a model cache=False"
            )
            warnings.warn(msg, SamplingWarning, stacklevel=2)


class CandidateStore(Protocol):
    """Keeps candidates one by one, so that those of a prompt that is not finished need not be drawn again."""

    def known(self, prepared: Any) -> Mapping[int, DrawnCandidate]:
        """Candidates by slot that were drawn with the same prepared input."""

    def keep(self, slot: int, draw: DrawnCandidate) -> None:
        """Take in a candidate as soon as it is there."""

    def discard(self) -> None:
        """Drop all candidates of the prompt, which were refused."""


class DrawHooks(NamedTuple):
    """What happens beside the draws.

    Attributes:
        receive: Called with slot and output as soon as a candidate is there.
        observers: By slot, what listens to its model calls; none where messages tell all.
    """

    receive: Callable[[int, Any], None]
    observers: Mapping[int, SlotObserver]


def _ignored(slot: int, output: Any) -> None:
    """Take nothing in."""


class _Strategy(ABC):
    """How candidates are asked for.

    Attributes:
        hint: What to say where every request failed.
    """

    hint = ""

    @abstractmethod
    def ask(
        self,
        given: Any,
        slots: Sequence[int],
        config: RunnableConfig,
        progress: Progress,
        hooks: DrawHooks,
    ) -> Steps[list[Any]]:
        """For each slot the generator's output, or the exception in its place."""


class _SeparateRequests(_Strategy):
    """One request per slot."""

    def __init__(self, sampled: Runnable[Any, Any]) -> None:
        self._sampled = sampled

    def ask(
        self,
        given: Any,
        slots: Sequence[int],
        config: RunnableConfig,
        progress: Progress,
        hooks: DrawHooks,
    ) -> Steps[list[Any]]:
        configs = {slot: _drawing(config, slot) for slot in slots}
        configs |= {
            slot: add_handler(configs[slot], hooks.observers[slot])
            for slot in slots
            if slot in hooks.observers
        }

        def run(slot: int) -> Any:
            output = self._sampled.invoke(given, configs[slot])
            hooks.receive(slot, output)
            progress.tell("cfc:drawn", {"slot": slot})
            return output

        async def arun(slot: int) -> Any:
            output = await self._sampled.ainvoke(given, configs[slot])
            hooks.receive(slot, output)
            await progress.atell("cfc:drawn", {"slot": slot})
            return output

        outputs: list[Any] = yield call_each(run, arun, slots)
        return outputs


class _SingleRequest(_Strategy):
    """One request for as many choices as there are slots; separate ones for those that it does not bring."""

    hint = "; if it is the number of choices that is refused, use sampling='requests'"

    def __init__(self, sampled: Runnable[Any, Any], separate: _SeparateRequests) -> None:
        found = find_answering_model(sampled)
        if found is None:
            msg = (
                "sampling='single_request' asks a chat model for n choices; this generator is not a chat "
                "model, nor a sequence whose first model is one. Use sampling='requests'"
            )
            raise InputError(msg)
        choices = MultipleChoiceRequest(
            model=SingleUsageModel.of(found.model), parameter=get_choices_parameter(found.model)
        )
        self._choices = found.around(choices)
        self._after = found.after
        self._separate = separate

    def ask(
        self,
        given: Any,
        slots: Sequence[int],
        config: RunnableConfig,
        progress: Progress,
        hooks: DrawHooks,
    ) -> Steps[list[Any]]:
        config = add_tags(config, DRAW_TAG)
        (messages,) = yield call_each(
            partial(self._choices.invoke, config=config, choices=len(slots)),
            partial(self._choices.ainvoke, config=config, choices=len(slots)),
            [given],
        )
        if isinstance(messages, Exception):
            return [messages] * len(slots)
        came = slots[: len(messages)]
        outputs = yield from self._read(messages[: len(came)], came, config, progress)
        for slot, output in zip(came, outputs, strict=True):
            if not isinstance(output, Exception):
                hooks.receive(slot, output)
        missing = slots[len(came) :]
        if missing:
            outputs += yield from self._separate.ask(given, missing, config, progress, hooks)
        return outputs

    def _read(
        self, messages: Sequence[Any], slots: Sequence[int], config: RunnableConfig, progress: Progress
    ) -> Steps[list[Any]]:
        """What the steps after the model make of each message."""
        after = self._after
        for slot in slots:
            yield progress.step("cfc:drawn", {"slot": slot})
        if after is None:
            return list(messages)
        configs = [_drawing(config, slot) for slot in slots]
        outputs: list[Any] = yield call_each(
            lambda position: after.invoke(messages[position], configs[position]),
            lambda position: after.ainvoke(messages[position], configs[position]),
            range(len(messages)),
        )
        return outputs


def _drawing(config: RunnableConfig, slot: int) -> RunnableConfig:
    return add_tags(config, DRAW_TAG, f"cfc:candidate:{slot}")


def _warn_of_hidden(hidden: Sequence[str]) -> None:
    if hidden:
        msg = (
            f"out of reach, for no copy can be made of what a function has closed over: {', '.join(hidden)}. "
            "Its cache would make all candidates the same, and its streaming would show them to whoever "
            "listens to events: give it cache=False and disable_streaming=True, or pass the model itself"
        )
        warnings.warn(msg, SamplingWarning, stacklevel=5)


def _missing(outputs: Mapping[int, Any], asked: Sequence[int]) -> list[int]:
    """Slots to ask again: those that failed, unless all that were asked did."""
    slots = [slot for slot in asked if isinstance(outputs[slot], BaseException)]
    return slots if len(slots) < len(asked) else []


def _check(outputs: Sequence[Any], hint: str) -> None:
    failed = [(slot, output) for slot, output in enumerate(outputs) if isinstance(output, BaseException)]
    if failed:
        slot, error = failed[0]
        msg = (
            f"{len(failed)} of {len(outputs)} candidates could not be drawn, first candidate {slot}: "
            f"{describe_error(error)}. The guarantee holds for exactly n"
        )
        if not isinstance(error, (CFCError, KeyError, TypeError, ValueError)):
            msg += "; give the generator retries (generator.with_retry()) if this passes"
        if len(failed) == len(outputs):
            msg += hint
        raise DrawError(msg) from error
