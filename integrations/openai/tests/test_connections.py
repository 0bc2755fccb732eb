"""One model on several event loops, one after the other, before a server that keeps connections open."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import Iterator

import openai
import pytest
from langchain_cfc_openai import EndpointError, make_generator
from langchain_cfc_openai.connections import PerLoopClient
from langchain_openai import ChatOpenAI

from integrations.openai.tests.parts import DRAWN, MODEL, Hosted, N, Saved, get_question
from langchain_cfc.errors import DrawError
from langchain_cfc.sampling import Sampler
from tests.serving.openai_server import serving


def test_generator_serves_on_several_event_loops(hosted: Hosted, saved: Saved) -> None:
    with serving(hosted.script, keep_alive=True) as url:
        model = hosted.generator(base_url=url)
        chain = hosted.chain(saved, generator=model)
        for _ in range(3):
            assert len(asyncio.run(chain.ainvoke(get_question())).candidates) == N
        # Their connections have ended with them, and nothing holds on to them.
        gc.collect()
        assert isinstance(model.http_async_client, PerLoopClient)
        assert len(model.http_async_client._connections) == 0
    assert hosted.script.connections == 3 * N


def test_connections_close_with_the_last_copy_of_the_generator(hosted: Hosted) -> None:
    def unclosed() -> list[str]:
        with warnings.catch_warnings(record=True) as seen, pytest.MonkeyPatch.context() as patch:
            # An error in a finaliser can only be caught here.
            patch.setattr("sys.unraisablehook", lambda one: said.append(str(one.exc_value)))
            warnings.simplefilter("always", ResourceWarning)
            said: list[str] = []
            gc.collect()
        return [*said, *(str(one.message) for one in seen)]

    with serving(hosted.script, keep_alive=True) as url:
        model = hosted.generator(base_url=url)
        copied = model.model_copy()
        assert len(Sampler(model).draw(get_question(), 1)) == 1
        del model
        assert unclosed() == []
        # The copy goes on with the connections of the first.
        assert len(Sampler(copied).draw(get_question(), 1)) == 1
        assert hosted.script.connections == 1
        del copied
        assert unclosed() == []
        # The negative control.
        plain = ChatOpenAI(
            model=MODEL,
            base_url=url,
            api_key="none",  # type: ignore[arg-type]  # it takes text
            http_client=openai.DefaultHttpxClient(),
            **DRAWN,
        )
        assert len(Sampler(plain).draw(get_question(), 1)) == 1
        del plain
        assert any("unclosed" in one for one in unclosed())


# The connections of the first loop are no one's.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_plain_client_fails_on_a_second_event_loop(hosted: Hosted) -> None:
    # The negative control.
    with serving(hosted.script, keep_alive=True) as url:
        plain = ChatOpenAI(model=MODEL, base_url=url, api_key="none", max_retries=0, **DRAWN)  # type: ignore[arg-type]  # it takes text
        sampler = Sampler(plain)
        asyncio.run(sampler.adraw(get_question(), N))
        with pytest.raises(DrawError, match="Event loop is closed"):
            asyncio.run(sampler.adraw(get_question(), N))
        gc.collect()


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
