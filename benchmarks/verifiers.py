"""What verifiers are worth on recorded candidates: how well their scores tell right from wrong.

    python benchmarks/verifiers.py --base-url http://localhost:8000/v1 --page benchmarks/VERIFIERS.md

Every verifier scores the candidates of the same prompts, drawn by a seed from the recording that the package
ships or from a records file. Verifiers that ask a chat model need `--base-url`, any OpenAI-compatible server,
those that ask embeddings or a reward model `--embeddings-url` or `--reward-url`; the others run without.
Beside each AUROC stands a control: the same scores handed to other prompts. The exit code is 1 if a verifier
could score no prompt at all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # run as a file, Python looks beside it only
    sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    from benchmarks.verifiers_page import Compared, Row
    from langchain_cfc import PromptRecord
    from langchain_cfc.sampling import DrawnCandidate
    from langchain_cfc.verifiers import Verifier


@dataclass(frozen=True)
class Server:
    """A model that verifiers ask.

    Attributes:
        base_url: Address of an OpenAI-compatible server, or of one that rewards as vLLM does.
        model: The model's name there.
        api_key: Its key.
        said: What the page says of it.
    """

    base_url: str
    model: str
    api_key: str
    said: str

    def chat(self) -> ChatOpenAI:
        """A client at temperature 0, so that judgements can be repeated."""
        from langchain_openai import ChatOpenAI
        from pydantic import SecretStr

        return ChatOpenAI(
            base_url=self.base_url, model=self.model, api_key=SecretStr(self.api_key), temperature=0.0
        )

    def embeddings(self) -> OpenAIEmbeddings:
        """A client that sends texts: token numbers of OpenAI's models mean nothing to others."""
        from langchain_openai import OpenAIEmbeddings
        from pydantic import SecretStr

        return OpenAIEmbeddings(
            base_url=self.base_url,
            model=self.model,
            api_key=SecretStr(self.api_key),
            check_embedding_ctx_length=False,
        )


def _sequence_probability() -> Verifier:
    from langchain_cfc.verifiers.sequence_probability import SequenceProbability

    return SequenceProbability()


def _self_consistency() -> Verifier:
    from langchain_cfc.verifiers.self_consistency import SelfConsistency

    return SelfConsistency()


def _p_true(server: Server) -> Verifier:
    from langchain_cfc.verifiers.p_true import PTrue

    return PTrue(server.chat())


def _p_true_words(server: Server) -> Verifier:
    from langchain_cfc.verifiers.p_true import PTrue

    return PTrue(server.chat(), wording="words")


def _p_true_ideas(server: Server) -> Verifier:
    from langchain_cfc.verifiers.p_true import PTrue

    return PTrue(server.chat(), ideas=True)


def _judge(server: Server) -> Verifier:
    from langchain_cfc.verifiers.model_judge import ModelJudge

    return ModelJudge(server.chat())


def _judge_stating(server: Server) -> Verifier:
    from langchain_cfc.verifiers.model_judge import ModelJudge

    return ModelJudge(server.chat(), mode="structured")


def _evaluator(server: Server) -> Verifier:
    from openevals.llm import create_llm_as_judge
    from openevals.prompts import CORRECTNESS_PROMPT

    from langchain_cfc.verifiers import from_evaluator

    # No reference answer is known where candidates are judged.
    prompt = CORRECTNESS_PROMPT.partition("Use the reference outputs")[0]
    return from_evaluator(create_llm_as_judge(prompt=prompt, judge=server.chat(), use_reasoning=False))


def _embedding_similarity(server: Server) -> Verifier:
    from langchain_cfc.verifiers.embedding_similarity import EmbeddingSimilarity

    return EmbeddingSimilarity(server.embeddings())


def _reward_model(server: Server) -> Verifier:
    from langchain_cfc.verifiers.reward_model import RewardModel

    return RewardModel(server.base_url, server.model, api_key=server.api_key)


