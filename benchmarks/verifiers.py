"""How well the scores of verifiers tell right from wrong on recorded candidates.

    python benchmarks/verifiers.py --base-url http://localhost:8000/v1 --page benchmarks/VERIFIERS.md

Every verifier scores the candidates of the same prompts, drawn by a seed from the recording that the package
ships or from a records file. Verifiers that ask a chat model need `--base-url`, any OpenAI-compatible server,
those that ask embeddings or a reward model `--embeddings-url` or `--reward-url`; the others run without.
Each AUROC has a control: the same scores given to other prompts. The exit code is 1 if a verifier could score
no prompt at all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from langchain_core.messages import AIMessage
from pydantic import SecretStr

from benchmarks.lib.tables import print_sheets
from benchmarks.lib.verifier_results import VerifierResults, VerifierRow, make_page, make_row, make_sheet
from langchain_cfc import PromptRecord
from langchain_cfc.demo import load_recording
from langchain_cfc.errors import VerifierError
from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, apply_limits, run_flow
from langchain_cfc.records import read_records
from langchain_cfc.sampling import DrawnCandidate
from langchain_cfc.verifiers import (
    EmbeddingSimilarity,
    ModelJudge,
    PTrue,
    RewardModel,
    SelfConsistency,
    SequenceProbability,
    Verifier,
    VerifierInput,
    from_evaluator,
)
from langchain_cfc.verifiers.base import VerifierScores, check_scores, make_verifier_call

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings


@dataclass(frozen=True)
class Server:
    """A model that verifiers call, on an OpenAI-compatible server or one that rewards as vLLM does."""

    base_url: str
    model: str
    api_key: str
    description: str

    def make_chat(self) -> ChatOpenAI:
        """Make a client at temperature 0, so that judgements can be repeated."""
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(
            base_url=self.base_url, model=self.model, api_key=SecretStr(self.api_key), temperature=0.0
        )

    def make_embeddings(self) -> OpenAIEmbeddings:
        """Make a client that sends texts: token numbers of OpenAI's models mean nothing to others."""
        from langchain_openai import OpenAIEmbeddings

        return OpenAIEmbeddings(
            base_url=self.base_url,
            model=self.model,
            api_key=SecretStr(self.api_key),
            check_embedding_ctx_length=False,
        )


def _make_evaluator(server: Server) -> Verifier:
    from openevals.llm import create_llm_as_judge
    from openevals.prompts import CORRECTNESS_PROMPT

    # There are no reference answers where candidates are judged.
    prompt = CORRECTNESS_PROMPT.partition("Use the reference outputs")[0]
    return from_evaluator(create_llm_as_judge(prompt=prompt, judge=server.make_chat(), use_reasoning=False))


# Verifiers that call no model, and those that do, by kind of model. Further verifiers get a line here.
CANDIDATE_VERIFIERS: Mapping[str, Callable[[], Verifier]] = {
    "SequenceProbability": SequenceProbability,
    "SelfConsistency": SelfConsistency,
}
SERVER_VERIFIERS: Mapping[str, Mapping[str, Callable[[Server], Verifier]]] = {
    "judging model": {
        "PTrue": lambda server: PTrue(server.make_chat()),
        "PTrue, words": lambda server: PTrue(server.make_chat(), wording="words"),
        "PTrue, ideas": lambda server: PTrue(server.make_chat(), ideas=True),
        "ModelJudge, logprobs": lambda server: ModelJudge(server.make_chat()),
        "ModelJudge, structured": lambda server: ModelJudge(server.make_chat(), mode="structured"),
        "from_evaluator, openevals": _make_evaluator,
    },
    "embeddings": {"EmbeddingSimilarity": lambda server: EmbeddingSimilarity(server.make_embeddings())},
    "reward model": {
        "RewardModel": lambda server: RewardModel(server.base_url, server.model, api_key=server.api_key)
    },
}
LOGPROB_KEY = "sequence_logprob"
SERVER_KINDS = {name: kind for kind, makers in SERVER_VERIFIERS.items() for name in makers}
REMARKS = {
    "from_evaluator, openevals": "`create_llm_as_judge` with `use_reasoning=False` and the correctness "
    "prompt of openevals, without its part on reference answers."
}


def list_servers(options: argparse.Namespace) -> dict[str, Server]:
    """List the servers that were given, by kind of model."""
    judge = options.judge or options.model
    named = {
        "judging model": Server(options.base_url, options.model, options.api_key, judge),
        "embeddings": Server(
            options.embeddings_url, options.embeddings_model, options.api_key, options.embeddings
        ),
        "reward model": Server(options.reward_url, options.reward_model, options.api_key, options.reward),
    }
    return {kind: server for kind, server in named.items() if server.base_url}


def make_verifiers(names: Sequence[str], asked: Mapping[str, Server]) -> Iterator[tuple[str, Verifier, str]]:
    """Make verifiers by name, each with a remark; those that call a model only if its server is given."""
    for name in names:
        if name in CANDIDATE_VERIFIERS:
            yield name, CANDIDATE_VERIFIERS[name](), ""
        elif (server := asked.get(SERVER_KINDS[name])) is not None:
            yield name, SERVER_VERIFIERS[SERVER_KINDS[name]][name](server), make_remark(name, server)


def make_remark(name: str, server: Server) -> str:
    """Make what the page adds about a verifier; it names the judging model once for all."""
    if name in REMARKS:
        return REMARKS[name]
    return "" if SERVER_KINDS[name] == "judging model" else server.description


