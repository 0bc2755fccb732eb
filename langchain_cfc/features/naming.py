"""Human-readable names of groups and features: "very hard questions" for `hat(mean_score, 5)[4]`.

`explain()`, reports, monitor pages, tables of the command line and figures use them. Artifacts and JSON keep
the machine names.
"""

from __future__ import annotations

import re

_DECIMAL = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?")
_SOFT_WORDS = re.compile(r"prompts weighted.* how near their (.*) is to (.*?)(?: \(.*)?", re.DOTALL)
_CATEGORY_WORDS = re.compile(r"prompts whose (.*?) is (?:'(.*)'|(-?\d+|true|false))", re.DOTALL)
# Columns and weightings that place a prompt between easy and hard.
_DIFFICULTY_NAME = re.compile(
    r"(?P<kind>hat|bins|bernstein)\((?P<statistic>\w+), (?P<count>\d+)\)\[(?P<index>\d+)\]"
)
# Whether a larger statistic means a harder prompt.
_IS_HARDER = {
    "mean_score": True,
    "min_score": True,
    "max_score": True,
    "entropy": True,
    "distinct_answers": True,
    "top_share": False,
}
DIFFICULTIES = ("very easy", "easy", "medium", "hard", "very hard")


def name_difficulty(share: float) -> str:
    """Return the name of the fifth in which a share in [0, 1] lies, when prompts go from easy to hard."""
    return DIFFICULTIES[min(int(share * len(DIFFICULTIES)), len(DIFFICULTIES) - 1)]


def get_direction(statistic: str) -> bool | None:
    """Return whether a larger statistic means a harder prompt; None if it says nothing about difficulty."""
    return _IS_HARDER.get(statistic)


def place_question(features: dict[str, float]) -> str | None:
    """Return the difficulty of a prompt, by name, from its features; None if no feature measures it.

    Knots and cut-offs are quantiles of the fit split: knot i of K lies at the share i / (K - 1), and bin i of
    K holds the shares from i / K to (i + 1) / K.
    """
    for name in features:
        found = _DIFFICULTY_NAME.fullmatch(name)
        if found is not None and found["kind"] != "bernstein" and found["statistic"] in _IS_HARDER:
            term = name.rpartition("[")[0]
            values = [value for other, value in features.items() if other.startswith(f"{term}[")]
            place = sum(index * value for index, value in enumerate(values))
            return name_difficulty(_find_share(found, place, len(values)))
        if name.startswith("hard("):
            base = name.removesuffix("=easy").removesuffix("=hard")
            return "hard" if features[f"{base}=hard"] else "easy"
    return None


def separates_difficulty(name: str) -> bool:
    """Return whether the weighting of this name separates easy from hard prompts."""
    found = _DIFFICULTY_NAME.fullmatch(name)
    is_measured = found is not None and found["statistic"] in _IS_HARDER
    # Stated coverages are a function of the mean score.
    return is_measured or name.startswith(("hard(", "stated_coverage["))


def name_group(words: str, name: str = "", digits: int | None = 4) -> str:
    """Name a group for a table or a sentence.

    Args:
        words: The words of the weighting.
        name: Its machine name; without one, difficulties are described by their numbers.
        digits: Significant digits to which decimal numbers are rounded; None keeps all digits.

    Returns:
        A name such as `very hard questions` or `topic: capital`; else the words, shortened.

    Examples:
        >>> name_group("prompts whose mean score is at least 0.9", "bins(mean_score, 5)[4]")
        'very hard questions'
        >>> name_group("prompts whose topic is 'capital'")
        'topic: capital'
        >>> name_group("prompts whose mean score is below 0.123456")
        'mean score is below 0.1235'
    """
    difficulty = _name_difficulty_group(words, name)
    if difficulty is not None:
        return difficulty
    category = _CATEGORY_WORDS.fullmatch(words)
    if category:
        return f"{category[1]}: {category[2] if category[2] is not None else category[3]}"
    return describe_group(words, digits)


def describe_group(words: str, digits: int | None = 4) -> str:
    """Describe a group by its bounds: the words without "prompts whose" and without details of softness."""
    if digits is not None:
        words = _DECIMAL.sub(lambda found: f"{float(found[0]):.{digits}g}", words)
    soft = _SOFT_WORDS.fullmatch(words)
    if soft:
        return f"{soft[1]} near {soft[2]} (soft)"
    return words.removeprefix("prompts ").removeprefix("whose ")


def _name_difficulty_group(words: str, name: str) -> str | None:
    """Name a group of prompts of similar difficulty; None for other groups, or if five names are too few."""
    if name.startswith("hard("):
        return f"{name.rpartition('=')[2]} questions"
    found = _DIFFICULTY_NAME.fullmatch(name)
    if found is None or found["statistic"] not in _IS_HARDER:
        return None
    groups = int(found["count"]) + (found["kind"] == "bernstein")
    if groups > len(DIFFICULTIES):
        return None
    # Ties may have left fewer groups than asked for; the words of the last one say so.
    is_last = " or more" in words or " is at least " in words
    share = _find_share(found, groups - 1 if is_last else int(found["index"]), groups)
    by = "" if found["statistic"] == "mean_score" else f" (by {found['statistic'].replace('_', ' ')})"
    return f"{name_difficulty(share)} questions{by}"


def _find_share(found: re.Match[str], place: float, groups: int) -> float:
    share = (place + 0.5) / groups if found["kind"] == "bins" else place / (groups - 1)
    return share if _IS_HARDER[found["statistic"]] else 1.0 - share
