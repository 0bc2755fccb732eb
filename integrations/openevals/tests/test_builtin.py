"""Evaluators that ask no chat model: those of openevals by their names, and functions."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import langchain.embeddings
import pytest
from langchain_cfc_openevals import make_labeler, make_verifier
from openevals.code.mypy import create_mypy_evaluator
from openevals.exact import exact_match, exact_match_async
from openevals.json import create_json_match_evaluator
from openevals.string import embedding_similarity

from integrations.openevals.tests.parts import (
    Ask,
    both_ways,
    hosted,
    labelled_input,
    run_ainvoke,
    run_invoke,
)
from langchain_cfc.errors import InputError, LabelerError, VerifierError
from langchain_cfc.labelers import JudgeLabels
from langchain_cfc.sampling.fingerprints import compute_fingerprint
from tests.factories import verifier_input
from tests.lengths import mostly_long
from tests.serving.openai_server import Fault, Script

CITIES = labelled_input("where?", "Lima", "Lima", "Lime", "Quito", "Lima")
ALIASES = labelled_input("where?", ["Lima", "Ciudad de los Reyes"], "Lima", "Ciudad de los Reyes", "Quito")


@both_ways
@pytest.mark.parametrize("evaluator", ["exact_match", exact_match, exact_match_async])
def test_labeler_exact_match_accepts_any_reference(ask: Ask, evaluator: Any) -> None:
    assert ask(make_labeler(evaluator), CITIES) == [True, False, False, True]
    assert ask(make_labeler(evaluator), ALIASES) == [True, True, False]


def test_exact_match_of_openevals_rejects_lists_of_references() -> None:
    assert run_invoke(JudgeLabels(exact_match), ALIASES) == [False] * 3


@both_ways
def test_labeler_levenshtein_distance_with_at_least(ask: Ask) -> None:
    # "Lime" differs in one letter of four.
    assert ask(make_labeler("levenshtein_distance", at_least=0.75), CITIES) == [True, True, False, True]
    assert ask(make_labeler("levenshtein_distance", at_least=0.76), CITIES) == [True, False, False, True]
    assert ask(make_labeler("levenshtein_distance", at_least=0.9), ALIASES) == [True, True, False]


@both_ways
@pytest.mark.parametrize("reference", [None, [], 72, ["72", 72], {"city": "Lima"}])
def test_labeler_exact_match_refuses_references_that_are_not_text(ask: Ask, reference: Any) -> None:
    with pytest.raises(LabelerError, match="the reference"):
        ask(make_labeler("exact_match"), labelled_input("where?", reference, "72"))


@both_ways
def test_labeler_embedding_similarity_over_http(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else the client counts tokens with a file that it gets from the network.
    untold = partial(langchain.embeddings.init_embeddings, check_embedding_ctx_length=False)
    monkeypatch.setattr(embedding_similarity, "init_embeddings", untold)
    monkeypatch.setattr(langchain.embeddings, "init_embeddings", untold)
    script = Script({})
    near = make_labeler("embedding_similarity", {"model": "openai:embedding"}, at_least=0.5)
    asked = labelled_input("where?", "in lima", "in lima", "it is in lima", "quito")
    with hosted(script):
        assert ask(near, asked) == [True, True, False]
        # The negative control: a cosine of 1 is for what is the same.
        same = make_labeler("embedding_similarity", {"model": "openai:embedding"}, at_least=1)
        assert ask(same, asked) == [True, False, False]
        script.faults = [Fault("status 401")]
        with pytest.raises(LabelerError, match="AuthenticationError"):
            ask(near, asked)
    assert script.requests[0]["model"] == "embedding"


REFERENCE = {"city": "Lima", "rank": 1}
WRITTEN = {
    '{"rank": 1, "city": "Lima"}': True,
    '{"city": "Lima", "rank": 2}': False,
    '{"city": "Lima"}': False,
    '{"city": "Lima", "rank": 1, "more": 0}': False,
    "Lima": False,
    '["Lima"]': False,
    '{"city": "Lima", "city": "Lima", "rank": 1}': False,
    '{"city": "Lima", "rank": NaN}': False,
}


@both_ways
def test_labeler_json_match_compares_objects(ask: Ask) -> None:
    assert ask(make_labeler("json_match", at_least=1), labelled_input("?", REFERENCE, *WRITTEN)) == list(
        WRITTEN.values()
    )
    listed = labelled_input(
        "?", [REFERENCE, {"city": "Quito"}], '[{"city": "Quito"}, {"city": "Lima", "rank": 1}]'
    )
    assert ask(make_labeler("json_match", at_least=1), listed) == [True]
    shares = make_labeler("json_match", {"aggregator": "average"}, at_least=0.5)
    assert ask(shares, labelled_input("?", REFERENCE, *WRITTEN))[:3] == [True, True, True]


@both_ways
def test_labeler_json_match_key_chooses_one_field(ask: Ask) -> None:
    city = make_labeler("json_match", {"aggregator": None}, key="json_match:city", at_least=1)
    assert ask(city, labelled_input("?", REFERENCE, '{"city": "Lima"}', '{"city": "Quito", "rank": 1}')) == [
        True,
        False,
    ]
    with pytest.raises(LabelerError, match=r"with the keys .*: pass key= to choose one"):
        ask(
            make_labeler("json_match", {"aggregator": None}, at_least=1),
            labelled_input("?", REFERENCE, '{"city": 1}'),
        )


@both_ways
@pytest.mark.parametrize("reference", [None, {}, [], [1], "Lima", 3])
def test_labeler_json_match_refuses_references_that_are_no_objects(ask: Ask, reference: Any) -> None:
    with pytest.raises(LabelerError, match="neither a JSON object with fields"):
        ask(make_labeler("json_match", at_least=1), labelled_input("?", reference, "{}"))


def test_labeler_json_match_refuses_a_rubric() -> None:
    """Why a rubric is refused: openevals drops what its judge left out, and averages the rest."""

    class Forgetful:
        """As the client of OpenAI that openevals takes as well."""

        def __init__(self) -> None:
            self.chat = self.completions = self.message = self
            self.content = "{}"

        @property
        def choices(self) -> list[Any]:
            return [self]

        def create(self, **asked: Any) -> Any:
            del asked
            return self

    options: Any = {"aggregator": "all", "rubric": {"city": "any"}, "judge": Forgetful(), "model": "x"}
    wrong: Any = create_json_match_evaluator(**options)(
        outputs={"city": "Quito"}, reference_outputs={"city": "Lima"}
    )
    assert wrong[0]["score"] == 1
    with pytest.raises(InputError, match="json_match: the setting judge, model, rubric asks a model"):
        make_labeler("json_match", options, at_least=1)


# --- mypy


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without settings for a type checker, where it keeps what it has read."""
    return tmp_path_factory.mktemp("checked")


