"""The two models of the cascade: what they answered, what a draw costs, and how they are asked again.

Both answered the same 1,224 questions ten times each. `CHEAP` and `STRONG` are the two lines to change for
models of your own: collect records with each (`langchain-cfc collect`), name the file, the price and the
model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from langchain.chat_models import init_chat_model

from langchain_cfc import PromptRecord, read_records
from langchain_cfc.candidates import LabelledBatch
from langchain_cfc.demo.replay import RecordedScores, ReplayChatModel
from langchain_cfc.records import Provenance, tabulate
from langchain_cfc.verifiers import SequenceProbability


@dataclass(frozen=True)
class Tier:
    """One model of the cascade, with its records and price.

    Attributes:
        path: Its labelled records.
        price: What one draw costs, in any unit that is the same for both models.
        n: How many candidates it draws for a question, at most as many as were recorded.
        model: What `init_chat_model` calls it, such as `openai:gpt-4o-mini`; None replays the records.
    """

    path: Path
    price: float
    n: int
    model: str | None = None

    @property
    def cost(self) -> float:
        """What a question costs that it is asked."""
        return self.n * self.price

    @cached_property
    def provenance(self) -> Provenance | None:
        """Who drew and scored its candidates, which serving compares with who does so now."""
        found = read_records(self.path).provenance
        return None if found is None else found.model_copy(update={"answer": None})

    @cached_property
    def records(self) -> list[PromptRecord]:
        """Its records. Their texts are the answers, for nothing extracts answers when the cascade serves."""
        return [
            record.model_copy(
                update={
                    "candidates": tuple(one.model_copy(update={"answer": None}) for one in record.candidates)
                }
            )
            for record in read_records(self.path)
        ]

    @cached_property
    def table(self) -> LabelledBatch:
        """Its records as arrays, the first n candidates of each."""
        return tabulate(self.records, n=self.n, provenance=self.provenance)

    def parts(self) -> dict[str, Any]:
        """What `CFCRunnable` takes beside an artifact."""
        if self.model is None:
            replayed = ReplayChatModel.from_records(self.records, self.provenance)
            scores = RecordedScores(self.provenance)
            return {"generator": replayed, "verifier": scores, "sampling": "single_request"}
        model = init_chat_model(self.model, temperature=0.7, logprobs=True)
        return {"generator": model, "verifier": SequenceProbability()}


# The price of a draw is the model's size in billions of parameters: what a machine of one's own pays, whose
# time for a token grows with the parameters. Tokens were not recorded; these answers are a few tokens long.
CHEAP = Tier(Path(__file__).with_name("cheap.jsonl.gz"), price=0.494, n=5)
STRONG = Tier(Path(str(files("langchain_cfc.demo") / "facts.jsonl.gz")), price=1.54, n=10)
