"""Digests of what a store holds of a prompt, by which damage is noticed before anything is made of it.

A digest is BLAKE2b of canonical JSON, 8 bytes as 16 hexadecimal digits: against bits that flip and pages that
get lost, not against forgery.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any

from sqlalchemy import Connection, Text, cast, literal, select, union_all

from langchain_cfc.collect.stages import Stage
from langchain_cfc.collect.store import schema
from langchain_cfc.errors import CFCError, StoreError

_BYTES = 8
_MODULUS = 1 << (8 * _BYTES)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def digest(*values: Any) -> str:
    """Return the digest of plain data.

    Args:
        *values: Text, numbers, booleans, None, and sequences of those; lists and tuples are the same.

    Raises:
        ValueError: If a text holds half a surrogate pair.
        TypeError: If a value is of another type.
    """
    return blake2b(_ENCODER.encode(values).encode(), digest_size=_BYTES).hexdigest()


def prompt_digest(row: Mapping[str, Any]) -> str:
    """Return the digest of a prompt as the dataset has it, from its row."""
    return digest(*(row[name] for name in ("position", "id", "input", "reference", "metadata", "cluster")))


def draw_checksum(position: int, slot: int, text: str, data: str | None, packed: bytes | None) -> str:
    """Return the digest of one candidate, which is there before the others of its prompt."""
    return digest(position, slot, text, data, None if packed is None else packed.hex())


def draws_digest(position: int, texts: Sequence[str], data: Sequence[str | None]) -> str:
    """Return the digest of n candidates in the order of their slots."""
    return digest(position, texts, data)


def scores_digest(position: int, scores: Sequence[float], outputs: Sequence[str | None]) -> str:
    """Return the digest of n scores and raw outputs."""
    # SQLite has no negative zero.
    return digest(position, [score + 0.0 for score in scores], outputs)


def labels_digest(
    position: int, correct: Sequence[bool], answers: Sequence[str | None], described: str | None
) -> str:
    """Return the digest of n labels and answers, and of what the metadata function says."""
    return digest(position, [bool(label) for label in correct], answers, described)


def digest_sum(digests: Iterable[str]) -> int:
    """Return the sum of digests, which is that of a set whatever its order, below 2^64."""
    return sum(int(one, 16) for one in digests) % _MODULUS


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


_ADVICE = ". Go back to a copy of it; `langchain-cfc status --check STORE` looks at all that it holds"


@contextmanager
def damage_reported(name: str) -> Iterator[None]:
    """Turn whatever fails while stored values are read into one error that names the store.

    Raises:
        StoreError: If a value is not of the form in which it was written.
    """
    try:
        yield
    except CFCError:
        raise
    except Exception as error:
        msg = f"{name} is damaged: {type(error).__name__}: {error}{_ADVICE}"
        raise StoreError(msg) from error


def check_prompt(name: str, row: Any) -> None:
    """Check what the dataset says of a prompt.

    Args:
        name: Of the store.
        row: The prompt's.

    Raises:
        StoreError: If it is not what was written.
    """
    _check(name, row.id, prompt_digest(row._mapping), row.digest)  # noqa: SLF001 - SQLAlchemy's public name
    # Every stage that is finished has left its digest.
    left = [row.draws_digest, row.scores_digest, row.labels_digest]
    _check(name, row.id, [said is not None for said in left], [row.stage > stage for stage in range(3)])
    # One bit makes a number of nothing.
    _check(name, row.id, type(row.context), type(None) if row.context is None else str)


def check_draws(name: str, prompt: Any, drawn: Sequence[Any]) -> None:
    """Check the candidates of a prompt that is not finished; arguments as in `check_prompt`."""
    for one in drawn:
        found = draw_checksum(one.prompt, one.slot, one.text, one.data, one.packed)
        _check(name, prompt.id, found, one.checksum)
    if prompt.stage >= Stage.DRAWN:
        said = draws_digest(prompt.position, [one.text for one in drawn], [one.data for one in drawn])
        _check(name, prompt.id, said, prompt.draws_digest)


def check_scores(name: str, prompt: Any, scored: Sequence[Any]) -> None:
    """Check the scores of a prompt that is not finished; arguments as in `check_prompt`."""
    said = scores_digest(prompt.position, [one.score for one in scored], [one.outputs for one in scored])
    _check(name, prompt.id, said, prompt.scores_digest)


def check_finished(name: str, row: Any, columns: Sequence[Sequence[Any]]) -> None:
    """Check all of a finished prompt.

    Args:
        name: Of the store.
        row: The prompt's.
        columns: The columns of its n candidates, as `results.CANDIDATES` orders them.

    Raises:
        StoreError: If it is not what was written.
    """
    check_prompt(name, row)
    _, slots, texts, data, scores, outputs, correct, answers = columns
    position = row.position
    _check(name, row.id, slots, tuple(range(len(slots))))
    _check(name, row.id, draws_digest(position, texts, data), row.draws_digest)
    _check(name, row.id, scores_digest(position, scores, outputs), row.scores_digest)
    _check(name, row.id, labels_digest(position, correct, answers, row.described), row.labels_digest)


def _check(name: str, prompt: Any, found: object, written: object) -> None:
    if found != written:
        msg = f"{name} is damaged: the prompt {prompt!r:.80} is not what was written{_ADVICE}"
        raise StoreError(msg)
