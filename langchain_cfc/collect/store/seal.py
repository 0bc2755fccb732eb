"""`Seal`: what a store holds in all, renewed in every transaction, so that no prompt is lost silently."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection, Text, cast, literal, select, union_all

from langchain_cfc.collect.stages import Stage
from langchain_cfc.collect.store import schema
from langchain_cfc.collect.store.digests import digest, digest_sum
from langchain_cfc.errors import StoreError

SEAL = "seal"
_facts, _prompts = schema.facts, schema.prompts
_VALUE = select(_facts.c.value).where(_facts.c.name == SEAL)
_REPLACE = _facts.update().where(_facts.c.name == SEAL)
# One statement, and so one state of the store, whoever writes meanwhile.
_ALL = union_all(
    select(literal(-1), cast(literal(0), Text), _facts.c.name, _facts.c.value, cast(literal(None), Text)),
    select(
        _prompts.c.position,
        cast(_prompts.c.stage, Text),
        cast(literal(None), Text),
        _prompts.c.labels_digest,
        _prompts.c.error,
    ),
)


@dataclass(frozen=True)
class Seal:
    """What a store holds.

    Attributes:
        prompts: Number of prompts.
        finished: Number of finished ones.
        total: Sum of the digests of their labels.
        models: What the models that drew call themselves, in alphabetical order.
        facts: Digest of all other facts.
    """

    prompts: int = 0
    finished: int = 0
    total: int = 0
    models: tuple[str, ...] = ()
    facts: str = ""

    @classmethod
    def parsed(cls, text: str) -> Seal:
        """Read a seal.

        Raises:
            ValueError: If it is not what was written.
        """
        values, known = json.loads(text)
        if digest(values) != known:
            msg = "the seal is damaged"
            raise ValueError(msg)
        return cls(**{**values, "models": tuple(values["models"])})

    def written(self) -> str:
        """Return it as JSON, with a digest of its own."""
        values = asdict(self)
        return json.dumps([values, digest(values)])

    def with_facts(self, facts: Mapping[str, str]) -> Seal:
        """Return the seal of a store with these facts."""
        return replace(self, facts=_facts_digest(facts))

    def with_finished(self, digests: Sequence[str]) -> Seal:
        """Return the seal of a store with more finished prompts."""
        total = digest_sum([f"{self.total:x}", *digests])
        return replace(self, finished=self.finished + len(digests), total=total)

    def with_models(self, names: Iterable[str]) -> Seal:
        """Return the seal of a store for which these models drew as well."""
        return replace(self, models=tuple(sorted({*self.models, *names})))


def read_seal(connection: Connection) -> Seal:
    """Return the seal of a store.

    Raises:
        ValueError: If it is damaged or not there.
    """
    value = connection.execute(_VALUE).scalar()
    if value is None:
        msg = "its seal is gone"
        raise ValueError(msg)
    return Seal.parsed(value)


def replace_seal(connection: Connection, seal: Seal) -> None:
    """Write a seal in place of the one before, in a connection's transaction."""
    connection.execute(_REPLACE, {"value": seal.written()})


@dataclass(frozen=True)
class Contents:
    """What a store was seen to hold.

    Attributes:
        seal: Its seal, which agrees with all that follows.
        finished: Positions of the finished prompts, in their order.
    """

    seal: Seal
    finished: Sequence[int]


def verified_contents(name: str, connection: Connection) -> Contents:
    """Compare what a store holds with its seal.

    Args:
        name: Of the store.
        connection: To read it with.

    Returns:
        What it holds.

    Raises:
        StoreError: If prompts or facts were lost or changed.
    """
    found = connection.execute(_ALL).all()
    facts = {fact: value for _, _, fact, value, _ in found if fact is not None}
    prompts = [(position, stage, value) for position, stage, fact, value, _ in found if fact is None]
    # One bit makes a number of nothing, and a prompt with an error would be passed over.
    if not all(error is None or isinstance(error, str) for *_, error in found):
        msg = f"{name} is damaged: an error is no text"
        raise StoreError(msg)
    finished = sorted((position, value) for position, stage, value in prompts if int(stage) == Stage.LABELLED)
    seal = Seal.parsed(facts.pop(SEAL))
    seen: dict[str, tuple[Any, Any]] = {
        "prompts": (len(prompts), seal.prompts),
        "finished prompts": (len(finished), seal.finished),
    }
    for what, (here, known) in seen.items():
        if here != known:
            msg = f"{name} is damaged: it has {here} {what}, and had {known}"
            raise StoreError(msg)
    if digest_sum(value for _, value in finished) != seal.total or _facts_digest(facts) != seal.facts:
        msg = f"{name} is damaged: what it holds is not what was written"
        raise StoreError(msg)
    return Contents(seal, [position for position, _ in finished])


def _facts_digest(facts: Mapping[str, str]) -> str:
    return digest(sorted([name, value] for name, value in facts.items() if name != SEAL))
