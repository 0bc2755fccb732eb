"""`langchain-cfc demo`: the whole method on a real recording, in one command."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from langchain_cfc.cli.formatting import (
    EXIT_NO,
    emit_json,
    get_console,
    make_table,
    make_tracker,
    report_errors,
)
from langchain_cfc.cli.inputs import AsJson, check_output
from langchain_cfc.demo import BOT_FILE, DemoResult, Served, is_best_correct, run_demo
from langchain_cfc.errors import InputError
from langchain_cfc.guarantee import format_share
from langchain_cfc.records import PromptRecord
from langchain_cfc.runnable import CFCResult
from langchain_cfc.support.text import format_percent

# Examples that are printed, and the longest question and answer that fit a line of 80 columns.
_ANSWERED_EXAMPLES, _ABSTAINED_EXAMPLES = 3, 2
_QUESTION_WIDTH, _ANSWER_WIDTH = 47, 14


def demo(
    seed: Annotated[str, typer.Option(help="Seed of the split of the recording.")] = "0",
    out_path: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Where to write the artifact of the answer sets; the bot's is "
            f"{BOT_FILE} in the same folder.",
        ),
    ] = Path("cfc-demo/artifact.json"),
    as_json: AsJson = False,
) -> None:
    """Calibrate and serve recorded answers; no key or network needed.

    A real model answered the questions. Some of them calibrate; the rest are served through CFCRunnable, by
    a bot that is rarely wrong and as answer sets. Exit code 1 if a promise was kept less often than chance
    explains.
    """
    with report_errors():
        out_path.parent.mkdir(parents=True, exist_ok=True)
        check_output(out_path)
        bot_path = out_path.with_name(BOT_FILE)
        if out_path == bot_path:
            msg = f"{out_path} is reserved for the bot's artifact: give --out another name"
            raise InputError(msg)
        check_output(bot_path)
        seen = run_demo(seed, out_path, make_tracker("serving held-out prompts"))
    if as_json:
        emit_json(
            {
                "artifact": str(out_path),
                "bot_artifact": str(bot_path),
                "seed": seed,
                "notes": list(seen.notes),
                "plain": {
                    "wrong": seen.plain_wrong,
                    "wrong_rate": seen.plain_wrong / len(seen.served),
                    "best_wrong": seen.best_wrong,
                    "best_wrong_rate": seen.best_wrong / len(seen.served),
                },
                **seen.report.model_dump(mode="json"),
            }
        )
    else:
        console = get_console()
        print_bot(console, seen)
        _print_next(console, seen, bot_path, out_path)
    raise typer.Exit(0 if seen.report.is_passed else EXIT_NO)


def print_bot(console: Console, seen: DemoResult) -> None:
    """Print how often the bot and the model alone were wrong, and what the bot said to some questions."""
    first, tested = seen.bot.certified_bot.certificates[0], len(seen.served)
    rate = format_share(seen.report.answers[0].max_wrong_rate)
    console.print(
        f"A real model of 1.5 billion parameters answered {first.prompts + tested:,} questions about "
        f"countries, elements and sums, {seen.bot.n} times each. {first.prompts} of them calibrated a "
        f"bot, which has just served the other {tested} through CFCRunnable:\n"
    )
    console.print(_make_bot_table(seen))
    console.print(
        f"Both rates are certified, with confidence {format_share(1.0 - float(first.delta))}, for questions "
        f"like these.\n\nThe bot at {rate}: three right answers, two abstentions instead of wrong ones:"
    )
    console.print(_make_examples_table(choose_examples(seen.served)))


def _make_bot_table(seen: DemoResult) -> Table:
    tested = len(seen.served)
    table = make_table(f"on {tested} held-out questions", "answered", "wrong answers", "")
    bots = [
        (f"bot, at most {format_share(one.max_wrong_rate)} wrong", one.answered, one.wrong)
        for one in reversed(seen.report.answers)
    ]
    rows = [
        ("the model alone, its first answer", tested, seen.plain_wrong),
        ("the model alone, its likeliest answer", tested, seen.best_wrong),
        *bots,
    ]
    for name, answered, wrong in rows:
        table.add_row(
            name,
            format_percent(answered / tested),
            f"[bold]{format_percent(wrong / max(answered, 1), '.1f')}[/]",
            f"{wrong} of {answered}",
        )
    return table


def choose_examples(served: Served) -> Served:
    """Choose right answers, and abstentions where candidates disagree and the best one is wrong.

    They are taken in the order of the hash of their ids, each from another topic, if they fit a line.
    """
    by_topic: dict[object, tuple[PromptRecord, CFCResult]] = {}
    for abstained, most in ((False, _ANSWERED_EXAMPLES), (True, _ANSWERED_EXAMPLES + _ABSTAINED_EXAMPLES)):
        # A sort key that depends on nothing in the example.
        for record, result in sorted(served, key=lambda pair: hashlib.sha256(pair[0].id.encode()).digest()):
            if len(by_topic) < most and result.abstained == abstained and _is_clear(record, result):
                by_topic.setdefault(record.metadata["topic"], (record, result))
    return tuple(by_topic.values())


def _is_clear(record: PromptRecord, result: CFCResult) -> bool:
    """Return whether the bot was plainly right to answer or to abstain, and the example fits a line."""
    if len(str(record.input)) > _QUESTION_WIDTH:
        return False
    if result.best is not None:
        return is_best_correct(record, result) and len(result.best) <= _ANSWER_WIDTH
    best = min(record.candidates, key=lambda candidate: candidate.score)
    return not best.correct and 2 * len({one.same_as for one in result.candidates}) >= len(result.candidates)


def _make_examples_table(examples: Served) -> Table:
    table = make_table("question", "answer", texts=2, width=_QUESTION_WIDTH)
    table.show_header = False
    for record, result in examples:
        # By the slot of the first candidate with the same answer.
        counts, n = Counter(one.same_as for one in result.candidates), len(result.candidates)
        if result.abstained:
            said = f"[yellow]abstained:[/] {len(counts)} different answers"
        else:
            agreeing = next(counts[one.same_as] for one in result.candidates if one.accepted)
            said = f"[green]{escape(str(result.best))}[/] ({agreeing} of {n} agree)"
        table.add_row(escape(str(record.input)), said)
    return table


def _print_next(console: Console, seen: DemoResult, bot_path: Path, out_path: Path) -> None:
    question = shlex.quote(str(choose_examples(seen.served)[0][0].input))
    rate = f"{seen.report.answers[0].max_wrong_rate:g}"
    command, bot, sets = _find_command(), *(escape(shlex.quote(str(path))) for path in (bot_path, out_path))
    lines = [
        "\nNext, ask the bot, and read what it and the answer sets promise:",
        f"  {command} ask {bot} --max-wrong-rate {rate} \\",
        f"    --replay demo {escape(question)}",
        f"  {command} inspect {bot}",
        f"  {command} inspect {sets}",
    ]
    for line in lines:
        console.print(line, soft_wrap=True)


def _find_command() -> str:
    """Return the console script's name, or its path if it is not in `PATH`, so that printed commands work."""
    called, name = sys.argv[0], "langchain-cfc"
    is_found = Path(called).name != name or shutil.which(name) == shutil.which(called)
    return name if is_found else escape(shlex.quote(called))
