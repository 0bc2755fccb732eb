"""Help: its texts, its order, what it imports, and shell completion."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from langchain_cfc.cli.commands import KNOWN_COMMANDS, app

from .running import run

# What commands compute with; a list of the commands needs none of it.
HEAVY = {"numpy", "langchain_core", "langchain_cfc.cli.formatting"}
# Topic -> name and summary of each command that is installed: those of companions only where these are.
INSTALLED = {
    topic: [
        (name, summary)
        for name, (place, summary) in commands.items()
        if ":" in place or find_spec(f"langchain_cfc_{place}") is not None
    ]
    for topic, commands in KNOWN_COMMANDS.items()
}
SUMMARIES = {name: summary for commands in INSTALLED.values() for name, summary in commands}
MODULES = {f"langchain_cfc.cli.{name}" for name in SUMMARIES} - {"langchain_cfc.cli.commands"}


def load(name: str) -> Any:
    group: Any = typer.main.get_command(app)
    return group.load_command(typer.Context(group), name)


def list_all_commands() -> Iterator[tuple[str, Any]]:
    """Every command of the package by its full name, subcommands included."""
    for name in SUMMARIES:
        command = load(name)
        yield name, command
        for inner, subcommand in getattr(command, "commands", {}).items():
            yield f"{name} {inner}", subcommand


def run_program(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """Run the command line in a process of its own.

    Returns:
        What it printed, and the modules that it imported.
    """
    program = (
        "import atexit, sys\n"
        "from langchain_cfc.cli import main\n"
        "atexit.register(lambda: print('modules', *sys.modules, file=sys.stderr))\n"
        f"sys.argv = {['langchain-cfc', *arguments]}\n"
        "main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, set(ran.stderr.split())


def test_command_summaries_equal_the_commands_help() -> None:
    first = {name: " ".join(load(name).help.partition("\n\n")[0].split()) for name in SUMMARIES}
    assert first == SUMMARIES


def test_help_lists_commands_by_topic_on_one_line_each() -> None:
    lines = run("--help").out.splitlines()
    for topic, commands in INSTALLED.items():
        if not commands:
            continue
        start = next(number for number, line in enumerate(lines) if line.startswith(f"╭─ {topic} ─"))
        listed = [line.strip("│ ") for line in lines[start + 1 : start + 1 + len(commands)]]
        assert [line.split(maxsplit=1) for line in listed] == [[name, summary] for name, summary in commands]
        assert lines[start + 1 + len(commands)].startswith("╰")


def test_help_imports_no_command() -> None:
    listed, modules = run_program("--help")
    assert "calibrate" in listed
    assert not modules & HEAVY


def test_command_help_imports_only_its_own_module() -> None:
    _, modules = run_program("inspect", "--help")
    assert modules & MODULES == {"langchain_cfc.cli.inspect"}


@pytest.mark.parametrize("words", [(), ("evaluate",), ("sign",)])
def test_short_help_flag_equals_the_long_one(words: tuple[str, ...]) -> None:
    short, long = (run(*words, flag) for flag in ("-h", "--help"))
    assert (short.code, short.out) == (0, long.out)


def test_help_is_complete_in_80_columns() -> None:
    for name, command in list_all_commands():
        said = run(*name.split(), "--help").out
        assert max(map(len, said.splitlines())) <= 80, name
        # Markup of consoles would swallow what stands in brackets.
        bracketed = {word for one in command.params for word in (one.help or "").split() if "[" in word}
        assert bracketed <= set(said.split()), name
        # A column that is too narrow would cut names off.
        assert {flag for one in command.params for flag in one.opts if flag[0] == "-"} <= set(said.split()), (
            name
        )


def test_options_have_the_same_short_form_in_every_command() -> None:
    short: dict[str, set[tuple[str, ...]]] = {}
    for _, command in list_all_commands():
        for one in command.params:
            for flag in one.opts:
                if flag.startswith("--"):
                    short.setdefault(flag, set()).add(tuple(sorted(set(one.opts) - {flag})))
    assert {flag: forms for flag, forms in short.items() if len(forms) > 1} == {}
    assert short["--out"] == {("-o",)}


def test_shell_completion_imports_only_what_it_needs() -> None:
    def completed(words: str) -> tuple[list[str], set[str]]:
        position = str(len(words.split()) - 1)
        said, modules = run_program(
            _LANGCHAIN_CFC_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=position
        )
        return said.split(), modules

    names, modules = completed("langchain-cfc c")
    assert names == [name for name in SUMMARIES if name.startswith("c")]
    assert not modules & HEAVY
    assert completed("langchain-cfc calibrate --feat")[0] == ["--features"]


@pytest.mark.long
def test_bash_completion_script_completes_commands_and_values() -> None:
    script = """
    source <(_LANGCHAIN_CFC_COMPLETE=source_bash langchain-cfc)
    complete -p langchain-cfc
    COMP_WORDS=(langchain-cfc calibr) COMP_CWORD=1
    _langchain_cfc_completion langchain-cfc
    echo "${COMPREPLY[@]}"
    COMP_WORDS=(langchain-cfc calibrate --unit c) COMP_CWORD=3
    _langchain_cfc_completion langchain-cfc
    echo "${COMPREPLY[@]}"
    """
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    ran = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    registered, command, value = ran.stdout.splitlines()
    assert "-F _langchain_cfc_completion langchain-cfc" in registered
    assert (command, value) == ("calibrate", "claims")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["calibrat"], "calibrate"),
        (["calibrate", "records.jsonl", "--max-wrong-rat", "0.1"], "--max-wrong-rate"),
    ],
)
def test_mistyped_commands_and_options_get_a_suggestion(words: list[str], meant: str) -> None:
    run(*words).assert_refused(meant)


def test_help_names_no_type_for_switches() -> None:
    for name in ("", "ask", "calibrate"):
        shown = run(*name.split(), "--help").out
        assert "--help" in shown
        assert "<bool>" not in shown, name
