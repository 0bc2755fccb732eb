"""Read LangSmith datasets as rows for `collect`, pinned to one version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from langchain_cfc_collect import Row, Rows
from langsmith import Client
from langsmith.schemas import Dataset, DatasetVersion, Example

from langchain_cfc.errors import InputError
from langchain_cfc_langsmith.asking import find_dataset, iterate_examples, make_client, translate_errors

SPLITS = "dataset_split"
_LATEST = "latest"


def read_dataset_rows(
    dataset: str,
    *,
    as_of: str | datetime | None = None,
    splits: Sequence[str] = (),
    client: Client | None = None,
) -> Rows:
    """Return a dataset as rows, from which `read_examples` makes examples.

    The version is fixed here, so that every iteration yields the same examples even if the dataset is edited.
    The name of the rows contains the version and can be used to open it again.

    Args:
        dataset: Name or id of the dataset.
        as_of: The version: a time with its zone, in ISO 8601 or as `datetime`, or a tag such as `prod`. By
            default the latest.
        splits: Names of splits to read; empty for all examples.
        client: The client; by default configured by the environment.

    Returns:
        The rows, see `make_row`; they are read page by page during iteration.

    Raises:
        InputError: If a time has no zone, or a split does not exist.
        CollectionError: If LangSmith cannot be reached, or there is no such dataset or version.
    """
    service = make_client(client)
    found = find_dataset(service, dataset)
    version = _read_version(service, found, as_of).as_of.isoformat()
    wanted = tuple(sorted(splits))
    _check_splits(service, found, version, wanted)
    # Text after a question mark in a name would be parsed as the version, so the id is used instead.
    name = str(found.id) if "?" in found.name else found.name
    chosen = "".join(f"&split={split}" for split in wanted)

    def read() -> Iterator[Row]:
        examples = iterate_examples(service, found, version, wanted)
        return ((number, make_row(one)) for number, one in enumerate(examples, start=1))

    return Rows(f"langsmith:{name}?as_of={version}{chosen}", "row", read)


def source_rows(rest: str) -> Rows:
    """Return the rows that `collect` reads for the source `langsmith:REST`.

    Args:
        rest: `DATASET`, or `DATASET?as_of=VERSION&split=SPLIT`; characters after the question mark may be
            percent-encoded, and `split` may be repeated.

    Returns:
        The rows; see `read_dataset_rows`.

    Raises:
        InputError: If `rest` has another form.
        CollectionError: As `read_dataset_rows` does.
    """
    dataset, _, query = rest.partition("?")
    said: dict[str, list[str]] = {"as_of": [], "split": []}
    for part in filter(None, query.split("&")):
        # Not `parse_qs`, which would turn the plus in a time zone into a space.
        key, _, value = part.partition("=")
        if key not in said or not value:
            msg = f"langsmith:{rest}: found {part!r}; expected as_of=VERSION or split=SPLIT"
            raise InputError(msg)
        said[key].append(unquote(value))
    if len(said["as_of"]) > 1:
        msg = f"langsmith:{rest}: found as_of {len(said['as_of'])} times; expected it once"
        raise InputError(msg)
    return read_dataset_rows(dataset, as_of=next(iter(said["as_of"]), None), splits=said["split"])


def make_row(example: Example) -> dict[str, Any]:
    """Return an example as a row, with column names that `Columns` can refer to.

    Args:
        example: An example.

    Returns:
        `id`; `split` (several are sorted and joined by plus signs, None without any); and `inputs`, `outputs`
        and `metadata` as objects, whose fields are addressed with dots (`inputs.question`). A field is also
        available by its own name, unless that name occurs twice or is one of these five.
    """
    parts: dict[str, Mapping[str, Any]] = {
        "inputs": example.inputs or {},
        "outputs": example.outputs or {},
        "metadata": {name: value for name, value in (example.metadata or {}).items() if name != SPLITS},
    }
    row: dict[str, Any] = {"id": str(example.id), "split": _join_splits(example), **parts}
    times = Counter(name for part in parts.values() for name in part)
    single = {
        name: value
        for part in parts.values()
        for name, value in part.items()
        if times[name] == 1 and name not in row
    }
    return {**row, **single}


def _join_splits(example: Example) -> str | None:
    said = (example.metadata or {}).get(SPLITS)
    names = [said] if isinstance(said, str) else said or []
    return "+".join(sorted(map(str, names))) or None


def _read_version(client: Client, dataset: Dataset, as_of: str | datetime | None) -> DatasetVersion:
    time = as_of if isinstance(as_of, datetime) else _parse_time(as_of)
    if time is not None and time.tzinfo is None:
        msg = f"as_of is {as_of}, which has no time zone; add one, such as +00:00"
        raise InputError(msg)
    with translate_errors(f"finding the version {as_of or _LATEST} of {dataset.name!r}"):
        if time is not None:
            return client.read_dataset_version(dataset_id=dataset.id, as_of=time)
        return client.read_dataset_version(dataset_id=dataset.id, tag=str(as_of or _LATEST))


def _check_splits(client: Client, dataset: Dataset, version: str, wanted: Sequence[str]) -> None:
    """Refuse splits that do not exist; LangSmith would read them as empty, without an error."""
    if not wanted:
        return
    with translate_errors(f"listing the splits of {dataset.name!r}"):
        known = client.list_dataset_splits(dataset_id=dataset.id, as_of=version)
    unknown = [split for split in wanted if split not in known]
    if unknown:
        msg = f"{dataset.name!r} has no split {unknown[0]!r}; its splits are {', '.join(known) or 'none'}"
        raise InputError(msg)


def _parse_time(as_of: str | None) -> datetime | None:
    """Return the time that a text states; None if it is a tag."""
    try:
        # Python 3.10 does not parse the suffix Z.
        return None if as_of is None else datetime.fromisoformat(as_of.replace("Z", "+00:00"))
    except ValueError:
        return None
