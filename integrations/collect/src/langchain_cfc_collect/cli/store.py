"""`langchain-cfc store` and `status`: show, rescore and check a store; export and import records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from langchain_cfc.cli.commands import make_app
from langchain_cfc.cli.formatting import (
    EXIT_NO,
    emit_json,
    get_console,
    print_lines,
    report_errors,
    track_progress,
)
from langchain_cfc.cli.inputs import AsJson
from langchain_cfc.errors import InputError
from langchain_cfc.records import read_records, write_records
from langchain_cfc.support.text import pluralize
from langchain_cfc_collect.cli.collect import ConfigPath, RetryFailed, Settings, run_rescoring
from langchain_cfc_collect.cli.people import agreement, certify
from langchain_cfc_collect.cli.status import print_status, summarize_status
from langchain_cfc_collect.config import ImportConfig, ScoringConfig, read_settings
from langchain_cfc_collect.importing import ImportReport, import_samples
from langchain_cfc_collect.review import write_review
from langchain_cfc_collect.sources.columns import Columns
from langchain_cfc_collect.sources.samples import holds_records
from langchain_cfc_collect.status import CollectionStatus
from langchain_cfc_collect.store import Store

app = make_app(no_args_is_help=True, help="Export, import, rescore or check a store.")
app.command("agreement")(agreement)
app.command("certify")(certify)
_MOST_LISTED = 10
_STORE_HELP = "SQLite file, or URL of a PostgreSQL database."
_column_option = partial(typer.Option, metavar="COLUMN", rich_help_panel="Columns of answers")
StoreName = Annotated[str, typer.Argument(help=_STORE_HELP)]


@app.command("status")
def status(
    store: StoreName,
    as_json: AsJson = False,
) -> None:
    """Show a collection's progress, its labels and what failed."""
    with report_errors(), Store(store) as collection:
        state, failures = CollectionStatus.from_store(collection), collection.read_failures()
        configuration, summary = collection.configuration, summarize_status(state, collection)
    if as_json:
        failed = [{"id": one.id, "stage": one.stage.name.lower(), "error": one.error} for one in failures]
        emit_json({**summary, "failures": failed, "configuration": configuration})
        return
    console = get_console()
    print_status(console, state, summary, configuration)
    reasons = Counter((one.stage.name.lower(), one.error) for one in failures)
    for (stage, error), count in reasons.most_common(_MOST_LISTED):
        console.print(escape(f"{count} failed before they were {stage}: {error}"), soft_wrap=True)
    if len(reasons) > _MOST_LISTED:
        console.print(f"and {len(reasons) - _MOST_LISTED} more reasons; --json lists all")


