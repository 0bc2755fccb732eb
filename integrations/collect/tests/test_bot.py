"""`build_bot`: a bot from questions with known answers, in one call."""

from __future__ import annotations

import asyncio
import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from langchain_cfc_collect import Budget, CollectionOptions, Price, abuild_bot, build_bot, calibrate_chain
from langchain_cfc_collect.bot import _explain_limit
from langchain_cfc_collect.store import Store
from langchain_cfc_collect.store.configurations import CHOICE
from langchain_core.output_parsers import StrOutputParser
from langchain_openai import ChatOpenAI

from integrations.collect.tests.sharing import make_recorded_model
from langchain_cfc import CalibrationArtifact, CFCRunnable
from langchain_cfc.errors import CFCError, CollectionError, InputError, StoreError, UnattainableTargetError
from langchain_cfc.labelers import NormalisedMatch, NumericMatch
from langchain_cfc.support.serialization import canonical_json
from langchain_cfc.verifiers import SelfConsistency, SequenceProbability
from tests.cli.running import run
from tests.serving.openai_bodies import Answer
from tests.serving.openai_server import Script, serving

SIZE, N = 80, 2
PROMPT = "Give the answer alone: {}"
# The first trial answer is wrong: every fifth question is.
PAIRS = [(f"What is question {number}?", f"city {chr(65 + number % 26)}{number}") for number in range(SIZE)]


def answer(number: int) -> str:
    return "no idea" if number % 5 == 0 else PAIRS[number][1]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own for the default store, and for a file of questions; and a fixed time."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def script() -> Script:
    """A model that is sure when it is right, and answers questions with and without the prompt."""
    said = {}
    for number, (question, _) in enumerate(PAIRS):
        said[question] = [Answer(answer(number), -3.0 if number % 5 == 0 else -0.001 * (number + 1))]
        said[PROMPT.format(question)] = said[question]
    return Script(said)


@pytest.fixture
def model(script: Script) -> Iterator[ChatOpenAI]:
    with serving(script) as url:
        yield make_recorded_model(url, temperature=0.7)


def build(generator: Any, examples: Any = PAIRS, **options: Any) -> CFCRunnable:
    return build_bot(generator, examples, **{"max_wrong_rate": 0.1, "n": N, **options})


def abuild(generator: Any, examples: Any = PAIRS, **options: Any) -> CFCRunnable:
    return asyncio.run(abuild_bot(generator, examples, **{"max_wrong_rate": 0.1, "n": N, **options}))


