"""Prompts with images: the README's commands, over HTTP, with images that must arrive."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langchain_cfc_collect.config import read_config
from langchain_core.messages import HumanMessage
from PIL import Image

from examples.tests.running import read_section, run_readme_commands
from langchain_cfc import CalibrationArtifact, CFCChatModel, read_records

if TYPE_CHECKING:
    from vision_stand_in import StandIn

pytestmark = pytest.mark.usefixtures("modules_of_example")

EXAMPLE = Path(__file__).parents[2] / "examples" / "vision"
CONFIG = EXAMPLE / "collect.toml"
SIZE = "How many pixels wide and high is this image? Answer like 640x480."
COLOUR = "Which is the strongest colour on average: red, green or blue? Answer with one word."


@pytest.fixture
def truthful(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    import vision_stand_in

    monkeypatch.setattr(vision_stand_in, "HOPELESS", 0.0)
    monkeypatch.setattr(vision_stand_in, "WORST", 0.0)
    with vision_stand_in.standing_in() as server:
        yield server


def make_client(server: StandIn) -> Any:
    from langchain.chat_models import init_chat_model

    return init_chat_model("openai:stand-in", base_url=server.url, api_key="none", max_retries=0)


def make_message(image: Image.Image, question: str, kind: str = "PNG") -> list[HumanMessage]:
    file = io.BytesIO()
    image.save(file, format=kind)
    url = f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
    parts: list[str | dict[Any, Any]] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": question},
    ]
    return [HumanMessage(parts)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder where the first block of the README was run, and what it printed."""
    folder = tmp_path_factory.mktemp("vision")
    (folder / "examples").symlink_to(EXAMPLE.parent)
    done = run_readme_commands(read_section("vision"), folder)
    return folder / "cfc-demo" / "vision", done.stdout


@pytest.mark.long
def test_vision_readme_commands_collect_calibrate_and_ask(ran: tuple[Path, str]) -> None:
    folder, printed = ran
    assert printed.startswith("The answers come from a stand-in that reads pixels and errs on purpose.")
    found = re.search(r"^(\d+) questions calibrated; of (\d+) held out.* on (\d+)%:", printed, re.MULTILINE)
    assert found is not None
    # 400 questions, three tenths of them held out; a share far below the promise is a broken chain.
    assert int(found[1]) > 150
    assert int(found[2]) > 80
    assert int(found[3]) >= 65
    assert len(re.findall(r"\(true: ", printed)) == 6
    assert "as a chat model: " in printed
    assert "served and calibrated parts: matched" in printed
    artifact = CalibrationArtifact.load(folder / "artifact.json")
    assert artifact.n == 8
    assert artifact.make_guarantee("0.2").kind == "conditional"
    written = (folder / "records.jsonl").read_text(encoding="utf-8")
    assert "base64" not in written
    assert written.count("photo:") == len(list(read_records(folder / "records.jsonl"))) == 400


def test_vision_stand_in_answers_from_the_pixels_received(truthful: StandIn) -> None:
    model = make_client(truthful)
    asked = make_message(Image.new("RGB", (31, 17), (10, 200, 30)), SIZE)
    assert model.invoke(asked).text == "31x17"
    content: Any = asked[0].content
    sent = base64.b64decode(content[0]["image_url"]["url"].partition(",")[2])
    assert truthful.received == {hashlib.sha256(sent).hexdigest(): 1}
    # Other images, other answers to the same words: it cannot have answered from the text.
    assert model.invoke(make_message(Image.new("RGB", (17, 31)), SIZE)).text == "17x31"
    for colour, name in (((250, 0, 0), "red"), ((0, 250, 0), "green"), ((0, 0, 250), "blue")):
        assert model.invoke(make_message(Image.new("RGB", (64, 64), colour), COLOUR, "JPEG")).text == name


def test_vision_chain_sends_the_cutting_that_the_question_names(truthful: StandIn) -> None:
    from vision_chain import chain, with_images
    from vision_questions import TRUTHS, address, cut_part, examples, read_address

    generator = chain(model="openai:stand-in", base_url=truthful.url, api_key="none")
    for one in examples(12):
        assert generator.invoke(one.input).text == one.reference
    assert sum(truthful.received.values()) == 12
    named: Any = examples(1)[0].input
    content: Any = with_images(named)[0].content
    arrived = Image.open(io.BytesIO(base64.b64decode(content[0]["image_url"]["url"].partition(",")[2])))
    assert arrived.tobytes() == cut_part(*read_address(named[0]["content"][0]["image_url"]["url"])).tobytes()
    # The negative control: asked of another cutting, the same question is answered otherwise.
    image = {"type": "image_url", "image_url": {"url": address("cat.jpg", [0, 0, 50, 77])}}
    other = [HumanMessage([image, {"type": "text", "text": SIZE}])]
    assert generator.invoke(other).text == "50x77" != TRUTHS[SIZE](arrived)


@pytest.mark.long
def test_runnable_and_chat_model_accept_messages_with_images(
    ran: tuple[Path, str], truthful: StandIn
) -> None:
    from vision_run import make_chain

    artifact = CalibrationArtifact.load(ran[0] / "artifact.json")
    settings = [f"generator.arguments.base_url={truthful.url}"]
    parts = read_config(CONFIG, settings=settings).create_components()
    chain = make_chain(parts, artifact)
    asked = make_message(Image.new("RGB", (40, 25), (5, 5, 99)), SIZE)
    result = chain.invoke(asked)
    # All eight agree, and came in one request that held the image once.
    assert result.answers == ("40x25",)
    assert len(result.candidates) == 8
    assert sum(truthful.received.values()) == 1
    assert result.guarantee.binding == "matched"
    chat = CFCChatModel(chain=chain)
    said = chat.invoke(asked)
    assert said.text == "40x25"
    assert said.response_metadata["cfc"]["guarantee"]["artifact_digest"] == artifact.digest


def test_vision_truths_are_computed_from_pixels() -> None:
    from vision_chain import short_answer
    from vision_questions import TRUTHS, brighter_half, colour, shape, size

    image = Image.new("RGB", (60, 40), (200, 10, 10))
    assert (shape(image), size(image), colour(image)) == ("wide", "60x40", "red")
    assert shape(Image.new("RGB", (40, 60))) == "high"
    assert shape(Image.new("RGB", (40, 40))) == "square"
    image.paste((255, 255, 255), (0, 20, 60, 40))
    assert brighter_half(image) == "lower"
    assert brighter_half(image.rotate(180)) == "upper"
    assert len(TRUTHS) == 4
    assert {short_answer(text) for text in ("64x48", " 64 × 48.", "64 x 48")} == {"64x48"}