@app.command("export")
def export(
    store: StoreName,
    records: Annotated[Path, typer.Argument(help="File to write: .jsonl or .jsonl.gz.")],
    sample_for_review: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Write a CSV sheet for people to label instead: K candidates, or the claims of K answers.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the finished records of a store to a file, all or nothing."""
    with report_errors(), Store(store) as collection:
        finished = track_progress(collection.read_all(), "writing records")
        if sample_for_review is None:
            written = write_records(records, finished, collection.read_provenance())
            what = "records"
        else:
            write_review(finished, sample_for_review, records)
            written = sample_for_review
            what = "answers" if collection.unit == "claims" else "candidates"
    _print_written(records, written, as_json=as_json, what=what)


@app.command("import")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(help="Labelled records, or answers that another tool drew: see below."),
    ],
    store: Annotated[str, typer.Argument(help=f"{_STORE_HELP} Created if it does not exist.")],
    question: Annotated[str | None, _column_option(help="Column of the questions.")] = None,
    answer: Annotated[str | None, _column_option(help="Column of the answers, or of lists of them.")] = None,
    reference: Annotated[
        list[str] | None, _column_option(help="Column of the right answers; repeat it for several.")
    ] = None,
    score: Annotated[
        str | None, _column_option(help="Column of scores in [0, 1], smaller is better; '' for none.")
    ] = None,
    label: Annotated[
        str | None, _column_option(help="Column that says whether the answer is correct; '' for none.")
    ] = None,
    config: ConfigPath = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Add records that were made elsewhere, or answers that another tool drew, to a store.

    Records that the store already holds are skipped; a different record with the same id is an error.

    Answers are read from samples of lm-evaluation-harness, results of uqlm and promptfoo, and tables (JSON
    Lines, JSON, CSV, Parquet) with a row for each answer or question. Columns are guessed by their names
    where no option names them. --set n=5 uses five answers of each question, and --set generator.id=NAME
    names the model that drew them. `store rescore` scores them, and `collect` scores and labels them.
    """
    given = {"input": question, "reference": reference or None}
    with report_errors():
        if all(map(holds_records, files)):
            if answer or score or label or question or reference or config or settings:
                msg = "the files hold labelled records, which have no columns to name: leave the options out"
                raise InputError(msg)
            source = read_records(*files)
            with Store(store, create=True) as target, target.lock():
                added = target.add_records(track_progress(source, "reading records"), source.provenance)
            _print_written(store, added, as_json=as_json, what="records")
            return
        read = read_settings(ImportConfig, config, {"source": given}, settings or ())
        # A column of questions replaces the prompt of the file of settings.
        known = Columns.model_fields.keys() - ({"prompt", "inputs"} if question is not None else set())
        columns = {key: one for key, one in read.source.items() if key in known}
        name = read.generator.get("id")
        done = import_samples(
            files, store, columns, answer=answer, score=score, label=label, n=read.n, generator_id=name
        )
    if as_json:
        emit_json({**asdict(done), "written": store})
        return
    print_lines(get_console(), _describe_import(done, store, name))


def _describe_import(done: ImportReport, store: str, name: str | None) -> Iterable[str]:
    yield done.read_from
    yield f"{done.prompts} prompts with {pluralize(done.n, 'answer')} each written to {store}"
    if name is None:
        yield (
            "the model is not named, so a bot calibrated on them is `unverified`; to name it, import with "
            "--set generator.id=NAME, the generator_id of the bot"
        )
    if not done.has_labels:
        yield "next          score and label them:"
        yield f"              langchain-cfc collect --config collect.toml --store {store}"
    elif not done.has_scores:
        yield "next          score them:"
        yield f"              langchain-cfc store rescore {store} --out scored.db --verifier FACTORY"
    else:
        yield f"next          langchain-cfc store export {store} records.jsonl"


@app.command("rescore")
def rescore(
    store: Annotated[str, typer.Argument(help=f"{_STORE_HELP} It is only read.")],
    target: Annotated[
        str,
        typer.Option("--out", "-o", help="The new store. The same command continues one that is unfinished."),
    ],
    verifier: Annotated[str | None, typer.Option(help="The new verifier, such as SelfConsistency.")] = None,
    config: ConfigPath = None,
    settings: Settings = None,
    retry_failed: RetryFailed = False,
    as_json: AsJson = False,
) -> None:
    """Score the stored candidates with another verifier, into a new store; nothing is drawn or labelled.

    Several verifiers are settings, such as --set verifiers.vote.factory=SelfConsistency, like their weights
    in the mean that is the score: --set weights.vote=3. For a name with a weight alone, recorded outputs are
    used, and nothing is called.

    Exit code 1 if prompts are unfinished or have failed.
    """
    with report_errors():
        read = read_settings(ScoringConfig, config, {"verifier": {"factory": verifier}}, settings or ())
        finished = run_rescoring(read, store, target, retry_failed=retry_failed, as_json=as_json)
    raise typer.Exit(0 if finished else EXIT_NO)


@app.command("check")
def check(
    store: StoreName,
    as_json: AsJson = False,
) -> None:
    """Read a whole store, and check every prompt against its digests.

    This command, like all others that read a store, rejects a damaged one with exit code 2. The others check
    only what they read.
    """
    with report_errors(), Store(store) as collection:
        collection.check()
        total = CollectionStatus.from_store(collection).total
    if as_json:
        emit_json({"checked": True, "prompts": total})
    else:
        get_console().print(f"all {total} prompts match their digests")


def _print_written(where: Any, count: int, *, as_json: bool, what: str) -> None:
    if as_json:
        emit_json({what: count, "written": str(where)})
    else:
        get_console().print(escape(f"{count} {what} written to {where}"), soft_wrap=True)
