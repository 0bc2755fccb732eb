"""The bot behind the page: a recording, or your own bot by `--chain`.

python examples/qa_bot/qa_bot_model.py    what each certified rate does on the questions held out
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from langchain_core.messages import HumanMessage
from qa_bot_store import FOLDER, same_question

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable, calibrate, evaluate
from langchain_cfc.artifact import Promise
from langchain_cfc.demo import load_recording
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.errors import InputError
from langchain_cfc.extend import load_object
from langchain_cfc.guarantee import WrongRateCertificate
from langchain_cfc.records import Records

RATES = ("0.05", "0.1", "0.2")
# Five steps from easy to hard, and the topic: what the page says of a question, and what the monitor watches.
# Stops drawing once an answer looks good enough; at most ten, as many as were recorded.
DRAWS = "below(0.5, at_most=10)"
_BOT_PROMISES = ("max_wrong_rate", "max_wrong_of_all")


@dataclass(frozen=True)
class Bot:
    """A chain with the promises that the page offers, and the questions that it may be asked.

    Attributes:
        about: What to know before asking, in a sentence.
        chain: What answers; its results hold the rejected answers.
        promises: What the page offers, strictest first: all of `max_wrong_rate`, or all of
            `max_wrong_of_all`.
        make_input: From a question to the chain's input.
        held_out: Recorded questions that calibration has not seen, by `same_question`.
        seen: Those that it has.
        only_recorded: Whether it can answer recorded questions only.
    """

    about: str
    chain: CFCRunnable
    promises: tuple[Promise, ...]
    make_input: Callable[[str], Any] = str
    held_out: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, str] = field(default_factory=dict)
    only_recorded: bool = False

    @property
    def artifact(self) -> CalibrationArtifact:
        """What was calibrated."""
        return self.chain.artifact

    @property
    def rates(self) -> list[str]:
        """The levels of the promises, by which the page names them."""
        return [one.level for one in self.promises]

    @property
    def is_certified(self) -> bool:
        """Whether rates among the answered questions are certified; of all questions they are not tested."""
        return self.promises[0].option == "max_wrong_rate"

    @property
    def certificates(self) -> dict[str, WrongRateCertificate]:
        """The certificates by their rates; none if the rates are of all questions."""
        if not self.is_certified:
            return {}
        return {rate: self.artifact.certified_bot.find_certificate(rate) for rate in self.rates}

    @property
    def folder(self) -> Path:
        """Where conversations and the monitor's store are: decisions of another artifact are not mixed in."""
        return FOLDER / self.artifact.digest.removeprefix("sha256:")[:12]

    def decide(self, question: str, rate: str) -> CFCResult:
        """Answer or abstain under the promise with this rate."""
        promise: dict[str, Any] = {self.promises[0].option: rate}
        return self.chain.invoke(self.make_input(question), **promise)

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
                "like, serve your own bot: the README has the command."
            )
        return None


def load_bot(arguments: Sequence[str]) -> Bot:
    """Make the bot that the command line names: the recorded one, or the user's own.

    Args:
        arguments: What follows `--` in `streamlit run qa_bot_page.py -- ...`.

    Returns:
        The bot.

    Raises:
        CFCError: If the arguments are wrong, something cannot be loaded, or the artifact is not of a bot.
    """
    parser = _Parser(prog="qa_bot_page.py", add_help=False)
    parser.add_argument("--chain")
    parser.add_argument("--artifact")
    parser.add_argument("--verifier")
    given = parser.parse_args(arguments)
    if given.chain is not None:
        return _load_own_bot(load_object(given.chain), given)
    if arguments:
        msg = "the page needs your bot as well: add --chain mybot.py:bot"
        raise InputError(msg)
    return make_recorded_bot()


