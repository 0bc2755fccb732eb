"""The commands by name, each loaded when it is wanted.

Those that other distributions bring, such as `serve` of langchain-cfc-server, are found by their entry
points. The package's own have the same form, or each would wait a second for the imports of all others.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from langchain_cfc.cli.output import failures_explained
from langchain_cfc.errors import InputError

# An entry point of this group is a function as typer takes it, or a `typer.Typer`; its name is the command's.
GROUP = "langchain_cfc.commands"
# In the order of the help: module and name of each.
_OWN = {
    "demo": "demo:demo",
    "plan": "plan:plan",
    "collect": "collect:collect",
    "status": "status:status",
    "export": "status:export",
    "import": "status:import_",
    "calibrate": "calibrate:calibrate",
    "certify": "certify:certify",
    "evaluate": "evaluate:evaluate",
    "compare": "compare:compare",
    "paper": "paper:app",
    "inspect": "inspect:inspect",
    "report": "report:report",
    "suggest": "suggest:suggest",
    "ask": "ask:ask",
    "agreement": "agreement:agreement",
    "monitor": "monitor:app",
}


class Commands(TyperGroup):
    """The commands of the package, and those found beside it."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Own commands in their order, then the others by name."""
        del ctx  # the same in every context
        return [*_OWN, *sorted(set(entry_points(group=GROUP).names) - set(_OWN))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; nobody replaces one of the package's own."""
        del ctx
        if cmd_name in _OWN:
            own = EntryPoint(cmd_name, f"langchain_cfc.cli.{_OWN[cmd_name]}", GROUP)
            return _command(own.name, own.load())
        found = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        return None if found is None else _plugged(found)


def _plugged(found: EntryPoint) -> Any:
    try:
        loaded = found.load()
    except Exception as error:  # noqa: BLE001 - whatever fails in there must not take the other commands with it
        anything = {"ignore_unknown_options": True, "allow_extra_args": True}
        return _command(found.name, _unusable(found, error), anything)
    return _command(found.name, loaded)


def _command(name: str, loaded: Any, settings: dict[str, Any] | None = None) -> Any:
    if not isinstance(loaded, typer.Typer):
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
        app.command(name, context_settings=settings)(loaded)
        loaded = app
    command = typer.main.get_command(loaded)
    command.name = name
    return command


def _unusable(found: EntryPoint, error: Exception) -> Callable[[], None]:
    """What stands in for a command that cannot be loaded: a line in the help, and words for who calls it."""
    by = found.dist.name if found.dist is not None else "a distribution"
    msg = f"{by} brings this command, but it cannot be loaded: {type(error).__name__}: {error}"

    def unusable() -> None:
        with failures_explained():
            raise InputError(msg)

    unusable.__doc__ = f"Cannot be loaded ({type(error).__name__}); see {by}."
    return unusable
