"""The command-line application, which imports the module of a command only when it is called.

Listing the commands, for `--help` or shell completion, imports none of these modules: they import NumPy and
LangChain, which takes more than a second. `KNOWN_COMMANDS` therefore repeats the summaries of the commands of
this package and its companions, which are found by their entry points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from langchain_cfc.support import __version__
from langchain_cfc.support.text import escape_controls

# Entry points of this group are named like their command, and load a `typer.Typer` or a function for one.
_ENTRY_POINT_GROUP = "langchain_cfc.commands"
# Topic -> command -> (module:object of this package, or the distribution that it comes with; its summary), in
# the order in which `--help` lists them.
KNOWN_COMMANDS = {
    "Try": {
        "demo": ("demo:demo", "Calibrate and serve recorded answers; no key or network needed."),
        "ask": ("ask:ask", "Ask one question or a batch, and print the answers."),
    },
    "Collect": {
        "init": ("collect", "Propose the settings of a collection from a few real answers."),
        "plan": ("lab", "Plan how many prompts to label, at what cost, for which alpha."),
        "collect": ("collect", "Draw, score and label n candidates for each prompt of a dataset."),
        "store": ("collect", "Export, import, rescore or check a store."),
    },
    "Calibrate and check": {
        "suggest": ("lab", "Choose features, set rule or draw rule, with reasons."),
        "calibrate": ("calibrate:calibrate", "Build a calibration artifact from labelled records."),
        "inspect": ("inspect:inspect", "Check an artifact's digest and show what it promises."),
        "sign": ("sign:sign", "Sign an artifact with an Ed25519 key."),
        "certify": ("certify:certify", "Certify an artifact on held-out labelled records."),
        "evaluate": ("evaluate:evaluate", "Measure an artifact on labelled records."),
        "report": ("lab", "Write one HTML page: promise, data, results and next steps."),
    },
    "Serve and watch": {
        "serve": ("server", "Serve chains to any OpenAI client."),
        "monitor": ("monitor", "Watch a served artifact: drift, broken promises, new labels."),
    },
    "Research": {
        "compare": ("lab", "Compare methods on labelled records over random splits."),
        "paper": ("lab", "Reproduce the experiments of the CFC paper."),
    },
}
_KNOWN = {
    name: (topic, *known) for topic, commands in KNOWN_COMMANDS.items() for name, known in commands.items()
}
_OBJECT_NAMES = {name: place for name, (_, place, _) in _KNOWN.items() if ":" in place}


# The flags of the command that runs, by the names of its parameters.
FLAGS: ContextVar[Mapping[str, str]] = ContextVar("FLAGS", default=MappingProxyType({}))
# The error of wrong usage: of click, or of the copy of click that newer releases of typer hold.
_UsageError: Any = typer.BadParameter.__base__


@contextmanager
def _shorten_usage_errors(ctx: Any) -> Iterator[None]:
    """Print an error of usage as one line, and below it the command that shows the help; then exit."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # typer prints the help
            raise
        said = " ".join(error.format_message().split()).replace("Value error, ", "")
        # Of an option without its argument, the parser does not say the command.
        parts = (ctx.command_path, ctx.invoked_subcommand) if error.ctx is None else (error.ctx.command_path,)
        said += "\n  " + " ".join(filter(None, (*parts, "--help")))
        typer.echo(f"{typer.style('error:', fg='red', bold=True)} {escape_controls(said)}", err=True)
        raise typer.Exit(error.exit_code) from None


class _NamesNoFlagTypes:
    """Command whose help names no type for switches, which take no value."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, with the help option."""
        params = super().get_params(ctx)  # type: ignore[misc]  # of the class beside this one
        for one in params:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return params


class Command(_NamesNoFlagTypes, TyperCommand):
    """Command whose messages call its options by their flags."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        FLAGS.set({one.name: max(one.opts, key=len) for one in self.params if one.opts[0].startswith("-")})
        return super().invoke(ctx)


class Group(_NamesNoFlagTypes, TyperGroup):
    """Command group of a companion."""


class CommandGroup(Group):
    """Command group that holds this package's commands and those of its companions."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (topic, _, summary) in _KNOWN.items():
            self.commands[name] = TyperCommand(name, help=summary, rich_help_panel=topic)

    @cached_property
    def _of_companions(self) -> dict[str, EntryPoint]:
        """Installed commands of companions; cached, since finding them scans every distribution."""
        found = entry_points(group=_ENTRY_POINT_GROUP)
        return {one.name: one for one in found if one.name in _KNOWN and one.name not in _OBJECT_NAMES}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command."""
        with _shorten_usage_errors(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Find the command, parse its arguments and run it."""
        with _shorten_usage_errors(ctx):
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of installed commands, in the table's order; their stubs have the summaries."""
        del ctx  # the same in every context
        return [name for name in _KNOWN if name in _OBJECT_NAMES or name in self._of_companions]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that the first argument names; return name, command and other arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else self.load_command(ctx, name), rest

    def load_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command and return it; a usage error if its companion is missing or cannot be loaded."""
        if cmd_name in _OBJECT_NAMES:
            place = EntryPoint(cmd_name, f"langchain_cfc.cli.{_OBJECT_NAMES[cmd_name]}", _ENTRY_POINT_GROUP)
            return _make_command(cmd_name, place.load())
        home = f"langchain-cfc-{_KNOWN[cmd_name][1]}"
        if cmd_name not in self._of_companions:
            local = f"pip install ./integrations/{_KNOWN[cmd_name][1]}"
            ctx.fail(f"{cmd_name} comes with {home}: pip install {home}, or in a checkout {local}")
        try:
            return _make_command(cmd_name, self._of_companions[cmd_name].load())
        except Exception as error:  # noqa: BLE001 - another release of the companion may do anything
            ctx.fail(f"this command of {home} cannot be loaded: {type(error).__name__}: {error}")


class _App(typer.Typer):
    def command(self, *given: Any, **settings: Any) -> Any:
        return super().command(*given, **{"cls": Command, **settings})


def make_app(**settings: Any) -> typer.Typer:
    """Return a `typer.Typer` with the settings that all commands share; `settings` override them."""
    shared = {
        "cls": Group,
        "add_completion": False,
        "pretty_exceptions_enable": False,
        "rich_markup_mode": "markdown",
    }
    return _App(**{**shared, **settings})


def _make_command(name: str, loaded: Any) -> Any:
    if not isinstance(loaded, typer.Typer):
        app = make_app()
        app.command(name)(loaded)
        loaded = app
    command = typer.main.get_command(loaded)
    command.name = name
    return command


app = make_app(
    name="langchain-cfc",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",  # rendering the list of summaries as Markdown takes a third longer
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Conformal answer sets for LangChain: answer with a guarantee, or abstain.

    Every command takes --json for machine-readable output. Exit codes: 0 done,
    1 the answer is no (a check failed, the target is out of reach, the question
    was abstained on), 2 wrong usage or bad input.
    """
    del version