# What asks nobody, and what asks whom. Further verifiers get a line here.
OF_CANDIDATES: Mapping[str, Callable[[], Verifier]] = {
    "SequenceProbability": _sequence_probability,
    "SelfConsistency": _self_consistency,
}
OF_SERVERS: Mapping[str, Mapping[str, Callable[[Server], Verifier]]] = {
    "judging model": {
        "PTrue": _p_true,
        "PTrue, words": _p_true_words,
        "PTrue, ideas": _p_true_ideas,
        "ModelJudge, logprobs": _judge,
        "ModelJudge, structured": _judge_stating,
        "from_evaluator, openevals": _evaluator,
    },
    "embeddings": {"EmbeddingSimilarity": _embedding_similarity},
    "reward model": {"RewardModel": _reward_model},
}
KINDS = {name: kind for kind, makers in OF_SERVERS.items() for name in makers}
REMARKS = {
    "from_evaluator, openevals": "`create_llm_as_judge` with `use_reasoning=False` and the correctness "
    "prompt of openevals, without its part on reference answers."
}


def servers(options: argparse.Namespace) -> dict[str, Server]:
    """The servers that were named, by kind."""
    judge = options.judge or options.model
    named = {
        "judging model": Server(options.base_url, options.model, options.api_key, judge),
        "embeddings": Server(
            options.embeddings_url, options.embeddings_model, options.api_key, options.embeddings
        ),
        "reward model": Server(options.reward_url, options.reward_model, options.api_key, options.reward),
    }
    return {kind: server for kind, server in named.items() if server.base_url}


def made(names: Sequence[str], asked: Mapping[str, Server]) -> Iterator[tuple[str, Verifier, str]]:
    """The verifiers of some names, each with a remark; those that ask a server only if there is one."""
    for name in names:
        if name in OF_CANDIDATES:
            yield name, OF_CANDIDATES[name](), ""
        elif (server := asked.get(KINDS[name])) is not None:
            yield name, OF_SERVERS[KINDS[name]][name](server), remark(name, server)


def remark(name: str, server: Server) -> str:
    """What the page says of a verifier, beyond the judging model that it states once for all."""
    if name in REMARKS:
        return REMARKS[name]
    return "" if KINDS[name] == "judging model" else server.said


def unmeasured(found: Compared, options: argparse.Namespace) -> dict[str, str]:
    """Verifiers that were to be measured and have nobody to ask, and whom they would."""
    done = {row.name for row in found.rows}
    there = servers(options)
    left = [name for name in options.only if name in KINDS and name not in done]
    return {name: KINDS[name] for name in left if KINDS[name] not in there}


def as_draws(record: PromptRecord) -> list[DrawnCandidate]:
    """Recorded candidates as they were drawn, with the log-probability of the whole as that of one token."""
    from langchain_core.messages import AIMessage

    from langchain_cfc.sampling import DrawnCandidate

    draws = []
    for candidate in record.candidates:
        text, known = str(candidate.text), candidate.scores or {}
        tokens = [{"token": text, "logprob": known[LOGPROB]}] if LOGPROB in known else []
        draws.append(
            DrawnCandidate(text, AIMessage(text, response_metadata={"logprobs": {"content": tokens}}))
        )
    return draws


LOGPROB = "sequence_logprob"


def chosen(records: Iterable[PromptRecord], size: int, seed: int) -> list[PromptRecord]:
    """Some prompts at random, always the same for a seed."""
    import numpy as np

    ordered = sorted(records, key=lambda record: record.id)
    order = np.random.default_rng(seed).permutation(len(ordered))
    return [ordered[position] for position in order[:size]]


