"""Draw, score and label answers to all questions with a live model; interrupted, run it again and it goes on.

    python rag_collect.py --base-url http://127.0.0.1:8080/v1 --model NAME

The recording that ships was made by this; you need it only for a model or a corpus of your own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from langchain_cfc_collect import CallPolicy, CollectionOptions, Components, Store, collect
from rag_chain import GENERATOR_ID, answer_of, examples, find_topic, rag
from rag_models import N, live
from rag_verifier import Groundedness

from langchain_cfc.labelers import NormalisedMatch
from langchain_cfc.records import write_records


def main(arguments: Sequence[str] | None = None) -> None:
    """Collect all questions, and write the records."""
    parser = argparse.ArgumentParser(description="Collect records for the RAG chain.")
    parser.add_argument("--base-url", help="an OpenAI-compatible endpoint; OpenAI's own without it")
    parser.add_argument("--model", required=True, help="the model's name there")
    parser.add_argument("--questions", type=int, help="only the first so many")
    parser.add_argument("--folder", type=Path, default=Path("cfc-demo/rag"), help="where files are written")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    model, probability = live(options.model, options.base_url)
    parts = Components(
        generator=rag(model),
        generator_id=GENERATOR_ID,
        verifier={"groundedness": Groundedness(), "sequence": probability},
        labeler=NormalisedMatch(articles="en"),
        n=N,
        answer=answer_of,
        answer_id="answer_of",
        metadata=find_topic,
        sampling="single_request",
    )
    store, records = options.folder / "questions.db", options.folder / "records.jsonl"
    asked = examples()[: options.questions]
    collect(asked, parts, store, CollectionOptions(call_policy=CallPolicy(concurrency=1, timeout=600.0)))
    with Store(store) as opened:
        write_records(records, opened.read_records(), opened.read_provenance())
    print(f"records: {records}")


if __name__ == "__main__":
    main()
