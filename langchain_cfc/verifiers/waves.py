"""`SeenCandidates`: what a draw rule looks at between waves of draws, both in serving and in collecting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from langchain_core.runnables import RunnableConfig

from langchain_cfc.candidates import CandidateBatch
from langchain_cfc.draw_rules import DrawRule
from langchain_cfc.execution import Steps
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.sampling.candidates import Description
from langchain_cfc.verifiers.base import CandidateScorer, VerifierInput, VerifierScores


@dataclass
class SeenCandidates:
    """The scores and answers of a prompt's candidates, computed when a wave of draws needs them.

    Attributes:
        scorer: Scores the candidates.
        description: Extracts their answers.
        prompt: The prompt.
        config: Config of the runs that extract answers.
        judging: Config of the runs that score.
        scored_separately: Whether scores do not change when further candidates are drawn.
        scores: The scores so far.
        answers: The answers so far, by text.
    """

    scorer: CandidateScorer
    description: Description
    prompt: Any
    config: RunnableConfig
    judging: RunnableConfig
    scored_separately: bool
    scores: VerifierScores = field(default_factory=lambda: VerifierScores([]))
    answers: dict[str, str] = field(default_factory=dict)

    def choose_next_wave(self, rule: DrawRule, draws: list[DrawnCandidate]) -> Steps[int]:
        """Return how many further candidates the draw rule wants; 0 if it stops."""
        if len(draws) == rule.at_most:
            return 0
        # Answers or scores that the rule does not look at are computed after the last draw.
        answers = None
        if rule.needs_answers:
            answers = [(yield from self.description.extract_answers(draws, self.config, self.answers))]
        scores = (yield from self.score(draws)).scores if rule.needs_scores else [0.0] * len(draws)
        return int(rule.choose_next_wave(CandidateBatch.of(np.array([scores]), answers))[0])

    def score(self, draws: list[DrawnCandidate]) -> Steps[VerifierScores]:
        """Return the scores of all candidates so far.

        A verifier that compares candidates scores all of them again; any other scores new ones only, and no
        text that already has a score if equal texts share one.
        """
        done = len(self.scores.scores)
        if done == len(draws):
            return self.scores
        if done and not self.scored_separately:
            done = 0
        known: dict[str, float] = {}
        if self.scorer.shares_scores:
            known = {one.text: score for one, score in zip(draws[:done], self.scores.scores, strict=False)}
        asked, new = [one for one in draws[done:] if one.text not in known], VerifierScores([])
        if asked:
            given = VerifierInput(prompt=self.prompt, candidates=asked)
            new = yield from self.scorer.score(given, self.judging)
        fresh = iter(new.scores)
        scores = [known[one.text] if one.text in known else next(fresh) for one in draws[done:]]
        outputs = None if new.outputs is None else [*(self.scores.outputs or ())[:done], *new.outputs]
        self.scores = VerifierScores([*self.scores.scores[:done], *scores], outputs)
        return self.scores

    def score_claims(
        self, claims: list[DrawnCandidate], answers: list[DrawnCandidate]
    ) -> Steps[VerifierScores]:
        """Return the scores of the first answer's claims; the other answers are there for comparison."""
        if not claims:
            return VerifierScores([])
        given = VerifierInput(prompt=self.prompt, candidates=claims, answers=answers)
        return (yield from self.scorer.score(given, self.judging))
