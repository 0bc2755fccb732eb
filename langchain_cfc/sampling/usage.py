"""`UsageRecorder`: which models answered, and what that cost."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig

from langchain_cfc.sampling.candidates import DrawnCandidate
from langchain_cfc.sampling.models import find_seed

# Marks the runs that draw.
DRAW_TAG = "cfc:candidate"


def add_handler(config: RunnableConfig, handler: BaseCallbackHandler) -> RunnableConfig:
    """Return a config with a further callback handler, which child runs inherit."""
    given: Any = config.get("callbacks")
    if given is None or isinstance(given, list):
        return {**config, "callbacks": [*(given or []), handler]}
    callbacks: BaseCallbackManager = given.copy()
    callbacks.add_handler(handler)
    return {**config, "callbacks": callbacks}


class UsageRecorder(BaseCallbackHandler):
    """Sees every model run of a prompt's draws, also of models deep in a chain whose messages a parser drops.

    Attributes:
        usages: Tokens by the name that a model gives itself, empty where it gives none; of all that answered,
            to prepare a request as well.
        answers: How many requests were answered, by the same names.
        answered: How many requests were answered in all.
        silent: How many of them did not say what they took.
        versions: What the models that drew call themselves, in the order in which they first did.
        streamed: Whether any of them streamed.
    """

    ignore_chat_model = True
    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True
    # What it does is cheaper than to hand it to a thread.
    run_inline = True

    def __init__(self) -> None:
        self.usages: dict[str, UsageMetadata] = {}
        self.answers: dict[str, int] = {}
        self.answered = self.silent = 0
        self.versions: dict[str, None] = {}
        self.streamed = False
        self._lock = threading.Lock()

    def heard_in(self, config: RunnableConfig) -> RunnableConfig:
        """A config with this witness beside whoever listens already."""
        return add_handler(config, self)

    def on_llm_new_token(
        self, token: str | list[str | dict[str, Any]], *, tags: list[str] | None = None, **kwargs: Any
    ) -> None:
        """Note that a draw streams."""
        del token, kwargs
        self.streamed |= DRAW_TAG in (tags or [])

    def on_llm_end(self, response: LLMResult, *, tags: list[str] | None = None, **kwargs: Any) -> None:
        """Note who answered, and what it cost."""
        del kwargs
        drawn = DRAW_TAG in (tags or [])
        # Of several choices each bears the usage of the whole request.
        for generation in (batch[0] for batch in response.generations if batch):
            if isinstance(generation, ChatGeneration):
                self.note(generation.message, drawn=drawn)

    def note(self, message: BaseMessage | None, *, drawn: bool) -> None:
        """Note what a message says of itself.

        Args:
            message: Of a model; anything else says nothing.
            drawn: Whether it is a candidate's.
        """
        if not isinstance(message, AIMessage):
            return
        said = message.response_metadata.get("model_name")
        name = said if isinstance(said, str) else ""
        with self._lock:
            self.answered += 1
            self.answers[name] = self.answers.get(name, 0) + 1
            if message.usage_metadata is None:
                self.silent += 1
            else:
                self.usages[name] = add_usage(self.usages.get(name), message.usage_metadata)
            if drawn and name:
                self.versions.setdefault(name)

    @property
    def usage(self) -> UsageMetadata | None:
        """Tokens of all that answered; None where none says."""
        return reduce(add_usage, self.usages.values()) if self.usages else None


# What providers put behind a model's name: an alias, or a date or number of three digits and more.
_ALIAS = re.compile(r"[-:]latest$")
_VERSION = re.compile(r"([-@_:]\d{3,}(-\d{2})*)?(-preview)?")


class SlotObserver(BaseCallbackHandler):
    """Sees the model calls of one candidate, also of models deep in a function or a graph.

    Attributes:
        message_ids: The ids of the messages that models gave; None for one without an id.
        seeds: The fixed seeds that calls asked for.
    """

    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True
    # What it does is cheaper than to hand it to a thread.
    run_inline = True

    def __init__(self) -> None:
        self.message_ids: list[str | None] = []
        self.seeds: set[int] = set()
        self._lock = threading.Lock()

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **kwargs: Any
    ) -> None:
        """Note a fixed seed."""
        del serialized, messages
        seed = find_seed(kwargs.get("invocation_params") or {})
        if seed is not None:
            with self._lock:
                self.seeds.add(seed)

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        """Note whose message it is."""
        del kwargs
        found = [batch[0] for batch in response.generations if batch]
        with self._lock:
            self.message_ids += [one.message.id if isinstance(one, ChatGeneration) else None for one in found]


def find_repetition(
    draws: Sequence[DrawnCandidate], observers: Mapping[int, SlotObserver], *, is_model_expected: bool
) -> str | None:
    """Return why n candidates are not n draws, as far as that can be seen.

    A chain may share one message between candidates, such as a rewritten question, as long as another message
    of each is new. A candidate without a model call is one only if no other has its text.

    Args:
        draws: n candidates, ordered by slot.
        observers: What was seen of each slot; empty where nothing could be.
        is_model_expected: Whether a model is known to be called for every candidate.

    Returns:
        A clause for messages; None where nothing was seen.
    """
    ids = {slot: one.message_ids for slot, one in observers.items()} or {
        slot: [draw.message.id] for slot, draw in enumerate(draws) if draw.message is not None
    }
    seen: set[str] = set()
    for slot in sorted(ids):
        if ids[slot] and all(one is not None and one in seen for one in ids[slot]):
            return f"candidate {slot} is the response of an earlier candidate once more, as from a cache"
        seen.update(one for one in ids[slot] if one is not None)
    seeds = Counter(seed for one in observers.values() for seed in one.seeds)
    repeated = [seed for seed, count in seeds.items() if count > 1]
    if repeated:
        return f"several candidates were drawn with the fixed seed {repeated[0]}"
    silent = [slot for slot, one in observers.items() if not one.message_ids]
    texts = Counter(draw.text for draw in draws)
    copied = [slot for slot in silent if texts[draws[slot].text] > 1]
    if copied and (is_model_expected or len(silent) < len(observers)):
        return (
            f"no model was called for {len(silent)} of {len(draws)} candidates, and candidate {copied[0]} "
            "has the text of another one"
        )
    return None


def is_same_model(asked: str, answered: str) -> bool:
    """Return whether a model that answered is the one asked for, perhaps under a dated or numbered name.

    >>> is_same_model("gpt-4o-mini", "gpt-4o-mini-2024-07-18")
    True
    >>> is_same_model("gpt-4o", "gpt-4o-mini-2024-07-18")
    False
    """
    first, second = (_ALIAS.sub("", name.rpartition("/")[2].lower()) for name in (asked, answered))
    shorter, longer = sorted((first, second), key=len)
    return longer.startswith(shorter) and _VERSION.fullmatch(longer[len(shorter) :]) is not None
