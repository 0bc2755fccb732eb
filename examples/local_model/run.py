"""Collect, calibrate, ask: the whole method with a real model of 135M parameters on your own machine.

    python run.py                         176 questions, ten candidates each: two or three minutes
    python run.py --questions 48 --n 5    a quick look

It needs `pip install 'langchain-cfc[collect,openai]' xllamacpp`; no key, and no network once the model is
there. Any OpenAI-compatible server does instead of the small model (llama.cpp, Ollama, vLLM):

    python run.py --base-url http://127.0.0.1:11434/v1 --model NAME
"""

from __future__ import annotations

import argparse
import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_cfc_collect import CallPolicy, CollectionOptions, Components, Store, collect
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from local_model import MODEL_NAME, get, running_server
from questions import Question, extract, prompt, questions

from langchain_cfc import CalibrationArtifact, CFCRunnable, calibrate, evaluate
from langchain_cfc.errors import AttainabilityWarning
from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import Example, read_records, write_records
from langchain_cfc.verifiers import SequenceProbability

ALPHA = "0.3"
FEATURES = "hat(mean_score, 3)"
VERIFIER = SequenceProbability()
# The small server reads a prompt once per slot and then remembers it: two slots, two requests at a time.
SLOTS = 2


def make_chain(base_url: str, model: str) -> Runnable[Any, Any]:
    """The chain that is calibrated and served: few-shot prompt and model, with token log-probabilities."""
    chat = ChatOpenAI(
        base_url=base_url,
        api_key="none",  # type: ignore[arg-type]  # ChatOpenAI takes text as well as a secret
        model=model,
        temperature=0.7,
        max_completion_tokens=8,
        stop_sequences=["\n"],
        logprobs=True,
        top_logprobs=1,
    )
    return prompt() | chat


def examples(asked: Sequence[Question]) -> list[Example]:
    """The questions as an evaluation dataset."""
    return [
        Example(
            id=question.id,
            input=question.text,
            reference=list(question.answers),
            metadata={"topic": question.topic},
        )
        for question in asked
    ]


def collect_records(chain: Runnable[Any, Any], asked: Sequence[Question], n: int, folder: Path) -> Path:
    """Draw, score and label n candidates for every question; interrupted, run it again and it goes on."""
    parts = Components(
        generator=chain,
        verifier=VERIFIER,
        labeler=NormalisedMatch(articles="en"),
        n=n,
        answer=extract,
        answer_id="extract",
    )
    store, records = folder / "questions.db", folder / "records.jsonl"
    collect(examples(asked), parts, store, CollectionOptions(call_policy=CallPolicy(concurrency=SLOTS)))
    with Store(store) as opened:
        write_records(records, opened.read_records(), opened.read_provenance())
    return records


def calibrate_records(records: Path, artifact: Path) -> CalibrationArtifact:
    """Calibrate on the records, hold a quarter out, and say what happened there."""
    read = read_records(records)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AttainabilityWarning)
        made = calibrate(read, alpha=ALPHA, features=FEATURES, set_rule="unique(all)", test_fraction=0.25)
    for warning in caught:
        print(f"note: {warning.message}")
    made.save(artifact)
    report = evaluate(made, read)
    seen = report.methods["conditional"]
    print(
        f"{report.n_calibration} questions calibrated; of {report.n_test} held out, the promise "
        f"(at least {report.target_coverage:.0%}) was kept on {seen.kept_promise:.0%}, "
        f"{seen.not_certifiable_rate:.0%} flagged, {seen.abstention_rate:.0%} abstained on."
    )
    return made


def ask(chain: Runnable[Any, Any], artifact: CalibrationArtifact, asked: Sequence[Question]) -> None:
    """Answer or abstain on questions through CFCRunnable, and say why."""
    bot = CFCRunnable(
        generator=chain, verifier=VERIFIER, artifact=artifact, answer=extract, answer_id="extract"
    )
    for question in asked:
        result = bot.invoke(question.text, {"max_concurrency": SLOTS})
        shown = "abstained" if result.abstained else ", ".join(repr(answer) for answer in result.answers)
        right = " (holds a correct answer)" if set(result.answers) & set(question.answers) else ""
        print(f"\n{question.text}\n  {shown}{right}\n  {result.explain()}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the example: collect, calibrate and ask."""
    parser = argparse.ArgumentParser(
        description="Collect, calibrate, ask: with a real model on this machine."
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("cfc-demo/local_model"), help="where files are written"
    )
    parser.add_argument(
        "--questions", type=int, default=len(questions()), help="how many questions to collect"
    )
    parser.add_argument("--n", type=int, default=10, help="candidates per question")
    parser.add_argument("--base-url", help="an OpenAI-compatible server instead of the small model")
    parser.add_argument("--model", default=MODEL_NAME, help="the model's name there")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    artifact = options.folder / "artifact.json"
    with contextlib.ExitStack() as stack:
        url = options.base_url or stack.enter_context(running_server(get(), slots=SLOTS))
        chain = make_chain(url, options.model)
        records = collect_records(chain, questions()[: options.questions], options.n, options.folder)
        made = calibrate_records(records, artifact)
        split = made.calibration.split
        held_out = [
            one for one in questions()[: options.questions] if split.find_part(one.id, None) == "test"
        ]
        ask(chain, made, held_out[:5])
    print(f"\nrecords: {records}\nartifact: {artifact}")


if __name__ == "__main__":
    main()
