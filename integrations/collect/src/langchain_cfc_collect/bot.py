"""`build_bot`: from questions with known answers to a bot, in one call that can be resumed.

It is `calibrate_chain` with defaults for everything that a first bot needs, each printed before it is paid
for. Verifier and labeler are chosen from a few trial answers, as `langchain-cfc init` does. The choice is
kept in the store, so that a call that resumes makes the same one without asking again.

*What limits a bot.* Three figures bound the share that a bot can answer, each at most the next: what is
certified; what the same scores would allow with any number of labels, the largest point of the curve whose
share of wrong answers is within the rate; and what perfect scores would allow, (1 - w) / (1 - r) of the
questions if the best answer is wrong for a share w and the rate is r (`certificates.cuts`). The largest of
the gaps, the one to 100 % included, names what to improve: labels, verifier or model.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from langchain_core.runnables import Runnable
from typing_extensions import Unpack

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.errors import CollectionError, InputError, UnattainableTargetError
from langchain_cfc.evaluation import EvaluationReport
from langchain_cfc.guarantee import WrongRateCertificate
from langchain_cfc.labelers import Labeler
from langchain_cfc.labelers.matching import list_aliases
from langchain_cfc.records import Example
from langchain_cfc.runnable import CFCRunnable
from langchain_cfc.sampling import resolve_generator
from langchain_cfc.support.database import StoreNotFoundError
from langchain_cfc.support.json_text import short_repr
from langchain_cfc.support.text import format_percent, pluralize
from langchain_cfc.verifiers import SelfConsistency, Verifier, VerifierEnsemble
from langchain_cfc_collect.calibrating import ChainOptions, ChainPlan
from langchain_cfc_collect.collecting import (
    check_references,
    format_cost,
    print_line,
    run_in_kept_loop,
)
from langchain_cfc_collect.config import list_served_parts
from langchain_cfc_collect.costs import Budget, ModelCalls, Stage, Usage
from langchain_cfc_collect.proposal import (
    LabelerChoice,
    Proposal,
    add_prompt,
    create_part,
    format_part,
    list_labelers,
    name_store,
    propose,
    propose_prompt,
)
from langchain_cfc_collect.run import CollectionOptions, CollectionResult
from langchain_cfc_collect.sources.questions import Questions
from langchain_cfc_collect.status import CollectionStatus
from langchain_cfc_collect.store import Store
from langchain_cfc_collect.store.configurations import CHOICE

_MOST_SHOWN = 3
# Of three doubtful labels of each kind, every second is enough here: two of wrong answers, one of right ones.
_EVERY_SHOWN = 2
# What is chosen, in the order in which it is printed, with the keyword that replaces it.
_PARTS = {"verifier": "verifier", "labeler": "labeler", "answer": "labeler"}


def build_bot(
    generator: Runnable[Any, Any] | Callable[[Any], Any] | str,
    examples: Questions,
    *,
    verifier: Verifier | VerifierEnsemble | Mapping[str, Verifier] | None = None,
    labeler: Labeler | None = None,
    **options: Unpack[ChainOptions],
) -> CFCRunnable:
    """Build a bot that is rarely wrong, or says that it does not know, from questions with known answers.

    It asks the model each question n times, scores and labels the answers, and certifies how often the bot is
    wrong. Each default is printed on standard error before it is paid for, and a summary at the end. Call it
    again with the same arguments to resume, or with more examples: nothing is paid for twice.

    Args:
        generator: The chat model or chain, or a model's name such as `openai:gpt-4o-mini`. A model alone is
            asked for the answer alone, by a prompt that becomes part of the bot; a chain is used as it is.
        examples: Questions with references, in any form that `calibrate_chain` takes.
        verifier: Scores the answers; by default log-probabilities (`SequenceProbability`) if the model
            returns them, otherwise agreement (`SelfConsistency`).
        labeler: Decides which answers are correct; by default the strictest one that reads all references and
            calls no fewer trial answers correct than a looser one.
        **options: See `ChainOptions`. The promise is needed: `max_wrong_rate=0.05` for at most 5 % wrong
            answers among those given, or `max_wrong_of_all`. `store` is by default a file in the current
            folder, named after the file of examples, or `bot.db`; `out` is by default a file beside it, such
            as `bot.artifact.json`. All labels certify a `max_wrong_rate`; for `max_wrong_of_all` 30 % are
            held out (`test_fraction`) for the summary.

    Returns:
        The bot, ready to serve: `bot.invoke(question)`.

    Raises:
        InputError: As `calibrate_chain`; if no promise of a bot is named, no labeler reads the references, no
            trial answer is labelled correct, or the store holds other questions.
        CollectionError: As `calibrate_chain`, or if the model does not answer.
        UnattainableTargetError: If the rate cannot be certified; all answers are kept in the store.

    Examples:
        bot = build_bot("openai:gpt-4o-mini", "questions.csv", max_wrong_rate=0.05)
        print(bot.invoke("What is the capital of Peru?").best or "I do not know.")
    """
    run = abuild_bot(generator, examples, verifier=verifier, labeler=labeler, **options)
    return run_in_kept_loop("abuild_bot(...)", run)


async def abuild_bot(
    generator: Runnable[Any, Any] | Callable[[Any], Any] | str,
    examples: Questions,
    *,
    verifier: Verifier | VerifierEnsemble | Mapping[str, Verifier] | None = None,
    labeler: Labeler | None = None,
    **options: Unpack[ChainOptions],
) -> CFCRunnable:
    """Run `build_bot` on an event loop that is already running, as in a notebook; see there."""
    _check_promise(options, has_parts=verifier is not None and labeler is not None)
    given = {
        "generator": generator,
        "verifier": verifier or SelfConsistency(),
        "labeler": labeler,
        "test_fraction": 0.0 if options.get("max_wrong_of_all") is None else 0.3,
        **options,
        "collection": options.get("collection") or CollectionOptions(on_notice=print_line),
    }
    plan = ChainPlan.make(examples, given, "bot.db")
    plan = replace(plan, out=plan.out or _propose_artifact(str(plan.store)))
    choices = _list_choices(plan.examples, labeler)
    prompt = propose_prompt(generator, plan.examples, choices)
    # All that can be refused is refused before the trial, whatever it will choose.
    if labeler is None:
        plan = plan.replace_parts(labeler=create_part(choices[0].table))
    plan.check()
    list(check_references(plan.examples, plan.components.labeler))  # raises once all are read
    choice, done = _read_store(plan)
    passed = {name for name, part in (("verifier", verifier), ("labeler", labeler)) if part is not None}
    if passed < {*_PARTS.values()} or prompt is not None:
        if choice is None:
            print_line("asking a few of the questions, to choose what is not given")
            own = [] if "labeler" in passed else choices
            choice = await asyncio.to_thread(_choose, generator, plan.examples, own, prompt)
        plan = _apply_choice(plan, choice, passed)
    print_line("\n".join(_describe_plan(plan, passed, done)))
    ended = await plan.collect()
    if ended.complete:
        print_line("\n".join(_describe_labels(ended.status, str(plan.store))))
    try:
        artifact, seen = await asyncio.to_thread(plan.finish, ended)
    except UnattainableTargetError as error:
        why = str(error).partition("\n")[0]
        cure = "call build_bot again with more examples, or a larger max_wrong_rate"
        msg = f"{why}\n{plan.store} keeps all answers: {cure}"
        raise UnattainableTargetError(msg, attempts=error.attempts) from None
    promise, parts = artifact.promises[0], list_served_parts(plan.components)
    bot = CFCRunnable(artifact=artifact, output=artifact.unit, **parts, **{promise.option: promise.level})
    print_line("\n".join(_summarize(bot, seen, ended, plan)))
    return bot


def _check_promise(options: ChainOptions, *, has_parts: bool) -> None:
    if options.get("alpha") is not None or all(
        options.get(name) is None for name in ("max_wrong_rate", "max_wrong_of_all")
    ):
        msg = (
            "name the promise: build_bot(..., max_wrong_rate=0.05) for at most 5 % wrong among the answered, "
            "or max_wrong_of_all=0.05 of all questions; for answer sets (alpha) use calibrate_chain"
        )
        raise InputError(msg)
    if options.get("unit") == "claims" and not has_parts:
        msg = "with unit='claims' pass verifier= and labeler=, because whole answers do not show which suit"
        raise InputError(msg)


def _propose_artifact(store: str) -> str:
    name = f"{Path(name_store(store)).stem}.artifact.json"
    return name if "://" in store else str(Path(store).parent / name)


def _read_store(plan: ChainPlan) -> tuple[dict[str, Any] | None, int]:
    """Return the choice of an earlier call, None if there is none, and the number of finished questions.

    Refuses a store that cannot be written, or whose other questions would count in the certificate.
    """
    others = len(plan.list_prompts()) - len(plan.examples)
    if others:
        msg = (
            f"{plan.store} holds {pluralize(others, 'question')} that these examples lack: add them, "
            "or pass another store="
        )
        raise InputError(msg)
    with suppress(StoreNotFoundError), Store(plan.store) as opened, opened.lock():
        opened.set_configuration(opened.configuration)
        return opened.configuration.get(CHOICE), opened.count_stages()[Stage.LABELLED]
    return None, 0


# The choice: what was proposed, as plain data that the store keeps


def _list_choices(examples: Sequence[Example], labeler: Labeler | None) -> list[LabelerChoice]:
    """List the labelers that read all references; with one of the caller's there may be none."""
    try:
        return list_labelers(examples)
    except InputError:
        if labeler is None:
            raise
        return []


