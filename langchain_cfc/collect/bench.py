"""`LocalBench`: prompts worked on in this process, by the code that serves them later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from langchain_core.load import dumps
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc.calls import Bounds, Limit, Progress, Steps, Target, acomplete, bounded, tagged
from langchain_cfc.collect.attempts import Repeated
from langchain_cfc.collect.stages import Journal, Labels, Outcome, Paid
from langchain_cfc.description import Description
from langchain_cfc.errors import CFCError, InputError, StoreError
from langchain_cfc.fingerprints import fingerprint
from langchain_cfc.labelers import Labeler, LabelerInput, Labelling, Reads
from langchain_cfc.records import Example, Provenance
from langchain_cfc.sampling import Draw, Sampler, SamplingName, Witness, resolved
from langchain_cfc.verifiers import Panel, Verifier, VerifierInput
from langchain_cfc.verifiers.scoring import ByFirst, ByOne


@dataclass(frozen=True)
class Parts:
    """What makes records, as `CFCRunnable` takes it, and what labels them.

    Attributes:
        generator: The chat model or chain, or a model's name such as `openai:gpt-4o-mini`.
        verifier: One verifier, or a mapping of several by name, the first of which gives the `score`.
        labeler: What labels candidates.
        n: Number of candidates for each prompt, at least 1.
        answer: Text to extracted answer; None without an extractor.
        metadata: Prompt to metadata, as when serving; None where the dataset's own will do.
        sampling: How candidates are drawn, see `CFCRunnable`.
        reads: What the labeler is shown where there is an extractor, see `Labelling`.
        generator_id: What the generator is called in the records, if it cannot say itself.
        verifier_id: The same for the verifier.
        labeler_id: The same for the labeler.
        answer_id: The same for the answer extractor.
    """

    generator: Runnable[Any, Any] | Callable[[Any], Any] | str
    verifier: Verifier | Mapping[str, Verifier]
    labeler: Labeler
    n: int
    answer: Target | None = None
    metadata: Target | None = None
    sampling: SamplingName = "requests"
    reads: Reads = "answer"
    generator_id: str | None = None
    verifier_id: str | None = None
    labeler_id: str | None = None
    answer_id: str | None = None


class LocalBench:
    """Works on prompts in this process.

    Args:
        parts: What draws, scores and labels.
        limit: Places for the calls of all prompts.
        attempts: How calls are made.
        config: LangChain config that all runs inherit, such as callbacks that trace them.

    Raises:
        InputError: If n is less than 1, or the generator has a fixed seed.
        CFCError: If a part is none of its kind.
    """

    def __init__(
        self,
        parts: Parts,
        limit: Limit | None = None,
        attempts: Repeated | None = None,
        config: RunnableConfig | None = None,
    ) -> None:
        if not isinstance(parts.n, int) or parts.n < 1:  # type: ignore[redundant-expr]  # files hold anything
            msg = f"n is {parts.n!r}; expected a whole number of candidates, at least 1"
            raise InputError(msg)
        self.parts = parts
        generator = resolved(parts.generator)
        verifier: Any = parts.verifier
        if isinstance(verifier, Mapping):
            verifier = Panel(verifier)
        self._scoring = ByFirst(verifier) if isinstance(verifier, Panel) else ByOne(verifier)
        self._labelling = Labelling(parts.labeler, parts.reads)
        self._sampler = Sampler(generator, parts.sampling)
        self._description = Description(parts.answer, parts.metadata)
        self._limit = limit
        self._attempts = attempts
        self._config: RunnableConfig = config or {}
        self.provenance = Provenance(
            n=parts.n,
            generator=fingerprint(generator, parts.generator_id),
            verifier=fingerprint(verifier, parts.verifier_id),
            labeler=fingerprint(parts.labeler, parts.labeler_id),
            answer=None if parts.answer is None else fingerprint(parts.answer, parts.answer_id),
        )

    @property
    def configuration(self) -> dict[str, Any]:
        """Whatever makes other records, as plain data."""
        said = self.provenance.model_dump(include={"n", "generator", "verifier", "labeler", "answer"})
        metadata = None if self.parts.metadata is None else fingerprint(self.parts.metadata)
        return {**said, "sampling": self.parts.sampling, "reads": self.parts.reads, "metadata": metadata}

    async def draw(self, example: Example, journal: Journal) -> Outcome:
        """Draw n candidates, but for those that the journal knows."""
        witness = Witness()
        config = self._sampler.witnessed(self._config, witness)
        keeper = _JournalKeeper(journal, witness)
        steps = self._sampler.draws(example.input, self.parts.n, config, Progress(), witness, keeper=keeper)
        return await self._outcome(steps, witness, journal)

    async def score(self, example: Example, draws: Sequence[Draw], journal: Journal) -> Outcome:
        """Score them."""
        witness = Witness()
        given = VerifierInput(prompt=example.input, candidates=list(draws))
        steps = self._scoring.scored(given, tagged(witness.heard_in(self._config), "cfc:verifier"))
        return await self._outcome(steps, witness, journal)

    async def label(self, example: Example, draws: Sequence[Draw], journal: Journal) -> Outcome:
        """Label them, tell their answers apart and describe the prompt."""
        witness = Witness()
        steps = self._labelled(example, draws, witness.heard_in(self._config))
        return await self._outcome(steps, witness, journal)

    async def _outcome(self, steps: Steps[Any], witness: Witness, journal: Journal) -> Outcome:
        attempts = None if self._attempts is None else self._attempts.billed(journal)
        result: Any
        try:
            with bounded(Bounds(self._limit, attempts=attempts), self._config):
                result = await acomplete(steps)
        except StoreError:  # the journal's, and no fault of the prompt
            raise
        except CFCError as error:
            result = error
        paid = Paid.seen_by(witness)
        if attempts is not None:
            attempts.settle(paid.tokens)
        return Outcome(result, paid)

    def _labelled(self, example: Example, draws: Sequence[Draw], config: RunnableConfig) -> Steps[Labels]:
        metadata = yield from self._description.metadata(example.input, config)
        answers = yield from self._description.answers(draws, config)
        extracted = answers if self._description.extracts else None
        given = LabelerInput(
            id=example.id, prompt=example.input, reference=example.reference, candidates=list(draws)
        )
        labels = yield from self._labelling.labels(given, extracted, config)
        return Labels(labels, extracted, metadata)


class _JournalKeeper:
    """Hands a sampler's candidates on to a journal, with what they took.

    Args:
        journal: Where they are kept.
        witness: Sees all models that answer.
    """

    def __init__(self, journal: Journal, witness: Witness) -> None:
        self._journal = journal
        self._witness = witness

    def known(self, prepared: Any) -> Mapping[int, Draw]:
        """Candidates that were drawn for the same prepared input."""
        # What LangChain cannot write is written with its address, and is never the same.
        return self._journal.resume(blake2b(dumps(prepared).encode(), digest_size=8).hexdigest())

    def keep(self, slot: int, draw: Draw) -> None:
        """Take in a candidate."""
        self._journal.keep(slot, draw, Paid.seen_by(self._witness))

    def discard(self) -> None:
        """Drop all candidates, which were refused."""
        self._journal.discard()
