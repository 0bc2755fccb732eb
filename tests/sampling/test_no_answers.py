"""One odd draw of ten, as providers send it: it is classified, never served, and never costs the question."""

from __future__ import annotations

import asyncio
import unicodedata
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from pydantic import BaseModel

from langchain_cfc import CFCRunnable
from langchain_cfc.candidates import encode_answers
from langchain_cfc.no_answers import NoAnswer, is_invisible, strip_reasoning
from langchain_cfc.sampling import DrawnCandidate, Sampler
from langchain_cfc.sampling.candidates import make_candidate
from langchain_cfc.verifiers import SelfConsistency, SequenceProbability, VerifierInput, normalise_answer
from tests.factories import make_artifact
from tests.sampling.no_answer_server import (
    ANSWER,
    PERIOD,
    Reply,
    make_choice,
    make_message,
    make_output,
    make_response,
    serve_odd_reply,
)

QUESTION = "What is the capital of Peru?"
HALF = "The capital of Peru is"
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def write(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text}


THOUGHT = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Cusco?"}]}
REFUSAL = {"type": "refusal", "refusal": "I cannot say"}
SEARCH = {
    "type": "web_search_call",
    "id": "s",
    "status": "completed",
    "action": {"type": "search", "query": "?"},
}
LIMIT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
FILTER = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
TEXT = {"type": "text", "text": HALF}
TOOL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
THINKING = {"type": "thinking", "thinking": "Cusco?", "signature": "s"}
SERVER_TOOL = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}

REPLIES: list[tuple[NoAnswer, Reply]] = [
    # OpenAI's chat completions, and servers with the same interface
    ("cut_off", make_choice(HALF, "length")),
    ("cut_off", make_choice("", "length")),
    ("cut_off", make_choice(None, "length")),
    ("cut_off", make_choice("<think>Lima or", "length")),
    ("cut_off", make_choice(HALF, "model_length")),
    ("cut_off", make_choice(HALF, "max_tokens")),
    ("cut_off", make_choice(HALF, "abort")),
    ("cut_off", make_choice(HALF, "error")),
    ("cut_off", make_choice(HALF, "insufficient_system_resource")),
    ("filtered", make_choice(HALF, "content_filter")),
    ("filtered", make_choice(None, "content_filter")),
    ("filtered", make_choice(HALF, "sensitive")),
    ("refused", make_choice(None, refusal="I cannot say")),
    ("tool_call_only", make_choice(None, "tool_calls", tool_calls=[CALL])),
    ("tool_call_only", make_choice("I will look.", "tool_calls", tool_calls=[CALL])),
    ("reasoning_only", make_choice("<think>Cusco?")),
    ("reasoning_only", make_choice("<think>Cusco?</think>")),
    ("reasoning_only", make_choice("Cusco?</think>\n")),
    ("reasoning_only", make_choice("<THINKING>Cusco?")),
    ("reasoning_only", make_choice("[THINK]Cusco?")),
    ("reasoning_only", make_choice("<|channel|>analysis<|message|>Cusco?")),
    ("blank", make_choice("")),
    ("blank", make_choice(None)),
    *[
        ("blank", make_choice(text))
        for text in (
            "\u200b",
            "\u2060",
            "\ufeff",
            "\u00ad",
            "\u3164",
            "\u2800",
            "\0",
            "\x1b[2J",
            "\x1b]0;a\a",
        )
    ],
    # OpenAI's Responses
    ("cut_off", make_response(make_output(write(HALF), status="incomplete"), **LIMIT)),
    ("cut_off", make_response(THOUGHT, **LIMIT)),
    ("filtered", make_response(make_output(write(HALF), status="incomplete"), **FILTER)),
    ("refused", make_response(make_output(REFUSAL))),
    ("reasoning_only", make_response(THOUGHT)),
    ("tool_call_only", make_response(SEARCH)),
    ("blank", make_response(make_output(write(" \u200b")))),
    ("blank", make_response()),
    # Anthropic's messages
    ("cut_off", make_message(TEXT, stop="max_tokens")),
    ("cut_off", make_message(THINKING, stop="max_tokens")),
    ("cut_off", make_message(TEXT, stop="model_context_window_exceeded")),
    ("cut_off", make_message(TEXT, stop="pause_turn")),
    ("refused", make_message(TEXT, stop="refusal")),
    ("refused", make_message(stop="refusal")),
    ("reasoning_only", make_message(THINKING)),
    (
        "tool_call_only",
        make_message(TOOL, stop="tool_use"),
    ),
    ("tool_call_only", make_message(SERVER_TOOL)),
    ("blank", make_message({"type": "text", "text": "\n"})),
    ("blank", make_message()),
]