def _choose(
    generator: Any, examples: Sequence[Example], choices: Sequence[LabelerChoice], prompt: str | None
) -> dict[str, Any]:
    """Ask the model a few questions, and choose what suits its answers and the references."""
    found = propose(generator, examples, choices, prompt=prompt)
    if choices and not any(found.correct):
        msg = (
            f"none of {len(found.answers)} trial answers is labelled correct: {_show_answers(found)}.\n"
            "If they are right, pass labeler=, such as NormalisedMatch(anywhere=True)"
        )
        raise InputError(msg)
    print_line(f"answers: {_show_answers(found)}")
    calls = [asdict(one) for one in found.usage.calls]
    return {**found.tables, "reasons": found.reasons, "calls": calls, "answers": len(found.answers)}


def _read_trial(choice: Mapping[str, Any]) -> Usage:
    """Return what the trial answers took; nothing if nothing was chosen."""
    calls = [ModelCalls(**one) for one in choice.get("calls", ())]
    return Usage(tuple(calls))


def _count_trial(choice: Mapping[str, Any]) -> int:
    """Return the number of trial answers; earlier versions stored one call for each."""
    return int(choice.get("answers", len(choice.get("calls", ()))))


def _charge(budget: Budget, trial: Usage) -> Budget:
    """Return what a budget leaves after the trial, whose requests the store does not count."""
    cost = budget.compute_cost(trial) or 0.0
    limits = {"max_tokens": (budget.max_tokens, trial.tokens), "max_cost": (budget.max_cost, cost)}
    left: dict[str, Any] = {
        name: limit - spent for name, (limit, spent) in limits.items() if limit is not None
    }
    for name, rest in left.items():
        if rest <= 0:
            msg = f"the trial answers used the whole budget: raise Budget({name}=...)"
            raise CollectionError(msg)
    return replace(budget, **left)


