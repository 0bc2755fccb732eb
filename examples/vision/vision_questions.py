"""Questions about random cuttings of five photographs, whose answers the pixels themselves say.

    python vision_questions.py questions.jsonl     write them as an evaluation dataset

A question is one human message that names an image by its address and does not hold it, so datasets, stores
and records stay small; `vision_chain` puts the image in when the model is asked. All cuttings and questions
are drawn independently by a generator with a fixed seed: prompts like these are random cuttings of these
photographs, and no others.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageStat

from langchain_cfc.records import Example

PHOTOS = Path(__file__).with_name("photos")
SMALLEST, LARGEST = 48, 128  # pixels along each side of a cutting
COLOURS = ("red", "green", "blue")

# A file in `photos` and a part of it as a media fragment: left, upper, width and height in pixels.
_ADDRESS = re.compile(r"photo:(\w+\.jpg)#xywh=(\d+),(\d+),(\d+),(\d+)")


def shape(image: Image.Image) -> str:
    """Whether it is wider than high, higher than wide, or neither."""
    width, height = image.size
    return "square" if width == height else "wide" if width > height else "high"


def size(image: Image.Image) -> str:
    """Width and height in pixels, such as `120x80`."""
    return "{}x{}".format(*image.size)


def colour(image: Image.Image) -> str:
    """The strongest of red, green and blue on average; the first of equals."""
    means = ImageStat.Stat(image.convert("RGB")).mean
    return COLOURS[means.index(max(means))]


def brighter_half(image: Image.Image) -> str:
    """Which half is brighter on average, the upper or the lower."""
    grey = image.convert("L")
    width, height = grey.size
    upper, lower = grey.crop((0, 0, width, height // 2)), grey.crop((0, height // 2, width, height))
    return "upper" if ImageStat.Stat(upper).mean[0] >= ImageStat.Stat(lower).mean[0] else "lower"


# What is asked, and who knows the answer.
TRUTHS: dict[str, Callable[[Image.Image], str]] = {
    "Is this image wide, high or square? Answer with one word.": shape,
    "How many pixels wide and high is this image? Answer like 640x480.": size,
    "Which is the strongest colour on average: red, green or blue? Answer with one word.": colour,
    "Which half is brighter, the upper or the lower? Answer with one word.": brighter_half,
}


def cut_part(photo: str, box: Sequence[int]) -> Image.Image:
    """Cut a part out of a photograph.

    Args:
        photo: Name of a file in `photos`.
        box: Left, upper, right and lower edge in pixels.

    Returns:
        The part.
    """
    with Image.open(PHOTOS / photo) as whole:
        left, upper, right, lower = box
        return whole.convert("RGB").crop((left, upper, right, lower))


def address(photo: str, box: Sequence[int]) -> str:
    """Return the address of a part of a photograph, such as `photo:cat.jpg#xywh=0,20,60,80`.

    Args:
        photo: Name of a file in `photos`.
        box: Left, upper, right and lower edge in pixels.

    Returns:
        The address.
    """
    left, upper, right, lower = box
    return f"photo:{photo}#xywh={left},{upper},{right - left},{lower - upper}"


def read_address(url: str) -> tuple[str, list[int]]:
    """Return the photograph and the box that an address names.

    Args:
        url: An address in the form that `address` gives it.

    Returns:
        Name of a file in `photos`, and left, upper, right and lower edge in pixels.

    Raises:
        ValueError: If it has another form; files outside of `photos` have no address.
    """
    found = _ADDRESS.fullmatch(url)
    if found is None:
        msg = f"{url!r} is no address of a photograph; expected one such as 'photo:cat.jpg#xywh=0,20,60,80'"
        raise ValueError(msg)
    left, upper, width, height = map(int, found.groups()[1:])
    return found[1], [left, upper, left + width, upper + height]


def examples(count: int, seed: int = 0) -> list[Example]:
    """Make questions about photographs with their answers.

    Args:
        count: How many.
        seed: Another seed gives other questions.

    Returns:
        The dataset; each input is a list of one human message with an address and a question.
    """
    chance = random.Random(seed)  # noqa: S311 - a dataset, no secret
    photos = sorted(path.name for path in PHOTOS.glob("*.jpg"))
    return [_example(number, chance, photos) for number in range(count)]


def _example(number: int, chance: random.Random, photos: Sequence[str]) -> Example:
    photo, question = chance.choice(photos), chance.choice(list(TRUTHS))
    with Image.open(PHOTOS / photo) as whole:
        limits = whole.size
    sides = [chance.randint(SMALLEST, LARGEST) for _ in limits]
    left, upper = (chance.randint(0, limit - side) for limit, side in zip(limits, sides, strict=True))
    box = [left, upper, left + sides[0], upper + sides[1]]
    return Example(
        id=f"cutting-{number:04d}",
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": address(photo, box)}},
                    {"type": "text", "text": question},
                ],
            }
        ],
        reference=TRUTHS[question](cut_part(photo, box)),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the dataset of questions to a file."""
    parser = argparse.ArgumentParser(description="Write questions about cuttings of photographs.")
    parser.add_argument("file", type=Path, help="JSON Lines, to be written")
    parser.add_argument("--count", type=int, default=400, help="how many questions (%(default)s)")
    options = parser.parse_args(arguments)
    lines = [one.model_dump_json(exclude_defaults=True) + "\n" for one in examples(options.count)]
    options.file.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
