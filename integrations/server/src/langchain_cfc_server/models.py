"""`ServedModel`: a chain that is served under a name, and its promises."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_cfc import CFCResult, CFCRunnable
from langchain_cfc.artifact import Promise
from langchain_cfc.errors import AbstentionError, InputError
from langchain_cfc.extend import compute_fingerprint
from langchain_cfc.runnable import Answer, changes_generator, configure_chain, find_cfc_runnable
from langchain_cfc_server.errors import RefusedError
from langchain_cfc_server.parameters import (
    HISTORY,
    MESSAGE,
    NEVER_REPEATED,
    SYSTEM,
    calls_no_tools,
    is_neutral,
    parse_ignored,
)

# What makes candidates structured: of these, even a default may differ from what was calibrated.
STRUCTURE_PARAMETERS = frozenset({"tools", "tool_choice", "response_format"})
# The arguments that name a promise.
PROMISES = ("alpha", "max_wrong_rate", "max_wrong_of_all")
# Names are used in URLs, logs and metrics.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,99}")


@dataclass(frozen=True)
class ServedModel:
    """A chain with the model name under which clients request it.

    Attributes:
        name: The model's name.
        chain: The chain that answers.
        answer: Turns its decisions into messages.
        first: The first `CFCRunnable` in the chain, whose promise can be chosen; None if none is found.
        ignored: Names of the fields of requests that are ignored.
    """

    name: str
    chain: Runnable[Any, Any]
    answer: Answer
    first: CFCRunnable | None
    ignored: frozenset[str] = frozenset()
    _chains_by_promise: dict[Promise, Runnable[Any, Any]] = field(default_factory=dict)

    def list_choices(self, name: str) -> list[str]:
        """Return the levels or rates that a request may choose, of the argument that names a promise."""
        held = () if self.first is None else self.first.artifact.promises
        return [one.level for one in held if one.option == name]

    def describe(self, created: int) -> dict[str, Any]:
        """Return the model's entry in the list of models."""
        artifact = None if self.first is None else self.first.artifact
        calibration = artifact and {
            "artifact": artifact.digest,
            "n": artifact.n,
            **({} if artifact.draws is None else {"draws": artifact.draws}),
            "levels": self.list_choices("alpha"),
            "max_wrong_rates": self.list_choices("max_wrong_rate"),
            "max_wrong_of_all": self.list_choices("max_wrong_of_all"),
            "ignored": sorted(self.ignored),
        }
        return {
            "id": self.name,
            "object": "model",
            "created": created,
            "owned_by": "langchain-cfc",
            "cfc": calibration,
        }

    async def ask(
        self,
        prompt: list[BaseMessage],
        promise: Promise | None,
        config: RunnableConfig | None = None,
        *,
        with_claims: bool = False,
    ) -> AIMessage:
        """Invoke the chain with a conversation and return its decision as a message.

        Args:
            prompt: The conversation.
            promise: As returned by `choose_promise`.
            config: LangChain config.
            with_claims: Whether the decision lists the claims of the answer. Dropped claims have a text only
                if the chain was made with `show_rejected`.

        Returns:
            The best answer or the abstention.
        """
        chain = self.chain
        if promise is not None:
            # A copy of the chain, with a separate `max_concurrency`.
            if promise not in self._chains_by_promise:
                self._chains_by_promise[promise] = configure_chain(chain, dict([promise]), {})
            chain = self._chains_by_promise[promise]
        try:
            found = await chain.ainvoke(prompt, config)
        except AbstentionError as error:  # for clients an abstention is an answer, even if it was raised
            found = error.result
        message = self.answer.to_message(found)
        if not isinstance(found, CFCResult):
            return message
        # Clients get the full guarantee, whereas messages only identify it.
        hidden = {"candidates", "features", "metadata", "text", "full_text"}
        hidden |= set() if with_claims else {"claims"}
        decision = found.model_dump(mode="json", exclude=hidden)
        return message.model_copy(update={"response_metadata": {"cfc": decision}})

    def choose_promise(self, **named: str | float) -> Promise | None:
        """Return the promise to answer a request under; called before anything is drawn.

        Args:
            **named: The promise that the request names, if any: `alpha`, `max_wrong_rate` or
                `max_wrong_of_all`.

        Returns:
            The promise; None for the model's own.

        Raises:
            RefusedError: If the model does not hold the promise, or needs one and none was named.
        """
        first, param = self.first, f"cfc.{next(reversed(named), 'alpha')}"
        if first is None:
            if not named:
                return None
            msg = f"{param}: the promise of this model is fixed; leave it out"
            raise RefusedError(400, "level_not_calibrated", msg, param=param)
        own = {name: value for name in PROMISES if (value := getattr(first, name)) is not None}
        try:
            wanted = first.artifact.select_promise(**(named or own))
        except InputError as error:
            msg = f"{param}: {error}"
            raise RefusedError(400, "level_not_calibrated", msg, param=param) from error
        has_own = bool(own) or len(first.artifact.promises) == 1
        return None if has_own and first.artifact.select_promise(**own) == wanted else wanted

    @property
    def upstream(self) -> frozenset[tuple[Any, Any]]:
        """The addresses that generator and verifier send to, each with the model that they name there.

        A gateway has many models at one address, of which one may fail. Models whose address is not known
        share their upstream with no others.
        """
        found = set()
        for part in () if self.first is None else (self.first.generator, self.first.verifier):
            stated = compute_fingerprint(part)
            for name, address in stated.items():
                if name.rpartition(".")[2] == "address" and address is not None:
                    found.add((address, stated.get(f"{name.removesuffix('address')}model")))
        return frozenset(found or {(None, self.name)})

    @property
    def has_structure(self) -> bool:
        """Whether the generator is bound to tools or to a response format; True if it cannot be found."""
        return self.first is None or bool(compute_fingerprint(self.first.generator).get("tools_digest"))

    def list_changes(self, given: Mapping[str, Any]) -> list[str]:
        """Return the parameters that would change the generator.

        Others are empty, have OpenAI's default, or are as calibrated.

        Args:
            given: The request's parameters, by field name; no value is None.
        """
        if given and not given.get("tools") and not self.has_structure:
            given = {
                name: value
                for name, value in given.items()
                if not (calls_no_tools(name, value) or is_neutral(name, value))
            }
        return [name for name in given if self._changes_model(name, given)]

    def _changes_model(self, name: str, given: Mapping[str, Any]) -> bool:
        stated: list[Any] = [given[name]]
        if is_neutral(name, given[name]):
            if name not in STRUCTURE_PARAMETERS:
                return False
            stated.append(None)
        # Some models convert a `tool_choice` to another form, for which they need the tools.
        further = {"tools": given["tools"]} if name == "tool_choice" and "tools" in given else {}
        return name in NEVER_REPEATED or all(
            changes_generator(self.chain, {**further, name: one}) for one in stated
        )

    def prepare_messages(
        self, messages: Sequence[BaseMessage], ignored: list[str], refused: dict[str, str]
    ) -> list[BaseMessage]:
        """Return the messages that the chain gets: without those that are ignored or say nothing.

        A model that was calibrated on texts gets single questions. It would never see system messages,
        earlier messages and names, so a client that sends them would take the answer for another one's.

        Args:
            messages: The conversation.
            ignored: Names of ignored fields, to which `system` and `history` are added if they apply.
            refused: What is refused, to which is added what a model of texts cannot be given.

        Raises:
            RefusedError: If nothing is left to answer.
        """
        kinds = None if self.first is None else self.first.artifact.calibration.prompt_kinds
        takes_text = kinds is not None and "messages" not in kinds
        system = [one for one in messages if isinstance(one, SystemMessage)]
        if takes_text:
            system = [one for one in system if str(one.text).strip()]
        kept = [one for one in messages if not isinstance(one, SystemMessage)]
        if not kept:
            msg = "there is nothing to answer: expected a message that is no system message"
            raise RefusedError(400, "invalid_request", msg, param="messages")
        has_history = len(kept) > 1 and isinstance(kept[-1], HumanMessage)
        for name, is_given in ((SYSTEM, bool(system)), (HISTORY, has_history)):
            if is_given and name in self.ignored:
                ignored.append(name)
            elif is_given and takes_text:
                refused[name] = "messages"
        if takes_text and any(one.name for one in kept):
            refused[f"{MESSAGE}name"] = "messages"
        if HISTORY in ignored:
            kept = kept[-1:]
        if takes_text or not system or SYSTEM in ignored:
            return kept
        return [*system, *kept] if HISTORY in ignored else list(messages)


