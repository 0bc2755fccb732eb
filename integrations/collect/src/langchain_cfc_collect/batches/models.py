"""Find the chat models of a collection whose requests can go through batches, and redirect these requests.

A model gets a copy of its official client whose HTTP client hands each request to this package. All names
that this takes are public, except for `ChatAnthropic._async_client`.
"""

from __future__ import annotations

import inspect
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeAlias

from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import BaseModel

from langchain_cfc.errors import InputError
from langchain_cfc.execution.langgraph_compat import is_made_at_each_call
from langchain_cfc_collect.batches.providers import PROVIDERS, OpenAIBatches, Provider
from langchain_cfc_collect.costs import Stage

# Function that answers a request of a provider's models in place of the server.
SendFunction: TypeAlias = Callable[[Provider, Any], Awaitable[Any]]


def _find_library(kind: type) -> Any:
    """Return the HTTP library of a class: official clients of the two providers may use different ones."""
    return sys.modules[kind.__module__.partition(".")[0]]


def make_response(request: Any, packed: bytes) -> Any:
    """Return a compressed answer as a response, made with the HTTP library of the request."""
    headers, content = {"content-type": "application/json"}, zlib.decompress(packed)
    return _find_library(type(request)).Response(200, headers=headers, content=content, request=request)


class BatchedModels:
    """Chat models in the components of a collection, whose requests `send` answers until `close`.

    Attributes:
        providers: The batch interfaces of these models' clients.
        stages: The stages that call at least one of these models.
        live: Class names of the language models whose requests still go to their servers.

    Raises:
        InputError: If there is no model whose requests can go through batches.
    """

    def __init__(self, parts: Mapping[Stage, Any], send: SendFunction) -> None:
        self.providers: list[Provider] = []
        self.stages: set[Stage] = set()
        self._send = send
        self._replaced: dict[int, Any] = {}
        self._undo = AsyncExitStack()
        live: dict[str, None] = {}
        done: set[int] = set()
        for stage, part in parts.items():
            for model in find_models(part):
                if id(model) in done or any(self._replace(model, kind) for kind in PROVIDERS):
                    done.add(id(model))
                    self.stages.add(stage)
                else:
                    live.setdefault(type(model).__name__)
        self.live = list(live)
        if not self.providers:
            found = f"only {', '.join(live)}" if live else "no detectable chat model"
            msg = (
                "batches need ChatOpenAI or ChatAnthropic in generator, verifier or labeler, but there "
                f"is {found}: collect without batches"
            )
            raise InputError(msg)

    async def close(self) -> None:
        """Restore the models' own clients, and close those that were opened here."""
        await self._undo.aclose()

    def _replace(self, model: Any, kind: type[Provider]) -> bool:
        """Give a model a copy of its client with our transport; return whether it has such a client."""
        package, official = sys.modules.get(kind.models[0]), sys.modules.get(kind.name)
        if package is None or official is None or not isinstance(model, getattr(package, kind.models[1])):
            return False
        attributes, root = vars(model), getattr(model, kind.models[2])
        own = attributes.get("http_async_client")
        # A client of another HTTP library could not send our requests.
        make_http = official.DefaultAsyncHttpxClient
        library = next(one for one in make_http.__mro__ if one.__name__ == "AsyncClient")
        # A subclass is a client of another service, which has another batch interface or none.
        if type(root) is not getattr(official, kind.client) or not isinstance(own, (library, type(None))):
            return False
        if id(root) not in self._replaced:
            official_client, http = root, own
            # Clients share one that LangChain caches, which the event loops of several runs cannot share.
            if own is None:
                proxy = attributes[f"{kind.name}_proxy"]
                http = make_http(base_url=root.base_url, timeout=root.timeout, proxy=proxy)
                official_client = self._copy_client(root, http)
            provider = kind(official_client, http, str(root.base_url).rstrip("/"))
            self.providers.append(provider)
            # The libraries' name for a transport that lets a function answer.
            transport = _find_library(library).MockTransport(partial(self._send, provider))
            http = make_http(base_url=root.base_url, transport=transport)
            self._replaced[id(root)] = self._copy_client(root, http)
        replaced = self._replaced[id(root)]
        changed = {kind.models[2]: replaced}
        if kind is OpenAIBatches:
            changed["async_client"] = replaced.chat.completions
        # That of Anthropic is a cached property, and copies of the model inherit the cached value.
        self._undo.callback(attributes.update, {name: attributes[name] for name in changed})
        attributes.update(changed)
        return True

    def _copy_client(self, root: Any, http: Any) -> Any:
        """Return a copy of an official client with an HTTP client, which `close` closes."""
        self._undo.push_async_callback(http.aclose)
        return root.copy(http_client=http)


def find_models(part: Any) -> Iterator[Runnable[Any, Any]]:
    """Yield each language model in a component once, as far as it can be found from outside.

    This includes models that are made at each call (`init_chat_model` with configurable fields). The search
    covers fields, containers, variables that functions close over, and the attributes of Runnables, callables
    and objects of this package.
    """
    left, seen = [part], set()
    while left:
        one = left.pop()
        if isinstance(one, (str, bytes, int, float, type(None), type)) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, BaseLanguageModel) or is_made_at_each_call(one):
            yield one
        left += reversed(_list_contents(one))


def _list_contents(one: Any) -> list[Any]:
    """Return the values that an object uses and that may contain models."""
    inner: list[Any] = []
    if isinstance(one, RunnableLambda):
        inner += one.deps
    if isinstance(one, BaseModel):
        # `getattr` would warn about deprecated fields.
        inner += [vars(one).get(name) for name in type(one).model_fields]
    elif isinstance(one, Mapping):
        inner += one.values()
    elif isinstance(one, (list, tuple, set, frozenset)):
        inner += one
    elif isinstance(one, partial):
        inner += [one.func, *one.args, *one.keywords.values()]
    elif isinstance(one, MethodType):
        inner += [one.__self__, one.__func__]
    elif isinstance(one, FunctionType):
        inner += _list_closed_over(one)
    elif hasattr(one, "__dict__") and (isinstance(one, Runnable) or callable(one) or _is_ours(one)):
        inner += vars(one).values()
    return inner


def _list_closed_over(function: FunctionType) -> list[Any]:
    with suppress(ValueError):  # a closure cell may be empty
        found = inspect.getclosurevars(function)
        # Globals of functions of LangChain and of this package are other functions, not models.
        names = {} if function.__module__.startswith("langchain") else found.globals
        return [*found.nonlocals.values(), *names.values(), *(function.__defaults__ or ())]
    return []


def _is_ours(one: Any) -> bool:
    return type(one).__module__.partition(".")[0] == "langchain_cfc"
