"""Find the chat models of a collection whose requests can go through batches, and redirect these requests.

A model gets a copy of its official client whose HTTP client hands each request to this package. All names
that this takes are public, except for `ChatAnthropic._async_client`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Literal, TypeAlias

from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import BaseModel

from langchain_cfc.errors import InputError
from langchain_cfc.execution.langgraph_compat import is_made_at_each_call
from langchain_cfc_collect.costs import Stage

ProviderName: TypeAlias = Literal["openai", "anthropic"]


@dataclass(frozen=True, eq=False)
class Client:
    """Official client of a provider, shared by one or more chat models."""

    provider: ProviderName
    official: Any  # `openai.AsyncOpenAI` or `anthropic.AsyncAnthropic`, with the settings of the models
    http: Any  # HTTP client of `official`
    address: str  # base URL of its requests, without a slash at the end


# Function that answers a request of a client's models in place of the server.
SendFunction: TypeAlias = Callable[[Client, Any], Awaitable[Any]]


@dataclass(frozen=True, eq=False)
class _Transport:
    """Transport for the HTTP clients of both providers that passes requests to `send`."""

    client: Client
    send: SendFunction

    async def handle_async_request(self, request: Any) -> Any:
        return await self.send(self.client, request)

    async def aclose(self) -> None:
        """Do nothing, because the connections belong to `Client.official`."""

    async def __aenter__(self) -> object:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


def make_response(request: Any, content: bytes) -> Any:
    """Return the JSON of an answer as a response, made with the HTTP library of the request."""
    library = sys.modules[type(request).__module__.partition(".")[0]]
    headers = {"content-type": "application/json"}
    return library.Response(200, headers=headers, content=content, request=request)


class BatchedModels:
    """Chat models in the components of a collection, whose requests `send` answers until `close`.

    Attributes:
        clients: The clients of these models.
        stages: The stages that call at least one of these models.
        live: Class names of the language models whose requests still go to their servers.

    Raises:
        InputError: If there is no model whose requests can go through batches.
    """

    def __init__(self, parts: Mapping[Stage, Any], send: SendFunction) -> None:
        self.clients: list[Client] = []
        self.stages: set[Stage] = set()
        self._send = send
        self._replaced: dict[int, Any] = {}
        self._undo = AsyncExitStack()
        live: dict[str, None] = {}
        done: set[int] = set()
        for stage, part in parts.items():
            for model in find_models(part):
                if id(model) in done or self._replace_openai(model) or self._replace_anthropic(model):
                    done.add(id(model))
                    self.stages.add(stage)
                else:
                    live.setdefault(type(model).__name__)
        self.live = list(live)
        if not self.clients:
            found = f"only {', '.join(live)}" if live else "no detectable chat model"
            msg = (
                "batches need ChatOpenAI or ChatAnthropic in generator, verifier or labeler, but there "
                f"is {found}: collect without batches"
            )
            raise InputError(msg)

    async def close(self) -> None:
        """Restore the models' own clients, and close those that were opened here."""
        await self._undo.aclose()

    def _replace_openai(self, model: Any) -> bool:
        package, official = sys.modules.get("langchain_openai.chat_models.base"), sys.modules.get("openai")
        if package is None or official is None or not isinstance(model, package.BaseChatOpenAI):
            return False
        root = model.root_async_client
        # A subclass is a client of another service, which has another batch interface or none.
        if type(root) is not official.AsyncOpenAI:
            return False
        make_http = partial(official.DefaultAsyncHttpxClient, proxy=model.openai_proxy)
        replaced = self._replace_client("openai", root, make_http, model.http_async_client)
        if replaced is None:
            return False
        self._set_clients(model, root_async_client=replaced, async_client=replaced.chat.completions)
        return True

    def _replace_anthropic(self, model: Any) -> bool:
        package, official = sys.modules.get("langchain_anthropic"), sys.modules.get("anthropic")
        if package is None or official is None or not isinstance(model, package.ChatAnthropic):
            return False
        root = model._async_client  # noqa: SLF001 - there is no public name
        if type(root) is not official.AsyncAnthropic:
            return False
        make_http = partial(official.DefaultAsyncHttpxClient, proxy=model.anthropic_proxy)
        replaced = self._replace_client("anthropic", root, make_http)
        # The client is a cached property, and copies of the model inherit the cached value.
        self._set_clients(model, _async_client=replaced)
        return True

    def _replace_client(self, provider: ProviderName, root: Any, make_http: Any, own: Any = None) -> Any:
        """Return a copy of an official client with our transport; None if it uses another HTTP library.

        `own` is the HTTP client that the user made for it. Other clients share one that LangChain caches,
        which the event loops of several runs cannot share, so they get a new one.
        """
        if id(root) not in self._replaced:
            # A client of another HTTP library could not send our requests.
            library = next(one for one in make_http.func.__mro__ if one.__name__ == "AsyncClient")
            if own is not None and not isinstance(own, library):
                return None
            official, http = root, own
            if own is None:
                http = make_http(base_url=root.base_url, timeout=root.timeout)
                official = self._copy_client(root, http)
            client = Client(provider, official, http, str(root.base_url).rstrip("/"))
            transport = _Transport(client, self._send)
            self.clients.append(client)
            http = make_http.func(base_url=root.base_url, transport=transport)
            self._replaced[id(root)] = self._copy_client(root, http)
        return self._replaced[id(root)]

    def _copy_client(self, root: Any, http: Any) -> Any:
        """Return a copy of an official client with an HTTP client, which `close` closes."""
        self._undo.push_async_callback(http.aclose)
        return root.copy(http_client=http)

    def _set_clients(self, model: Any, **clients: Any) -> None:
        attributes = vars(model)
        self._undo.callback(attributes.update, {name: attributes[name] for name in clients})
        attributes.update(clients)


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
