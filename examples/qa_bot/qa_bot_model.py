"""The model that answers: a recording, a small model on this machine, or a paid one. Change `make_bot`.

python examples/qa_bot/qa_bot_model.py    what each level does on the questions held out of calibration
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_bot_store import FOLDER, same_question

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, calibrate, evaluate, read_records
from langchain_cfc.demo import FEATURES, load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.records import Records
from langchain_cfc.verifiers import SequenceProbability

ALPHAS = ("0.1", "0.2", "0.3")
_RUNNING = ExitStack()


@dataclass(frozen=True)
class Bot:
    """A calibrated chain, and which questions it may be asked.

    Attributes:
        about: Who answers, in a sentence.
        artifact: What was calibrated; it holds every level of `ALPHAS`.
        decide: From a question and a level to the decision.
        held_out: The recorded questions that calibration has not seen, by `same_question`.
        seen: Those that it has.
        only_recorded: Whether it can answer recorded questions only.
    """

    about: str
    artifact: CalibrationArtifact
    decide: Callable[[str, str], CFCResult]
    held_out: Mapping[str, str]
    seen: Mapping[str, str]
    only_recorded: bool = False

    def refusal(self, question: str) -> str | None:
        """Return why a question is not asked at all; None if it is."""
        key = same_question(question)
        if key in self.seen:
            return "The bot was calibrated with this question, and the promise is about new ones: not asked."
        if self.only_recorded and key not in self.held_out:
            return (
                "The bot answers from a recording, which holds no such question. No model is running; the "
                "README says which line to change to have one."
            )
        return None


def make_recorded_bot() -> Bot:
    """Make a bot of the recording that the package ships: no key, no network, no model."""
    records = load_recording()
    artifact = load_or_calibrate("recorded", records, FEATURES)
    chain = CFCRunnable(artifact=artifact, **make_replay_parts(records))
    one_at_a_time = threading.Lock()  # recorded candidates keep their slots only so

    def decide(question: str, alpha: str) -> CFCResult:
        with one_at_a_time:
            return chain.invoke(question, alpha=alpha)

    about = "Its answers were recorded from Qwen2.5-Coder-1.5B-Instruct."
    return Bot(about, artifact, decide, *_split_questions(artifact, records), only_recorded=True)


def make_local_bot() -> Bot:
    """Make a bot of SmolLM2 on this machine; `examples/local_model/run.py` collects its records first."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "local_model"))
    from local_model import MODEL_NAME, get, running_server
    from questions import extract
    from run import SLOTS, make_chain

    records = read_records("cfc-demo/local_model/records.jsonl")
    url = _RUNNING.enter_context(running_server(get(), slots=SLOTS))
    chain = make_chain(url, MODEL_NAME)
    return _make_model_bot(MODEL_NAME, records, chain, answer=extract, answer_id="extract")


def make_paid_bot() -> Bot:
    """Make a bot of a model of OpenAI's; `records.jsonl` was collected with this very model."""
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="gpt-4o-mini", temperature=0.7, logprobs=True)
    return _make_model_bot("gpt-4o-mini", read_records("records.jsonl"), model)


make_bot: Callable[[], Bot] = make_recorded_bot  # the line to change: make_local_bot, make_paid_bot


def load_or_calibrate(name: str, records: Records, features: str) -> CalibrationArtifact:
    """Calibrate all levels at once, the first time; later the same artifact, so that its digest stays.

    Three in ten questions are held out, to be asked. At the strictest level more questions lack a correct
    candidate than may be missed, so that some are flagged whatever the threshold: `allow_unattainable`
    agrees to that.
    """
    path = FOLDER / f"{name}.json"
    if not path.exists():
        made = calibrate(
            records,
            alpha=ALPHAS,
            features=features,
            set_rule="all",
            test_fraction=0.3,
            allow_unattainable=True,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save(path)
    return CalibrationArtifact.load(path)


def _make_model_bot(name: str, records: Records, generator: Any, **parts: Any) -> Bot:
    """Make a bot of a running model and the artifact of its records."""
    artifact = load_or_calibrate(name, records, "hat(mean_score, 3)")
    chain = CFCRunnable(generator=generator, verifier=SequenceProbability(), artifact=artifact, **parts)
    return Bot(
        f"Its answers come from {name}.",
        artifact,
        lambda question, alpha: chain.invoke(question, alpha=alpha),
        *_split_questions(artifact, records),
    )


def _split_questions(
    artifact: CalibrationArtifact, records: Records
) -> tuple[dict[str, str], dict[str, str]]:
    """Split the questions into those held out and the others."""
    held_out: dict[str, str] = {}
    seen: dict[str, str] = {}
    for record in records:
        tested = artifact.calibration.split.part(record.id, record.cluster) == "test"
        (held_out if tested else seen)[same_question(str(record.input))] = str(record.input)
    return held_out, seen


def main() -> None:
    """Print what each level does on the recorded questions held out."""
    records = load_recording()
    artifact = load_or_calibrate("recorded", records, FEATURES)
    print("promised  kept  answered  flagged  distinct answers")
    for alpha in ALPHAS:
        report = evaluate(artifact, records, alpha=alpha)
        seen = report.methods["conditional"]
        print(
            f"{report.target_coverage:8.0%} {seen.kept_promise:5.0%} {1 - seen.abstention_rate:9.0%} "
            f"{seen.not_certifiable_rate:8.0%} {seen.mean_distinct_answers:17.1f}"
        )
    print(f"on {report.n_test} questions held out; calibrated on {report.n_calibration}")


if __name__ == "__main__":
    main()
