"""Results of batches that are not as documented: each line is an answer, or goes live once."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect.costs import Budget
from langchain_cfc_collect.executor import Components
from langchain_cfc_collect.store import Store

from integrations.collect.tests.batch_server import TOKENS_IN, TOKENS_OUT, Json, Provider, serve, write_line
from integrations.collect.tests.batching import (
    PRICE,
    Kind,
    N,
    make_model,
    run,
    score_by_slot,
    shorten_waits,
)
from langchain_cfc.errors import CollectionError
from langchain_cfc.labelers import NormalisedMatch
from tests.lengths import mostly_long

SIZE = 4
LINES = SIZE * N
MISSING = object()
Write = Callable[[list[Json]], bytes]


@pytest.fixture(autouse=True)
def short_waits() -> Iterator[None]:
    with shorten_waits():
        yield


def find_body(line: Json) -> Json:
    """The body of an answer in a line of either provider."""
    body: Json = line["response"]["body"] if "response" in line else line["result"]["message"]
    return body


def find_message(line: Json) -> Json:
    """Where the text of an answer is, and its name there."""
    body = find_body(line)
    message: Json = body["choices"][0]["message"] if "choices" in body else body["content"][0]
    return message


def find_result(line: Json) -> Json:
    """What a line says of its request."""
    result: Json = line["response" if "response" in line else "result"]
    return result


def find_line(line: Json) -> Json:
    return line


def put(value: Any, *names: str, at: Callable[[Json], Json] = find_body) -> Callable[[Json], None]:
    """Return what sets the entry that has one of these names, or removes it."""

    def change(line: Json) -> None:
        place = at(line)
        name = next(one for one in names if one in place)
        place[name] = value
        if value is MISSING:
            del place[name]

    return change


def change_tokens(value: Any) -> Callable[[Json], None]:
    return lambda line: find_body(line)["usage"].update(dict.fromkeys(find_body(line)["usage"], value))


def add_usage(**more: Any) -> Callable[[Json], None]:
    return lambda line: find_body(line)["usage"].update(more)


def change_answers(value: Any) -> Callable[[Json], None]:
    return put(value, "choices", "content")


def change_text(value: Any) -> Callable[[Json], None]:
    return put(value, "content", "text", at=find_message)


def change_body(value: Any) -> Callable[[Json], None]:
    return put(value, "body", "message", at=find_result)


def change_status(value: Any) -> Callable[[Json], None]:
    return put(value, "status_code", "type", at=find_result)


def change_id(value: Any) -> Callable[[Json], None]:
    return put(value, "custom_id", at=find_line)


def change_number(ending: str) -> Callable[[Json], None]:
    return lambda line: line.update(custom_id=line["custom_id"].rpartition("-")[0] + ending)


def add_to_message(**more: Any) -> Callable[[Json], None]:
    return lambda line: find_message(line).update(more)


def add_to_body(**more: Any) -> Callable[[Json], None]:
    return lambda line: find_body(line).update(more)


def nest(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# The answer can be read, and so can its usage.
READ: dict[str, Callable[[Json], None]] = {
    "usage with a cost": add_usage(total_cost=0.5),
    "usage with null": add_usage(cost=None, prompt_tokens_details=None, cache_creation=None),
    "usage with lists": add_usage(completion_tokens_details=[1], cache_creation=[1]),
    "usage with text": add_usage(service_tier="standard", prompt_tokens_details="none"),
    "usage with half details": add_usage(
        completion_tokens_details={"reasoning_tokens": 1.5, "audio_tokens": None},
        cache_creation={"ephemeral_5m_input_tokens": 0.5},
    ),
    "usage with a wrong total": add_usage(total_tokens="many"),
    "deep usage": add_usage(levels=nest(400)),
    "deep body": add_to_body(levels=nest(200)),
    "another model": put("other-model", "model"),
    "no status": change_status(MISSING),
    "unknown status": change_status("ok"),
}
# The answer can be read, but its usage cannot.
UNCOUNTED: dict[str, Callable[[Json], None]] = {
    "no usage": put(MISSING, "usage"),
    "null usage": put(None, "usage"),
    "text as usage": put("many", "usage"),
    "list as usage": put([1], "usage"),
    "number as usage": put(5, "usage"),
    "empty usage": put({}, "usage"),
    "text as tokens": change_tokens("5"),
    "null tokens": change_tokens(None),
    "half tokens": change_tokens(5.5),
    "negative tokens": change_tokens(-(10**6)),
    "too many tokens": change_tokens(10**30),
    "infinite tokens": change_tokens(float("inf")),
    "NaN tokens": change_tokens(float("nan")),
    "true tokens": change_tokens(True),
    "nested tokens": change_tokens({"text": 5}),
    "zero tokens": change_tokens(0),
}
# The answer cannot be read, so that it is asked for again, live.
UNREAD: dict[str, Callable[[Json], None]] = {
    "no answers": change_answers(MISSING),
    "null answers": change_answers(None),
    "text as answers": change_answers("yes"),
    "numbers as answers": change_answers([1]),
    "null in answers": change_answers([None]),
    "empty object in answers": change_answers([{}]),
    "number as text": change_text(5),
    "object as text": change_text({}),
    "numbers as text": change_text([1]),
    "number as model": put(5, "model"),
    "surrogate as model": put("\ud800", "model"),
    "no body": change_body(MISSING),
    "null body": change_body(None),
    "list as body": change_body([1]),
    "text as body": change_body("yes"),
    "empty body": change_body({}),
    "status 429": change_status(429),
    "status 400": change_status(400),
    "negative line": change_number("--1"),
    "line beyond the batch": change_number("-999999"),
    "huge line": change_number("-" + "9" * 5000),
    "line that is no number": change_number("-x"),
    "number as id": change_id(5),
    "null as id": change_id(None),
    "no id": change_id(MISSING),
    "list as id": change_id([1]),
    "id of another batch": change_id("other-0"),
}
# Of OpenAI only, or of Anthropic only.
UNREAD_BY_OPENAI: dict[str, Callable[[Json], None]] = {
    "text as tool calls": add_to_message(tool_calls="x"),
    "null in tool calls": add_to_message(tool_calls=[None]),
    "text as function call": add_to_message(function_call="x"),
    "number as refusal": add_to_message(refusal=5),
    "number as role": add_to_message(role=5),
    "user as role": add_to_message(role="user"),
    "error in the body": add_to_body(error={"message": "no"}),
    "response that is no object": put(5, "response", at=find_line),
    "error beside the answer": put("late", "error", at=find_line),
}
# The answers are there, among other content.
FILES: dict[str, Callable[[list[bytes]], bytes]] = {
    "garbage before": lambda lines: bytes(range(256)) * 8 + b"\n" + b"".join(lines),
    "NUL before": lambda lines: b"\x00\x00\n" + b"".join(lines),
    "deep line before": lambda lines: b"[" * 100_000 + b"\n" + b"".join(lines),
    "huge number before": lambda lines: b"9" * 5000 + b"\n" + b"".join(lines),
    "blank lines": b"\r\n\n".join,
    "repeated": lambda lines: b"".join(lines) * 2,
    "unreadable first": lambda lines: b"".join(lines).replace(b'"role"', b'"x"') + b"".join(lines),
}


def check_run(
    tmp_path: Path, kind: Kind, write: Write, *, lost: int, is_counted: bool = True, unread: int = 0
) -> tuple[Provider, Path]:
    """Collect with a budget, and again without; `lost` lines are asked for live, and no line twice.

    Of these, `unread` look like the others, but were processed, so that they may be charged.
    """
    provider, path = Provider(), tmp_path / "store.db"
    provider.write = write
    limited = Budget(max_tokens=10**6, prices={"*": PRICE})
    with serve(provider) as url:
        parts = Components(make_model(kind, url), score_by_slot, NormalisedMatch(), N)
        if is_counted:
            ended = run(path, parts, SIZE, budget=limited)
        else:
            with pytest.raises(CollectionError, match="do not report how many tokens they used"):
                run(path, parts, SIZE, budget=limited)
            assert provider.log.live.total() == 0
            ended = run(path, parts, SIZE)
    assert ended.complete
    assert ended.status.labelled == SIZE
    assert provider.log.submitted == [LINES]
    assert provider.log.live.total() == lost
    with Store(path) as store:
        store.check()
        usage = store.read_usage()
        unanswered = store.track_budget(Budget()).unanswered
        assert unanswered == ended.status.unanswered == unread
    if is_counted:
        assert usage.tokens == ended.status.usage.tokens
    return provider, path


def spoil(mode: Callable[[Json], None], lines: list[Json], step: int) -> bytes:
    """The file in which every `step`-th line is spoilt; the server's own content stays as it is."""
    given = [json.loads(write_line(line)) for line in lines]
    for line in given[::step]:
        mode(line)
    return b"".join(map(write_line, given))


