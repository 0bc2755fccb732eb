"""Commands of companions, found by their entry points."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from .running import run

MODULE = '''
import sys
import typer

def report(name: str, loud: bool = False):
    """Greet a person."""
    typer.echo(f"hello {name}{'!' if loud else ''}")
    raise typer.Exit(1)

def demo():
    """An impostor."""
    typer.echo("impostor")

store = typer.Typer(help="Several in one.")

@store.command()
def first() -> None:
    typer.echo("the first")

@store.command()
def second() -> None:
    typer.echo("the second")
'''
METADATA = "Metadata-Version: 2.1\nName: plugged-greeting\nVersion: 1.0\n"
ENTRIES = """[langchain_cfc.commands]
report = plugged_greeting:report
demo = plugged_greeting:demo
store = plugged_greeting:store
serve = plugged_broken:serve
greet = plugged_greeting:report
"""


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with commands, as an installer leaves it, and no companion beside it."""
    info = tmp_path / "plugged_greeting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "plugged_greeting.py").write_text(MODULE)
    (tmp_path / "plugged_broken.py").write_text("raise RuntimeError('half installed')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = PathDistribution(info).entry_points
    monkeypatch.setattr("langchain_cfc.cli.commands.entry_points", lambda group: found.select(group=group))
    for module in ("plugged_greeting", "plugged_broken"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


@pytest.mark.usefixtures("plugged")
def test_command_of_a_companion_receives_its_arguments_and_sets_the_exit_code() -> None:
    ran = run("report", "Ada", "--loud")
    assert (ran.code, ran.out) == (1, "hello Ada!\n")
    assert "Greet a person." in run("report", "--help").out
    assert run("report", "-h").out == run("report", "--help").out
    assert "loud" in run("report", "Ada", "--lout").err
    assert run("store", "second").out == "the second\n"


@pytest.mark.usefixtures("plugged")
def test_unknown_command_is_refused_whatever_offers_it() -> None:
    run("greet", "Ada").assert_refused("No such command 'greet'")
    run("compare").assert_refused("pip install langchain-cfc-lab", "./integrations/lab")


@pytest.mark.usefixtures("plugged")
def test_help_lists_installed_commands_without_importing_them() -> None:
    listed = run("--help")
    assert listed.code == 0
    assert not {"plugged_greeting", "plugged_broken"} & set(sys.modules)
    assert all(f" {name} " in listed.out for name in ("report", "store", "serve", "inspect"))
    assert " compare " not in listed.out
    assert "greet" not in listed.out
    assert run("inspect", "--help").code == 0


@pytest.mark.usefixtures("plugged")
def test_broken_command_of_a_companion_names_it_and_the_error() -> None:
    ran = run("serve", "bot:chain", "--port", "1")
    assert ran.code == 2
    said = " ".join(ran.err.split())
    assert "this command of langchain-cfc-server cannot be loaded" in said
    assert "RuntimeError: half installed" in said


@pytest.mark.long
@pytest.mark.usefixtures("plugged")
def test_no_distribution_can_replace_a_command_of_the_core(tmp_path: Path) -> None:
    ran = run("demo", "--json", "--out", tmp_path / "artifact.json")
    assert ran.code == 0
    assert "impostor" not in ran.out


def test_command_of_the_core_imports_no_other(plugged: Path) -> None:
    program = (
        "import sys; from langchain_cfc.cli.commands import app\n"
        "try: app(['inspect', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'plugged_greeting' not in sys.modules"
    )
    environment = {"PYTHONPATH": str(plugged), "PATH": ""}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
