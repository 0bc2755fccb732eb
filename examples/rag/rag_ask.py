"""Ask: an answer set with the passages that support it, or an abstention with its reason.

python rag_ask.py                                        one held-out question of each topic
python rag_ask.py "In which year was barium discovered?"
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import shorten

import rag_models
from rag_chain import GENERATOR_ID, answer_of, examples, find_topic, rag
from rag_retrieval import retriever
from rag_verifier import Groundedness, supports

from langchain_cfc import CalibrationArtifact, CFCResult, CFCRunnable
from langchain_cfc.errors import CFCError

# The one line to change for a live model: live("gpt-4o-mini") in place of load_recorded().
MODEL, PROBABILITY = rag_models.load_recorded()

WHY = {
    "only_blank_answers": "the model gave no answer, or refused to",
    "not_certifiable": "for questions on this topic no set of the answers drawn can be certified",
}


def bot(artifact: CalibrationArtifact) -> CFCRunnable:
    """The whole chain, retrieval included, behind the artifact."""
    return CFCRunnable(
        generator=rag(MODEL),
        generator_id=GENERATOR_ID,
        verifier={"groundedness": Groundedness(), "sequence": PROBABILITY},
        artifact=artifact,
        answer=answer_of,
        answer_id="answer_of",
        metadata=find_topic,
    )


def format_answer(question: str, result: CFCResult) -> str:
    """Format the answers with their citations, or the abstention, as text for people.

    The citations are computed from the retrieved passages; the promise is about the answers alone.
    """
    if result.abstained:
        return f"I do not know: {WHY[result.reason]}."
    passages = retriever().invoke(question)
    said, cited = [], set()
    for answer in result.answers:
        support = supports(question, answer, passages)
        best = support.index(max(support))
        if support[best] == 0.0:
            said.append(f"{answer} (in none of the passages)")
        else:
            said.append(f"{answer} [{best + 1}]")
            cited.add(best)
    sources = [
        f"  [{place + 1}] {passages[place].metadata['title']}: {passages[place].page_content}"
        for place in sorted(cited)
    ]
    return "\n".join([" or ".join(said), *sources])


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask what was given, or one held-out question of each topic."""
    parser = argparse.ArgumentParser(description="Ask the calibrated RAG chain.")
    parser.add_argument("questions", nargs="*", help="questions; by default recorded ones that were held out")
    parser.add_argument("--artifact", type=Path, default=Path("cfc-demo/rag/artifact.json"))
    options = parser.parse_args(arguments)
    artifact = CalibrationArtifact.load(options.artifact)
    split = artifact.calibration.split
    held_out = [str(one.input) for one in examples() if split.find_part(one.id, None) == "test"]
    one_each = {find_topic(question)["topic"]: question for question in held_out}
    chain = bot(artifact)
    asked: Iterable[str] = options.questions or one_each.values()
    for question in asked:
        print(f"\n{question}")
        try:
            print(format_answer(question, chain.invoke(question)))
        except CFCError as error:
            print(f"Refused: {shorten(str(error), 150)}")
    print(f"\n{artifact.make_guarantee().sentence}")


if __name__ == "__main__":
    main()
