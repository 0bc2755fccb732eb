"""Requests to LangSmith, with failures as one typed error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from langsmith import Client
from langsmith.schemas import Dataset, Example
from langsmith.utils import LangSmithAuthError

from langchain_cfc.errors import CFCError, CollectionError

PAGE = 100
_LONGEST = 300


def make_client(client: Client | None) -> Client:
    """Return the client, or make one as the environment says; its threads are not needed."""
    return Client(auto_batch_tracing=False) if client is None else client


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Turn failures of LangSmith into one error; the client itself repeats what may pass by itself.

    Args:
        what: What is being done, for messages.

    Raises:
        CollectionError: If the service cannot be reached, refuses, or answers something that is no answer.
    """
    try:
        yield
    except CFCError:
        raise
    except Exception as error:  # whatever the client makes of a malformed answer
        # The lines after the first repeat the request, part of the key included.
        first_line = str(error).partition("\n")[0][:_LONGEST]
        advice = (
            "; is LANGSMITH_API_KEY the key of this workspace?"
            if isinstance(error, LangSmithAuthError)
            else ""
        )
        msg = f"LangSmith: {what} failed with {type(error).__name__}: {first_line}{advice}"
        raise CollectionError(msg) from error


def find_dataset(client: Client, dataset: str) -> Dataset:
    """Find a dataset by its name or by its id."""
    with translate_errors(f"finding the dataset {dataset!r}"):
        named = {"dataset_id" if _is_uuid(dataset) else "dataset_name": dataset}
        found: Dataset = client.read_dataset(**named)
    return found


def iterate_examples(
    client: Client, dataset: Dataset, as_of: str, splits: tuple[str, ...] = ()
) -> Iterator[Example]:
    """Yield the examples of one version of a dataset, a page at a time.

    The client's own paging takes a page that is shorter than it asked for as the last one, which loses the
    rest where a server sends shorter pages; here only an empty page is the last.

    Args:
        client: The client.
        dataset: The dataset.
        as_of: Time of the version, in ISO 8601.
        splits: Only examples of these; all if empty.

    Yields:
        Each example once.

    Raises:
        CollectionError: If a page cannot be read, or an example comes twice.
    """
    seen: set[UUID] = set()
    while True:
        with translate_errors(f"reading {dataset.name!r} from example {len(seen) + 1} on"):
            page = list(
                client.list_examples(
                    dataset_id=dataset.id, as_of=as_of, splits=splits or None, offset=len(seen), limit=PAGE
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