def list_kinds(draws: list[DrawnCandidate]) -> list[NoAnswer]:
    """Return the kinds of the draws that are no answer, after checking all others."""
    assert len(draws) == PERIOD
    assert {one.text for one in draws if one.no_answer is None} == {ANSWER}
    return [one.no_answer for one in draws if one.no_answer is not None]


@pytest.mark.parametrize(("kind", "reply"), REPLIES)
def test_odd_reply_of_a_provider_is_classified_and_never_served(kind: NoAnswer, reply: Reply) -> None:
    artifact = make_artifact(n=PERIOD, alpha=0.5)

    def prefer_odd(prompt: Any, candidates: list[DrawnCandidate]) -> list[float]:
        del prompt
        return [0.5 if one.text == ANSWER else 0.0 for one in candidates]

    with serve_odd_reply(reply) as model:
        assert list_kinds(Sampler(model).draw(QUESTION, PERIOD)) == [kind]
        # The message is then seen by callbacks only.
        chain = ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()
        draws = asyncio.run(Sampler(chain).adraw({"question": QUESTION}, PERIOD))
        assert list_kinds(draws) == [kind]
        for verifier in (prefer_odd, SelfConsistency()):
            result = CFCRunnable(generator=model, verifier=verifier, artifact=artifact).invoke(QUESTION)
            assert result.answers == (ANSWER,)
            assert [one.score for one in result.candidates if not one.length] == [1.0]
        if reply.interface == "chat":
            bot = CFCRunnable(generator=model, verifier=SequenceProbability(), artifact=artifact)
            assert bot.invoke(QUESTION).answers == (ANSWER,)


def test_single_request_classifies_its_choices() -> None:
    with serve_odd_reply(make_choice(HALF, "length")) as model:
        draws = Sampler(model | StrOutputParser(), "single_request").draw(QUESTION, PERIOD)
    assert list_kinds(draws) == ["cut_off"]


class City(BaseModel):
    """Structured output."""

    city: str


# As the packages for Google, Ollama, Bedrock, Cohere, Mistral, Hugging Face and llama.cpp report it
REPORTS: dict[NoAnswer | None, list[dict[str, Any]]] = {
    "cut_off": [
        *(
            {"finish_reason": reason}
            for reason in ("MAX_TOKENS", "FinishReason.MAX_TOKENS", "length", "OTHER")
        ),
        *({"finish_reason": "ERROR_LIMIT"}, {"done_reason": "length"}, {"stopReason": "max_tokens"}),
        *({"stop_type": "limit"}, {"truncated": True}, {"stopped_limit": True}),
    ],
    "filtered": [
        *(
            {"finish_reason": reason}
            for reason in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT")
        ),
        *({"finish_reason": reason} for reason in ("SPII", "IMAGE_SAFETY", "ERROR_TOXIC")),
        *({"prompt_feedback": {"block_reason": reason}} for reason in ("OTHER", 2)),
        *({"stopReason": reason} for reason in ("guardrail_intervened", "content_filtered")),
        *({"is_blocked": True}, {"amazon-bedrock-guardrailAction": "INTERVENED"}),
    ],
    "unparsable": [{"finish_reason": "MALFORMED_FUNCTION_CALL"}],
    None: [
        *(
            {"finish_reason": reason}
            for reason in ("stop", "STOP", "eos_token", "COMPLETE", "tool_calls", None, 1)
        ),
        *({"done_reason": "stop"}, {"stopReason": "end_turn"}, {"stop_type": "eos"}),
        {"truncated": False, "is_blocked": False, "status": "completed", "incomplete_details": None},
        {"prompt_feedback": {"block_reason": 0, "safety_ratings": []}},
        {"prompt_feedback": {"block_reason": "BLOCK_REASON_UNSPECIFIED"}, "status": 200},
        {"amazon-bedrock-guardrailAction": "NONE"},
    ],
}