class _Parser(argparse.ArgumentParser):
    """Raises what is wrong, so that the page shows it: Streamlit's process goes on running."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def _load_own_bot(found: Any, given: argparse.Namespace) -> Bot:
    """Serve a `CFCRunnable` under its own promise, or an artifact under all of its rates."""
    is_bot = isinstance(found, CFCRunnable)
    if is_bot and given.verifier is not None:
        msg = f"{given.chain} has its verifier already: leave out --verifier"
        raise InputError(msg)
    if not is_bot and None in {given.artifact, given.verifier}:
        msg = (
            f"{given.chain} ({type(found).__name__}) is no bot yet: add --artifact artifact.json and "
            "--verifier with what it was calibrated with, such as --verifier SequenceProbability, or name a "
            "CFCRunnable, such as the one that build_bot returns"
        )
        raise InputError(msg)
    if given.artifact is not None:
        artifact = CalibrationArtifact.load(given.artifact)
        promises = _list_bot_promises(artifact, artifact.promises)
    else:
        artifact, named = found.artifact, (*_BOT_PROMISES, "alpha")
        own = artifact.select_promise(**{name: getattr(found, name) for name in named})
        promises = _list_bot_promises(artifact, [own])
    parts = {"generator": found, "verifier": given.verifier and load_object(given.verifier)}
    chain = _make_chain(found if is_bot else None, artifact, promises, **({} if is_bot else parts))
    about = (
        "Ask it new questions like those it was calibrated with; its promise is not about those themselves."
    )
    return Bot(about, chain, promises, _choose_input(chain))


def _list_bot_promises(artifact: CalibrationArtifact, promises: Sequence[Promise]) -> tuple[Promise, ...]:
    """Return the promises that the page can offer, of one kind; an error if there are none."""
    if artifact.unit == "claims":
        msg = "the bot is for claims of long answers: see examples/long_answers for a page that shows those"
        raise InputError(msg)
    for kind in _BOT_PROMISES:
        if found := tuple(one for one in promises if one.option == kind):
            return found
    held = ", ".join("=".join(one) for one in promises)
    msg = (
        f"the page serves bots, which give one answer or none, but {held} is the promise of answer sets: "
        "calibrate with max_wrong_rate or max_wrong_of_all"
    )
    raise InputError(msg)


def _make_chain(
    chain: CFCRunnable | None, artifact: CalibrationArtifact, promises: Sequence[Promise], **parts: Any
) -> CFCRunnable:
    """Make a chain, or change one, whose results hold rejected answers and which promise is named later."""
    # The page sends rejected answers to the browser only after a click.
    shown = {"artifact": artifact, "show_rejected": True, "on_abstain": "return", **parts}
    named = {**dict.fromkeys((*_BOT_PROMISES, "alpha")), promises[0].option: promises[0].level}
    return CFCRunnable(**shown, **named) if chain is None else chain.model_copy(update={**shown, **named})


def _choose_input(chain: CFCRunnable) -> Callable[[str], Any]:
    """Return what makes of a question an input of the kind that the chain was calibrated with."""
    kinds = chain.artifact.calibration.prompt_kinds or {"text"}
    if "text" in kinds:
        return str
    if "messages" in kinds:
        return lambda question: [HumanMessage(question)]
    fields = list(chain.get_input_schema().model_json_schema().get("properties", {}))
    if len(fields) == 1:
        return lambda question: {fields[0]: question}
    msg = (
        f"the page asks one text, but the chain takes {', '.join(fields) or 'an object of unknown fields'}: "
        "calibrate a chain that takes the question alone"
    )
    raise InputError(msg)


def make_recorded_bot() -> Bot:
    """Make a bot of the recording that the package ships: no key, no network, no model."""
    records = load_recording()
    artifact = load_or_calibrate(records)
    promises = _list_bot_promises(artifact, artifact.promises)
    return Bot(
        "The answers were recorded from Qwen2.5-Coder-1.5B-Instruct.",
        _make_chain(None, artifact, promises, **make_replay_parts(records)),
        promises,
        str,
        *_split_questions(artifact, records),
        only_recorded=True,
    )


def load_or_calibrate(records: Records) -> CalibrationArtifact:
    """Certify all rates the first time; later load the same artifact, so that its digest stays.

    Three in ten questions are held out, to be asked. A rate that cannot be certified is left out, as long as
    another one can.
    """
    path = FOLDER / "recorded.json"
    if not path.exists():
        made = calibrate(records, max_wrong_rate=RATES, draws=DRAWS, test_fraction=0.3)
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save(path)
    return CalibrationArtifact.load(path)


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
    artifact = load_or_calibrate(records)
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
