"""`ChatCompletions`: `ChatOpenAI` that states all parameters of its draws, and what to do where it fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI

from langchain_cfc.errors import InputError
from langchain_cfc.extend import state_settings
from langchain_cfc_openai.failures import EndpointError, explain_failures, make_unreadable_error

StructuredOutput: TypeAlias = Literal["json_schema", "function_calling"]

# What a request may hold that changes what is drawn; the rest says how a request is made and accounted for.
# Tools and formats change it as well: of these every model's fingerprint holds a digest, where there are any.
DRAWING = (
    "model",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "reasoning_effort",
    "verbosity",
    "parallel_tool_calls",
    "function_call",
    "modalities",
    "audio",
    "prediction",
    "moderation",
    "web_search_options",
    "extra_body",
)


_PARSED = (
    "candidates that are parsed as they come fail where they are cut off, and are drawn again until none is: "
    "give the format to generator(response_format=...), as JSON"
)


class ChatCompletions(ChatOpenAI):
    """A chat model behind `/v1/chat/completions`, never the Responses API.

    Args:
        structured_output: How `with_structured_output` asks for it by default: `json_schema` by
            `response_format`, `function_calling` by a tool. None where the model draws candidates.
    """

    structured_output: StructuredOutput | None = None
    # Several choices of one request, and log-probabilities of each, are there and nowhere else.
    use_responses_api: bool | None = False

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The model and every parameter that changes what it draws; None where the endpoint chooses.

        Parameters are stated also where they are left alone, so that one bound to a call is seen as another:
        serving compares what both sides state. Key, address, time limits and retries are not among them.
        """
        sent = self._default_params
        # Under the name that other chat models have in fingerprints.
        sent["max_tokens"] = sent.pop("max_completion_tokens", None)
        stop = sent.get("stop")
        sent["stop"] = [stop] if isinstance(stop, str) else stop
        stated = {name: sent.pop(name, None) for name in DRAWING} | {
            "structured_output": self.structured_output
        }
        # What else `model_kwargs` brings, and that this model is complete by itself.
        stated |= state_settings(sent)
        # As a file gives it back, so that numbers as keys and tuples compare equal.
        written: dict[str, Any] = json.loads(json.dumps(stated))
        return written

    def with_structured_output(
        self,
        schema: Any = None,
        *,
        method: Literal["function_calling", "json_mode", "json_schema"] | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """The same as of `ChatOpenAI`, by the method that this model is made with; only for one that judges.

        Raises:
            InputError: If candidates are to be parsed; see `bind`.
        """
        if self.structured_output is None:
            raise InputError(_PARSED)
        return super().with_structured_output(schema, method=method or self.structured_output, **kwargs)

    def bind(self, **kwargs: Any) -> Any:
        """The same as of any chat model; a `response_format` only for a model that judges.

        Raises:
            InputError: If candidates are to be parsed. Where one is cut off the client fails, it is drawn
                again, and those left are no sample of what the model says.
        """
        if self.structured_output is None and kwargs.get("response_format") is not None:
            raise InputError(_PARSED)
        return super().bind(**kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with explain_failures():
            result = super()._generate(messages, stop=stop, run_manager=run_manager, **kwargs)
        return _require_choice(result, kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with explain_failures():
            result = await super()._agenerate(messages, stop=stop, run_manager=run_manager, **kwargs)
        return _require_choice(result, kwargs)

    def _create_chat_result(
        self, response: dict[str, Any] | openai.BaseModel, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        try:
            return super()._create_chat_result(response, generation_info)
        except Exception as error:
            raise make_unreadable_error(error) from error


def _require_choice(result: ChatResult, asked: Mapping[str, Any]) -> ChatResult:
    """Return the result; refuse it if one choice was requested and none came.

    Of several that were asked for, those that do not come are drawn by separate requests.
    """
    if not result.generations and (asked.get("n") or 1) == 1:
        msg = (
            "the endpoint's response holds no choices: check that it serves this model for chat completions, "
            "and what its log says"
        )
        raise EndpointError(msg)
    return result
