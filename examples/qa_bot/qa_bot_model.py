"""The model that answers: a recording, a small model on this machine, or a paid one. Change `make_bot`.

python examples/qa_bot/qa_bot_model.py    what each certified rate does on the questions held out
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_bot_store import FOLDER, same_question

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, calibrate, evaluate, read_records
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.guarantee import WrongRateCertificate
from langchain_cfc.records import Records
from langchain_cfc.verifiers import SequenceProbability

RATES = ("0.05", "0.1", "0.2")
LOCAL_RATES = ("0.3", "0.4", "0.5")  # a model of 135M parameters is often wrong
# Five steps from easy to hard, and the topic: what the page says of a question, and what the monitor watches.
FEATURES = "hat(mean_score, 5) + group(topic)"
# Stops drawing once an answer looks good enough; at most ten, as many as were recorded.
DRAWS = "below(0.5, at_most=10)"
_RUNNING = ExitStack()


@dataclass(frozen=True)
class Bot:
    """A certified chain, and which questions it may be asked.

    Attributes:
        about: Who answers, in a sentence.
        artifact: What was calibrated, with a certificate for each rate.
        decide: From a question and a certified rate to the decision.
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

    @property
    def certificates(self) -> dict[str, WrongRateCertificate]:
        """The certificates by their rates, strictest first."""
        return {one.max_wrong_rate: one for one in self.artifact.certified_bot.certificates}

    def refusal(self, question: str) -> str | None:
        """Return why a question is not asked at all; None if it is."""
        key = same_question(question)
        if key in self.seen:
            return (
                "The bot was calibrated with this question, and its certificate is about new ones. Ask "
                "another one."
            )
        if self.only_recorded and key not in self.held_out:
            return (
                "The bot answers from a recording, which does not hold this question. To ask anything you "
                "like, run it with a model: the README says which line to change."
            )
        return None


def make_recorded_bot() -> Bot:
    """Make a bot of the recording that the package ships: no key, no network, no model."""
    records = load_recording()
    artifact = load_or_calibrate("recorded", records, RATES, FEATURES, DRAWS)
    return _make_bot(
        "The answers were recorded from Qwen2.5-Coder-1.5B-Instruct.",
        artifact,
        records,
        only_recorded=True,
        **make_replay_parts(records),
    )


def make_local_bot() -> Bot:
    """Make a bot of SmolLM2 on this machine; `examples/local_model/run.py` collects its records first."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "local_model"))
    from local_model import MODEL_NAME, get, running_server
    from questions import extract
    from run import SLOTS, make_chain

    records = read_records("cfc-demo/local_model/records.jsonl")
    url = _RUNNING.enter_context(running_server(get(), slots=SLOTS))
    chain = make_chain(url, MODEL_NAME)
    return _make_model_bot(MODEL_NAME, records, LOCAL_RATES, chain, answer=extract, answer_id="extract")


def make_paid_bot() -> Bot:
    """Make a bot of a model of OpenAI's; `records.jsonl` was collected with this very model."""
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="gpt-4o-mini", temperature=0.7, logprobs=True)
    return _make_model_bot("gpt-4o-mini", read_records("records.jsonl"), RATES, model)


make_bot: Callable[[], Bot] = make_recorded_bot  # the line to change: make_local_bot, make_paid_bot


def load_or_calibrate(
    name: str, records: Records, rates: Sequence[str], features: str, draws: str | None = None
) -> CalibrationArtifact:
    """Certify all rates the first time; later load the same artifact, so that its digest stays.

    Three in ten questions are held out, to be asked. A rate that cannot be certified is left out, as long as
    another one can.
    """
    path = FOLDER / f"{name}.json"
    if not path.exists():
        made = calibrate(records, max_wrong_rate=rates, features=features, draws=draws, test_fraction=0.3)
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save(path)
    return CalibrationArtifact.load(path)


def _make_model_bot(name: str, records: Records, rates: Sequence[str], generator: Any, **parts: Any) -> Bot:
    """Make a bot of a running model and the artifact of its records."""
    artifact = load_or_calibrate(name, records, rates, "hat(mean_score, 5)")
    parts = {"generator": generator, "verifier": SequenceProbability(), **parts}
    return _make_bot(f"The answers come from {name}.", artifact, records, **parts)


def _make_bot(
    about: str,
    artifact: CalibrationArtifact,
    records: Records,
    *,
    only_recorded: bool = False,
    **parts: Any,
) -> Bot:
    """Make a bot with one chain for each certified rate; the rate is fixed where a chain is built."""
    # Results hold the rejected answers; the page sends them to the browser only after a click.
    chains = {
        one.max_wrong_rate: CFCRunnable(
            artifact=artifact, max_wrong_rate=one.max_wrong_rate, show_rejected=True, **parts
        )
        for one in artifact.certified_bot.certificates
    }

    def decide(question: str, rate: str) -> CFCResult:
        return chains[rate].invoke(question)

    return Bot(about, artifact, decide, *_split_questions(artifact, records), only_recorded=only_recorded)


def _split_questions(
    artifact: CalibrationArtifact, records: Records
) -> tuple[dict[str, str], dict[str, str]]:
    """Split the questions into those held out and the others."""
    held_out: dict[str, str] = {}
    seen: dict[str, str] = {}
    for record in records:
        tested = artifact.calibration.split.find_part(record.id, record.cluster) == "test"
        (held_out if tested else seen)[same_question(str(record.input))] = str(record.input)
    return held_out, seen


def main() -> None:
    """Print what each certified rate does on the recorded questions held out."""
    records = load_recording()
    artifact = load_or_calibrate("recorded", records, RATES, FEATURES, DRAWS)
    report = evaluate(artifact, records)
    print("certified          answered  wrong answers")
    for seen in report.answers:
        print(
            f"at most {seen.max_wrong_rate:3.0%} wrong  {seen.answered_rate:8.0%}  "
            f"{seen.wrong:3} of {seen.answered} ({seen.wrong_rate:.1%})"
        )
    certified = artifact.certified_bot.certificates[0]
    print(f"on {report.n_test} questions held out; certified on {certified.prompts} others")
    drawn = report.n_candidates if report.mean_draws is None else report.mean_draws
    print(f"{drawn:.1f} answers drawn for a question, at most {report.n_candidates}")


if __name__ == "__main__":
    main()
