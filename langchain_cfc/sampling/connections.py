"""Describe where and how a chat model's requests are sent: its address, headers and clients.

Nothing here is stated in plain text: an address or a header may hold a secret. Keys, organisations and what
differs in every request are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel

from langchain_cfc.sampling.code_identity import is_known_module
from langchain_cfc.support.serialization import canonical_json, compute_sha256

# Endings of the names of fields without effect on what is drawn: who pays, and how long a call may take.
ACCOUNT_ENDINGS = (
    *("key", "token", "secret", "password", "credentials", "organization", "project"),
    *("timeout", "retries", "session"),
)
# Endings of the names of fields that say where a model is reached.
ADDRESS_ENDINGS = ("url", "uri", "endpoint", "_base", "host", "proxy", "region", "region_name", "location")
_PLACES = ("proxy", "region", "region_name", "location")
# Names of custom connections, which may change any request and response.
CUSTOM_CLIENTS = ("http_client", "http_async_client", "transport")
# Packages whose clients send requests as they are.
_CLIENT_PACKAGES = frozenset(
    {
        *("openai", "anthropic", "ollama", "groq", "mistralai", "cohere", "google", "vertexai", "boto3"),
        *("botocore", "fireworks", "together", "huggingface_hub", "httpx", "xai_sdk", "azure", "requests"),
    }
)
_UNCOMPARED_HEADER = re.compile(
    r"authorization|cookie|key|token|secret|password|signature|request.?id|correlation|trace|span|idempotency"
    r"|user.?agent|referer|x-title|date|organization|project"
)
_UNCOMPARED_QUERY = re.compile(r"key|token|secret|password|sig|code")


def is_mapping_of_headers(name: str) -> bool:
    """Return whether a setting holds headers or query parameters, by its name."""
    return name.endswith(("headers", "_query"))


def select_headers(name: str, value: Any) -> Any:
    """Return headers or query parameters that may change a response, by lower case names; None if none."""
    if not isinstance(value, Mapping):
        return value
    uncompared = _UNCOMPARED_HEADER if name.endswith("headers") else _UNCOMPARED_QUERY
    lower = {str(key).lower(): one for key, one in value.items()}
    return {key: one for key, one in lower.items() if not uncompared.search(key)} or None


def describe_address(model: BaseModel) -> str | None:
    """Return a digest of where a model's requests are sent; None if the model states nothing about it.

    The clients' own addresses count, because the environment may set them; without such clients, the fields.
    """
    values = dict(_iterate_attributes(model))
    reached = [str(url) for value in values.values() for url in _find_base_urls(value)]
    endings = _PLACES if reached else ADDRESS_ENDINGS
    stated = [value for name, value in values.items() if name.endswith(endings) and isinstance(value, str)]
    parts = sorted({*map(normalise_address, [*stated, *reached])})
    return compute_sha256(canonical_json(parts)) if parts else None


def list_custom_clients(model: BaseModel) -> list[str]:
    """Return descriptions of connections that are not of a provider's own package."""
    found = []
    for name, value in _iterate_attributes(model):
        if value is None or not name.endswith((*CUSTOM_CLIENTS, "client")):
            continue
        known = all(_is_client(one) for one in (value, getattr(value, "_client", None)) if one is not None)
        if name.endswith(CUSTOM_CLIENTS) or not known:
            found.append(f"the setting {name}")
    return found


def normalise_address(address: str) -> str:
    """Return an address in the form in which equal ones are equal, without credentials."""
    try:
        parts = urlsplit(address.strip() if "://" in address else f"//{address.strip()}")
        default = {"http": 80, "https": 443}.get(parts.scheme)
        port = "" if parts.port in {None, default} else f":{parts.port}"
        query = [
            (key, value) for key, value in parse_qsl(parts.query) if not _UNCOMPARED_QUERY.search(key.lower())
        ]
    except ValueError:
        return address.strip()
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path.rstrip('/')}?{sorted(query)}"


def _iterate_attributes(model: BaseModel) -> Iterator[tuple[str, Any]]:
    """Yield the fields and private attributes of a model by name."""
    yield from vars(model).items()
    yield from (model.__pydantic_private__ or {}).items()


def _is_client(part: Any) -> bool:
    """Return whether an object is of a package of clients, or a wrapper of LangChain's around one."""
    module = type(part).__module__
    return module.partition(".")[0] in _CLIENT_PACKAGES or is_known_module(module)


def _find_base_urls(client: Any) -> Iterator[Any]:
    """Yield the address that a client of a provider's package sends requests to."""
    if not _is_client(client):
        return
    for one in (client, getattr(client, "_client", None)):
        url = getattr(one, "base_url", None) or getattr(getattr(one, "meta", None), "endpoint_url", None)
        if url is not None:
            yield url
            return
