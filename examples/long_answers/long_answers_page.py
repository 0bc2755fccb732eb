"""A page that shows what is left of a model's answers. `streamlit run` starts it.

It replays a recording, so it needs no key and no model: calibrated on three in five of the questions, it
answers the others.
"""

from __future__ import annotations

import re
from pathlib import Path

import streamlit as st

from langchain_cfc import CFCRunnable, calibrate, evaluate, read_records
from langchain_cfc.demo.replay import make_replay_parts
from langchain_cfc.evaluation import MethodReport
from langchain_cfc.guarantee import format_share
from langchain_cfc.runnable import ClaimsResult

RECORDS = Path(__file__).parent / "records.jsonl.gz"
FEATURES = "group(topic) + hat(mean_score, 3)"
ALPHA = "0.2"
CHOICES = {0: "none", 1: "one at most", 2: "two at most"}
STYLE = """
<style>
  [data-testid=stMainBlockContainer] { padding-top: 3.5rem; }
  [data-testid=stHeading] h1 { font-size: 1.75rem; padding: 0 0 .5rem; }
  .st-key-answer p { font-size: 1.25rem; line-height: 1.5; }
</style>
"""


@st.cache_resource(show_spinner="Calibrating")
def make_chain(at_most: int) -> tuple[CFCRunnable, MethodReport, dict[str, str]]:
    """Calibrate for so many unsupported claims; return the chain, its figures and the questions to ask."""
    records = read_records(RECORDS)
    artifact = calibrate(
        records, unit="claims", at_most=at_most, alpha=ALPHA, features=FEATURES, test_fraction=0.4
    )
    # Results hold dropped claims; the page sends them to the browser only after a click.
    chain = CFCRunnable(artifact=artifact, show_rejected=True, **make_replay_parts(records))
    split = artifact.calibration.split
    held_out = [one for one in records.read_claims() if split.find_part(one.id, one.cluster) == "test"]
    questions = {one.id.replace("-", " "): str(one.input) for one in held_out}
    return chain, evaluate(artifact, records).methods["conditional"], questions


def main() -> None:
    """Choose how much may be wrong, ask, and see what is left."""
    st.html(STYLE)
    st.title("What is left of a long answer")
    at_most = st.radio(
        "How many unsupported claims may an answer keep?",
        list(CHOICES),
        format_func=CHOICES.__getitem__,
        horizontal=True,
        key="at_most",
    )
    chain, figures, questions = make_chain(at_most)
    about = st.selectbox("Question about", list(questions), key="about")
    st.text(questions[about])
    result = chain.invoke(questions[about])
    if not isinstance(result, ClaimsResult):
        raise TypeError
    with st.container(key="answer"):
        st.markdown(escape(result.text or "I do not know."))
    st.text(result.explain_reason())
    dropped = sum(not one.kept for one in result.claims)
    if dropped and st.toggle(f"Show the {dropped} dropped, struck through", key=f"dropped-{about}"):
        with st.container(key="whole", border=True):
            st.markdown(strike(result))
        st.caption(
            "What is struck through did not pass the check. Do not use it without checking it yourself."
        )
    st.caption(escape(result.explain().removeprefix(result.explain_reason()).strip()))
    show_figures(figures)


def show_figures(figures: MethodReport) -> None:
    """Show what the promise costs, on the questions that were held out."""
    claims = figures.claims
    if claims is None:
        raise TypeError
    st.subheader("On the questions held out")
    st.table(
        {
            "Answers that keep the promise": [format_share(round(figures.kept_promise, 3))],
            "Claims kept": [format_share(round(claims.kept, 3))],
            "Answers with no claim left": [format_share(round(claims.emptied, 3))],
            "Wrong among all claims": [format_share(round(claims.unsupported, 3))],
            "Wrong among those shown": [format_share(round(claims.unsupported_kept, 3))],
        }
    )


def strike(result: ClaimsResult) -> str:
    """Return the whole answer as Markdown, with its dropped claims struck through."""
    begin, end = "\ue000", "\ue001"  # characters for private use, which Markdown leaves alone
    return escape(result.mark_dropped(begin, end)).replace(begin, "~~").replace(end, "~~")


def escape(text: str) -> str:
    """Escape what Markdown would read as formatting."""
    return re.sub(r"([\\`*_{}\[\]<>()#+\-.!|~$:])", r"\\\1", text).replace("\n", "  \n")


main()
