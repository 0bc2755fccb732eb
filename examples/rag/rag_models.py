"""The model that answers: the recording that ships, served as if drawn, or a live one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from rag_chain import messages
from rag_retrieval import FOLDER

from langchain_cfc.demo.replay import RecordedScores, ReplayChatModel
from langchain_cfc.records import Provenance, read_records
from langchain_cfc.verifiers import SequenceProbability

RECORDS = FOLDER / "records.jsonl"

N = 8  # answers drawn for a question

# A model, and the verifier that reads the probability of its answers.
ModelAndProbability = tuple[BaseChatModel, Any]


def load_recorded(path: Path = RECORDS) -> ModelAndProbability:
    """The recorded answers behind the whole chain: retrieval and prompt are real, the model is replayed.

    It answers the recorded questions and refuses any other.
    """
    source = read_records(path)
    # The records state the whole chain; what stands in is the model in it, and the chain adds its own prompt.
    chain = source.provenance.generator if source.provenance is not None else None
    model = {name: value for name, value in (chain or {}).items() if name != "id"} | {"prompt_digest": None}
    prompted = [record.model_copy(update={"input": messages(record.input)}) for record in source]
    return (
        ReplayChatModel.from_records(prompted, Provenance(n=N, generator=model)),
        RecordedScores(Provenance(n=N, verifier=dict(SequenceProbability().fingerprint)), output="sequence"),
    )


def live(model: str, base_url: str | None = None) -> ModelAndProbability:
    """A model behind an OpenAI-compatible endpoint, with token log-probabilities.

    Args:
        model: The model's name there.
        base_url: The endpoint; None for OpenAI's own, which wants a key in `OPENAI_API_KEY`.
    """
    local: dict[str, Any] = {} if base_url is None else {"base_url": base_url, "api_key": "none"}
    chat = ChatOpenAI(
        model=model, temperature=1.0, max_completion_tokens=16, logprobs=True, top_logprobs=1, **local
    )
    return chat, SequenceProbability()
