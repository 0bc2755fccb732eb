"""Are the results that get a label like the others? Only then do labels speak of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.monitor.betting import RANK_EXPERTS, Capital, MeanCapital, rank_factors
from langchain_cfc.monitor.drift import Drift, Layout
from langchain_cfc.monitor.observed import Observed
from langchain_cfc.monitor.ranks import counted, ranks

# Results in a row that are compared with each other, so that drift is no difference between them.
BLOCK = 200


@dataclass(frozen=True)
class Sampled:
    """Tests of whether labelled results look like the others, one for each quantity and group.

    Results are taken in blocks, each once, when all labels that it will get have come. If a label does not
    depend on what a result looks like, the labelled ones of a block are drawn from it without replacement,
    and their ranks among the others and those before them are independent and uniform.

    Attributes:
        artifact: The artifact.
        capital: Of the m tests, those of `Drift`.
        mean: Of the capital of all m tests, which is what alarms.
        last: Number of the last result of the last block.
    """

    artifact: CalibrationArtifact
    capital: Capital
    mean: MeanCapital
    last: int

    @classmethod
    def begun(cls, artifact: CalibrationArtifact, now: float) -> Sampled:
        """Nothing seen yet."""
        capital = Capital.stakes([len(Layout.of(artifact).tests)], RANK_EXPERTS, now)
        return cls(artifact, capital, MeanCapital.stakes(now=now), 0)

    def after(self, block: Sequence[tuple[Observed, bool]], last: int) -> Sampled:
        """With one more block.

        Args:
            block: Results in their order, with whether each is labelled.
            last: Number of the last of them.
        """
        layout = Layout.of(self.artifact)
        placed = [(one, *layout.placed(one)) for one, _ in block]
        chosen = [labelled for _, labelled in block]
        counts = np.zeros_like(Drift.begun(self.artifact, 0.0).counts)
        for (_, bins, seen), labelled in zip(placed, chosen, strict=True):
            counts = counts if labelled else counted(counts, bins, seen)
        capital, mean = self.capital, self.mean
        for (one, bins, seen), labelled in zip(placed, chosen, strict=True):
            if labelled:
                luck = one.uniforms("labelled", len(bins))
                capital = capital.after(rank_factors(ranks(counts, bins, luck)), one.at, seen)
                mean = mean.after(capital, one.at)
                counts = counted(counts, bins, seen)
        return replace(self, capital=capital, mean=mean, last=last)

    def to_data(self) -> dict[str, Any]:
        """What has been seen, to be stored."""
        return {"last": self.last, "capital": self.capital.to_data(), "mean": self.mean.to_data()}

    @classmethod
    def from_data(cls, artifact: CalibrationArtifact, data: Mapping[str, Any]) -> Sampled:
        """What `to_data` was made of."""
        capital, mean = Capital.from_data(data["capital"]), MeanCapital.from_data(data["mean"])
        return cls(artifact, capital, mean, int(data["last"]))
