"""The models that are served, and the levels that each can be asked at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from langchain_cfc import CFCResult, CFCRunnable
from langchain_cfc.errors import AbstentionError, InputError
from langchain_cfc.runnable import Answer, changes_generator, configure_chain, find_cfc_runnable
from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.schema import STRUCTURE_PARAMETERS

# Names stand in addresses, logs and metrics.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,99}")


@dataclass(frozen=True)
class ServedModel:
    """A model with the name that clients ask for.

    Attributes:
        name: What clients ask for.
        chain: The chain that is asked.
        answer: Turns its decisions into messages.
        first: The runnable that is asked first, whose levels can be chosen; None where none is found.
    """

    name: str
    chain: Runnable[Any, Any]
    answer: Answer
    first: CFCRunnable | None
    _at: dict[str, Runnable[Any, Any]] = field(default_factory=dict)

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that can be chosen from."""
        return () if self.first is None or self.first.bot else self.first.artifact.alphas

    def describe(self, created: int) -> dict[str, Any]:
        """Return the entry of the list of models."""
        artifact = None if self.first is None else self.first.artifact
        calibration = artifact and {
            "artifact": artifact.digest,
            "n": artifact.n,
            **({} if artifact.draws is None else {"draws": artifact.draws}),
            "levels": list(artifact.alphas),
        }
        return {
            "id": self.name,
            "object": "model",
            "created": created,
            "owned_by": "langchain-cfc",
            "cfc": calibration,
        }

    async def ask(
        self, prompt: list[BaseMessage], level: str | None, *, with_claims: bool = False
    ) -> AIMessage:
        """Ask the chain about a conversation.

        Args:
            prompt: The conversation.
            level: Error level, as `level` gives it.
            with_claims: Whether the decision lists the claims of the answer. Dropped ones have a text only
                where the chain was made with `show_rejected`.

        Returns:
            The best answer or the abstention.
        """
        chain = self.chain if level is None else self._at.get(level)
        if chain is None:
            chain = self._at[str(level)] = configure_chain(self.chain, level, {})
        try:
            found = await chain.ainvoke(prompt)
        except AbstentionError as error:  # an abstention is an answer to a client, however the chain tells it
            found = error.result
        message = self.answer.to_message(found)
        if not isinstance(found, CFCResult):
            return message
        # Clients are sent the whole guarantee, which messages only identify.
        hidden = {"candidates", "features", "metadata", "text", "full_text"}
        hidden |= set() if with_claims else {"claims"}
        decision = found.model_dump(mode="json", exclude=hidden)
        return message.model_copy(update={"response_metadata": {"cfc": decision}})

    def level(self, alpha: str | float | None) -> str | None:
        """Settle the level of a request, before anything is drawn.

        Args:
            alpha: The level asked for, if any.

        Returns:
            The level to ask with; None for the model's own.

        Raises:
            RefusedError: If it cannot be asked at this level, or needs one.
        """
        first = self.first
        if first is None or first.bot:
            if alpha is None:
                return None
            msg = "cfc.alpha: the level of this model is settled; leave it out"
            raise RefusedError(400, "level_not_calibrated", msg, param="cfc.alpha")
        held = first.artifact
        try:
            wanted = held.level(first.alpha if alpha is None else alpha)
        except InputError as error:
            msg = f"cfc.alpha: {error}"
            raise RefusedError(400, "level_not_calibrated", msg, param="cfc.alpha") from error
        own = held.alphas[0] if first.alpha is None and len(held.alphas) == 1 else first.alpha
        # Any other is asked of a copy, whose `max_concurrency` counts by itself.
        return None if own is not None and held.level(own) == wanted else wanted

    def check_structure(self, given: Mapping[str, Any]) -> None:
        """Refuse tools and formats that the model was not calibrated with.

        Args:
            given: Those of a request, by the names of its fields; none may be None.

        Raises:
            RefusedError: For the first one that the generator is not bound to.
        """
        for name, value in given.items():
            stated: list[Any] = [value]
            if value == STRUCTURE_PARAMETERS[name] and (name != "tool_choice" or "tools" in given):
                stated.append(None)
            # Some models write a choice in another way, for which they need the tools.
            further = {"tools": given["tools"]} if name == "tool_choice" and "tools" in given else {}
            if all(changes_generator(self.chain, {**further, name: one}) for one in stated):
                msg = (
                    f"{name}: the model was calibrated with {'another one' if name != 'tools' else 'others'} "
                    "or without any, and nothing is promised about this one; repeat what its generator is "
                    "bound to, or leave it out"
                )
                raise RefusedError(400, "unsupported_parameter", msg, param=name)


def make_served_models(
    models: Mapping[str, Runnable[Any, Any]], abstain_message: str
) -> dict[str, ServedModel]:
    """Check the names of chains and prepare the chains for requests.

    Args:
        models: Chains by the names that clients ask for: a `CFCRunnable`, what `or_else` makes of it, or
            any chain that returns its results.
        abstain_message: What is said on abstention.

    Returns:
        The models by name.

    Raises:
        InputError: If there are none, or one of them has a name that cannot be used or is no chain.
    """
    if not models:
        msg = "there are no models: give at least one, by the name that clients ask for"
        raise InputError(msg)
    return {name: _make_served_model(name, chain, abstain_message) for name, chain in models.items()}


def _make_served_model(name: str, chain: Runnable[Any, Any], abstain_message: str) -> ServedModel:
    if not _NAME.fullmatch(name):
        msg = f"no model can be called {name!r}: expected up to 100 letters, digits or any of ._:@/-"
        raise InputError(msg)
    if not isinstance(chain, Runnable):
        msg = f"model {name}: expected a CFCRunnable or a chain around one, got a {type(chain).__name__}"
        raise InputError(msg)
    return ServedModel(name, chain, Answer(abstain_message=abstain_message), find_cfc_runnable(chain))
