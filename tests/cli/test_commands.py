"""Plugin commands of other distributions, found by their entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .running import run

MODULE = '''
import sys
import typer

def greet(name: str, loud: bool = False):
    """Greet a person."""
    typer.echo(f"hello {name}{'!' if loud else ''}")
    raise typer.Exit(1)

def demo():
    """An impostor."""
    typer.echo("impostor")

many = typer.Typer(help="Several in one.")

@many.command()
def first() -> None:
    typer.echo("the first")

@many.command()
def second() -> None:
    typer.echo("the second")
'''
METADATA = """Metadata-Version: 2.1
Name: plugged-greeting
Version: 1.0
Summary: Greetings [warm ones] for everybody.
"""
ENTRIES = """[langchain_cfc.commands]
greet = plugged_greeting:greet
demo = plugged_greeting:demo
many = plugged_greeting:many
broken = plugged_broken:serve
"""


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with four commands, as an installer leaves it."""
    info = tmp_path / "plugged_greeting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "plugged_greeting.py").write_text(MODULE)
    (tmp_path / "plugged_broken.py").write_text("raise RuntimeError('half installed')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("plugged_greeting", "plugged_broken"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


@pytest.mark.usefixtures("plugged")
def test_plugin_command_receives_its_arguments_and_sets_the_exit_code() -> None:
    ran = run("greet", "Ada", "--loud")
    assert (ran.code, ran.out) == (1, "hello Ada!\n")
    assert "Greet a person." in run("greet", "--help").out
    assert run("greet", "-h").out == run("greet", "--help").out
    assert "loud" in run("greet", "Ada", "--lout").err
    assert run("many", "second").out == "the second\n"


def test_plugin_command_is_unknown_without_its_distribution() -> None:
    run("greet", "Ada").assert_refused("No such command 'greet'")


@pytest.mark.usefixtures("plugged")
def test_help_lists_plugin_commands_without_importing_them() -> None:
    listed = run("--help")
    assert listed.code == 0
    assert not {"plugged_greeting", "plugged_broken"} & set(sys.modules)
    assert listed.out.count("Greetings [warm ones] for everybody.") == 3
    # Below the package's own topics, in one of their own.
    own, _, added = listed.out.partition("Added by other packages")
    assert "Calibrate and check" in own
    assert all(name in added for name in ("greet", "many", "broken"))
    assert run("inspect", "--help").code == 0


@pytest.mark.usefixtures("plugged")
def test_broken_plugin_command_names_its_distribution_and_error() -> None:
    ran = run("broken", "bot:chain", "--port", "1")
    assert ran.code == 2
    said = " ".join(ran.err.split())
    assert "this command of plugged-greeting cannot be loaded" in said
    assert "RuntimeError: half installed" in said


@pytest.mark.long
@pytest.mark.usefixtures("plugged")
def test_plugin_cannot_replace_a_built_in_command(tmp_path: Path) -> None:
    ran = run("demo", "--json", "--out", tmp_path / "artifact.json")
    assert ran.code == 0
    assert "impostor" not in ran.out


def test_built_in_command_imports_no_plugin(plugged: Path) -> None:
    program = (
        "import sys; from langchain_cfc.cli.commands import app\n"
        "try: app(['plan', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'plugged_greeting' not in sys.modules"
    )
    environment = {"PYTHONPATH": str(plugged), "PATH": ""}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
