"""Proxies apply to sync and async calls, and candidates are not parsed while they stream."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
from langchain_cfc_openai import EndpointError, make_generator


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What comes to a proxy that lets nothing through, and that the environment names."""
    came: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    came.append(connection.recv(65536).split(b"\r\n")[0])
                    connection.sendall(
                        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )

        threading.Thread(target=refuse, daemon=True).start()
        for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{listening.getsockname()[1]}")
        yield came
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_generator_uses_the_proxy_of_the_environment(proxied: list[bytes], way: str) -> None:
    model = make_generator("any", base_url="http://model.invalid/v1", api_key="none", max_retries=0)
    with pytest.raises(EndpointError, match="502"):
        model.invoke("?") if way == "sync" else asyncio.run(model.ainvoke("?"))
    assert [line.split()[1] for line in proxied] == [b"http://model.invalid/v1/chat/completions"]
