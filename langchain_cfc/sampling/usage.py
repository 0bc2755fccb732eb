"""Callback handlers that watch the draws of a prompt: models, tokens, and repeated answers.

`UsageRecorder` sums over all model runs of a prompt, and `SlotObserver` watches the runs of one candidate.
From the observers, `find_repetition` detects candidates that are visibly not separate draws.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.messages import BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig

from langchain_cfc.sampling.candidates import DrawnCandidate
from langchain_cfc.sampling.models import find_seed
from langchain_cfc.sampling.token_counts import is_complete, read_usage, sum_usage

# Marks the runs that draw.
DRAW_TAG = "cfc:candidate"
# What belongs to the request in whose context a chat model draws; None elsewhere.
REQUEST: ContextVar[dict[str, Any] | None] = ContextVar("langchain_cfc_request", default=None)


def add_handler(config: RunnableConfig, handler: BaseCallbackHandler, *tags: str) -> RunnableConfig:
    """Return a config with a further callback handler and further tags, which child runs inherit.

    Callbacks that are None mean that no others are asked for, also not by the environment.
    """
    callbacks: Any = config.get("callbacks")
    if isinstance(callbacks, list):
        callbacks = [*callbacks, handler]
    else:
        callbacks = CallbackManager([]) if callbacks is None else callbacks.copy()
        callbacks.add_handler(handler)
    return {**config, "callbacks": callbacks, "tags": [*(config.get("tags") or []), *tags]}


class _ModelObserver(BaseCallbackHandler):
    """Base of handlers for model runs only; called inline, which is cheaper than handing over to a thread."""

    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True
    run_inline = True


def _iterate_first_messages(response: LLMResult) -> Iterator[BaseMessage]:
    """Yield the first message of each prompt's response: with several choices, each repeats the usage."""
    for batch in response.generations:
        if batch:
            one = batch[0]
            yield (
                one.message
                if isinstance(one, ChatGeneration)
                else BaseMessage(one.text, response_metadata=one.generation_info or {}, type="text")
            )


@dataclass(eq=False)
class UsageRecorder(_ModelObserver):
    """Records every model run of a prompt's draws, even if a parser drops the model's message.

    Attributes:
        usages: Tokens by the name that a model reports (empty if it reports none), including models that
            prepare a request.
        answers: Number of answered requests, by the same names.
        silent: Number of answered requests that do not state their numbers of tokens.
        versions: Names reported by the models that drew candidates, in order of first appearance.
        streamed: Whether any model that drew candidates streamed.
    """

    ignore_chat_model = True

    usages: dict[str, UsageMetadata] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    silent: int = 0
    versions: dict[str, None] = field(default_factory=dict)
    streamed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def on_llm_new_token(
        self, token: str | list[str | dict[str, Any]], *, tags: list[str] | None = None, **kwargs: Any
    ) -> None:
        """Record that a draw streams."""
        del token, kwargs
        self.streamed |= DRAW_TAG in (tags or [])

    def on_llm_end(self, response: LLMResult, *, tags: list[str] | None = None, **kwargs: Any) -> None:
        """Record which model answered, and its usage."""
        del kwargs
        for message in _iterate_first_messages(response):
            self.record(message, drawn=DRAW_TAG in (tags or []))

    def record(self, message: Any, *, drawn: bool) -> None:
        """Record the name and usage in a model's message; `drawn` says whether it drew a candidate."""
        if not isinstance(message, BaseMessage):
            return
        stated = message.response_metadata.get("model_name")
        name = stated if isinstance(stated, str) else ""
        usage = read_usage(getattr(message, "usage_metadata", None))
        with self._lock:
            self.answers[name] = self.answers.get(name, 0) + 1
            self.silent += not is_complete(usage)
            if usage and (total := sum_usage([self.usages.get(name), usage])):
                self.usages[name] = total
            if drawn and name:
                self.versions.setdefault(name)

    @property
    def usage(self) -> UsageMetadata | None:
        """Tokens of all answered requests; None if no message states any."""
        return sum_usage(self.usages.values())


@dataclass(eq=False)
class SlotObserver(_ModelObserver):
    """Observes the model calls of one candidate, including models deep inside a function or a graph.

    Attributes:
        message_ids: The ids of the models' messages; None for a message without an id.
        seeds: The fixed seeds of the calls.
        reply: The last message: that of the model that answers.
        choices: All choices in the response that it is the first one of; None before it.
    """

    # Threads may share it without a lock: each method changes one field by one atomic call.
    message_ids: list[str | None] = field(default_factory=list)
    seeds: set[int] = field(default_factory=set)
    reply: BaseMessage | None = None
    choices: list[BaseMessage] | None = None

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **kwargs: Any
    ) -> None:
        """Record the fixed seed of a call, if any."""
        del serialized, messages
        seed = find_seed(kwargs.get("invocation_params") or {})
        if seed is not None:
            self.seeds.add(seed)

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        """Record the messages."""
        del kwargs
        messages = list(_iterate_first_messages(response))
        self.message_ids.extend([message.id for message in messages])
        self.reply = messages[-1] if messages else None
        self.choices = [one.message for one in response.generations[-1] if isinstance(one, ChatGeneration)]


def find_repetition(
    draws: Sequence[DrawnCandidate],
    observers: Mapping[int, SlotObserver],
    *,
    choices: int = 0,
    is_model_expected: bool,
) -> str | None:
    """Return why the candidates cannot be separate draws, as a clause for messages; None if they may be.

    A function that returns a stored message may call no model that could be observed, so no two candidates
    may have the same message as their output. Apart from that, candidates may share a message, such as a
    rewritten question, as long as each also has a new one. A candidate without a model call is rejected if
    another candidate has the same text, and a model is known to be called for every candidate, or was called
    for others. `observers` are by slot, and empty if nothing could be observed. The first `choices`
    candidates came from a single request and are not checked.
    """
    observers = {slot: one for slot, one in observers.items() if slot >= choices}
    seen: set[Any] = set()
    for slot, draw in enumerate(draws[choices:], choices):
        message, outputs = draw.message, set[Any]()
        if message is not None:
            outputs = {id(message), *([(message.id, draw.text)] if message.id else [])}
        unobserved = [message.id] if message is not None and not observers else []
        ids = observers[slot].message_ids if slot in observers else unobserved
        # A message without an id counts as new, so None is never in `seen`.
        if not seen.isdisjoint(outputs) or (ids and seen.issuperset(ids)):
            return f"candidate {slot} repeats the message of an earlier candidate, as if from a cache"
        seen |= outputs | set(ids) - {None}
    if not observers:
        return None
    seeds: set[int] = set()
    for one in observers.values():
        if not seeds.isdisjoint(one.seeds):
            return f"several candidates were drawn with the fixed seed {min(seeds.intersection(one.seeds))}"
        seeds.update(one.seeds)
    silent = [slot for slot, one in observers.items() if not one.message_ids]
    if not silent or not (is_model_expected or len(silent) < len(observers)):
        return None
    texts = Counter([draw.text for draw in draws[choices:] if draw.no_answer is None])
    copied = [slot for slot in silent if texts[draws[slot].text] > 1]
    if copied:
        return (
            f"no model was called for {len(silent)} of {len(draws) - choices} candidates, and candidate "
            f"{copied[0]} has the text of another one"
        )
    return None