def _show_answers(found: Proposal) -> str:
    labels = ["correct" if one else "wrong" for one in found.correct] or [""] * _MOST_SHOWN
    shown = zip(found.answers[:_MOST_SHOWN], labels, strict=False)
    return "; ".join(_show_answer(one.candidate.text, one.example.reference, label) for one, label in shown)


def _show_answer(answer: str, reference: Any, label: str) -> str:
    stated = ", ".join(filter(None, [label, f"reference {short_repr(list_aliases(reference)[0])}"]))
    return f"{short_repr(answer)} ({stated})"


def _apply_choice(plan: ChainPlan, choice: Mapping[str, Any], passed: Collection[str]) -> ChainPlan:
    given = choice["generator"]
    model = resolve_generator(plan.components.generator, given.get("arguments"))
    made: dict[str, Any] = {"generator": add_prompt(given.get("prompt"), model)}
    if "verifier" not in passed:
        made["verifier"] = create_part(choice["verifier"])
    if "labeler" not in passed and "labeler" in choice:
        made["labeler"] = create_part(choice["labeler"])
        if plan.components.answer is None and "answer" in choice:
            made |= {"answer": create_part(choice["answer"]), "answer_id": choice["answer"].get("id")}
    settings = {**plan.collection.settings, CHOICE: choice}
    budget = _charge(plan.collection.budget, _read_trial(choice))
    collection = replace(plan.collection, settings=settings, budget=budget)
    return replace(plan, collection=collection).replace_parts(**made)


# What is printed


