"""Answers of other tools are read as they wrote them, and lead to an artifact without a call of a model."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from langchain_cfc_collect import Components, Store, collect, import_samples, rescore
from langchain_core.runnables import RunnableLambda

from integrations.collect.tests.sharing import make_silent_options
from langchain_cfc import CFCRunnable, calibrate
from langchain_cfc.errors import (
    CFCError,
    FingerprintError,
    FingerprintWarning,
    InputError,
    RecordError,
    StoreError,
)
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import Example, PromptRecord
from langchain_cfc.verifiers import SelfConsistency
from tests.cli.running import run

SIZE, N = 40, 4
Rows = list[dict[str, Any]]


def make_answers(number: int) -> list[str]:
    """Mostly right answers, some with doubt, and every fifth question wrong."""
    right = f"city {number}"
    wrong = [f"town {slot}" for slot in range(N)]
    return wrong if number % 5 == 0 else [right] * 3 + ([right] if number % 3 else ["village"])


def make_harness_rows(size: int = SIZE) -> Rows:
    return [
        {
            "doc_id": number,
            "doc": {"question": f"Capital of {number}?", "answer": f"city {number}", "topic": "capital"},
            "target": f"city {number}",
            "arguments": {
                "gen_args_0": {"arg_0": f"Q: Capital of {number}?\nA:", "arg_1": {"until": ["\n"]}}
            },
            "resps": [make_answers(number)],
            "filtered_resps": [make_answers(number)[0]],
            "filter": chosen,
            "metrics": ["exact_match"],
            "doc_hash": "0",
            "exact_match": 0.0,
        }
        for number in range(size)
        for chosen in ("first", "majority")
    ]


def make_long_rows(size: int = SIZE) -> Rows:
    return [
        {"question": f"Capital of {number}?", "response": text, "gold": f"city {number}"}
        for number in range(size)
        for text in make_answers(number)
    ]


def make_uqlm_columns(size: int = SIZE) -> dict[str, list[Any]]:
    numbers = range(size)
    return {
        "prompt": [f"Capital of {number}?" for number in numbers],
        "response": ["colder" for _ in numbers],
        "sampled_responses": [make_answers(number) for number in numbers],
        "exact_match": [0.5 for _ in numbers],
        "reference": [f"city {number}" for number in numbers],
    }


def make_promptfoo(size: int = SIZE) -> dict[str, Any]:
    results = [
        {
            "promptIdx": 0,
            "testIdx": number,
            "testCase": {"assert": [{"type": "equals", "value": f"city {number}"}]},
            "provider": {"id": "openai:gpt-4o-mini", "label": ""},
            "prompt": {"raw": f"Name it: Capital of {number}?", "label": "it"},
            "vars": {"question": f"Capital of {number}?"},
            "response": {"output": text, "tokenUsage": {"total": 3}},
            "success": text == f"city {number}",
            "score": 1,
        }
        for number in range(size)
        for text in make_answers(number)
    ]
    return {"evalId": "eval-1", "results": {"version": 3, "results": results, "stats": {}}}


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=1))
    return path


def write_parquet(path: Path, columns: Mapping[str, list[Any]]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def turn(rows: Rows) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def by_row(columns: dict[str, list[Any]]) -> Rows:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


WRITERS: dict[str, Callable[[Path], Any]] = {
    "lm-eval": lambda path: write_lines(path / "samples_a_2026.jsonl", make_harness_rows()),
    "long csv": lambda path: write_csv(path / "a.csv", make_long_rows()),
    "long tsv": lambda path: write_csv(path / "a.tsv", make_long_rows(), "\t"),
    "long parquet": lambda path: write_parquet(path / "a.parquet", turn(make_long_rows())),
    "long json": lambda path: write_json(path / "a.json", make_long_rows()),
    "lists in csv": lambda path: write_csv(
        path / "a.csv",
        [
            {"question": f"Capital of {k}?", "answer": json.dumps(make_answers(k)), "gold": f"city {k}"}
            for k in range(SIZE)
        ],
    ),
    "rows": lambda _: [{**row, 0: "a name that is no text"} for row in make_long_rows()],
    "generator": lambda _: (row for row in make_long_rows()),
    "DataFrame": lambda _: pd.DataFrame(make_long_rows()),
    "uqlm csv": lambda path: write_csv(path / "a.csv", by_row(make_uqlm_columns())),
    "uqlm parquet": lambda path: write_parquet(path / "a.parquet", make_uqlm_columns()),
    "uqlm DataFrame.to_json": lambda path: write_json(
        path / "a.json",
        {name: {str(k): one for k, one in enumerate(v)} for name, v in make_uqlm_columns().items()},
    ),
    "promptfoo": lambda path: write_json(path / "a.json", make_promptfoo()),
    "promptfoo, lines": lambda path: write_lines(path / "a.jsonl", make_promptfoo()["results"]["results"]),
}


def read(path: Path) -> list[PromptRecord]:
    with Store(path) as store:
        store.check()
        return list(store.read_records())


def refuse_call(_: Any) -> str:
    msg = "the model was called"
    raise AssertionError(msg)


def make_parts(**more: Any) -> Components:
    given: dict[str, Any] = {
        "generator": RunnableLambda(refuse_call),
        "verifier": SelfConsistency(),
        "labeler": NormalisedMatch(),
        "n": N,
        "generator_id": "bot",
        **more,
    }
    return Components(**given)


EXAMPLES = [Example(id="?", input=f"Capital of {k}?", reference=f"city {k}") for k in range(SIZE)]


def list_examples(path: Path) -> list[Example]:
    """The examples of a dataset that gives them the ids of stored prompts."""
    with Store(path) as store, store.begin_read() as connection:
        from langchain_cfc_collect.store.dataset import read_examples

        return list(read_examples(store.name, connection).values())


@pytest.mark.parametrize("form", WRITERS)
def test_every_form_gives_the_same_records_without_a_call(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.db"
    done = import_samples(WRITERS[form](tmp_path), path)
    assert (done.prompts, done.n) == (SIZE, N)
    stored = list_examples(path)
    assert [(one.input, one.reference) for one in stored] == [(one.input, one.reference) for one in EXAMPLES]
    target = path
    if done.has_labels:  # promptfoo's
        target = tmp_path / "b.db"
        assert rescore(path, SelfConsistency(), target, make_silent_options()).complete
    else:
        assert collect(stored, make_parts(), path, make_silent_options()).complete
    records = read(target)
    assert [[one.text for one in record.candidates] for record in records] == [
        make_answers(number) for number in range(SIZE)
    ]
    assert [[one.correct for one in record.candidates] for record in records] == [
        [text == f"city {number}" for text in make_answers(number)] for number in range(SIZE)
    ]
    assert {one.score for record in records for one in record.candidates} == {0.0, 0.25, 0.75}


def serve(records: Path, generator_id: str | None) -> str:
    """Calibrate a bot on a records file, and return the binding of its results."""
    artifact = calibrate(str(records), max_wrong_rate=0.3)
    bot = CFCRunnable(
        generator=RunnableLambda(lambda _: "Lima"),
        verifier=SelfConsistency(),
        generator_id=generator_id,
        artifact=artifact,
    )
    return bot.invoke("Capital of Peru?").guarantee.binding


def test_samples_of_the_harness_lead_to_a_bot_by_commands(tmp_path: Path) -> None:
    samples = write_lines(tmp_path / "samples_a.jsonl", make_harness_rows(60))
    store, records = tmp_path / "a.db", tmp_path / "a.jsonl"
    done = run("store", "import", samples, store, "--set", 'source.metadata=["doc.topic"]')
    assert done.code == 0, done
    for words in ("of lm-evaluation-harness", "question from doc.question", "60 prompts with 4 answers"):
        assert words in " ".join(done.out.split())
    here = "integrations.collect.tests.test_importing"
    options = f"--question doc.question --reference target -n {N} --set source.bad_rows=set_aside"
    parts = f"--generator {here}:make_generator --verifier SelfConsistency --labeler NormalisedMatch"
    command: list[Any] = ["collect", "--store", store, "--source", samples, *options.split(), *parts.split()]
    command += ["--set", 'source.metadata=["doc.topic"]', "--out", records]
    run(*command).assert_refused("If this generator drew the imported answers", "generator.id=NAME")
    collected = run(*command, "--set", "generator.id=bot")
    assert collected.code == 0, collected
    assert serve(records, "bot") == "matched"
    with pytest.raises(FingerprintError, match="id is 'other'"):
        serve(records, "other")


def make_generator() -> Any:
    return RunnableLambda(refuse_call)


@pytest.mark.parametrize("name", [None, "bot"])
def test_bot_is_verified_only_if_the_user_names_the_model(tmp_path: Path, name: str | None) -> None:
    rows = [{**row, "correct": row["response"] == row["gold"]} for row in make_long_rows(60)]
    samples = write_csv(tmp_path / "a.csv", rows)
    done = import_samples(samples, tmp_path / "a.db", generator_id=name)
    assert done.has_labels
    rescore(tmp_path / "a.db", SelfConsistency(), tmp_path / "b.db", make_silent_options())
    assert run("store", "export", tmp_path / "b.db", tmp_path / "b.jsonl").code == 0
    with nullcontext() if name else pytest.warns(FingerprintWarning, match=r"a table of answers in a\.csv"):
        assert serve(tmp_path / "b.jsonl", "bot") == ("matched" if name else "unverified")
    with Store(tmp_path / "b.db") as store:
        generator = store.read_provenance().generator or {}
    assert generator.get("unnamed", []) == ([] if name else ["a table of answers in a.csv"])


def test_scores_and_labels_of_the_table_are_kept(tmp_path: Path) -> None:
    rows: Rows = [
        {"q": "a?", "answer": "x", "confidence": 0.75, "label": "yes"},
        {"q": "a?", "answer": "<think>no</think>y", "confidence": "", "label": "WAHR"},
        {"q": "b?", "answer": "", "confidence": 1, "label": "0"},
        {"q": "b?", "answer": "z", "confidence": 0, "label": ""},
    ]
    done = import_samples(write_csv(tmp_path / "a.csv", rows), tmp_path / "a.db")
    assert (done.has_scores, done.has_labels) == (True, True)
    assert "confidence (larger is better)" in done.read_from
    found = [
        (one.text, one.score, one.correct, one.no_verdict, one.no_label) for one in sum_candidates(tmp_path)
    ]
    assert found == [
        ("x", 0.25, True, None, None),
        ("y", 1.0, True, True, None),
        ("", 1.0, False, None, None),
        ("z", 1.0, False, None, True),
    ]


RECORDED = Path(__file__).parent / "sources" / "recorded"
# Questions, the last input and reference, and its answers; an answer that was cut off has no text.
UQLM = (
    *(5, "On which continent is Honduras? Answer with a name only.", "North America"),
    ["North America.", "Asia", "North America"],
)
WRITTEN: dict[str, tuple[Any, ...]] = {
    "samples_facts.jsonl": (5, "On which continent is Honduras?", ["North America"], ["North America"] * 3),
    "uqlm.csv": UQLM,
    "uqlm.json": UQLM,
    "promptfoo.jsonl": (4, "Burkina Faso", "Ouagadougou", ["Tripoli.", "", "Bangladesh"]),
    "promptfoo.json": (1, "Morocco", "Rabat", ["Doha", "", "Abuja"]),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_file_that_a_tool_wrote_is_read(tmp_path: Path, name: str) -> None:
    size, question, reference, answers = WRITTEN[name]
    done = import_samples(RECORDED / name, tmp_path / "a.db")
    assert (done.prompts, done.n, done.has_scores, done.has_labels) == (size, 3, False, False)
    last = list_examples(tmp_path / "a.db")[-1]
    assert (last.input, last.reference) == (question, reference)
    with Store(tmp_path / "a.db") as store:
        draws = list(store.read_unfinished())[-1].draws or ()
    assert [one.text for one in draws] == answers


def test_whole_prompt_is_read_as_the_messages_that_it_lists(tmp_path: Path) -> None:
    for name in ("samples_facts.jsonl", "promptfoo.json"):
        import_samples(RECORDED / name, tmp_path / name, {"input": "prompt"})
        read_input = list_examples(tmp_path / name)[0].input
        if name == "samples_facts.jsonl":
            assert read_input == "What is the capital of Morocco? Answer with a name only."
        else:
            assert isinstance(read_input, list)
            assert read_input[1] == {"role": "user", "content": "What is the capital of Morocco?"}


def sum_candidates(folder: Path) -> list[Any]:
    return [one for record in read(folder / "a.db") for one in record.candidates]


def test_one_answer_a_row_has_the_metric_as_its_label(tmp_path: Path) -> None:
    runs = []
    for seed in range(2):  # two runs of one task
        rows = make_harness_rows(3)[::2]
        changed = [{**row, "resps": [[f"{seed}"]], "exact_match": float(seed)} for row in rows]
        runs.append(write_lines(tmp_path / f"samples_{seed}.jsonl", changed))
    done = import_samples(runs, tmp_path / "a.db")
    assert (done.prompts, done.n, done.has_labels) == (3, 2, True)
    assert [one.correct for one in sum_candidates(tmp_path)] == [False, True] * 3
    with Store(tmp_path / "a.db") as store:
        assert [one["file"] for one in store.configuration["imported"]] == [
            "samples_0.jsonl",
            "samples_1.jsonl",
        ]


PROVIDERS = [{"id": "a"}, {"id": "b"}]


def change(rows: Rows, number: int, **fields: Any) -> Rows:
    return [{**row, **fields} if place == number else row for place, row in enumerate(rows)]


def omit(rows: Rows, number: int, name: str) -> Rows:
    return [
        {key: one for key, one in row.items() if (place, key) != (number, name)}
        for place, row in enumerate(rows)
    ]


LONG, HARNESS, TESTS = make_long_rows(2), make_harness_rows(2), make_promptfoo(2)["results"]["results"]
# The name of a file, its rows, and what is wrong with it.
UNREADABLE: dict[str, tuple[str, Any, str]] = {
    "no answer": ("s.jsonl", change(HARNESS, 2, resps=None), "line 3: resps: "),
    "no question": ("s.jsonl", omit(HARNESS, 2, "doc"), r"line 3: input: no column 'doc\.question'"),
    "no variables": ("s.jsonl", omit(TESTS, 5, "vars"), r"line 6: input: no column 'vars\.question'"),
    "score": (
        "s.csv",
        [{**row, "score": 7} for row in LONG],
        r"line 2: score: found '7'; expected a number in \[0, 1\]",
    ),
    "scores for others": (
        "s.jsonl",
        [{**row, "scores": [0.5]} for row in HARNESS],
        "line 1: scores: found 1 values for 4 answers",
    ),
    "two models": (
        "s.jsonl",
        change(TESTS, 5, provider={"id": "b"}),
        "line 6: provider: .*openai:gpt-4o-mini by prompt 0 and b by prompt 0",
    ),
    "failed call": (
        "s.jsonl",
        change(TESTS, 5, response=None, error="429"),
        r"line 6: response\.output: no answer: '429'",
    ),
    "metric": (
        "s.jsonl",
        [{**row, "resps": ["x"], "metrics": [["exact_match"]]} for row in HARNESS],
        "line 1: .*: no column",
    ),
    "missing column": ("s.jsonl", [*LONG[:5], {"question": "?"}, *LONG[6:]], "line 6: .*no column"),
    "broken list": (
        "s.csv",
        change(by_row(make_uqlm_columns(3)), 1, sampled_responses="['a', "),
        "line 3: sampled_responses: ",
    ),
    "other metadata": (
        "s.csv",
        change([{**row, "topic": "a"} for row in LONG], 1, topic="b"),
        "line 3: .*another input or metadata",
    ),
    "unequal columns": ("s.json", {"prompts": ["a"], "responses": ["a", "b"]}, ".*the same rows"),
    "rows in another order": (
        "s.json",
        {"prompts": {"0": "a", "1": "b"}, "responses": {"1": "b", "0": "a"}},
        ".*the same rows",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_row_is_one_typed_error_and_nothing_is_written(tmp_path: Path, case: str) -> None:
    name, rows, message = UNREADABLE[case]
    write = {"s.jsonl": write_lines, "s.csv": write_csv, "s.json": write_json}[name]
    columns = {"metadata": ["topic"]} if case == "other metadata" else {}
    with pytest.raises(RecordError, match=rf"{re.escape(name)}(, |: ){message}"):
        import_samples(write(tmp_path / name, rows), tmp_path / "a.db", columns)
    assert not (tmp_path / "a.db").exists()


def test_list_of_promptfoo_is_one_structured_answer(tmp_path: Path) -> None:
    rows = change(TESTS, 0, response={"output": ["Lima", "Cusco"]})
    assert import_samples(rows, tmp_path / "a.db").n == import_samples(TESTS, tmp_path / "b.db").n


def test_choices_of_the_harness_and_lines_cut_off_are_no_answers(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"choices\.jsonl, line 1: resps: .*generate_until"):
        import_samples(RECORDED / "samples_choices.jsonl", tmp_path / "a.db")
    path = write_lines(tmp_path / "s.jsonl", LONG)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RecordError, match=r"s\.jsonl, line 8: "):
        import_samples(path, tmp_path / "a.db")


def test_column_that_cannot_be_guessed_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"to_df\(\)"):
        import_samples(RECORDED / "uqlm_dict.json", tmp_path / "a.db")
    rows = [{"frage": "a?", "antwort": "x", "lohn": 3}]
    path = write_csv(tmp_path / "s.csv", rows)
    run("store", "import", path, tmp_path / "a.db").assert_refused("holds the answer?", "--answer")
    named = ("--answer", "antwort", "--question", "frage", "--reference", "lohn")
    assert run("store", "import", path, tmp_path / "a.db", *named).code == 0
    assert [(one.input, one.reference) for one in list_examples(tmp_path / "a.db")] == [("a?", "3")]


def test_questions_with_too_few_answers_are_counted_and_named(tmp_path: Path) -> None:
    rows = make_long_rows(5)[:-2]
    with pytest.raises(
        InputError, match=r"1 of 5 questions have fewer than 4 answers: 'Capital of 4\?' has 2"
    ):
        import_samples(rows, tmp_path / "a.db")
    for given, n in (([{**one, "response": []} for one in rows], None), (rows, 0), (rows, -1)):
        with pytest.raises(InputError, match=f"n is {n or 0}; expected at least 1 answer"):
            import_samples(given, tmp_path / "a.db", n=n)
    assert import_samples(rows, tmp_path / "a.db", n=2).n == 2
    assert {len(one.draws or ()) for one in Store(tmp_path / "a.db").read_unfinished()} == {2}


def test_import_is_repeated_without_effect_and_other_answers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert import_samples(make_long_rows(), path).prompts == SIZE
    assert import_samples(make_long_rows(), path).prompts == 0
    changed = change(make_long_rows(), 1, response="another")
    with pytest.raises(StoreError, match="other candidates"):
        import_samples(changed, path)
    run("store", "import", write_csv(tmp_path / "b.csv", make_long_rows()), path).assert_refused("generator")


def test_collection_draws_nothing_beside_imported_answers(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    import_samples(make_long_rows(), path)
    new = Example(id="new", input="What else?", reference="x")
    for more in ({}, {"relabel": True}):
        with pytest.raises(StoreError, match="none to 1 prompts"):
            collect([*list_examples(path), new], make_parts(), path, make_silent_options(**more))
    assert len(list_examples(path)) == SIZE
    collected = tmp_path / "b.db"
    collect(
        EXAMPLES[:1], make_parts(generator=RunnableLambda(lambda _: "x")), collected, make_silent_options()
    )
    with pytest.raises(StoreError, match="collected"):
        import_samples(make_long_rows(), collected)


def test_imported_answers_are_labelled_again_by_corrected_references(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    import_samples(make_long_rows(), path, generator_id="bot")
    parts = make_parts(generator_id="bot")
    collect(list_examples(path), parts, path, make_silent_options())

    def count_correct() -> int:
        with Store(path) as store:
            return sum(one.correct for record in store.read_records() for one in record.candidates)

    before = count_correct()
    corrected = [one.model_copy(update={"reference": "town 0"}) for one in list_examples(path)]
    with pytest.raises(StoreError, match="--relabel"):
        collect(corrected, parts, path, make_silent_options())
    assert collect(corrected, parts, path, make_silent_options(relabel=True)).complete
    # Every fifth question has one answer "town 0"; `make_parts` refuses every call of the model.
    assert (before > SIZE, count_correct()) == (True, SIZE // 5)


def test_imported_scores_are_of_no_verifier_of_this_library(tmp_path: Path) -> None:
    import_samples([{**row, "score": 0.5} for row in make_long_rows()], tmp_path / "a.db", generator_id="bot")
    with pytest.raises(StoreError, match="rescore"):
        collect(list_examples(tmp_path / "a.db"), make_parts(), tmp_path / "a.db", make_silent_options())


def test_options_of_answers_are_refused_for_records(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    fields = {"id": "p", "input": "q", "candidates": [{"text": "a", "score": 0.5, "correct": True}]}
    write_lines(path, [{"format": "langchain-cfc/records", "version": 1, "n": 1}, fields])
    run("store", "import", path, tmp_path / "a.db", "--answer", "text").assert_refused("records")
    assert run("store", "import", path, tmp_path / "a.db").code == 0


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a.txt"])
def test_no_file_or_content_is_an_untyped_error(tmp_path: Path, name: str) -> None:
    for content in (b"", b"{}", b"[]", b"null", b"\xff\xfe", b"{\n", b"PAR1", b"a,b\n", b'{"results": 3}'):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CFCError):
            import_samples(tmp_path / name, tmp_path / "a.db")
        assert run("store", "import", tmp_path / name, tmp_path / "a.db").code == 2