KINDS: tuple[Kind, ...] = ("openai", "anthropic")


@mostly_long(("kind", "mode"), [(kind, mode) for mode in READ for kind in KINDS], quick=2)
def test_answers_with_odd_parts_are_used(tmp_path: Path, kind: Kind, mode: str) -> None:
    if kind == "anthropic" and "status" in mode:
        return  # its results have a type in place of a status
    provider, _ = check_run(tmp_path, kind, lambda lines: spoil(READ[mode], lines, 1), lost=0)
    assert provider.log.lines.total() == LINES


@mostly_long(("kind", "mode"), [(kind, mode) for mode in UNCOUNTED for kind in KINDS], quick=4)
def test_answers_without_credible_usage_are_used_and_end_a_budget(
    tmp_path: Path, kind: Kind, mode: str
) -> None:
    check_run(tmp_path, kind, lambda lines: spoil(UNCOUNTED[mode], lines, 1), lost=0, is_counted=False)


UNREAD_CASES = [
    *((kind, mode) for mode in UNREAD for kind in KINDS),
    *(("openai", mode) for mode in UNREAD_BY_OPENAI),
]


@mostly_long(("kind", "mode"), UNREAD_CASES, quick=4)
def test_unreadable_answers_are_asked_for_once_more(tmp_path: Path, kind: Kind, mode: str) -> None:
    change_line = {**UNREAD, **UNREAD_BY_OPENAI}[mode]
    unread = LINES // 2 if "line" in mode or " id" in mode or "id " in mode else 0
    _, path = check_run(
        tmp_path, kind, lambda lines: spoil(change_line, lines, 2), lost=LINES // 2, unread=unread
    )
    charged = LINES // 2 if mode in {"null in answers", "number as text"} else 0
    with Store(path) as store:  # an unreadable answer that states its usage was paid for
        assert store.read_usage().tokens >= (LINES + charged) * (TOKENS_IN + TOKENS_OUT)


