"""The pages: ask the bot, answer what it could not, watch its promise. `streamlit run` starts them."""

from __future__ import annotations

import difflib
import re
import secrets
from collections.abc import Callable, Sequence

import streamlit as st
from qa_bot_model import ALPHAS, Bot, make_bot
from qa_bot_picture import describe_picture, draw_picture
from qa_bot_store import FOLDER, Store, Turn, same_question

from langchain_cfc.errors import CFCError
from langchain_cfc.guarantee import Guarantee
from langchain_cfc.monitor import CFCMonitor

STORE = Store(FOLDER / "qa_bot.db")
WHY_BEFORE = (
    "Chosen before you ask, and kept with the question: a level picked after seeing what comes of it voids "
    "the promise. Surer means larger sets and more questions flagged."
)
ASKED_BEFORE = (
    "You have asked this before, at {level}, and what came of it stands. Asked again, at this level or "
    "another, until an answer comes, the promise would be void. A person may be asked instead."
)
WHY_ALWAYS = (
    "Tests that may be looked at as often as one likes: if nothing changes, the chance that any of them ever "
    "alarms is at most {level}."
)
SUGGESTED = 5


def ask_page() -> None:
    """Ask, and see what was decided so far."""
    bot, conversation = the_bot(), conversation_id()
    st.title("Answer or abstain")
    st.caption(plain(bot.about))
    turns = STORE.conversation(conversation)
    for turn in turns:
        show(turn, bot)
    if notice := st.session_state.pop("notice", None):
        st.info(notice, icon=":material/info:")
    st.radio(
        "How often must the set hold a correct answer, or the question be flagged?",
        ALPHAS,
        index=ALPHAS.index(turns[-1].alpha) if turns else 1,
        format_func=format_level,
        key="alpha",
        horizontal=True,
    )
    st.caption(WHY_BEFORE)
    asked = {same_question(turn.question) for turn in turns}
    new = [question for key, question in bot.held_out.items() if key not in asked]
    st.pills(
        "Questions that it was not calibrated on",
        st.session_state.get("close", new)[:SUGGESTED],
        format_func=plain,
        key="suggested",
        on_change=lambda: ask(bot, conversation, "suggested"),
    )
    st.chat_input("Ask a question", key="typed", on_submit=lambda: ask(bot, conversation, "typed"))
    waiting = sum(turn.waiting for turn in turns)
    if waiting:
        rerun_once_changed(lambda: sum(turn.waiting for turn in STORE.conversation(conversation)), waiting)


def ask(bot: Bot, conversation: str, source: str) -> None:
    """Write the question down with the level chosen by now; the page that follows has it decided."""
    question = st.session_state[source]
    st.session_state.pop("close", None)
    if source == "suggested":
        st.session_state.suggested = None
    if not question:
        return
    if refusal := bot.refusal(question):
        st.session_state.notice = refusal
        keys = difflib.get_close_matches(same_question(question), bot.held_out, n=SUGGESTED, cutoff=0.4)
        if keys:
            st.session_state.notice += " Those below come close."
            st.session_state.close = [bot.held_out[key] for key in keys]
        return
    worded = bot.held_out.get(same_question(question), question)
    if stands := STORE.ask(conversation, worded, st.session_state.alpha):
        st.session_state.notice = ASKED_BEFORE.format(level=format_level(stands.alpha))


def show(turn: Turn, bot: Bot) -> None:
    """A question, the decision about it, and what a person said."""
    with st.chat_message("user"):
        st.text(turn.question)
        st.caption(f"asked at {format_level(turn.alpha)}")
    with st.chat_message("assistant"):
        if turn.result is None:
            decide(turn, bot)
            return
        result = turn.result
        if result.abstained:
            st.markdown(f":material/block: **Abstained: {result.reason.replace('_', ' ')}**")
            st.text(result.explain())
        else:
            size = len(result.answers)
            st.caption(
                "The set holds one answer" if size == 1 else f"The set holds {size} answers, best first"
            )
            for place, answer in enumerate(result.answers, start=1):
                st.text(answer if size == 1 else f"{place}. {answer}")
        st.altair_chart(draw_picture(result), key=f"picture-{turn.id}")
        st.caption(describe_picture(result))
        if not result.abstained:
            with st.expander("Why this set", icon=":material/help:"):
                st.text(result.explain())
        with st.expander("What is promised, and what is not", icon=":material/verified:"):
            promise(result.guarantee)
        if result.abstained and turn.answer is None:
            st.button(
                "Waiting for a person" if turn.waiting else "Ask a person",
                key=f"escalate-{turn.id}",
                icon=":material/person:",
                disabled=turn.waiting,
                on_click=STORE.escalate,
                args=(turn,),
            )
    if turn.answer is not None:
        with st.chat_message("person", avatar=":material/person:"):
            st.markdown("**From a person, without guarantee**")
            st.text(turn.answer)