@pytest.mark.parametrize(
    ("kind", "report"), [(kind, report) for kind, reports in REPORTS.items() for report in reports]
)
def test_reported_ending_of_a_message_is_classified(kind: NoAnswer | None, report: dict[str, Any]) -> None:
    found = make_candidate(0, AIMessage(HALF, response_metadata=report))
    assert (found.no_answer, found.text) == (kind, HALF if kind is None else "")


BLOCKS: list[tuple[NoAnswer | None, list[Any], dict[str, Any]]] = [
    ("reasoning_only", [{"type": "reasoning_content", "reasoning_content": {"text": "?"}}], {}),
    ("reasoning_only", [{"type": "redacted_thinking", "data": "x"}], {}),
    ("reasoning_only", [], {"reasoning_content": "Cusco?"}),
    ("tool_call_only", [{"type": "executable_code", "executable_code": "1", "language": "PYTHON"}], {}),
    ("unparsable", [{"type": "image", "base64": "aGk=", "mime_type": "image/png"}], {}),
    ("unparsable", [{"type": "input_audio", "input_audio": {"data": "aGk="}}], {}),
    ("unparsable", [{"type": "of another kind", "data": "aGk="}], {}),
    ("unparsable", [], {"images": [{"image_url": {"url": "data:"}}]}),
    ("unparsable", [], {"audio": {"id": "a", "data": "aGk=", "transcript": None}}),
    ("tool_call_only", [], {"function_call": {"name": "find", "arguments": "{}"}}),
    ("blank", [{"type": "text", "text": ""}], {}),
    (None, [{"type": "output_text", "text": HALF}], {}),
    (None, [], {"audio": {"id": "a", "data": "aGk=", "transcript": HALF}}),
]


@pytest.mark.parametrize(("kind", "content", "extra"), BLOCKS)
def test_content_of_a_message_without_text_is_classified(
    kind: NoAnswer | None, content: list[Any], extra: dict[str, Any]
) -> None:
    found = make_candidate(0, AIMessage(content, additional_kwargs=extra))
    assert (found.no_answer, found.text) == (kind, HALF if kind is None else "")


@pytest.mark.parametrize("method", ["function_calling", "json_mode", "json_schema"])
@pytest.mark.parametrize("content", ["Lima", '{"city": 5}', '{"city": "Li', None, '{"town": "Lima"}'])
def test_structured_output_that_cannot_be_read_is_not_drawn_again(method: Any, content: str | None) -> None:
    arguments = '{"city": "Lima"}'
    call = {**CALL, "function": {"name": "City", "arguments": arguments}}
    good = make_choice(None, tool_calls=[call]) if method == "function_calling" else make_choice(arguments)
    for include_raw in (False, True):
        with serve_odd_reply(make_choice(content), good=good) as model:
            chain = model.with_structured_output(City, method=method, include_raw=include_raw)
            draws = Sampler(chain).draw(QUESTION, PERIOD)
        assert [one.text for one in draws].count('{"city":"Lima"}') == PERIOD - 1
        assert sum(one.no_answer is not None for one in draws) == 1


def test_function_that_cannot_read_one_reply_is_not_called_again() -> None:
    with serve_odd_reply(make_choice("I do not know")) as model:
        chain = model | StrOutputParser() | (lambda text: {"Lima": ANSWER}[text])
        assert list_kinds(Sampler(chain).draw(QUESTION, PERIOD)) == ["unparsable"]


def test_parser_exception_of_every_draw_is_no_error() -> None:
    def refuse(text: str) -> str:
        raise OutputParserException(text)

    with serve_odd_reply(make_choice("?")) as model:
        draws = Sampler(model | StrOutputParser() | refuse).draw(QUESTION, PERIOD)
    assert {one.no_answer for one in draws} == {"unparsable"}


