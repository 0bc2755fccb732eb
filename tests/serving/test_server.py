"""The server that replays recorded answers, seen by the clients that the other tests use."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import openai
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion
from pydantic import SecretStr

from .openai_bodies import TOKENS_IN, TOKENS_OUT, Answer
from .openai_server import FAULTS, ODDITIES, Fault, Script, serving

MakeModel = Callable[..., ChatOpenAI]
TEXTS = ["Lima", "Quito", "Lima.", "Bogota", "La Paz"]
LIKELY, UNLIKELY = math.log(0.75), math.log(0.25)
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CITY: dict[str, Any] = {
    "title": "City",
    "description": "A city.",
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture
def script() -> Script:
    """Takes the place of the recorded facts."""
    calls = (("look_up", {"city": "Lima"}), ("look_up", {"city": "São Paulo"}))
    return Script(
        {
            "capital?": [Answer(text, -1.0 - slot) for slot, text in enumerate(TEXTS)],
            "which tools?": [Answer(tools=calls), Answer(tools=calls[:1])],
            "as JSON?": [Answer('{"name": "Lima"}', -1.0)],
            "true?": [Answer("True", LIKELY, first={"True": LIKELY, "False": UNLIKELY, "Maybe": -20.0})],
        },
        rewards={"capital?": {"Lima": 2.5, "Quito": -1.5}, "river?": {"Rimac": 0.5}},
    )


@pytest.fixture
def client(base_url: str) -> Iterator[OpenAI]:
    """A client that does not try again by itself."""
    with OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        yield client


def ask_server(client: OpenAI, prompt: str = "capital?", **settings: Any) -> ChatCompletion:
    messages: Any = [{"role": "user", "content": prompt}]
    completion = client.chat.completions.create(model="recorded", messages=messages, **settings)
    assert isinstance(completion, ChatCompletion)
    return completion


def texts(completion: ChatCompletion) -> list[str | None]:
    return [choice.message.content for choice in completion.choices]


# --- n ---


def test_n_choices_are_the_next_recorded_answers(client: OpenAI) -> None:
    assert texts(ask_server(client, n=2)) == TEXTS[:2]
    assert texts(ask_server(client)) == TEXTS[2:3]
    several = ask_server(client, n=5)
    assert texts(several) == [*TEXTS[3:], *TEXTS[:3]]
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3, 4]


def test_the_prompt_is_counted_once_and_every_choice_counts(client: OpenAI, chat_model: MakeModel) -> None:
    for n in (1, 5):
        usage = ask_server(client, n=n).usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (TOKENS_IN, n * TOKENS_OUT)
        assert usage.total_tokens == TOKENS_IN + n * TOKENS_OUT
    result = chat_model().generate([[HumanMessage("capital?")]], n=5)
    assert len(result.generations[0]) == 5
    assert (result.llm_output or {})["token_usage"]["completion_tokens"] == 5 * TOKENS_OUT


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        ([], [1, 5]),
        (["one choice"], [1, 1]),
        (["fewer choices"], [0, 4]),
        (["more choices"], [2, 6]),
        (["one choice", "more choices"], [2, 2]),
    ],
)
def test_servers_that_return_other_numbers_of_choices(
    client: OpenAI, script: Script, kinds: list[str], sizes: list[int]
) -> None:
    script.faults = [Fault(kind) for kind in kinds]
    found = [ask_server(client, n=n) for n in (1, 5)]
    assert [len(one.choices) for one in found] == sizes
    for one, size in zip(found, sizes, strict=True):
        assert one.usage is not None
        assert one.usage.completion_tokens == size * TOKENS_OUT
    # No answer is skipped, whatever was asked for.
    assert [text for one in found for text in texts(one)] == (TEXTS * 2)[: sum(sizes)]


# --- faults ---


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("status 500", openai.InternalServerError),
        ("status 503", openai.InternalServerError),
        ("status 401", openai.AuthenticationError),
        ("status 429", openai.RateLimitError),
        ("malformed", json.JSONDecodeError),
        ("truncated", openai.APIConnectionError),
        ("dropped", openai.APIConnectionError),
    ],
)
@pytest.mark.parametrize("keep_alive", [False, True])
def test_faults_strike_the_requests_they_are_meant_for(
    script: Script, kind: str, error: type[Exception], keep_alive: bool
) -> None:
    script.faults = [Fault(kind, on={1, 2})]
    with (
        serving(script, keep_alive=keep_alive) as url,
        OpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        assert texts(ask_server(client)) == TEXTS[:1]
        for _ in range(2):
            with pytest.raises(error):
                ask_server(client)
        # What was not delivered comes again.
        assert texts(ask_server(client)) == TEXTS[1:2]
    assert script.struck == {kind: 2}
    assert len(script.requests) == 4


def test_completions_without_choices_and_choices_without_content(client: OpenAI, script: Script) -> None:
    script.faults = [Fault("no choices", on={0}), Fault("no content", on={1})]
    assert ask_server(client).choices == []
    empty = ask_server(client, n=2, logprobs=True)
    assert texts(empty) == [None, None]
    assert {choice.finish_reason for choice in empty.choices} == {"length"}
    assert texts(ask_server(client)) == TEXTS[2:3]


def test_unknown_faults_are_refused() -> None:
    for kind in (*FAULTS, *ODDITIES, "slow", "status 418"):
        assert Fault(kind).kind == kind
    for kind in ("status 200", "statuses", "no choice"):
        with pytest.raises(ValueError, match=kind):
            Fault(kind)
    # Whoever writes this means the fourth request.
    with pytest.raises(ValueError, match="3 is no share of requests"):
        Fault("slow", on=3)


@pytest.mark.parametrize(("seconds", "waits"), [(2.0, True), (0.0, False)])
def test_the_client_waits_as_long_as_it_is_told(
    base_url: str, script: Script, seconds: float, waits: bool
) -> None:
    # On its own this client waits half a second at most before it tries again for the first time.
    script.faults = [Fault("status 429", on={0}, seconds=seconds)]
    with OpenAI(base_url=base_url, api_key="none", max_retries=1) as client:
        started = time.perf_counter()
        assert texts(ask_server(client)) == TEXTS[:1]
        assert (time.perf_counter() - started >= 2.0) == waits
    assert len(script.requests) == 2


def test_the_header_is_in_seconds(client: OpenAI, script: Script) -> None:
    script.faults = [Fault("status 429", seconds=7)]
    with pytest.raises(openai.RateLimitError) as failure:
        ask_server(client)
    assert failure.value.response.headers["retry-after"] == "7"


def test_slow_responses_take_their_time(client: OpenAI, script: Script) -> None:
    script.faults = [Fault("slow", seconds=(0.0, 0.3)), Fault("slow", on={3}, seconds=0.3)]
    took = []
    for _ in range(4):
        started = time.perf_counter()
        ask_server(client)
        took.append(time.perf_counter() - started)
    # Machines may be late, never early.
    assert took[1] >= 0.3
    assert took[3] >= 0.6
    assert min(took) < 0.3
    assert script.struck == {"slow": 5}


def test_a_client_may_lose_patience(client: OpenAI, script: Script) -> None:
    script.faults = [Fault("slow", on={0}, seconds=5.0)]
    started = time.perf_counter()
    with pytest.raises(openai.APITimeoutError):
        ask_server(client, timeout=0.1)
    assert time.perf_counter() - started < 5.0
    assert ask_server(client, timeout=5.0).choices


def test_of_faults_that_meet_the_first_listed_replaces_the_response(client: OpenAI, script: Script) -> None:
    script.faults = [
        Fault("slow", seconds=0.2),
        Fault("one choice"),
        Fault("status 500", on={0}),
        Fault("status 401", on={0, 1}),
    ]
    started = time.perf_counter()
    with pytest.raises(openai.InternalServerError):
        ask_server(client)
    assert time.perf_counter() - started >= 0.2
    with pytest.raises(openai.AuthenticationError):
        ask_server(client)
    assert len(ask_server(client, n=5).choices) == 1
    assert script.struck == {"slow": 3, "one choice": 1, "status 500": 1, "status 401": 1}


def struck_numbers(faults: Sequence[Fault], seed: int, answers: Sequence[str], requests: int) -> list[int]:
    """The requests that get an error, without a socket in between."""
    script = Script({"?": [Answer(text) for text in answers]}, faults=faults, seed=seed)
    body = {"messages": [{"role": "user", "content": "?"}]}
    replies = [script.reply("/v1/chat/completions", body) for _ in range(requests)]
    return [number for number, reply in enumerate(replies) if reply.status != 200]


def test_what_strikes_at_random_depends_on_the_seed_alone() -> None:
    faults = [Fault("status 500", on=0.02), Fault("status 429", on=0.02)]
    struck = struck_numbers(faults, 1, ["a"], 2000)
    assert struck_numbers(faults, 1, ["of", "other", "texts"], 2000) == struck
    assert struck_numbers(faults, 2, ["a"], 2000) != struck
    # One fault does not strike where the other does.
    assert not set(struck_numbers(faults[:1], 1, ["a"], 2000)) >= set(struck)
    assert struck_numbers([Fault("status 500", on=0.0)], 1, ["a"], 2000) == []
    assert struck_numbers([Fault("status 500", on=1.0)], 1, ["a"], 2000) == list(range(2000))


def test_as_many_are_struck_as_the_share_says() -> None:
    # By Hoeffding's inequality, 20,000 independent requests stray by more than 0.0165 from their share with
    # probability below 2 exp(-2 * 20,000 * 0.0165^2) < 4e-5; the seed is fixed.
    for share in (0.02, 0.3):
        found = len(struck_numbers([Fault("status 500", on=share)], 3, ["a"], 20_000)) / 20_000
        assert found == pytest.approx(share, abs=0.0165)
        assert found != pytest.approx(share + 0.04, abs=0.0165)


# --- tools, structured output, images ---


def test_tool_calls_come_without_content_and_with_fresh_ids(chat_model: MakeModel, script: Script) -> None:
    model = chat_model().bind_tools([TOOL])
    found = [model.invoke("which tools?") for _ in range(3)]
    assert [[call["args"]["city"] for call in one.tool_calls] for one in found] == [
        ["Lima", "São Paulo"],
        ["Lima"],
        ["Lima", "São Paulo"],
    ]
    assert len({call["id"] for one in found for call in one.tool_calls}) == 5
    assert {one.content for one in found} == {""}
    assert {one.response_metadata["finish_reason"] for one in found} == {"tool_calls"}
    assert script.requests[0]["tools"] == [TOOL]


def test_streamed_tool_calls_assemble(chat_model: MakeModel, script: Script) -> None:
    chunks = list(chat_model().bind_tools([TOOL]).stream("which tools?"))
    whole = sum(chunks[1:], chunks[0])
    assert isinstance(whole, AIMessageChunk)
    assert [(call["name"], call["args"]["city"]) for call in whole.tool_calls] == [
        ("look_up", "Lima"),
        ("look_up", "São Paulo"),
    ]
    assert len({call["id"] for call in whole.tool_calls}) == 2
    # The arguments did come in pieces, none of which is JSON.
    pieces = [part["args"] for one in chunks for part in getattr(one, "tool_call_chunks", ()) if part["args"]]
    assert len(pieces) == 4
    for piece in pieces:
        with pytest.raises(json.JSONDecodeError):
            json.loads(piece)
    assert script.requests[0]["stream"] is True


def test_structured_output(chat_model: MakeModel, script: Script) -> None:
    model = chat_model().with_structured_output(CITY, method="json_schema")
    assert model.invoke("as JSON?") == {"name": "Lima"}
    assert script.requests[0]["response_format"]["json_schema"]["name"] == "City"


def test_images_arrive_intact(chat_model: MakeModel, script: Script) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo=" * 20_000}}
    blocks: list[str | dict[Any, Any]] = [{"type": "text", "text": "capital?"}, image]
    assert chat_model().invoke([HumanMessage(blocks)]).content == TEXTS[0]
    assert script.requests[0]["messages"][0]["content"] == blocks


# --- log-probabilities ---


def test_the_alternatives_of_the_first_token(client: OpenAI) -> None:
    (choice,) = ask_server(client, "true?", logprobs=True, top_logprobs=2).choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    (token,) = choice.logprobs.content
    assert (token.token, token.logprob) == ("True", LIKELY)
    # The third is too unlikely to be among two.
    assert {one.token: one.logprob for one in token.top_logprobs} == {"True": LIKELY, "False": UNLIKELY}


def test_a_verifier_reads_the_probability_of_true(chat_model: MakeModel) -> None:
    (generation,) = chat_model(top_logprobs=5).generate([[HumanMessage("true?")]]).generations[0]
    assert isinstance(generation, ChatGeneration)
    top = generation.message.response_metadata["logprobs"]["content"][0]["top_logprobs"]
    odds = {one["token"]: math.exp(one["logprob"]) for one in top}
    assert odds["True"] / (odds["True"] + odds["False"]) == pytest.approx(0.75)


def test_alternatives_go_to_those_alone_who_ask(client: OpenAI, script: Script) -> None:
    (choice,) = ask_server(client, "true?", logprobs=True).choices
    assert choice.logprobs is not None
    assert [one.top_logprobs for one in choice.logprobs.content or ()] == [[]]
    assert ask_server(client, "true?").choices[0].logprobs is None
    with pytest.raises(openai.BadRequestError, match="top_logprobs needs logprobs"):
        ask_server(client, "true?", top_logprobs=2)
    script.logprobs = False
    assert ask_server(client, "true?", logprobs=True, top_logprobs=2).choices[0].logprobs is None


@pytest.mark.parametrize("first", [{}, {"Li": -0.5, "Qui": -2.0}, {"Qui": -0.5}, {"Lim": -0.7, "L": -0.9}])
def test_tokens_add_up_to_the_answer(first: dict[str, float]) -> None:
    tokens = Answer("Lima", -1.0, first=first).tokens()
    assert "".join(token for token, _ in tokens) == "Lima"
    assert sum(logprob for _, logprob in tokens) == pytest.approx(-1.0, abs=1e-15)
    for token, logprob in tokens[:1]:
        assert first.get(token, -0.25) == logprob


def test_an_answer_is_never_likelier_than_its_start() -> None:
    with pytest.raises(ValueError, match="'Lima' cannot be likelier than its first token"):
        Answer("Lima", -1.0, first={"Li": -1.5})


# --- streams ---


def test_streamed_choices_come_in_turns_and_usage_comes_last(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "capital?"}]
    stream = client.chat.completions.create(
        model="recorded",
        messages=messages,
        n=2,
        logprobs=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    found = ["", ""]
    for chunk in chunks:
        (choice,) = chunk.choices
        found[choice.index] += choice.delta.content or ""
    assert found == TEXTS[:2]
    assert [chunk.choices[0].index for chunk in chunks] == [0, 1] * (len(chunks) // 2)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 2 * TOKENS_OUT


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("malformed", json.JSONDecodeError),
        ("truncated", openai.APIConnectionError),
        ("dropped", openai.APIConnectionError),
        ("status 500", openai.InternalServerError),
    ],
)
def test_streams_break_too(chat_model: MakeModel, script: Script, kind: str, error: type[Exception]) -> None:
    script.faults = [Fault(kind, on={0})]
    with pytest.raises(error):
        list(chat_model().stream("capital?"))
    assert "".join(str(chunk.text) for chunk in chat_model().stream("capital?")) == TEXTS[0]


# --- embeddings and rewards ---


def test_embeddings_are_deterministic_and_near_for_shared_words(base_url: str, client: OpenAI) -> None:
    embedder = OpenAIEmbeddings(
        model="recorded", base_url=base_url, api_key=SecretStr("none"), check_embedding_ctx_length=False
    )
    one, near, far, none = embedder.embed_documents(
        ["the capital of Peru", "the capital of Chile", "who wrote it", ""]
    )
    assert embedder.embed_query("Peru of capital the") == one
    for vector in (one, near, far, none):
        assert math.hypot(*vector) == pytest.approx(1.0, abs=1e-6)
    assert np.dot(one, near) > np.dot(one, far)
    packed = client.embeddings.create(model="recorded", input="the capital of Peru")
    plain = client.embeddings.create(model="recorded", input="the capital of Peru", encoding_format="float")
    # One was sent in single precision.
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-7)
    assert plain.usage.prompt_tokens == 4


def rewarded(client: OpenAI, path: str = "/score", **body: Any) -> list[tuple[int, float]]:
    found: Any = client.post(path, body={"model": "recorded", **body}, cast_to=object)
    return [(one["index"], one["score"]) for one in found["data"]]


def test_rewards_come_in_the_order_of_the_answers(client: OpenAI) -> None:
    expected = [(0, -1.5), (1, 2.5)]
    assert rewarded(client, queries="capital?", documents=["Quito", "Lima"]) == expected
    assert rewarded(client, text_1="capital?", text_2=["Quito", "Lima"]) == expected
    pairs = rewarded(client, queries=["river?", "capital?"], documents=["Rimac", "Lima"])
    assert pairs == [(0, 0.5), (1, 2.5)]
    assert rewarded(client, queries="river?", documents="Rimac") == [(0, 0.5)]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"queries": "capital?", "documents": ["Lima", "Cusco"]}, openai.NotFoundError),
        ({"queries": "lake?", "documents": ["Lima"]}, openai.NotFoundError),
        ({"queries": ["capital?", "river?"], "documents": ["Lima"]}, openai.BadRequestError),
        ({"queries": "capital?", "documents": []}, openai.BadRequestError),
        ({"queries": "capital?"}, openai.BadRequestError),
    ],
)
def test_rewards_that_make_no_sense_are_refused(
    client: OpenAI, body: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        rewarded(client, **body)


def test_faults_of_the_wire_strike_every_endpoint(client: OpenAI, script: Script) -> None:
    script.faults = [Fault("no choices"), Fault("status 500", on={0}), Fault("dropped", on={1})]
    with pytest.raises(openai.InternalServerError):
        rewarded(client, queries="river?", documents="Rimac")
    with pytest.raises(openai.APIConnectionError):
        client.embeddings.create(model="recorded", input="words")
    assert rewarded(client, queries="river?", documents="Rimac") == [(0, 0.5)]
    # Those of completions strike completions alone.
    assert script.struck == {"status 500": 1, "dropped": 1}


def test_what_is_not_recorded_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"no answer is recorded for 'lake\?'"):
        ask_server(client, "lake?")
    with pytest.raises(openai.NotFoundError, match="/v1/models"):
        client.post("/models", body={}, cast_to=object)


# --- connections and processes ---


@pytest.mark.parametrize(("keep_alive", "connections"), [(True, 1), (False, 5)])
@pytest.mark.parametrize("own_process", [False, True])
def test_connections_stay_open_if_so_wished(
    script: Script, keep_alive: bool, connections: int, own_process: bool
) -> None:
    with (
        serving(script, keep_alive=keep_alive, own_process=own_process) as url,
        OpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        assert [texts(ask_server(client)) for _ in range(5)] == [[text] for text in TEXTS]
    assert script.connections == connections
    assert len(script.requests) == 5
    # Another server goes on where this one ended.
    with serving(script) as url, OpenAI(base_url=url, api_key="none") as client:
        assert texts(ask_server(client, n=2)) == TEXTS[:2]
    assert len(script.requests) == 6


async def many(url: str, requests: int, at_once: int) -> list[str]:
    gate = asyncio.Semaphore(at_once)

    async def one(client: AsyncOpenAI) -> str:
        async with gate:
            completion = await client.chat.completions.create(
                model="recorded", messages=[{"role": "user", "content": "capital?"}]
            )
            return str(completion.choices[0].message.content)

    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=9) as client:
        return await asyncio.gather(*(one(client) for _ in range(requests)))


@pytest.mark.long
def test_a_storm_of_requests_with_all_faults_at_once(script: Script) -> None:
    kinds = ("status 500", "status 429", "dropped", "truncated")
    script.faults = [*(Fault(kind, on=0.05) for kind in kinds), Fault("slow", on=0.05, seconds=0.05)]
    with serving(script, keep_alive=True, own_process=True) as url:
        found = asyncio.run(many(url, 300, 64))
    # Whatever went wrong on the way, every recorded answer was delivered as often as the others.
    assert Counter(found) == dict.fromkeys(TEXTS, 60)
    assert set(script.struck) == {*kinds, "slow"}
    assert len(script.requests) == 300 + sum(script.struck[kind] for kind in kinds)


def test_a_test_that_fails_still_learns_what_was_asked(script: Script) -> None:
    def fail(url: str) -> None:
        with OpenAI(base_url=url, api_key="none") as client:
            ask_server(client)
        raise LookupError

    with pytest.raises(LookupError), serving(script, own_process=True) as url:
        fail(url)
    assert [request["messages"][-1]["content"] for request in script.requests] == ["capital?"]


@pytest.mark.parametrize("own_process", [False, True])
def test_the_server_stops_while_responses_are_slow(script: Script, own_process: bool) -> None:
    script.faults = [Fault("slow", seconds=60.0)]
    with (
        OpenAI(base_url="http://unused", api_key="none", max_retries=0, timeout=0.2) as client,
        serving(script, keep_alive=True, own_process=own_process) as url,
    ):
        client.base_url = url
        with pytest.raises(openai.APITimeoutError):
            ask_server(client)
        started = time.perf_counter()
    assert time.perf_counter() - started < 30.0
    assert script.struck == {"slow": 1}
