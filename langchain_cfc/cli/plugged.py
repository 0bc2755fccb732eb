"""Commands that other distributions bring, such as `serve` of langchain-cfc-server."""

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


class PluggedGroup(TyperGroup):
    """The commands of the package, and those found beside it, each loaded when it is wanted."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Own commands in their order, then the others by name."""
        own = super().list_commands(ctx)
        return [*own, *sorted(set(entry_points(group=GROUP).names) - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; nobody replaces one of the package's own."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        return None if found is None else _command(found)


def _command(found: EntryPoint) -> Any:
    settings: dict[str, Any] = {}
    try:
        loaded = found.load()
    except Exception as error:  # noqa: BLE001 - whatever fails in there must not take the other commands with it
        loaded = _unusable(found, error)
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    if not isinstance(loaded, typer.Typer):
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
        app.command(found.name, context_settings=settings)(loaded)
        loaded = app
    command = typer.main.get_command(loaded)
    command.name = found.name
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
