"""LangChain's own tests of chat models, over HTTP to a server on this machine.

`Served` declares what the facade can do; each test that LangChain skips for it is argued beside what is
declared. Three others need what is not there: an environment variable to read (`init_from_env_params`), a
model that is plain data (serialization: a chain holds functions and models), and cassettes (the server is
real).

Expected to fail is one assertion, in both forms of `test_structured_output`: that a call sets off one run of
a chat model. Each of the n draws is a run of a chat model, and handlers, such as those that count tokens,
must see it; hiding draws would make the test pass and the count wrong. All else in these tests is shown by
those named `..._counting_outermost_runs`, which do not count runs that are below another chat model's.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests, chat_models
from langchain_tests.integration_tests.chat_models import _TestCallbackHandler
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCRunnable
from tests.chat_model.facades import accept_all, make_client

from .responder import Responder

every_schema = pytest.mark.parametrize("schema_type", ["pydantic", "typeddict", "json_schema"])
counts_runs = pytest.mark.xfail(
    raises=AssertionError,
    reason="expects one run of a chat model, but each draw is one of its own below the facade's",
)


class Served:
    """The common part of both classes of tests: a facade over a model on a local server."""

    chain: CFCRunnable

    @pytest.fixture(autouse=True)
    def _served(self, url: str, artifact: CalibrationArtifact) -> None:
        self.chain = CFCRunnable(generator=make_client(url), verifier=accept_all, artifact=artifact)

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return CFCChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"chain": self.chain}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        # Temperature, key and the like are the generator's, and refused here.
        return {}

    # What the generator's model can do, the facade can: calls of tools, and answers that fit a schema, are
    # candidates.
    has_tool_calling = True
    has_tool_choice = True
    has_structured_output = True
    returns_usage_metadata = True
    # Contents of messages reach the generator as they are.
    supports_image_inputs = True
    supports_image_urls = True
    supports_pdf_inputs = True
    supports_audio_inputs = True
    supports_anthropic_inputs = True
    # Structured output is by calls of tools.
    supports_json_mode = False
    # They would pass as well, but the provider that is played here takes no images and PDF from tools.
    supports_image_tool_message = False
    supports_pdf_tool_message = False
    # Another model than the one calibrated is refused.
    supports_model_override = False


class OutermostRuns(_TestCallbackHandler):
    """LangChain's handler, blind for runs of chat models below a chat model's."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = set[UUID]()

    def on_chain_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None = None, **__: Any) -> None:
        if parent_run_id in self._inside:
            self._inside.add(run_id)

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, options: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if kwargs["parent_run_id"] not in self._inside:
            super().on_chat_model_start(serialized, messages, options=options, **kwargs)
        self._inside.add(kwargs["run_id"])


class TestUnit(Served, ChatModelUnitTests):
    pass


# The client speaks of a PDF that the tests give no name.
@pytest.mark.filterwarnings("ignore:OpenAI may require a filename")
class TestIntegration(Served, ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def _offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The pictures and sounds that the tests would fetch are of no account; that they arrive is."""
        monkeypatch.setattr(httpx, "get", lambda *_, **__: SimpleNamespace(content=b"some bytes"))
        monkeypatch.setenv("LANGCHAIN_TESTS_USER_AGENT", "none")

    @pytest.fixture(autouse=True)
    def _asks_for_n_candidates_at_a_time(
        self, responder: Responder, artifact: CalibrationArtifact
    ) -> Iterator[None]:
        yield
        assert len(responder.requests) % artifact.n == 0

    @pytest.fixture
    def _outermost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chat_models, "_TestCallbackHandler", OutermostRuns)

    @pytest.mark.usefixtures("_outermost")
    @every_schema
    def test_structured_output_counting_outermost_runs(self, model: BaseChatModel, schema_type: Any) -> None:
        super().test_structured_output(model, schema_type)

    @pytest.mark.usefixtures("_outermost")
    @every_schema
    async def test_structured_output_async_counting_outermost_runs(
        self, model: BaseChatModel, schema_type: Any
    ) -> None:
        await super().test_structured_output_async(model, schema_type)

    @counts_runs
    @every_schema
    def test_structured_output(self, model: BaseChatModel, schema_type: Any) -> None:
        super().test_structured_output(model, schema_type)

    @counts_runs
    @every_schema
    async def test_structured_output_async(self, model: BaseChatModel, schema_type: Any) -> None:
        await super().test_structured_output_async(model, schema_type)