@pytest.mark.parametrize(
    "text",
    [
        "<think>Cusco?</think>\n\nLima",
        "Cusco?</think>Lima",
        "<Thinking>a <think> b</think> c</Thinking> Lima",
        "<reasoning effort='low'>Cusco?</reasoning>Lima",
        "<thought>a</thought><thought>b</thought> Lima",
        "[THINK]Cusco?[/THINK]Lima",
        "◁think▷Cusco?◁/think▷Lima",
        "<|begin_of_thought|>?<|end_of_thought|>\n<|begin_of_solution|>Lima<|end_of_solution|>",
        "<|channel|>analysis<|message|>?<|end|><|start|>assistant<|channel|>final<|message|>Lima<|return|>",
        "Li<|channel|>analysis<|message|>?<|start|>assistant<|channel|>final<|message|>ma",
        "analysisWe need the capital.assistantfinalLima",
        "Here is my thought process: ?\nHere is my response: Lima",
    ],
)
def test_strip_reasoning_returns_the_answer(text: str) -> None:
    assert strip_reasoning(text) == "Lima"
    assert make_candidate(0, AIMessage(text)).text == "Lima"
    assert make_candidate(0, text, reasoning="keep").text == text


@pytest.mark.parametrize("text", ["The tag `<think>` begins it.", "a < b", "</details> Lima", " Lima "])
def test_strip_reasoning_keeps_text_without_reasoning(text: str) -> None:
    assert strip_reasoning(text) == text


def test_sequence_probability_leaves_out_tokens_of_removed_reasoning() -> None:
    def score(*tokens: tuple[str, float], reasoning: Any = "strip") -> Any:
        entries = [{"token": token, "logprob": logprob} for token, logprob in tokens]
        message = AIMessage(
            "".join(token for token, _ in tokens), response_metadata={"logprobs": {"content": entries}}
        )
        draw = make_candidate(0, message, reasoning=reasoning)
        return SequenceProbability().invoke(VerifierInput(prompt=QUESTION, candidates=[draw]))[0]

    answer = [("Li", -0.25), ("ma", -0.5)]
    whole = [("<think>", -1.0), ("Cusco?", -9.0), ("</think>", -1.0), ("\n\n", -1.0), *answer]
    assert score(*whole) == score(*answer) < 0.6
    assert score(*whole, reasoning="keep") > 0.999


# Default_Ignorable_Code_Point in DerivedCoreProperties.txt of Unicode 16, besides format characters.
IGNORABLE = (
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0, 0xE0000, 0xE0002, 0xE0080, 0xE0FFF),
    *(*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9), *range(0xE0100, 0xE01F0)),
)
FORMATS = [one for one in map(chr, range(0x110000)) if unicodedata.category(one) in {"Cc", "Cf"}]
# Signs before Arabic numbers, which show.
SIGNS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"


def test_no_invisible_character_is_an_answer_or_tells_answers_apart() -> None:
    invisible = {*map(chr, IGNORABLE), *FORMATS} - set(SIGNS)
    assert all(map(is_invisible, ["", *invisible]))
    blank = {one for one in invisible if one.isspace()}
    answers = [f"Li{one}ma{one}" for one in invisible - blank]
    assert {normalise_answer(answer) for answer in answers} == {"lima"}
    codes, lengths = encode_answers(["Lima", *answers, *invisible], 1 + len(answers) + len(invisible))
    assert not codes[0, : 1 + len(answers)].any()
    assert not lengths[0, 1 + len(answers) :].any()


@pytest.mark.parametrize("text", ["-", "\u0000a", "。", "\u0e33", "0", *SIGNS])
def test_is_invisible_is_false_for_signs_that_show(text: str) -> None:
    assert not is_invisible(text)
    assert normalise_answer(f"a{text}") or text


def test_normalise_answer_keeps_tags_of_flags_and_joiners_of_emoji() -> None:
    england, wales = (
        "\U0001f3f4" + "".join(chr(0xE0000 + ord(one)) for one in tag) + "\U000e007f"
        for tag in ("gbeng", "gbwls")
    )
    assert normalise_answer(england) == england != normalise_answer(wales)
    assert normalise_answer("\U0001f468\u200d\U0001f4bb") != normalise_answer("\U0001f468\U0001f4bb")
    assert normalise_answer("1\u2064\u00bd") == normalise_answer("1\u00bd") != normalise_answer("11/2")