def compare(
    name: str, verifier: Verifier, records: Sequence[PromptRecord], concurrency: int, seed: int
) -> Row:
    """Score all prompts, one after the other, with at most `concurrency` requests at once."""
    from benchmarks.verifiers_page import row
    from langchain_cfc.errors import VerifierError
    from langchain_cfc.execution import CallLimits, ConcurrencyLimiter, apply_limits, run_flow
    from langchain_cfc.verifiers import VerifierInput
    from langchain_cfc.verifiers.base import check_scores, make_verifier_call

    call = make_verifier_call(verifier)
    scored: list[tuple[PromptRecord, list[float]]] = []
    failures: list[str] = []
    began = time.perf_counter()
    with apply_limits(CallLimits(ConcurrencyLimiter(concurrency))):
        for record in records:
            given = VerifierInput(prompt=record.input, candidates=as_draws(record))
            try:
                found = run_flow(call.invoke_one(given, {}))
                scored.append((record, check_scores(found, len(record.candidates))))
            except VerifierError as error:
                failures.append(str(error))
    seconds = time.perf_counter() - began
    return row(name, scored, failures, seconds / len(records), seed)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    names = [*OF_CANDIDATES, *KINDS]
    read = argparse.ArgumentParser(description="How well verifiers tell right from wrong, on records.")
    read.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible server, for model judges")
    read.add_argument("--model", default="any", metavar="NAME", help="the judging model's name there")
    read.add_argument("--api-key", default="none", metavar="KEY", help="the key of all servers")
    read.add_argument("--judge", default="", metavar="TEXT", help="what the page calls the judging model")
    for kind, where in (("embeddings", "an OpenAI-compatible server"), ("reward", "a server of /score")):
        read.add_argument(f"--{kind}-url", metavar="URL", help=f"{where}, for {kind}")
        read.add_argument(f"--{kind}-model", default="any", metavar="NAME", help="the model's name there")
        read.add_argument(f"--{kind}", default="", metavar="TEXT", help="what the page says of the model")
    read.add_argument(
        "--records", type=Path, metavar="FILE", help="records; the shipped recording if left out"
    )
    read.add_argument("--prompts", type=int, default=80, metavar="N", help="number of prompts")
    read.add_argument("--seed", type=int, default=0, help="which prompts, and which shuffle")
    read.add_argument("--concurrency", type=int, default=2, metavar="C", help="requests at once")
    read.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    read.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    read.add_argument("--resume", action="store_true", help="keep what the JSON file holds, measure the rest")
    read.add_argument("--page", type=Path, metavar="FILE", help="write the page")
    return read


def run(options: argparse.Namespace) -> Iterator[Compared]:
    """What was found so far, after every verifier."""
    from benchmarks.verifiers_page import Compared
    from langchain_cfc.demo import load_recording
    from langchain_cfc.records import read_records

    source = load_recording() if options.records is None else read_records(str(options.records))
    records = chosen(source, options.prompts, options.seed)
    said = (source.provenance.generator if source.provenance else None) or {}
    asked = servers(options)
    found = Compared(
        generator=str(said.get("id", "not stated")),
        judge=asked["judging model"].said if "judging model" in asked else "",
        n=len(records[0].candidates),
        prompts=len(records),
        distinct=sum(len({one.text for one in record.candidates}) for record in records),
        seed=options.seed,
        rows=(),
    )
    if options.resume:
        found = resumed(found, options.json)
        yield found
    done = {row.name for row in found.rows}
    for name, verifier, more in made([name for name in options.only if name not in done], asked):
        row = compare(name, verifier, records, options.concurrency, options.seed)
        row = row.model_copy(update={"remark": more})
        found = found.model_copy(update={"rows": (*found.rows, row)})
        yield found


def resumed(fresh: Compared, path: Path) -> Compared:
    """What a run found before it was stopped.

    Raises:
        SystemExit: If that was a run of something else.
    """
    before = fresh.model_validate_json(path.read_text(encoding="utf-8"))
    if before.model_copy(update={"rows": ()}) != fresh:
        msg = f"{path} is of other prompts, another seed or another judging model: write to another file"
        raise SystemExit(msg)
    return before


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write and show."""
    options = parser().parse_args(arguments)
    if options.resume and options.json is None:
        parser().error("--resume needs the file of --json")
    from rich.console import Console

    from benchmarks.verifiers_page import page, sheet

    found = None
    for found in run(options):
        if options.json is not None:
            options.json.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
        if options.page is not None:
            options.page.write_text(page(found, unmeasured(found, options)), encoding="utf-8")
    if found is None:
        parser().error(
            "nothing to measure: verifiers that ask a model need --base-url, --embeddings-url or --reward-url"
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a file is as wide as need be
    console.print(sheet(found).table())
    if any(one.prompts == 0 for one in found.rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
