"""What the records of a store are made with, and that nothing else is mixed into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_cfc.errors import StoreError

# Of a configuration, what records say of themselves.
OF_RECORDS = ("n", "generator", "verifier", "labeler", "answer")


def refuse_other(name: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse to mix records that were made differently.

    Args:
        name: Of the store, for the message.
        known: What its records were made with, by name.
        given: What new ones would be made with. Names that only one of the two has say nothing, unless
            records need them.

    Raises:
        StoreError: If something differs; it is named.
    """
    shared = [key for key in known if key in given]
    missing = [key for key in OF_RECORDS if key not in known and given.get(key) is not None]
    different = [*(key for key in shared if known[key] != given[key]), *missing]
    if not different:
        return
    listed = "; ".join(line for key in different for line in _contrast(key, known.get(key), given[key]))
    msg = (
        f"{name} was made with another configuration: {listed}. Its records and new ones would not be "
        "exchangeable: collect into another store, or go back to the old configuration"
    )
    raise StoreError(msg)


def _contrast(key: str, known: Any, given: Any) -> Iterator[str]:
    if isinstance(known, Mapping) and isinstance(given, Mapping):
        for name in {**known, **given}:
            if known.get(name) != given.get(name):
                yield from _contrast(f"{key}.{name}", known.get(name), given.get(name))
    elif known is None:
        yield f"{key} is now {given!r:.80}, and was not stated"
    else:
        yield f"{key} was {known!r:.80} and is now {given!r:.80}"
