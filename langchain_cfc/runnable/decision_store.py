"""`DecisionStore`: a question that is asked again in a conversation gets its first decision.

Suppose a question is answered with probability p, and wrongly with probability w. Asked until an answer comes
out, at most k times, it is answered wrongly with probability w (1 - (1 - p)^k) / p, up to w / p: the rate
among all questions is void. With a store the first decision is final, however often the question is asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.stores import BaseStore

from langchain_cfc.errors import InputError, ServingError
from langchain_cfc.execution import Step, Steps, describe_error
from langchain_cfc.runnable.redraws import OTHER_SETTINGS, DrawRegister
from langchain_cfc.runnable.result import read_result
from langchain_cfc.support.serialization import canonical_json, compute_sha256

if TYPE_CHECKING:
    from langchain_cfc.runnable.result import CFCResult


class DecisionStore(DrawRegister):
    """Keeps the first decision on each question of a conversation in a store of LangChain's.

    It is a callback handler that takes no events: `chain.with_config(callbacks=[DecisionStore(store)])`, or
    `callbacks` of one call. It reaches every `CFCRunnable` inside. A question is the same if prompt, artifact
    and generator are, and generators that do not say what they are, such as functions, count as one: give
    those of different users different conversations. Questions that are worded differently are different
    ones. A failed call is no decision.
    If two processes are asked the same question at the same moment, each of them may draw; the one that
    finishes later returns the other's decision.

    Args:
        store: A `BaseStore` of bytes. It holds answers in plain text: protect it like the conversations.
        conversation: Id of the conversation or client. Default: the config's `configurable.thread_id`;
            without one, the same question has the same decision for all.
    """

    def __init__(self, store: BaseStore[str, Any], conversation: str | None = None) -> None:
        super().__init__()
        self._store = store
        self._conversation = conversation

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store."""
        return type(self), (self._store, self._conversation)

    def draw_once(
        self, key: tuple[Any, ...], settings: Any, draw: Callable[[], Steps[CFCResult]], thread: str = ""
    ) -> Steps[CFCResult]:
        """Return the stored decision with this key; without one, store that of `draw`.

        Raises:
            InputError: If the first decision had other settings, such as another error level.
            ServingError: If the store fails, or holds something else under this key.
        """
        key = (self._conversation or thread, *key)
        # The last part tells functions apart, which no store can.
        name = compute_sha256(canonical_json(key[:-1])).removeprefix("sha256:")
        kept = partial(self._draw_unless_stored, name, [str(one) for one in settings], draw)
        return (yield from super().draw_once(key, settings, kept))

    def _draw_unless_stored(
        self, name: str, settings: list[str], draw: Callable[[], Steps[CFCResult]]
    ) -> Steps[CFCResult]:
        found = yield from self._read(name, settings)
        if found is not None:
            return found
        result = yield from draw()
        found = yield from self._read(name, settings)
        if found is not None:
            return found
        stated = {"name": name, "settings": settings, "result": result.model_dump(mode="json")}
        text = canonical_json(stated)
        pair = (name, f"{compute_sha256(text)} {text}".encode())
        yield from _call(partial(self._store.mset, [pair]), partial(self._store.amset, [pair]))
        return result

    def _read(self, name: str, settings: list[str]) -> Steps[CFCResult | None]:
        (found,) = yield from _call(partial(self._store.mget, [name]), partial(self._store.amget, [name]))
        if found is None:
            return None
        try:
            digest, _, text = bytes(found).decode().partition(" ")
            data = json.loads(text)
            is_intact = digest == compute_sha256(text) and data["name"] == name
            result = read_result(data["result"]) if is_intact else None
        except (TypeError, LookupError, ValueError):
            result = None
        if result is None:
            msg = f"the decision {name} in the store is damaged: delete it there to have it drawn again"
            raise ServingError(msg)
        if data["settings"] != settings:
            raise InputError(OTHER_SETTINGS)
        return result.repeat()


def _call(run: Callable[[], Any], arun: Callable[[], Any]) -> Steps[Any]:
    """Return what a store returns; its errors fail the request, since a decision may be in it."""
    try:
        return (yield Step(run, arun))
    except Exception as error:
        msg = f"the store of decisions failed, so nothing was answered: {describe_error(error)}"
        raise ServingError(msg) from error