@pytest.mark.parametrize("form", [build, abuild], ids=["sync", "async"])
def test_build_bot_says_its_defaults_and_returns_a_bot_that_serves(
    form: Callable[..., CFCRunnable], model: ChatOpenAI, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    bot = form(model)
    lines = capsys.readouterr().err.splitlines()
    end = next(place for place, line in enumerate(lines) if line.startswith("promise:"))
    before, after = "\n".join(lines[:end]), lines[end:]
    for said in (
        "'no idea' (wrong, reference 'city A0')",
        "prompt: 'Give the answer alone: {question}'",
        "verifier: SequenceProbability, because the model returns log-probabilities",
        "labeler: NormalisedMatch, because all references are texts; it labels 4 of 5 trial answers correct",
        f"n: {N} answers to each of {SIZE} questions: {N * SIZE} requests, about ",
        "store: bot.db keeps everything",
    ):
        assert said in before
    labels = before.partition("labels: ")[2]
    counts = f"{N * 64} of {N * SIZE} answers are labelled correct. In doubt:"
    assert labels.startswith(f"{counts}\n  'no idea' (wrong,")
    assert labels.endswith("  to see more: langchain-cfc store status bot.db")
    assert len(after) <= 8
    assert after[0].startswith("promise: Of the questions that are answered, at most 10 % get a wrong")
    assert after[1].startswith("answered: 64 of 80 questions (80 %), 0 wrongly")
    assert "without abstaining: 16 of 80 answers would be wrong (20 %)" in after
    assert any("for 5 trial answers" in line for line in after)
    assert len(script.requests) == N * SIZE + 5
    assert bot.guarantee.binding == "matched"
    assert bot.invoke(PAIRS[1][0]).best == PAIRS[1][1]
    assert bot.invoke(PAIRS[5][0]).best is None


def test_build_bot_again_asks_nothing_and_serves_under_the_same_digest(
    model: ChatOpenAI, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = CollectionOptions(
        budget=Budget(max_cost=300.0, prices={"*": Price(input=1e6, output=1e6)}), on_progress=lambda _: None
    )
    with pytest.raises(CollectionError, match=r"were not started.*same store"):
        build(model, collection=few)
    begun = len(script.requests)
    assert 5 < begun < N * SIZE
    bot = build(model)
    assert len(script.requests) == N * SIZE + 5
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767300000")
    again = build(model)
    assert again.artifact.digest == bot.artifact.digest
    # Control: another promise is another artifact, made now.
    other = build(model, max_wrong_rate=0.2).artifact
    assert other.created_at > bot.artifact.created_at
    assert CalibrationArtifact.load("bot.artifact.json").digest == other.digest
    assert len(script.requests) == N * SIZE + 5
    # The explicit path takes over where it ended.
    artifact, _ = calibrate_chain(
        again.generator,
        PAIRS,
        verifier=SequenceProbability(),
        labeler=NormalisedMatch(),
        n=N,
        max_wrong_rate=0.2,
        store="bot.db",
    )
    assert artifact.bot is not None
    assert len(script.requests) == N * SIZE + 5


def test_build_bot_goes_on_with_a_choice_of_an_earlier_version(
    model: ChatOpenAI, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    few = CollectionOptions(budget=Budget(max_tokens=300), on_progress=lambda _: None)
    with pytest.raises(CollectionError, match="were not started"):
        build(model, collection=few)
    with Store("bot.db") as store, store.begin_write() as connection:
        settings = store.configuration
        total = settings[CHOICE].pop("calls")[0]
        tokens = {name: total[name] // 5 for name in ("input_tokens", "output_tokens")}
        settings[CHOICE]["calls"] = [{**total, **tokens, "answered": 1}] * settings[CHOICE].pop("answers")
        store.write_facts(connection, {"configuration": canonical_json(settings)})
    capsys.readouterr()
    build(model)
    assert len(script.requests) == N * SIZE + 5
    assert "for 5 trial answers" in capsys.readouterr().err


def test_build_bot_asks_by_a_prompt_and_names_its_defaults_alone(
    model: ChatOpenAI, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    build(model, labeler=NormalisedMatch(), verifier=SequenceProbability())
    assert all(PROMPT.format("") in str(request) for request in script.requests)
    printed = capsys.readouterr().err
    assert "prompt: " in printed
    assert not re.search("^(verifier|labeler): ", printed, re.MULTILINE)
    build(model, verifier=SequenceProbability(), store="other.db")
    assert re.findall("^(verifier|labeler): ", capsys.readouterr().err, re.MULTILINE) == ["labeler"]


@pytest.mark.parametrize("parsed", [False, True])
def test_build_bot_charges_the_trial_to_the_budget(model: ChatOpenAI, script: Script, parsed: bool) -> None:
    # A parser drops the message that states the tokens.
    chain = model | StrOutputParser() if parsed else model

    def ask(tokens: int, store: str) -> int:
        before = len(script.requests)
        with pytest.raises(CollectionError):
            build(chain, store=store, collection=CollectionOptions(budget=Budget(max_tokens=tokens)))
        return len(script.requests) - before

    # An answer takes 13 tokens. Without the trial the budget would allow ten prompts of two answers.
    assert ask(13 * 2 * 10, "ten.db") <= 5 + 2 * 10 - 5
    assert ask(13 * 5, "none.db") == 5


def test_build_bot_asks_for_new_questions_alone(model: ChatOpenAI, script: Script) -> None:
    build(model, PAIRS[:60])
    build(model, PAIRS)
    assert len(script.requests) == N * SIZE + 5
    with pytest.raises(InputError, match=r"bot.db holds 20 questions that these examples lack"):
        build(model, PAIRS[:60])
    with Store("new.db", create=True) as held, held.lock(), pytest.raises(StoreError, match="another run"):
        build(model, store="new.db")
    assert len(script.requests) == N * SIZE + 5


@pytest.mark.parametrize("first", ["init", "build_bot"])
def test_build_bot_and_init_go_on_with_the_store_of_the_other(
    first: str, script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("mine.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "answer"), *PAIRS])
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    given = ("--source", "mine.csv", "--model", "openai:recorded")

    def build_mine() -> None:
        assert build("openai:recorded", "mine.csv").invoke(PAIRS[1][0]).best == PAIRS[1][1]

    def propose_and_collect() -> None:
        assert run("init", *given, "-n", str(N), "--force").code == 0
        assert run("collect", "--config", "collect.toml").code == 0

    steps = [propose_and_collect, build_mine]
    with serving(script) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        for step in steps if first == "init" else reversed(steps):
            step()
    # Each answer was drawn once; both choose by five trial answers.
    assert len(script.requests) == N * SIZE + 10 + N
    assert "verifier: SequenceProbability" in capsys.readouterr().err


FORMS: dict[str, Callable[[], Any]] = {
    "generator": lambda: iter(PAIRS),
    "mappings": lambda: [{"question": one, "answer": two, "topic": "x"} for one, two in PAIRS],
    "frame": lambda: pd.DataFrame([*PAIRS, ("unanswered", None), ("also", [""])], columns=["q", "a"]),
    "file": lambda: Path("mine.csv"),
}


@pytest.mark.parametrize("form", FORMS)
def test_build_bot_takes_examples_in_every_form(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("mine.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "answer"), *PAIRS, ("unanswered", "")])
    given = {"verifier": SelfConsistency(), "labeler": NormalisedMatch(), "generator_id": "numbers"}

    def draw(question: str) -> str:
        number = int(question.rpartition(" ")[2].rstrip("?"))
        # Ten candidates that differ have the worst score.
        return answer(number) if number % 5 else f"guess {next(guesses)}"

    guesses = iter(range(10_000))
    bot = build(draw, FORMS[form](), **given)
    assert bot.guarantee.wrong_answers is not None
    assert bot.guarantee.wrong_answers.groups[0].prompts == SIZE
    said = capsys.readouterr().err
    assert ("set aside" in said) == (form in {"frame", "file"})
    assert ("mine.db keeps" in said) == (form == "file")
    assert "verifier:" not in said
    # A chain is asked the question as it is.
    assert bot.invoke(PAIRS[1][0]).best == PAIRS[1][1]


def test_build_bot_out_of_reach_keeps_what_was_paid_for(model: ChatOpenAI, script: Script) -> None:
    wrong = {"max_wrong_rate": 0.1, "labeler": NormalisedMatch(), "verifier": SequenceProbability()}
    # Half of the sure answers are wrong.
    pairs = [(question, answer if place % 2 else "other") for place, (question, answer) in enumerate(PAIRS)]
    with pytest.raises(UnattainableTargetError, match=r"bot.db keeps all answers: call build_bot again"):
        build(model, pairs, **wrong)
    asked = len(script.requests)
    build(model, pairs, **{**wrong, "max_wrong_rate": 0.8})
    assert len(script.requests) == asked == N * SIZE + 5


def test_build_bot_for_all_questions_measures_held_out_ones(
    model: ChatOpenAI, capsys: pytest.CaptureFixture[str]
) -> None:
    bot = build(model, max_wrong_rate=None, max_wrong_of_all=0.1)
    assert "answered: " in (said := capsys.readouterr().err)
    assert re.search(r"of \d\d questions held out, 0.0 % of all wrongly", said)
    assert bot.invoke(PAIRS[1][0]).guarantee.is_about_best


NOTHING_CORRECT = [(question, f"another {number}") for number, (question, _) in enumerate(PAIRS)]


@pytest.mark.parametrize(
    ("examples", "options", "said"),
    [
        (PAIRS, {"max_wrong_rate": None}, r"build_bot\(..., max_wrong_rate=0.05\)"),
        (PAIRS, {"alpha": 0.1}, "for answer sets .* calibrate_chain"),
        (PAIRS, {"unit": "claims"}, "pass verifier= and labeler="),
        (PAIRS[:20], {}, "A rate of 0.1 wrong answers is not certified: it takes about 33 "),
        (PAIRS, {"features": "group(topic)", "wrong_rate_groups": True}, "no metadata 'topic'"),
        ([("a", ""), ("b", "")], {}, "reference"),
        ("missing.csv", {}, "missing.csv"),
        (PAIRS, {"out": "bot.db"}, "out: bot.db is also the store"),
        (PAIRS, {"store": "."}, "cannot write .*: it is not a regular file"),
        (PAIRS, {"store": "none/bot.db", "out": "bot.json"}, "none/bot.db: the folder .* does not exist"),
        (PAIRS, {"store": "me:secret@host/base"}, "^the address of the store cannot be read"),
        (17, {}, "expected pairs, mappings"),
        (pd.Series(["a"]), {}, "expected a pair"),
        (PAIRS, {"labeler": NumericMatch()}, "the labeler cannot use the reference of 80 prompts"),
        (PAIRS, {"answer": "strip"}, "answer is 'strip'; expected a function"),
    ],
)
def test_build_bot_refuses_what_cannot_work_before_asking(
    examples: Any, options: dict[str, Any], said: str, model: ChatOpenAI, script: Script
) -> None:
    with pytest.raises(CFCError, match=said):
        build(model, examples, **options)
    assert script.requests == []
    assert list(Path.cwd().iterdir()) == []


def test_build_bot_stops_if_no_trial_answer_is_labelled_correct(
    model: ChatOpenAI, script: Script, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"none of 10 trial .*'no idea' \(wrong, reference 'another 0'\)"):
        build(model, NOTHING_CORRECT)
    assert len(script.requests) == 10
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("curve", "certified", "limit"),
    [
        # (answered, wrong) along the curve; perfect scores could answer (answered - wrong) / 0.9 at the end.
        ([(50, 0), (100, 50)], 50, "the model: perfect scores would let it answer 56 %"),
        ([(20, 1), (50, 20), (100, 20)], 20, "the verifier: .* answer 89 %, these 20 %"),
        ([(20, 0), (80, 1), (100, 12)], 20, "the number of questions: with many more .* about 80 %"),
    ],
)
def test_limit_is_the_largest_gap(curve: list[tuple[int, int]], certified: int, limit: str) -> None:
    points = [SimpleNamespace(answered=answered, wrong=wrong) for answered, wrong in curve]
    artifact: Any = SimpleNamespace(bot=SimpleNamespace(curve=points))
    counts = SimpleNamespace(prompts=100, answered=certified)
    certificate: Any = SimpleNamespace(max_wrong_rate="0.1", groups=[counts])
    (_, found) = _explain_limit(artifact, certificate)
    assert re.search(limit, found)
