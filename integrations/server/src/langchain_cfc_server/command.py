"""`langchain-cfc serve`: serve models through OpenAI's API from the command line."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langchain_cfc.cli.formatting import report_errors
from langchain_cfc.errors import AttainabilityWarning, InputError
from langchain_cfc.extend import load_object
from langchain_cfc_server.settings import Settings

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable

TOKENS = "LANGCHAIN_CFC_SERVER_TOKENS"
_DEFAULT = Settings(authentication=False)


def serve(  # noqa: PLR0917 - typer makes every option a parameter
    models: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:NAME]",
            help="A chain, a mapping of chains by name, or a function without arguments that returns either.",
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Serve recorded answers: no key, no network.")] = False,
    name: Annotated[
        str | None, typer.Option(help="Name by which clients request the model; by default NAME.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any free port, which the log states.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help=(
                "File of bearer tokens and their clients, one a line; reread when changed. Otherwise "
                f"{TOKENS} is used."
            )
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of worker processes; limits apply to each.")] = 1,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Serve every client that can reach the port.")
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[MODEL=]FIELD,...",
            help="Fields of requests to ignore, not to refuse, such as temperature,max_tokens,system.",
        ),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of web pages that may send requests, such as https://chat.example."),
    ] = None,
    decisions: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="BaseStore that keeps decisions, so that a question asked again is not drawn again.",
        ),
    ] = None,
    abstain_message: Annotated[str, typer.Option(help="Text of an abstention.")] = _DEFAULT.abstain_message,
    body_limit: Annotated[
        int, typer.Option(help="Maximum size of a request body in bytes.")
    ] = _DEFAULT.body_limit,
    concurrency: Annotated[
        int, typer.Option(help="Maximum number of requests processed at once.")
    ] = _DEFAULT.concurrency,
    queue: Annotated[
        int, typer.Option(help="Maximum number of further requests that wait.")
    ] = _DEFAULT.queue,
    per_token: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of requests of one token, waiting or processed. Default: half of the places "
            "if there are several clients."
        ),
    ] = _DEFAULT.per_token,
    connections: Annotated[
        int, typer.Option(help="Maximum number of open connections.")
    ] = _DEFAULT.connections,
    time_limit: Annotated[
        float, typer.Option(help="Maximum seconds that a request may take.")
    ] = _DEFAULT.time_limit,
    cooldown_after: Annotated[
        int, typer.Option(help="Consecutive failures of an upstream that start a cooldown; 0 for never.")
    ] = _DEFAULT.cooldown_after,
    cooldown: Annotated[float, typer.Option(help="Length of the cooldown in seconds.")] = _DEFAULT.cooldown,
    drain: Annotated[float, typer.Option(help="Seconds to keep listening after SIGTERM.")] = 5.0,
    finish: Annotated[float, typer.Option(help="Seconds for requests in flight after that.")] = 60.0,
    log_content: Annotated[
        bool, typer.Option("--log-content", help="Log prompts, answers and texts of errors.")
    ] = False,
) -> None:
    """Serve chains to any OpenAI client.

    The server runs until it is stopped. Logs are lines of JSON on standard error.

    Example: langchain-cfc serve mybot:chain --token-file tokens.txt
    """
    from langchain_cfc_server import logs

    with report_errors():
        settings = Settings(
            tokens=() if no_auth or token_file is not None else _read_tokens(),
            token_file=None if no_auth or token_file is None else token_file.absolute(),
            authentication=not no_auth,
            ignore=tuple(ignore or ()),
            origins=tuple(origin or ()),
            decisions=None if decisions is None else load_object(decisions),
            abstain_message=abstain_message,
            body_limit=body_limit,
            concurrency=concurrency,
            queue=queue,
            per_token=per_token,
            connections=connections,
            time_limit=time_limit,
            cooldown_after=cooldown_after,
            cooldown=cooldown,
            log_content=log_content,
        )
        server = _Server(models, name, demo, settings, host, drain, finish)
        if workers == 1:
            server(port)
            return
        from langchain_cfc_server.workers import run_workers

        logs.configure(log_content=log_content)
        run_workers(workers, server, host=host, port=port)


@dataclass(frozen=True)
class _Server:
    """Everything that a process needs to serve; picklable, because it may be sent to worker processes."""

    models: str | None
    name: str | None
    demo: bool
    settings: Settings
    host: str
    drain: float
    finish: float

    def __call__(self, port: int, supervisor: int | None = None) -> None:
        # Imported late, because the help of `langchain-cfc` loads this module.
        from langchain_cfc_server import logs
        from langchain_cfc_server.app import create_app
        from langchain_cfc_server.server import run

        logs.configure(log_content=self.settings.log_content)
        app = create_app(_load_models(self.models, self.name, demo=self.demo), self.settings)
        run(app, host=self.host, port=port, drain=self.drain, finish=self.finish, supervisor=supervisor)


def _read_tokens() -> tuple[str, ...]:
    """Return the tokens from the environment (arguments would be visible to every user of the machine)."""
    found = os.environ.get(TOKENS, "").split()
    if not found:
        msg = (
            f"there are no tokens, so no request could be served: set the environment variable {TOKENS}, "
            "pass --token-file, or serve every client with --no-auth"
        )
        raise InputError(msg)
    return tuple(found)


def _load_models(path: str | None, name: str | None, *, demo: bool) -> dict[str, Runnable[Any, Any]]:
    if demo == (path is not None):
        msg = "say what to serve: MODULE:NAME of a chain, or --demo"
        raise InputError(msg)
    if path is None:
        return {name or "demo": _make_demo()}
    found = load_object(path)
    if not isinstance(found, Mapping):
        return {name or path.partition(":")[2]: found}
    if name is not None:
        msg = f"{path} holds models with their own names: omit --name"
        raise InputError(msg)
    return dict(found)


def _make_demo() -> Runnable[Any, Any]:
    """Return a chain that serves the recording under an artifact that is calibrated here."""
    from langchain_cfc import calibrate
    from langchain_cfc.demo import ALPHA, FEATURES, SET_RULE, TEST_FRACTION, demo_chain, load_recording

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttainabilityWarning)
        artifact = calibrate(
            load_recording(),
            alpha=ALPHA,
            features=FEATURES,
            set_rule=SET_RULE,
            test_fraction=TEST_FRACTION,
        )
    return demo_chain(artifact)
