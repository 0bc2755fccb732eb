"""One draw for each prompt of a call: asked again within it, a chain repeats its first result.

Suppose a question abstains with probability 1 - p. A retry, a fallback or a loop around the chain that asks
it again until an answer comes out answers it with probability 1 - (1 - p)^k, but the promise was tested for
one draw. So the first result of a prompt is kept until the outermost LangChain call ends, and every further
request for the same prompt within that call gets it. A failed draw showed no result, so it may be repeated.

LangChain passes the callback handlers of a run on to the runs inside it. So a handler that takes no events is
shared by all runs of one outermost call: a retry, a sequence, a graph. Loops in Python code outside of
LangChain are separate calls, which nothing here can see. The request of a chat model that draws a candidate
is a call of its own, whose context holds the register instead: every handler of a model costs time.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.load import dumps
from langchain_core.messages import BaseMessage
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import RunnableConfig

from langchain_cfc.errors import InputError
from langchain_cfc.execution import Step, Steps, describe_error
from langchain_cfc.execution.limits import RunManager
from langchain_cfc.sampling.usage import REQUEST
from langchain_cfc.support.serialization import compute_sha256

if TYPE_CHECKING:
    from langchain_cfc.runnable.result import CFCResult

OTHER_SETTINGS = (
    "the same prompt was asked before in this call or conversation, with other settings (error level, rate "
    "or show_rejected), and choosing them after seeing a result would void the guarantee: ask once"
)
# Maximum number of prompts whose results one call keeps; the oldest go first.
_MAX_PROMPTS = 1000


class DrawRegister(BaseCallbackHandler):
    """The results of one outermost call, by prompt; takes no events.

    Threads share it without a lock, because each method makes one atomic change.
    """

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_chain = ignore_agent = True
    ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        # Of the first draw for a prompt its settings, and its result once there is one, None if it failed.
        self._draws: dict[tuple[Any, ...], tuple[Any, Future[CFCResult | None]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle nothing: a call on another machine has a register of its own."""
        return type(self), ()

    def draw_once(
        self, key: tuple[Any, ...], settings: Any, draw: Callable[[], Steps[CFCResult]], thread: str = ""
    ) -> Steps[CFCResult]:
        """Return the result of the first draw with this key, which is `draw` if there was none.

        Within one call it does not depend on the conversation, whose id is `thread`.

        Raises:
            InputError: If the first draw had other settings, such as another error level.
        """
        del thread
        while True:
            mine: Future[CFCResult | None] = Future()
            mine.set_running_or_notify_cancel()  # so that a waiting task cannot cancel it
            known, first = self._draws.setdefault(key, (settings, mine))
            if first is mine:
                break
            if known != settings:
                raise InputError(OTHER_SETTINGS)
            result = yield Step(first.result, partial(asyncio.wrap_future, first))
            if result is not None:
                repeated: CFCResult = result.repeat()
                return repeated
        result = None
        try:
            result = yield from draw()
        finally:
            if result is None:
                self._draws.pop(key, None)
            elif len(self._draws) > _MAX_PROMPTS:
                self._draws.pop(next(iter(self._draws)), None)
            mine.set_result(result)
        return result


class Same:
    """A part of a key that is equal if its objects are; it keeps them, so that no address is used again."""

    def __init__(self, one: Any) -> None:
        self.one = one

    def __eq__(self, other: object) -> bool:
        try:
            return isinstance(other, Same) and (self.one is other.one or bool(self.one == other.one))
        except Exception:  # noqa: BLE001 - the object's own code, such as that of arrays
            return False

    def __hash__(self) -> int:
        return 0


@cache
def start_registers() -> None:
    """Give every outermost run that begins from now on a register; called when a `CFCRunnable` is made."""
    # Imported late: LangChain's tracers take a while to import, and are needed for the first run only.
    from langchain_core.tracers.context import register_configure_hook

    # Takes the place of a context variable: LangChain adds what it gets to a run that has inherited none.
    maker: Any = SimpleNamespace(get=lambda: DrawRegister() if REQUEST.get() is None else None)
    register_configure_hook(maker, inheritable=True, handle_class=DrawRegister)


def find_register(run_manager: RunManager) -> DrawRegister | None:
    """Return the register of the call that a run belongs to; None for a run that is itself the whole call.

    One that was passed in the config outlasts the call, and counts before the call's own.
    """
    found = [one for one in run_manager.handlers if isinstance(one, DrawRegister)]
    if not found and (request := REQUEST.get()) is not None:
        found = [request.setdefault("register", DrawRegister())]
    given = [one for one in found if type(one) is not DrawRegister]
    return next(iter(given or (found if run_manager.parent_run_id is not None else ())), None)


def detach_register(config: RunnableConfig) -> RunnableConfig:
    """Return a config without the register: each draw, and each call of a verifier, is a call of its own."""
    callbacks = config.get("callbacks")
    if not isinstance(callbacks, BaseCallbackManager):
        return config
    kept = [one for one in callbacks.handlers if not isinstance(one, DrawRegister)]
    if not kept:
        return {**config, "callbacks": None}
    callbacks.set_handlers(kept)
    return config


def digest_prompt(prompt: Any) -> str:
    """Return a digest that equal prompts share; the ids of messages do not count.

    Raises:
        InputError: If the prompt holds an object that no digest tells from others.
    """
    messages = prompt.to_messages() if isinstance(prompt, PromptValue) else prompt
    listed = messages if isinstance(messages, (list, tuple)) else [messages]
    bare = [one.model_copy(update={"id": None}) if isinstance(one, BaseMessage) else one for one in listed]
    stated = dumps(bare).encode()
    if b'"not_implemented"' in stated:
        # Another object may have the same `repr`: a long array, or one whose address is used again.
        try:
            stated = pickle.dumps(bare)
        except Exception as error:  # whatever the object's own code raises
            msg = (
                f"the prompt holds an object that cannot be compared with others ({describe_error(error)}): "
                "pass plain data, or objects that can be pickled"
            )
            raise InputError(msg) from error
    return compute_sha256(stated)
