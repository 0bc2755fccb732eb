"""`langchain-cfc serve`: models behind OpenAI's API, from the command line."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langchain_cfc.errors import InputError
from langchain_cfc.extend import load_object, report_errors
from langchain_cfc_server.settings import Settings

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable

TOKENS = "LANGCHAIN_CFC_SERVER_TOKENS"
_DEFAULT = Settings(authentication=False)


class _Sampling(str, Enum):
    refuse = "refuse"
    ignore = "ignore"


def serve(  # noqa: PLR0917 - typer makes every option a parameter
    models: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:NAME]",
            help="A chain, a mapping of chains by name, or a function without arguments that returns either.",
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Serve recorded answers: no key, no network.")] = False,
    name: Annotated[str | None, typer.Option(help="What clients call the model; by default NAME.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for a free one, which the log states.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"Bearer tokens, one a line. Otherwise those in {TOKENS}, with spaces between."),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Serve every client that can reach the port.")
    ] = False,
    sampling_parameters: Annotated[
        _Sampling, typer.Option(help="What to do with temperature, tools and the like in requests.")
    ] = _Sampling.refuse,
    abstain_message: Annotated[
        str, typer.Option(help="What is said on abstention.")
    ] = _DEFAULT.abstain_message,
    body_limit: Annotated[int, typer.Option(help="Most bytes of a body.")] = _DEFAULT.body_limit,
    concurrency: Annotated[int, typer.Option(help="Most requests worked on at once.")] = _DEFAULT.concurrency,
    queue: Annotated[int, typer.Option(help="Most requests that wait beyond these.")] = _DEFAULT.queue,
    per_token: Annotated[
        int | None, typer.Option(help="Most requests of one token that wait or are worked on at once.")
    ] = _DEFAULT.per_token,
    connections: Annotated[int, typer.Option(help="Most connections open at once.")] = _DEFAULT.connections,
    time_limit: Annotated[float, typer.Option(help="Seconds that a request may take.")] = _DEFAULT.time_limit,
    drain: Annotated[float, typer.Option(help="Seconds to go on listening after SIGTERM.")] = 5.0,
    finish: Annotated[float, typer.Option(help="Seconds for requests in flight after that.")] = 60.0,
    log_content: Annotated[
        bool, typer.Option("--log-content", help="Let logs hold prompts, answers and texts of errors.")
    ] = False,
) -> None:
    """Serve models behind OpenAI's API until stopped; logs are lines of JSON on standard error.

    Example: langchain-cfc serve mybot:chain --token-file tokens.txt
    """
    # Late, for the help of `langchain-cfc` loads this module.
    from langchain_cfc_server import logs
    from langchain_cfc_server.app import create_app
    from langchain_cfc_server.server import run

    with report_errors():
        settings = Settings(
            tokens=() if no_auth else _read_tokens(token_file),
            authentication=not no_auth,
            sampling_parameters=sampling_parameters.value,
            abstain_message=abstain_message,
            body_limit=body_limit,
            concurrency=concurrency,
            queue=queue,
            per_token=per_token,
            connections=connections,
            time_limit=time_limit,
            log_content=log_content,
        )
        logs.configure(log_content=log_content)
        app = create_app(_load_models(models, name, demo=demo), settings)
        run(app, host=host, port=port, drain=drain, finish=finish)


def _read_tokens(path: Path | None) -> tuple[str, ...]:
    """Tokens from a file or the environment; never from arguments, which every user of a machine can see."""
    if path is not None:
        try:
            found = path.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            msg = f"the tokens in {path} cannot be read: {type(error).__name__}"
            raise InputError(msg) from error
    else:
        found = os.environ.get(TOKENS, "").split()
    if not found:
        msg = (
            f"no request could be served, since there are no tokens: put some into the environment variable "
            f"{TOKENS} or a file that --token-file names, or serve every client with --no-auth"
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
        msg = f"{path} holds models with names of their own: leave --name out"
        raise InputError(msg)
    return dict(found)


def _make_demo() -> Runnable[Any, Any]:
    """The recording, calibrated on the spot and served through a saved artifact."""
    from langchain_cfc.demo import demo_chain, run_demo

    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "artifact.json"
        run_demo(0, artifact)
        return demo_chain(artifact)