def list_unmeasured(found: VerifierResults, options: argparse.Namespace) -> dict[str, str]:
    """List the verifiers without a model to call, and the kind of model."""
    done = {row.name for row in found.rows}
    there = list_servers(options)
    left = [name for name in options.only if name in SERVER_KINDS and name not in done]
    return {name: SERVER_KINDS[name] for name in left if SERVER_KINDS[name] not in there}


def make_draws(record: PromptRecord) -> list[DrawnCandidate]:
    """Make draws of recorded candidates, with the log-probability of the whole as that of one token."""
    draws = []
    for candidate in record.candidates:
        text, known = str(candidate.text), candidate.scores or {}
        tokens = [{"token": text, "logprob": known[LOGPROB_KEY]}] if LOGPROB_KEY in known else []
        draws.append(
            DrawnCandidate(text, AIMessage(text, response_metadata={"logprobs": {"content": tokens}}))
        )
    return draws


def choose_prompts(records: Iterable[PromptRecord], size: int, seed: int) -> list[PromptRecord]:
    """Choose prompts at random, the same for the same seed."""
    ordered = sorted(records, key=lambda record: record.id)
    order = np.random.default_rng(seed).permutation(len(ordered))
    return [ordered[position] for position in order[:size]]


def score_prompts(
    name: str, verifier: Verifier, records: Sequence[PromptRecord], concurrency: int, seed: int
) -> VerifierRow:
    """Score all prompts, one after the other, with at most `concurrency` requests at once."""
    call = make_verifier_call(verifier)
    scored: list[tuple[PromptRecord, list[float]]] = []
    failures: list[str] = []
    began = time.perf_counter()
    with apply_limits(CallLimits(ConcurrencyLimiter(concurrency))):
        for record in records:
            given = VerifierInput(prompt=record.input, candidates=make_draws(record))
            try:
                found = run_flow(call.invoke_one(given, {}))
                scored.append((record, VerifierScores(check_scores(found, len(record.candidates))).scores))
            except VerifierError as error:
                failures.append(str(error))
    seconds = time.perf_counter() - began
    return make_row(name, scored, failures, seconds / len(records), seed)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    names = [*CANDIDATE_VERIFIERS, *SERVER_KINDS]
    parser = argparse.ArgumentParser(description="How well verifiers tell right from wrong, on records.")
    parser.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible server, for model judges")
    parser.add_argument("--model", default="any", metavar="NAME", help="the judging model's name there")
    parser.add_argument("--api-key", default="none", metavar="KEY", help="the key of all servers")
    parser.add_argument("--judge", default="", metavar="TEXT", help="what the page calls the judging model")
    for kind, where in (("embeddings", "an OpenAI-compatible server"), ("reward", "a server of /score")):
        parser.add_argument(f"--{kind}-url", metavar="URL", help=f"{where}, for {kind}")
        parser.add_argument(f"--{kind}-model", default="any", metavar="NAME", help="the model's name there")
        parser.add_argument(f"--{kind}", default="", metavar="TEXT", help="what the page says of the model")
    parser.add_argument(
        "--records", type=Path, metavar="FILE", help="records; the shipped recording if left out"
    )
    parser.add_argument("--prompts", type=int, default=80, metavar="N", help="number of prompts")
    parser.add_argument("--seed", type=int, default=0, help="which prompts, and which shuffle")
    parser.add_argument("--concurrency", type=int, default=2, metavar="C", help="requests at once")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument(
        "--resume", action="store_true", help="keep what the JSON file holds, measure the rest"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page")
    return parser


def run(options: argparse.Namespace) -> Iterator[VerifierResults]:
    """Yield the results so far after every verifier."""
    source = load_recording() if options.records is None else read_records(str(options.records))
    records = choose_prompts(source, options.prompts, options.seed)
    said = (source.provenance.generator if source.provenance else None) or {}
    asked = list_servers(options)
    found = VerifierResults(
        generator=str(said.get("id", "not stated")),
        judge=asked["judging model"].description if "judging model" in asked else "",
        n=len(records[0].candidates),
        prompts=len(records),
        distinct=sum(len({one.text for one in record.candidates}) for record in records),
        seed=options.seed,
        rows=(),
    )
    if options.resume:
        found = read_stopped_run(found, options.json)
        yield found
    done = {row.name for row in found.rows}
    for name, verifier, more in make_verifiers([name for name in options.only if name not in done], asked):
        row = score_prompts(name, verifier, records, options.concurrency, options.seed)
        row = row.model_copy(update={"remark": more})
        found = found.model_copy(update={"rows": (*found.rows, row)})
        yield found


def read_stopped_run(fresh: VerifierResults, path: Path) -> VerifierResults:
    """Read the results of a stopped run; exit if it measured something else."""
    before = fresh.model_validate_json(path.read_text(encoding="utf-8"))
    if before.model_copy(update={"rows": ()}) != fresh:
        msg = f"{path} is of other prompts, another seed or another judging model: write to another file"
        raise SystemExit(msg)
    return before


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write what was asked for, and print the tables."""
    options = make_parser().parse_args(arguments)
    if options.resume and options.json is None:
        make_parser().error("--resume needs the file of --json")
    found = None
    for found in run(options):
        if options.json is not None:
            options.json.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
        if options.page is not None:
            options.page.write_text(make_page(found, list_unmeasured(found, options)), encoding="utf-8")
    if found is None:
        make_parser().error(
            "nothing to measure: verifiers that ask a model need --base-url, --embeddings-url or --reward-url"
        )
    print_sheets([make_sheet(found)], width=160)
    if any(one.prompts == 0 for one in found.rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
