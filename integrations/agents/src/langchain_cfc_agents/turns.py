"""`TurnDrawer`: draw n messages from one state of an agent, score their actions, and take the best one.

The one implementation of what is recorded and of what is served. The agent's model is asked once. Only if
its message calls a guarded tool, n - 1 more are drawn from the same state. The message taken has the lowest
score, the first drawn of several. The score of the turn is the mean of the n scores.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

from langchain.agents.middleware import ModelResponse
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from pydantic import PrivateAttr

from langchain_cfc.errors import ServingError
from langchain_cfc.execution import Steps, detach_from_graph, set_context_variable
from langchain_cfc.extend import CandidateScorer, VerifierScores, read_usage, sum_usage
from langchain_cfc.sampling import DrawnCandidate, Sampler
from langchain_cfc.verifiers import Verifier, VerifierEnsemble, VerifierInput
from langchain_cfc_agents.actions import Toolbox, find_last, list_open_calls
from langchain_cfc_agents.asking import Request, Response
from langchain_cfc_agents.prompts import make_prompt_data
from langchain_cfc_agents.runs import DrawnAction, Turn

Handler: TypeAlias = Callable[[Request], Response] | Callable[[Request], Awaitable[Response]]
# Which message is taken, and what the score of a turn is; a fingerprint states it.
RULE = "lowest score, first drawn; mean score"


class TurnDrawer:
    """Draws the n messages of a turn, and scores their actions, which are the texts of the candidates."""

    def __init__(self, verifier: Verifier | VerifierEnsemble, n: int, unguarded: Collection[str]) -> None:
        self._scorer = CandidateScorer(verifier)
        self._n = n
        self._unguarded = unguarded

    def draw(
        self, request: Request, first: Response, handler: Handler, toolbox: Toolbox
    ) -> Steps[tuple[Response, Turn, Any]]:
        """Return the response that is taken, the turn with its candidates, and the tokens used.

        Args:
            request: The request whose model neither streams nor caches.
            first: The response that calls a guarded tool.
            handler: Draws a response, sync or async.
            toolbox: The tools of the agent.

        Raises:
            DrawError: If fewer than n could be drawn.
            VerifierError: If the verifier fails.
        """
        config = ensure_config()
        further = _ResponseDrawer(handler, request, toolbox)
        draws = [further.read(first)]
        if self._n > 1:
            draws += yield from Sampler(further).draw_steps(None, self._n - 1, config)
        system = [] if request.system_message is None else [request.system_message]
        prompt = make_prompt_data([*system, *request.messages])
        given = VerifierInput(prompt=prompt, candidates=draws)
        scored = yield from self._scorer.score(given, detach_from_graph(config))
        judged = [slot for slot, verdict in enumerate(scored.verdicts) if verdict is not None]
        taken = min(judged, key=lambda slot: scored.scores[slot], default=0)
        response = further.find(draws[taken])
        turn = Turn(
            score=math.fsum(scored.scores) / self._n,
            calls=tuple((draws[taken].data or {}).get("tool_calls", ())),
            guarded=bool(list_open_calls(response.result, self._unguarded)),
            judged=bool(judged),
            taken=taken,
            prompt=prompt,
            candidates=tuple(_describe(slot, draw, scored) for slot, draw in enumerate(draws)),
        )
        used = [one.message.usage_metadata for one in draws if isinstance(one.message, AIMessage)]
        return response, turn, sum_usage(map(read_usage, used))


class _ResponseDrawer(RunnableSerializable[None, DrawnCandidate]):
    """Draws responses of an agent's model by the handler of its middleware, and keeps them.

    A model of pydantic, as its own model is known to draw afresh: of other Runnables, samplers warn.
    """

    _handler: Any = PrivateAttr()
    _request: Any = PrivateAttr()
    _toolbox: Toolbox = PrivateAttr()
    _responses: dict[int, Response] = PrivateAttr(default_factory=dict)

    def __init__(self, handler: Handler, request: Request, toolbox: Toolbox) -> None:
        super().__init__()
        self._handler, self._request, self._toolbox = handler, request, toolbox

    def invoke(self, input: None, config: RunnableConfig | None = None, **kwargs: Any) -> DrawnCandidate:  # noqa: A002 - LangChain's name
        """Draw a response."""
        del input, kwargs
        with set_context_variable(var_child_runnable_config, ensure_config(config)):
            response: Any = self._handler(self._request)
        return self.read(response)

    async def ainvoke(
        self,
        input: None,  # noqa: A002 - as above
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> DrawnCandidate:
        """Draw a response, asynchronously."""
        del input, kwargs
        with set_context_variable(var_child_runnable_config, ensure_config(config)):
            drawing: Any = self._handler(self._request)
            return self.read(await drawing)

    def read(self, response: Response) -> DrawnCandidate:
        """Keep a response, and return its action as a candidate."""
        message = find_last(response.result)
        if message is None:
            msg = "inner middleware answered without a message of the model, so there is no action to score"
            raise ServingError(msg)
        self._responses[id(message)] = response
        return self._toolbox.read_candidate(message)

    def find(self, draw: DrawnCandidate) -> Response:
        """Return the response of a candidate."""
        return self._responses[id(draw.message)]


def _describe(slot: int, draw: DrawnCandidate, scored: VerifierScores) -> DrawnAction:
    outputs = None if scored.outputs is None else scored.outputs[slot]
    return DrawnAction(
        calls=tuple((draw.data or {}).get("tool_calls", ())),
        score=scored.scores[slot],
        scores=None if outputs is None else dict(outputs),
        no_answer=draw.no_answer,
        no_verdict=draw.no_answer is None and scored.verdicts[slot] is None,
    )


def mark_message(response: Response, marks: dict[str, Any]) -> Response:
    """Return a response whose message states in its metadata what was decided about it."""
    last = find_last(response.result)
    result = [
        one.model_copy(update={"response_metadata": {**one.response_metadata, "cfc": marks}})
        if one is last
        else one
        for one in response.result
    ]
    return ModelResponse(result=result, structured_response=response.structured_response)