@mostly_long(("kind", "mode"), [(kind, mode) for mode in FILES for kind in KINDS], quick=2)
def test_answers_among_other_content_are_used(tmp_path: Path, kind: Kind, mode: str) -> None:
    check_run(tmp_path, kind, lambda lines: FILES[mode]([*map(write_line, lines)]), lost=0)


def test_results_that_are_cut_off_are_read_again(tmp_path: Path) -> None:
    shown = iter([LINES // 2])
    check_run(tmp_path, "anthropic", lambda lines: Provider().write(lines[: next(shown, LINES)]), lost=0)


# No line can be read, or each is of another request.
UNREADABLE: dict[str, tuple[Write, str]] = {
    "other requests": (
        lambda lines: spoil(change_id("other-0"), lines, 1),
        "batch_0: 12 ids such as 'other-0', none of them",
    ),
    **{
        name: (write, "batch_0: .*none of its results can be read.*the same command fetches it")
        for name, write in {
            "nothing": lambda _: b"",
            "an error": lambda _: write_line({"error": {"message": "expired"}}),
            "compressed": lambda lines: gzip.compress(Provider().write(lines)),
            "one list": lambda lines: json.dumps(lines).encode(),
            "UTF-16": lambda lines: Provider().write(lines).decode().encode("utf-16"),
        }.items()
    },
}


@mostly_long(("kind", "mode"), [(kind, mode) for mode in UNREADABLE for kind in KINDS], quick=4)
def test_batch_without_any_readable_result_is_not_paid_for_again(
    tmp_path: Path, kind: Kind, mode: str
) -> None:
    provider = Provider()
    provider.write, refusal = UNREADABLE[mode]
    with serve(provider) as url:
        parts = Components(make_model(kind, url), score_by_slot, NormalisedMatch(), N)
        for _ in range(2):
            with pytest.raises(CollectionError, match=refusal):
                run(tmp_path / "store.db", parts, SIZE)
        provider.write = Provider().write
        provider.files["batch_0-output"] = provider.write(provider.batches["batch_0"].output)
        ended = run(tmp_path / "store.db", parts, SIZE)
    assert ended.status.labelled == SIZE
    assert provider.log.submitted == [LINES]
    assert provider.log.live.total() == 0


BATCHES: dict[Kind, str] = {"openai": "batches", "anthropic": "messages/batches"}
REPLIES: dict[str, Json | bytes] = {
    "no id": {"status": "validating"},
    "id that is no text": {"id": 5},
    "error": {"error": {"message": "late"}},
    "null": b"null",
    "list": b"[]",
    "page of a gateway": b"<html>",
    "half": b'{"id": "batch_',
}


@mostly_long(("kind", "reply"), [(kind, reply) for reply in REPLIES for kind in KINDS], quick=4)
def test_replies_about_a_batch_that_cannot_be_read_pay_for_nothing_twice(
    tmp_path: Path, kind: Kind, reply: str
) -> None:
    provider, what, odd = Provider(), BATCHES[kind], REPLIES[reply]
    unlisted: Json | bytes = b"[]" if isinstance(odd, bytes) else {**odd, "data": None}
    provider.replies = {
        "POST files": [odd],
        f"POST {what}": [odd],
        f"GET {what}": [unlisted],
        f"GET {what}/batch_0": [odd, odd],
    }
    with serve(provider) as url:
        parts = Components(make_model(kind, url), score_by_slot, NormalisedMatch(), N)
        ended = run(tmp_path / "store.db", parts, SIZE)
    assert ended.status.labelled == SIZE
    assert provider.log.submitted == [LINES]
    assert provider.log.live.total() == 0
    assert not any(left for name, left in provider.replies.items() if kind == "openai" or "files" not in name)


@mostly_long("status", ["done", "COMPLETED", None, ["completed"], "failed", "lost"], quick=2)
def test_batch_with_an_unknown_status_has_ended_if_it_has_results(tmp_path: Path, status: Any) -> None:
    provider, about = Provider(), "GET batches/batch_0"
    state = {"id": "batch_0", "status": status, "errors": [{"code": "x"}]}
    if status != "lost":
        state["output_file_id"] = "batch_0-output"
    provider.replies = {about: [state] * 100}
    with serve(provider) as url:
        parts = Components(make_model("openai", url), score_by_slot, NormalisedMatch(), N)
        if status == "lost":
            with pytest.raises(CollectionError, match=r"unknown status 'lost'.*the same command fetches it"):
                run(tmp_path / "store.db", parts, SIZE)
            provider.replies = {}
        ended = run(tmp_path / "store.db", parts, SIZE)
    assert ended.status.labelled == SIZE
    assert provider.log.submitted == [LINES]
    assert provider.log.live.total() == 0