def _describe_plan(plan: ChainPlan, passed: Collection[str], done: int) -> Iterator[str]:
    """Describe each default, by the keyword that replaces it, and what will be paid for."""
    requests = (len(plan.examples) - done) * (plan.components.n or 0)
    cost = ""
    if choice := plan.collection.settings.get(CHOICE):
        made, reasons = choice["generator"], choice["reasons"]
        if "prompt" in made:
            yield f"prompt: {made['prompt']!r}; for another one pass the chain prompt | model"
        if "arguments" in made:
            stated = ", ".join(f"{name}={value!r}" for name, value in made["arguments"].items())
            yield f"model: {stated}; for others pass the model itself"
        for name in (one for one in _PARTS if one in choice and _PARTS[one] not in passed):
            yield f"{name}: {format_part(choice[name])}, because {reasons[f'{name}.factory']}"
        tokens = _read_trial(choice).tokens
        if tokens and requests:
            cost = f", about {tokens * requests // _count_trial(choice):,} tokens"
    yield (
        f"n: {plan.components.n} answers to each of {pluralize(len(plan.examples), 'question')}"
        f"{f', {done:,} of them done' if done else ''}: {pluralize(requests, 'request')}{cost}"
    )
    yield f"store: {plan.store} keeps everything; the same call resumes"


def _describe_labels(status: CollectionStatus, store: str) -> Iterator[str]:
    """Say how many answers are labelled right, with the labels that the scores contradict most."""
    wrong, correct = status.candidates
    yield f"labels: {correct:,} of {pluralize(wrong + correct, 'answer')} are labelled correct. In doubt:"
    for one in status.doubtful_labels[::_EVERY_SHOWN]:
        yield f"  {_show_answer(one.answer, one.reference, 'correct' if one.correct else 'wrong')}"
    yield f"  to see more: langchain-cfc store status {shlex.quote(store)}"


def _summarize(
    bot: CFCRunnable, seen: EvaluationReport | None, ended: CollectionResult, plan: ChainPlan
) -> Iterator[str]:
    """Summarize a bot in at most eight lines."""
    yield f"promise: {bot.guarantee.claim}"
    certificate = bot.guarantee.wrong_answers
    if certificate is not None:
        counts = certificate.groups[0]
        share = format_percent(counts.answered / counts.prompts)
        yield (
            f"answered: {counts.answered:,} of {pluralize(counts.prompts, 'question')} ({share}), "
            f"{counts.wrong:,} wrongly; otherwise it says that it does not know"
        )
        if certificate.max_mean_score is not None:
            yield from _explain_limit(bot.artifact, certificate)
    elif seen is not None:
        own, tested = seen.methods["conditional"], pluralize(seen.n_test, "question")
        wrong = format_percent(1.0 - own.kept_promise, ".1f")
        yield f"answered: {format_percent(own.mean_set_size)} of {tested} held out, {wrong} of all wrongly"
    kept, tokens = plan.collection.settings.get(CHOICE, {}), ended.status.usage.tokens
    if tokens:
        price = "" if ended.status.cost is None else f", {format_cost(ended.status.cost)}"
        tried = _count_trial(kept)
        asked = f", and {_read_trial(kept).tokens:,} for {tried} trial answers" if tried else ""
        yield f"cost: {tokens:,} tokens{price}{asked}"
    yield f"use it: bot.invoke(question).best; kept in {plan.out}"


def _explain_limit(artifact: CalibrationArtifact, certificate: WrongRateCertificate) -> Iterator[str]:
    """Say what keeps the bot from answering more, and what to do; see the module."""
    if artifact.bot is None or not artifact.bot.curve:
        return
    everyone, rate = artifact.bot.curve[-1], float(certificate.max_wrong_rate)
    total = certificate.groups[0].prompts
    allowed = [one.answered for one in artifact.bot.curve if one.wrong <= rate * one.answered]
    certified = certificate.groups[0].answered / total
    by_scores = max(certified, max(allowed, default=0) / total)
    by_model = max(by_scores, min(1.0, (everyone.answered - everyone.wrong) / (1.0 - rate) / total))
    yield (
        f"without abstaining: {everyone.wrong:,} of {everyone.answered:,} answers would be wrong "
        f"({format_percent(everyone.wrong / everyone.answered)})"
    )
    gaps = {
        f"the model: perfect scores would let it answer {format_percent(by_model)}. Use a better model, or "
        "give it context": 1.0 - by_model,
        f"the verifier: perfect scores would let it answer {format_percent(by_model)}, these "
        f"{format_percent(by_scores)}. Use another verifier": by_model - by_scores,
        f"the number of questions: with many more it could answer about {format_percent(by_scores)}. Add "
        "questions, and call again": by_scores - certified,
    }
    limit = max(gaps, key=lambda one: gaps[one])
    if gaps[limit] > 0.0:
        yield f"limited by {limit}"