@pytest.fixture
def programs(checked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs of this environment, as if it were activated."""
    monkeypatch.chdir(checked)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


CODE = ("number: int = 1\n", 'number: int = "text"\n', "Here is the code.")


@mostly_long("ask", [run_invoke, run_ainvoke], quick=1)
@pytest.mark.usefixtures("programs")
def test_mypy_evaluator_scores_and_labels_code(ask: Ask) -> None:
    assert ask(make_verifier("mypy"), verifier_input("?", CODE[1])) == [1.0]
    # By default, mypy keeps no cache here and parses the standard library again for each text.
    keeping = {"mypy_cli_args": ["--incremental"]}
    assert ask(make_verifier("mypy", keeping), verifier_input("?", *CODE)) == [0.0, 1.0, 1.0]
    assert ask(make_labeler("mypy", keeping), labelled_input("?", None, *CODE)) == [True, False, False]
    fenced = tuple(f"So:\n```python\n{text}```\n" for text in CODE[:2])
    blocks = make_verifier("mypy", {"code_extraction_strategy": "markdown_code_blocks", **keeping})
    assert ask(blocks, verifier_input("?", *fenced, "none")) == [0.0, 1.0, 1.0]
    assert str(blocks.fingerprint["evaluator.program"]).startswith("mypy ")


@pytest.mark.usefixtures("programs")
def test_mypy_evaluator_refuses_arguments_that_find_no_error() -> None:
    arguments = ["--no-such-flag"]
    # What openevals makes of it.
    found: Any = create_mypy_evaluator(mypy_cli_args=arguments)(outputs=CODE[1])
    assert found["score"] is True
    with pytest.raises(InputError, match="finds no error in"):
        make_verifier("mypy", {"mypy_cli_args": arguments})


def test_mypy_evaluator_requires_mypy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="mypy cannot be run"):
        make_verifier("mypy")


# --- functions


@both_ways
def test_function_evaluators_score_and_label(ask: Ask) -> None:
    def right(*, outputs: str, reference_outputs: str) -> bool:
        return outputs == reference_outputs

    def short(*, inputs: str, outputs: str) -> dict[str, Any]:
        return {"key": "short", "score": len(outputs) / 10 if inputs == "where?" else None}

    assert ask(make_labeler(right, id="mine"), CITIES) == [True, False, False, True]
    assert ask(make_verifier(short, higher_is_better=False), verifier_input("where?", "lima")) == [0.4]
    assert ask(make_labeler(short, at_most=0.4), CITIES) == [True, True, False, True]
    with pytest.raises(VerifierError, match=r"TypeError: .*reference_outputs"):
        ask(make_verifier(right), verifier_input("where?", "lima"))
    with pytest.raises(LabelerError, match="neither True nor False"):
        ask(make_labeler(short), CITIES)
    with pytest.raises(LabelerError, match="returned None"):
        ask(make_labeler(short, at_most=0.4), labelled_input("?", None, "lima", "oslo"))
    # One value alone that cannot be read is no label, which counts as wrong.
    assert ask(make_labeler(short, at_most=0.4), labelled_input("?", None, "lima")) == [None]
    assert make_labeler(right, id="mine").fingerprint["judge.function.id"] == "mine"
    assert "id" not in make_labeler(right).fingerprint


def test_async_function_evaluator_works_only_under_ainvoke() -> None:
    async def right(*, outputs: str, reference_outputs: str) -> bool:
        return outputs == reference_outputs

    assert run_ainvoke(make_labeler(right), CITIES) == [True, False, False, True]
    with pytest.raises(LabelerError, match="async: use ainvoke"):
        run_invoke(make_labeler(right), CITIES)


@both_ways
def test_function_evaluator_cannot_change_the_prompt(ask: Ask) -> None:
    prompt = {"question": "where?"}

    def writing(*, inputs: dict[str, Any], outputs: str) -> bool:
        inputs["question"] = outputs
        return True

    assert ask(make_verifier(writing), verifier_input(prompt, "lima")) == [0.0]
    assert prompt == {"question": "where?"}


@both_ways
def test_verifier_can_read_the_reference_from_the_prompt(ask: Ask) -> None:
    near = make_verifier("levenshtein_distance", arguments={"reference_outputs": "draft"})
    assert ask(near, verifier_input({"draft": "lima"}, "lima", "lime")) == [0.0, 0.25]
    assert ask(near, verifier_input({"draft": ["lima", "quito"]}, "lima", "quito")) == [0.0, 0.0]
    with pytest.raises(VerifierError, match="the reference 3 holds a int"):
        ask(near, verifier_input({"draft": 3}, "lima"))
    with pytest.raises(VerifierError, match="holds no 'draft'"):
        ask(near, verifier_input({"text": "lima"}, "lima"))


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("no_such", {}, "unknown evaluator 'no_such': pass one of exact_match"),
    (3, {}, "expected an evaluator's name, or a function"),
    ("exact_match", {"settings": {"case": False}}, "the setting case does not exist"),
    ("embedding_similarity", {"settings": {"algorithm": "none"}, "at_least": 0.5}, "cannot be made with"),
    ("json_match", {"settings": {"aggregator": object()}, "at_least": 1}, "not plain data"),
    ("levenshtein_distance", {}, "scores lie from 0 to 1: pass at_least="),
    ("levenshtein_distance", {"at_least": 1.5}, "lies outside of the range"),
    ("levenshtein_distance", {"at_least": 0.5, "at_most": 0.5}, "are mutually exclusive; give one"),
    ("exact_match", {"id": "mine"}, "identifies itself"),
    (print, {"settings": {"end": ""}}, "a function created with its settings"),
]


@pytest.mark.parametrize(("evaluator", "settings", "message"), REFUSED)
def test_labeler_refuses_invalid_evaluators_and_settings(evaluator: Any, settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_labeler(evaluator, **settings)


@pytest.mark.parametrize(
    "name", ["exact_match", "levenshtein_distance", "embedding_similarity", "json_match"]
)
def test_verifier_refuses_evaluators_that_need_a_reference(name: str) -> None:
    with pytest.raises(InputError, match="compares with a reference, but there is none when serving"):
        make_verifier(name)


def test_labeler_fingerprint_states_its_rule() -> None:
    cut = make_labeler("levenshtein_distance", at_least=0.7)
    assert cut.fingerprint["correct"] == "at least 0.7"
    assert cut.fingerprint["judge.evaluator"] == "levenshtein_distance"
    assert repr(cut) == "EvaluatorLabeler(correct: at least 0.7)"
    assert compute_fingerprint(cut) == compute_fingerprint(make_labeler("levenshtein_distance", at_least=0.7))
    others = [make_labeler("levenshtein_distance", at_least=0.71), make_labeler("exact_match", at_least=0.7)]
    assert all(compute_fingerprint(other) != compute_fingerprint(cut) for other in others)