def make_served_models(
    models: Mapping[str, Runnable[Any, Any]], abstain_message: str, ignore: Sequence[str] = ()
) -> dict[str, ServedModel]:
    """Return the served models for chains by name, after checking the names.

    Args:
        models: Chains by model name: a `CFCRunnable`, the result of its `or_else`, or any chain that returns
            its results.
        abstain_message: The text of an abstention.
        ignore: Fields of requests that are ignored, as in `Settings`.

    Returns:
        The models by name.

    Raises:
        InputError: If there are no models, a name is invalid, a model is not a chain, or `ignore` names a
            model or field that cannot be meant.
    """
    if not models:
        msg = "there are no models: give at least one by name"
        raise InputError(msg)
    ignored = parse_ignored(ignore, models)
    return {
        name: replace(_make_served_model(name, chain, abstain_message), ignored=ignored[name])
        for name, chain in models.items()
    }


def _make_served_model(name: str, chain: Runnable[Any, Any], abstain_message: str) -> ServedModel:
    if not _NAME.fullmatch(name):
        msg = f"invalid model name {name!r}: expected up to 100 letters, digits or any of ._:@/-"
        raise InputError(msg)
    if not isinstance(chain, Runnable):
        msg = f"model {name}: expected a CFCRunnable or a chain around one, got a {type(chain).__name__}"
        raise InputError(msg)
    return ServedModel(name, chain, Answer(abstain_message=abstain_message), find_cfc_runnable(chain))
