"""`Witness`: which models answered, and what that cost."""

from __future__ import annotations

import threading
from functools import reduce
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig

# Marks the runs that draw.
DRAW_TAG = "cfc:candidate"


def with_handler(config: RunnableConfig, handler: BaseCallbackHandler) -> RunnableConfig:
    """Return a config with a further callback handler, which child runs inherit."""
    given: Any = config.get("callbacks")
    if given is None or isinstance(given, list):
        return {**config, "callbacks": [*(given or []), handler]}
    callbacks: BaseCallbackManager = given.copy()
    callbacks.add_handler(handler)
    return {**config, "callbacks": callbacks}


class Witness(BaseCallbackHandler):
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
        return with_handler(config, self)

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
