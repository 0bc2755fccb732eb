"""Common mistakes of users end in one typed error of at most two lines, with what to do."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_cfc_collect import Budget, CollectionOptions, Store, build_bot
from langchain_core.language_models import FakeListChatModel
from pandas import DataFrame  # type: ignore[import-untyped]

from langchain_cfc import CFCRunnable, calibrate, evaluate
from langchain_cfc.errors import CFCError
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.verifiers import SelfConsistency, SequenceProbability
from tests.cli.running import run

MOST_LINES, MOST_CHARACTERS = 2, 260
SIZE, N = 80, 3
PAIRS = [(f"Question {number}?", f"a{number}") for number in range(SIZE)]


def answer(question: str) -> str:
    return "a" + question.rsplit(maxsplit=1)[-1].rstrip("?")


def make_records(wrong: int) -> list[dict[str, Any]]:
    """Records of which every `wrong`-th has no right answer; their scores do not tell which."""
    return [
        {
            "id": f"p{number}",
            "input": question,
            "candidates": [
                {"text": f"{right}-{slot}", "score": number / SIZE, "correct": (number + 1) % wrong > 0}
                for slot in range(N)
            ],
        }
        for number, (question, right) in enumerate(PAIRS)
    ]


SOME_WRONG, FEW_WRONG = make_records(4), make_records(SIZE)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with records, artifacts, a store and questions, and no key of a provider."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Path("records.jsonl").write_text("\n".join(map(json.dumps, SOME_WRONG)))
    Path("cut.jsonl").write_text('{"id": 1')
    calibrate(FEW_WRONG, max_wrong_rate=[0.1, 0.2]).save("artifact.json")
    with Path("questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "answer"), *PAIRS])
    Path("gaps.csv").write_text("question,answer\n1,2\n,3\n")
    Path("other.csv").write_text("frage,antwort\n1,2\n")


def build(generator: Any = answer, examples: Any = PAIRS, **options: Any) -> CFCRunnable:
    quiet = CollectionOptions(on_progress=lambda _: None, on_notice=lambda _: None)
    given = {"max_wrong_rate": 0.1, "n": N, "generator_id": "me", "collection": quiet}
    return build_bot(generator, examples, **{**given, **options})


def make() -> Any:
    return answer


def rebuild(**options: Any) -> None:
    build(store="made.db")
    build(store="made.db", **options)


def serve(verifier: Any = None, question: Any = "Question 1?", **promise: Any) -> None:
    bot = CFCRunnable(
        generator=answer, verifier=verifier or SelfConsistency(), artifact="artifact.json", **promise
    )
    bot.invoke(question)


def fail_in_several_lines(question: str) -> str:
    msg = f"no answer to\n{question}\nat all"
    raise RuntimeError(msg)


IN_PYTHON: dict[str, Callable[[], Any]] = {
    "no promise": lambda: build(max_wrong_rate=None),
    "sets": lambda: build(max_wrong_rate=None, alpha=0.1),
    "rate in percent": lambda: build(max_wrong_rate=5),
    "few questions": lambda: build(examples=PAIRS[:10], max_wrong_rate=0.05),
    "no file": lambda: build(examples="nothing.csv"),
    "unknown columns": lambda: build(examples="other.csv"),
    "wrong answers": lambda: build(FakeListChatModel(responses=["no idea"])),
    "no provider": lambda: build("noprovider:gpt"),
    "no key": lambda: build("openai:gpt-4o-mini"),
    "out of reach": lambda: build(lambda _: "a1", PAIRS, labeler=NormalisedMatch()),
    "another n": lambda: rebuild(n=N + 1),
    "another labeler": lambda: rebuild(labeler=NormalisedMatch(anywhere=True)),
    "another verifier": lambda: rebuild(verifier=SelfConsistency(answer=str.lower)),
    "another generator": lambda: rebuild(generator_id="you"),
    "fewer questions": lambda: rebuild(examples=PAIRS[:70]),
    "no log-probabilities": lambda: serve(SequenceProbability(), max_wrong_rate=0.1),
    "several promises": serve,
    "another promise": lambda: serve(max_wrong_rate=0.05),
    "sets of a bot": lambda: serve(alpha=0.1),
    "another kind of prompt": lambda: serve(max_wrong_rate=0.1, question={"question": "1"}),
    "no artifact": lambda: CFCRunnable(generator=answer, verifier=SelfConsistency(), artifact="nothing.json"),
    "records as artifact": lambda: CFCRunnable(
        generator=answer, verifier=SelfConsistency(), artifact="records.jsonl"
    ),
    "not certified": lambda: calibrate(SOME_WRONG, max_wrong_rate=0.05),
    "unattainable": lambda: calibrate(SOME_WRONG, alpha=0.05, features="1"),
    "few records": lambda: calibrate(SOME_WRONG[:10], alpha=0.05, features="1"),
    "no metadata": lambda: calibrate(SOME_WRONG, alpha=0.3, features="group(topic)"),
    "no option": lambda: calibrate(SOME_WRONG),
    "not held out": lambda: evaluate(calibrate(FEW_WRONG, max_wrong_rate=0.1), FEW_WRONG),
    "no store": lambda: Store("nothing.db"),
    "records as store": lambda: Store("records.jsonl"),
    "no prices": lambda: Budget(max_cost=1.0),
    "questions twice": lambda: build(examples=PAIRS * 2),
    "columns without names": lambda: build(examples=DataFrame(PAIRS)),
    "a misspelt option": lambda: build(max_wrong=0.1),
    "a class as model": lambda: build(FakeListChatModel),
    "a class as labeler": lambda: build(labeler=NormalisedMatch),
    "a class as verifier": lambda: serve(SelfConsistency, max_wrong_rate=0.1),
    "one score for all": lambda: build(verifier=lambda _, __: [0.1]),
    "a cause of several lines": lambda: build(fail_in_several_lines),
    "misspelt features": lambda: calibrate(SOME_WRONG, alpha=0.3, features="grop(topic) + mean_score"),
}
MAKE = "integrations.tests.test_mistakes:make"
COLLECT = "--verifier SelfConsistency --labeler NormalisedMatch --store new.db"
COMMANDS = (
    "calibrate nothing.jsonl --alpha 0.1",
    "calibrate records.jsonl --alpha 10",
    "calibrate records.jsonl --alpha 0.05",
    "calibrate records.jsonl --max-wrong-rate 0.05",
    "calibrate records.jsonl --alpha 0.3 --features group(topic)",
    "calibrate cut.jsonl --alpha 0.1",
    "calibrate questions.csv --alpha 0.1",
    "calibrate artifact.json --alpha 0.1",
    "evaluate artifact.json records.jsonl",
    "inspect nothing.json",
    "inspect records.jsonl",
    "ask artifact.json Hello",
    "ask artifact.json Hello --generator nowhere:x --verifier SelfConsistency",
    "report artifact.json records.jsonl",
    "suggest records.jsonl",
    "collect",
    f"collect --source questions.csv --model openai:x {COLLECT}",
    f"collect --source nothing.csv --prompt '{{question}}' --model openai:x {COLLECT}",
    "collect --config nothing.toml",
    "init",
    "init --source nothing.csv --model openai:x",
    "init --source other.csv --model openai:x",
    "store status nothing.db",
    "store status records.jsonl",
    "calibrate",
    "calibrate records.jsonl --alpah 0.1",
    "calibrate records.jsonl --unit claim",
    "calibrate records.jsonl --alpha",
    "calibrat records.jsonl",
    "store state nothing.db",
    "collect --column question",
    "calibrate records.jsonl --alpha 0.3 --test-fraction 0.999",
    "calibrate records.jsonl --alpha 0.3 --at-most 2",
    "calibrate records.jsonl --alpha 0.3 --wrong-rate-groups",
    "calibrate records.jsonl --max-wrong-of-all 0.1 --adaptive-alpha true",
    "compare records.jsonl --test-fraction 2",
    "suggest records.jsonl --fit-fraction 0",
    "plan records.jsonl --fit-fraction 2",
    f"collect --source gaps.csv --question question --reference answer --generator {MAKE} -n 3 {COLLECT}",
    f"ask artifact.json Hello --generator {MAKE} --verifier SelfConsistency",
    "monitor status artifact.json nothing.db",
    "inspect artifact.json --require-signature nothing.pem",
    "init questions.csv",
    "demo --out .",
    "compare records.jsonl --method nope --splits 1",
)
# A keyword of Python, or another internal name.
KEYWORD = re.compile(r"(?<![-\w./'\"`=])(?!best_)[a-z]+_[a-z_]+\b(?!\.\w|[(/:])")


def check_error(said: str) -> None:
    assert len(said.splitlines()) <= MOST_LINES, said
    assert len(said) <= MOST_CHARACTERS, said
    assert "Traceback" not in said


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.CFCWarning")
@pytest.mark.parametrize("mistake", IN_PYTHON)
def test_mistakes_in_python_end_in_a_short_typed_error(mistake: str) -> None:
    with pytest.raises(CFCError) as caught:
        IN_PYTHON[mistake]()
    check_error(str(caught.value))


@pytest.mark.parametrize("command", COMMANDS)
def test_mistakes_on_the_command_line_end_in_a_short_error(command: str) -> None:
    ran = run(*shlex.split(command))
    assert ran.code in {1, 2}
    assert ran.err.startswith("error: ")
    check_error(ran.err)
    assert not KEYWORD.search(ran.err), ran.err


def test_control_check_error_refuses_long_errors() -> None:
    for long in ("a\nb\nc", "a" * (MOST_CHARACTERS + 1)):
        with pytest.raises(AssertionError):
            check_error(long)
