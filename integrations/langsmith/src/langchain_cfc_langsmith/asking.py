"""Requests to LangSmith, whose failures are converted to a single error type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from langsmith import Client
from langsmith.schemas import Dataset, Example
from langsmith.utils import LangSmithAuthError

from langchain_cfc.errors import CFCError, CollectionError
from langchain_cfc.execution import describe_error

PAGE = 100
_MAX_MESSAGE_LENGTH = 300


def make_client(client: Client | None) -> Client:
    """Return the client, or a new one configured by the environment, without its background threads."""
    return Client(auto_batch_tracing=False) if client is None else client


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Convert failures of LangSmith to a `CollectionError`; the client itself retries transient failures.

    Args:
        what: The current action, for messages.

    Raises:
        CollectionError: If the service cannot be reached, refuses, or returns an invalid response.
    """
    try:
        yield
    except CFCError:
        raise
    except Exception as error:  # the client may raise anything for a malformed response
        # Only the first line: the others repeat the request, including part of the key.
        first_line = describe_error(error).partition("\n")[0][:_MAX_MESSAGE_LENGTH]
        advice = (
            "; is LANGSMITH_API_KEY the key of this workspace?"
            if isinstance(error, LangSmithAuthError)
            else ""
        )
        msg = f"LangSmith: {what} failed with {first_line}{advice}"
        raise CollectionError(msg) from error


def find_dataset(client: Client, dataset: str) -> Dataset:
    """Return a dataset, given by its name or its id."""
    with translate_errors(f"finding the dataset {dataset!r}"):
        named = {"dataset_id" if _is_uuid(dataset) else "dataset_name": dataset}
        found: Dataset = client.read_dataset(**named)
    return found


def iterate_examples(
    client: Client, dataset: Dataset, as_of: str, splits: tuple[str, ...] = ()
) -> Iterator[Example]:
    """Yield the examples of one version of a dataset, a page at a time.

    The client's own paging stops at the first page that is shorter than requested, which loses examples if a
    server limits pages. Here, only an empty page ends the reading.

    Args:
        client: The client.
        dataset: The dataset.
        as_of: Time of the version, in ISO 8601.
        splits: Names of splits to read; empty for all examples.

    Yields:
        Each example once.

    Raises:
        CollectionError: If a page cannot be read, or an example is listed twice.
    """
    seen: set[UUID] = set()
    while True:
        with translate_errors(f"reading {dataset.name!r} from example {len(seen) + 1} on"):
            page = list(
                client.list_examples(
                    dataset_id=dataset.id,
                    as_of=as_of,
                    splits=splits or None,
                    offset=len(seen),
                    limit=PAGE,
                )
            )
        if not page:
            return
        for example in page:
            if example.id in seen:
                msg = (
                    f"LangSmith: {dataset.name!r} lists the example {example.id} twice, so others may be "
                    "missing; read it again"
                )
                raise CollectionError(msg)
            seen.add(example.id)
            yield example


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
