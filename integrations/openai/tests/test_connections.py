"""One model on several event loops, one after the other, before a server that keeps connections open."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import openai
import pytest
from langchain_cfc_openai import EndpointError, make_generator
from langchain_cfc_openai.connections import PerLoopClient
from langchain_openai import ChatOpenAI

from integrations.openai.tests.parts import DRAWN, MODEL, Hosted, N, Saved, get_question
from langchain_cfc.errors import DrawError
from langchain_cfc.sampling import Sampler
from tests.serving.openai_server import Reply, Script, serving


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
        reached = {**hosted.reached, "base_url": url}
        plain = ChatOpenAI(model=MODEL, http_client=openai.DefaultHttpxClient(), **reached, **DRAWN)
        assert len(Sampler(plain).draw(get_question(), 1)) == 1
        del plain
        assert any("unclosed" in one for one in unclosed())


# The connections of the first loop are no one's.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_plain_client_fails_on_a_second_event_loop(hosted: Hosted) -> None:
    # The negative control.
    with serving(hosted.script, keep_alive=True) as url:
        plain = ChatOpenAI(model=MODEL, **{**hosted.reached, "base_url": url}, **DRAWN)
        sampler = Sampler(plain)
        asyncio.run(sampler.adraw(get_question(), N))
        with pytest.raises(DrawError, match="Event loop is closed"):
            asyncio.run(sampler.adraw(get_question(), N))
        gc.collect()


class Proxy(Script):
    """A proxy that lets nothing through."""

    def reply(self, path: str, body: Any) -> Reply:
        self.requests.append({"path": path, **body})
        return Reply(502, [""])


@pytest.mark.parametrize("way", ["sync", "async"])
def test_generator_uses_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    proxy = Proxy({})
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(proxy) as url:
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, url.removesuffix("/v1"))
        model = make_generator("any", base_url="http://model.invalid/v1", api_key="none", max_retries=0)
        with pytest.raises(EndpointError, match="502"):
            model.invoke("?") if way == "sync" else asyncio.run(model.ainvoke("?"))
    assert [one["path"] for one in proxy.requests] == ["http://model.invalid/v1/chat/completions"]