def decide(turn: Turn, bot: Bot) -> None:
    """Have the bot decide at the level that was written down, and show the page again."""
    with st.spinner("Drawing candidates"):
        try:
            result = bot.decide(turn.question, turn.alpha)
            the_monitor().see(result, f"turn-{turn.id}")
            STORE.save_decision(turn, result)
        except CFCError as error:
            STORE.forget(turn)
            st.session_state.notice = plain(f"Nothing was decided, so you may ask again: {error}")
    st.rerun()


def promise(guarantee: Guarantee) -> None:
    """The promise as the result carries it."""
    st.text(guarantee.sentence)
    st.caption(
        f"{guarantee.kind}, alpha {guarantee.alpha}, {guarantee.calibration_size} calibration questions"
    )
    write_list("It rests on", guarantee.assumptions)
    write_list("Flagged means", [guarantee.not_certifiable])
    write_list("Not promised", guarantee.not_promised)
    st.caption("Digest of the artifact")
    st.code(guarantee.artifact_digest, language=None, wrap_lines=True)


def write_list(title: str, sentences: Sequence[str]) -> None:
    """Write a short list under a title."""
    st.markdown(f"**{title}**\n" + "".join(f"\n- {plain(sentence)}" for sentence in sentences))


def person_page() -> None:
    """Answer what the bot could not, one question after the other."""
    st.title("Questions for a person")
    if notice := st.session_state.pop("late", None):
        st.info(notice, icon=":material/info:")
    queue, done = STORE.queue(), STORE.list_answered()
    if not queue:
        st.info("No question is waiting.", icon=":material/done_all:")
    for turn in queue:
        with st.form(f"turn-{turn.id}"):
            st.text(turn.question)
            text = st.text_input("Your answer", key=f"answer-{turn.id}", max_chars=2000)
            sent = st.form_submit_button("Send", icon=":material/send:")
        if sent and text.strip():
            if not STORE.answer(turn, text.strip()):
                st.session_state.late = "Another person was quicker; their answer stands."
            st.rerun()
    with st.expander(f"Done: {len(done)}", icon=":material/check:"):
        for turn in reversed(done):
            st.text(f"{turn.question}\n{turn.answer}")
    rerun_once_changed(lambda: len(STORE.queue()), len(queue))


def watch_page() -> None:
    """What all questions so far show about the promise."""
    st.title("Does the promise still stand?")
    status = the_monitor().status()
    asked, answered, flagged, alarms = st.columns(4)
    asked.metric("Questions", status.results)
    answered.metric("With a set", format_share(status.answered))
    flagged.metric("Flagged", format_share(status.flagged))
    alarms.metric("Alarms", len(status.alarms))
    for alarm in status.alarms:
        st.error(plain(alarm.sentence()), icon=":material/warning:")
    if not status.alarms:
        st.success(
            "Nothing shows so far that questions differ from those that it was calibrated on.",
            icon=":material/check:",
        )
    st.caption(WHY_ALWAYS.format(level=f"{100 * status.level:g} %"))
    st.dataframe(
        [
            {"What": one.what, "Of": one.group, "Evidence": one.progress, "Seen": one.outcomes}
            for one in status.tests
        ],
        column_config={"Evidence": st.column_config.ProgressColumn("On the way to an alarm", max_value=1.0)},
        hide_index=True,
    )
    for note in status.notes:
        st.caption(plain(note))


def format_share(part: float | None) -> str:
    """Format a share as people read it."""
    return "-" if part is None else f"{part:.0%}"


@st.fragment(run_every="2s")
def rerun_once_changed(count: Callable[[], int], seen: int) -> None:
    """Look into the store now and then, and show the page again when a count has changed."""
    if count() != seen:
        st.rerun()


@st.cache_resource(show_spinner="Calibrating")
def the_bot() -> Bot:
    """The bot, made once for all visitors."""
    return make_bot()


@st.cache_resource(show_spinner=False)
def the_monitor() -> CFCMonitor:
    """The monitor of every decision, made once for all visitors."""
    return CFCMonitor(the_bot().artifact, FOLDER / "monitor.db")


def conversation_id() -> str:
    """The conversation of this address; a new one where the address names none."""
    known = st.query_params.get("conversation") or st.session_state.get("conversation")
    st.session_state.conversation = st.query_params["conversation"] = known or secrets.token_urlsafe(12)
    return str(st.session_state.conversation)


def format_level(alpha: str) -> str:
    """Format an error level as people read it."""
    return f"{100 * (1 - float(alpha)):g} %"


def plain(text: str) -> str:
    """Text as it stands, where Streamlit would read Markdown."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


st.set_page_config(page_title="Answer or abstain")
pages = [
    st.Page(ask_page, title="Ask", default=True),
    st.Page(person_page, title="For a person", url_path="person"),
    st.Page(watch_page, title="Monitor", url_path="monitor"),
]
opened = st.navigation(pages, position="hidden")
with st.container(horizontal=True):
    for page in pages:
        st.page_link(page)
opened.run()
