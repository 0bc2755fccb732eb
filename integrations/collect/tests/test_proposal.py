"""What `init` proposes: columns, labelers, prompts, and a file that reads back."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import Rows
from langchain_cfc_collect.config import CollectionConfig, read_config
from langchain_cfc_collect.proposal import (
    Proposal,
    draw_answers,
    format_part,
    format_toml,
    list_labelers,
    make_settings,
    parse_model,
    propose,
    propose_prompt,
    read_questions,
)
from langchain_cfc_collect.sources.detection import describe_lists, detect_columns
from langchain_cfc_collect.sources.files import open_rows

from langchain_cfc.errors import CFCError, InputError, RecordError
from langchain_cfc.labelers import MultipleChoice, NormalisedMatch, NumericMatch, extract_number
from langchain_cfc.records import Example
from langchain_cfc.verifiers import SelfConsistency, SequenceProbability
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Fault, Script, serving

QUESTIONS = [f"What is question {number}?" for number in range(12)]


def write_questions(
    folder: Path, references: Sequence[str], header: tuple[str, ...] = ("question", "answer")
) -> str:
    path = folder / "own data.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *zip(QUESTIONS, references, strict=False)])
    return str(path)


def make_script(texts: Sequence[str], prompt: str = "Give the answer alone: {}") -> Script:
    """A server that answers the questions above."""
    said = {
        prompt.format(question): [Answer(text, -0.5)]
        for question, text in zip(QUESTIONS, texts, strict=False)
    }
    return Script(said)


@pytest.fixture(autouse=True)
def _no_openai_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@dataclass(frozen=True)
class Proposed:
    """A proposal, and the settings that `init` writes."""

    found: Proposal
    settings: Mapping[str, Any]


def make_proposal(folder: Path, script: Script, path: str) -> Proposed:
    with serving(script) as url:
        model, connection = parse_model("local", url.removesuffix("/v1"))
        table, _ = read_questions(open_rows(path), None, None, None)
        choices = list_labelers(table.examples)
        prompt = propose_prompt(model, table.examples, choices)
        found = propose(model, table.examples, choices, prompt=prompt, connection=connection)
    given: Any = {"path": path, "model": model, "connection": connection, "n": 3, "folder": folder}
    return Proposed(found, make_settings(found, table, **given))


def read_back(proposed: Proposed, folder: Path) -> CollectionConfig:
    """Write the file that is proposed, and read it."""
    file = folder / "collect.toml"
    file.write_text(format_toml(proposed.settings, proposed.found.reasons), encoding="utf-8")
    return read_config(file)


# Columns


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("question", "answer"), ("question", "answer")),
        (("id", "Prompt", "Expected", "topic"), ("Prompt", "Expected")),
        (("Nr", "Frage", "Antwort"), ("Frage", "Antwort")),
        (("answer", "question", "reference"), ("question", "reference")),
        (("question", "answer", "contexts", "Correct answer"), ("question", "Correct answer")),
        (("question", "A", "B", "key"), ("question", "key")),
        (("question", "choices", "key"), ("question", "key")),
        (("question", "answers", "key"), ("question", "key")),
    ],
)
def test_detect_columns_finds_columns_by_name(names: tuple[str, ...], found: tuple[str, str]) -> None:
    values: dict[str, Any] = {"choices": {"label": ["A", "B"]}, "answers": ["x", "y"], "key": "B"}
    rows = Rows.from_iterable([{name: values.get(name, "town") for name in names}])
    columns = detect_columns(rows)
    assert any("will not see" in one for one in describe_lists(rows, columns)) == ("key" in names)
    assert (columns.input, columns.reference) == found


@pytest.mark.parametrize(
    ("names", "part"), [(("a1", "b1", "c1"), "reference"), (("answer", "b1", "c1"), "question")]
)
def test_detect_columns_asks_for_columns_it_cannot_tell(names: tuple[str, ...], part: str) -> None:
    rows = Rows.from_iterable([dict.fromkeys(names, "x")])
    with pytest.raises(InputError, match=rf"which column holds the {part}\?.*b1 and c1.*--{part}"):
        detect_columns(rows)
    columns = detect_columns(rows, question="b1", reference="c1")
    assert (columns.input, columns.reference) == ("b1", "c1")


def test_detect_columns_names_the_flaw_if_no_row_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_bytes("question,answer\nOù?,Nîmes\n".encode("cp1252"))
    with pytest.raises(RecordError, match=r"q.csv, line 2: .* not UTF-8"):
        detect_columns(open_rows(path))


def test_detect_columns_takes_cells_for_json_only_if_all_are() -> None:
    rows = [{"question": "x", "answers": '["Lima", "the city"]'}, {"question": "x", "answers": "[sic]"}]
    assert detect_columns(Rows.from_iterable(rows)).cells == {}


def test_read_questions_refuses_a_prompt_that_is_no_template() -> None:
    with pytest.raises(InputError, match=r"the prompt '\{a' cannot be used"):
        read_questions(Rows.from_iterable([{"question": "x", "answer": "y"}]), None, None, "{a")


@pytest.mark.parametrize(
    ("prompt", "columns", "around"),
    [
        ("{question}", {"input": "frage"}, None),
        ("Be brief: {question}", {"input": "frage"}, "Be brief: {question}"),
        ("Be brief: {frage}", {"input": "frage"}, "Be brief: {question}"),
        ("{thema}: {frage}", {"prompt": "{thema}: {frage}"}, None),
    ],
)
def test_prompt_of_one_column_is_part_of_the_bot(
    prompt: str, columns: dict[str, str], around: str | None
) -> None:
    rows = Rows.from_iterable([{"frage": "a", "answer": "b", "thema": "c"}])
    table, found = read_questions(rows, "frage", None, prompt)
    assert table.columns.model_dump(include={"input", "prompt"}, exclude_none=True) == columns
    assert found == around


# Labelers

TEXT_LABELERS = ["NormalisedMatch", "NormalisedMatch(articles='en')", "NormalisedMatch(anywhere=True)"]


def examples(*references: Any) -> list[Example]:
    return [Example(id=str(number), input="?", reference=one) for number, one in enumerate(references)]


@pytest.mark.parametrize(
    ("references", "names"),
    [
        (("8", "1,250", "-3.5"), ["NumericMatch"]),
        ((8, 2.5), ["NumericMatch"]),
        (("A", "c"), ["MultipleChoice"]),
        (("Lima", "8"), TEXT_LABELERS),
        (("007", "8"), TEXT_LABELERS),
        (("Apollo 11", "5 km"), TEXT_LABELERS),
        ((["Lima", "the city"],), TEXT_LABELERS),
        (({"total": 3}, {"total": 4}), ["NormalisedMatch"]),
        (("yes", "No", "no"), ["ClosedSet(members=['yes', 'no'])"]),
        ((True, True), ["ClosedSet(members=[True, False])"]),
        (("false",), ["ClosedSet(members=['true', 'false'])"]),
        ((0, 1), ["ClosedSet(members=[1, 0])"]),
        ((1, 2), ["NumericMatch"]),
        (("spam", "ham") * 5, ["ClosedSet(members=['spam', 'ham'])"]),
        (("spam", "ham") * 4, TEXT_LABELERS),
        (("3", "4") * 9, ["NumericMatch"]),
    ],
)
def test_list_labelers_returns_those_that_read_every_reference(
    references: Sequence[Any], names: list[str]
) -> None:
    assert [format_part(one.table) for one in list_labelers(examples(*references))] == names


@pytest.mark.parametrize("reference", ["", None, "!."])
def test_list_labelers_names_a_reference_that_none_reads(reference: Any) -> None:
    with pytest.raises(InputError, match=r"reference.*Correct the reference"):
        list_labelers(examples("Lima", reference))


# Proposals


def test_propose_matches_bare_answers_and_writes_a_readable_config(tmp_path: Path) -> None:
    texts = ["Lima", "Cusco", "The Vatican", 'a "quoted" ü', "x", *"klmnopq"]
    path = write_questions(tmp_path, texts)
    script = make_script(texts)
    found = make_proposal(tmp_path, script, path)
    assert [one.candidate.text for one in found.found.answers] == texts[::2][:5]
    assert found.found.correct == [True] * 5
    config = read_back(found, tmp_path)
    assert (config.n, config.store) == (3, str(tmp_path / "own-data.db"))
    assert config.source.path == str(path)
    assert config.source.input == "question"
    assert config.generator.prompt == "Give the answer alone: {question}"
    assert config.generator.model == "openai:local"
    arguments = config.generator.arguments
    assert arguments["base_url"].endswith("/v1")
    assert (arguments["temperature"], arguments["logprobs"], arguments["max_tokens"]) == (0.7, True, 64)
    parts = config.create_components()
    assert isinstance(parts.verifier, SequenceProbability)
    assert isinstance(parts.labeler, NormalisedMatch)
    assert parts.answer is None
    # Five requests, without streaming.
    assert len(script.requests) == 5


def test_propose_searches_sentences_for_the_reference(tmp_path: Path) -> None:
    names = "Lima Rome Oslo Bern Cairo Paris Tokyo Quito Delhi Sofia Riga Kyiv".split()  # noqa: SIM905
    found = make_proposal(
        tmp_path, make_script([f"It is {one}." for one in names]), write_questions(tmp_path, names)
    )
    assert found.settings["labeler"] == {
        "factory": "NormalisedMatch",
        "arguments": {"anywhere": True},
    }
    assert found.found.correct == [True] * 5
    reason = found.found.reasons["labeler.factory"]
    assert "labels 5 of 5 trial answers correct (others: 0 by NormalisedMatch," in reason
    assert "arguments = { anywhere = true }" in format_toml(found.settings, {})


def test_propose_extracts_numbers_from_sentences_only(tmp_path: Path) -> None:
    numbers = [str(1000 + number) for number in range(12)]
    path = write_questions(tmp_path, numbers)
    found = make_proposal(tmp_path, make_script([f"That makes 1,{one[1:]}." for one in numbers]), path)
    parts = read_back(found, tmp_path).create_components()
    assert isinstance(parts.labeler, NumericMatch)
    assert (parts.answer_id, parts.answer) == ("extract_number", extract_number)
    assert "answer" not in make_proposal(tmp_path, make_script(numbers), path).settings


def test_propose_uses_a_prompt_for_multiple_choice_letters(tmp_path: Path) -> None:
    letters = list("ABCDABCDABCD")
    prompt = "Give the letter of the right option alone: {}"
    path = write_questions(tmp_path, letters)
    found = make_proposal(tmp_path, make_script([f"({one}) of course" for one in letters], prompt), path)
    assert found.settings["generator"]["prompt"] == prompt.format("{question}")
    assert found.settings["answer"]["id"] == "extract_choice"
    assert isinstance(read_back(found, tmp_path).create_components().labeler, MultipleChoice)
    assert found.found.correct == [True] * 5


def test_propose_uses_self_consistency_without_log_probabilities(tmp_path: Path) -> None:
    script = replace(make_script(["x"] * 12), logprobs=False)
    found = make_proposal(tmp_path, script, write_questions(tmp_path, ["x"] * 12))
    assert "logprobs" not in found.settings["generator"]["arguments"]
    assert isinstance(read_back(found, tmp_path).create_components().verifier, SelfConsistency)


def test_draw_answers_leaves_out_settings_that_the_model_refuses() -> None:
    script = make_script(["x"] * 12)
    asked = [Example(id="1", input=f"Give the answer alone: {QUESTIONS[0]}", reference="x")]
    script.faults = (Fault("status 400", frozenset({0})),)
    with serving(script) as url:
        model, connection = parse_model("local", url)
        settings, _ = draw_answers(model, None, connection, asked)
    assert settings == {"temperature": 0.7}
    assert "logprobs" in script.requests[0]
    assert "logprobs" not in script.requests[-1]


@pytest.mark.parametrize("status", [401, 403])
def test_draw_answers_does_not_retry_a_refused_key(status: int) -> None:
    script = make_script(["x"] * 12)
    script.faults = (Fault(f"status {status}"),)
    asked = [Example(id="1", input=f"Give the answer alone: {QUESTIONS[0]}", reference="x")]
    with serving(script) as url:
        model, connection = parse_model("local", url)
        with pytest.raises(CFCError, match=r"openai:local does not answer at http.*out of order"):
            draw_answers(model, None, connection, asked)
    assert all("logprobs" in one for one in script.requests)


# Addresses of models


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1"),
        ("https://models.example/api/v3", "https://models.example/api/v3"),
    ],
)
def test_parse_model_adds_v1_to_an_address_without_a_path(given: str, url: str) -> None:
    name, connection = parse_model("m", given)
    assert (name, connection["base_url"]) == ("openai:m", url)


def test_parse_model_sends_no_real_key_to_a_local_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-real-and-secret")
    assert parse_model("openai:gpt-4o", None) == ("openai:gpt-4o", {})
    assert parse_model("m", "http://localhost:1")[1]["api_key"] == "none"
    assert "api_key" not in parse_model("m", "https://models.example")[1]
    monkeypatch.delenv("OPENAI_API_KEY")
    assert parse_model("m", "https://models.example")[1]["api_key"] == "none"


@pytest.mark.parametrize(
    "url", ["localhost:8080", "ftp://x", "http://[", "http://user:secret@host/v1", "http://host?key=1"]
)
def test_parse_model_refuses_invalid_addresses_and_secrets_in_them(url: str) -> None:
    with pytest.raises(InputError, match="URL"):
        parse_model("m", url)
