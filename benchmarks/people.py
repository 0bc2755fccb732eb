"""How many labels of people a judge saves, and how often what is certified is false.

    python benchmarks/people.py --page benchmarks/PEOPLE.md

Simulated prompts, of which a judge labels all and people a random tenth, from the top of a sheet, until the
target is certified. The same bound without a judge has people label every prompt.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# A script finds only modules of its own folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.lib.judged_world import DELTA, World, count_labels

TARGET = 0.75
JUDGE_ACCURACIES = (0.5, 0.6, 0.75, 0.9, 0.95)
RATES = (0.8, 0.85, 0.9)
SHARE = 0.1
PROMPTS = 15_000


def make_page(sequences: int) -> Iterator[str]:
    """Yield the lines of the page."""
    yield f"""# What a judge saves people

Written by `benchmarks/people.py`; do not edit. {sequences} sequences in each row, simulated by
`benchmarks/lib/judged_world.py`: the promise is kept on the true share of prompts and is to be certified at
{TARGET:.0%}, with confidence {1 - DELTA:.0%}. A judge labels all prompts. Three in ten are hard, and a
*biased* judge makes four fifths of its mistakes there, where it calls broken promises kept. People label
about {SHARE:.0%} of the prompts, and stop as soon as the target is certified. *Labels* are theirs, on
average; *alone* is the same bound without a judge, with every prompt labelled.

| truly kept | judge right | biased | labels | alone | labels / alone |
| --- | --- | --- | --- | --- | --- |"""
    for rate in RATES:
        alone, _ = count_labels(
            World(rate, 0.5), TARGET, sequences=sequences, prompts=5_000, labels="people", seed=1
        )
        for right in JUDGE_ACCURACIES:
            for biased in (False, True) if right > JUDGE_ACCURACIES[0] else (False,):
                spent, certified = count_labels(
                    World(rate, right, biased),
                    TARGET,
                    sequences=sequences,
                    prompts=PROMPTS,
                    share=SHARE,
                    seed=2,
                )
                at_least = "" if certified.all() else "over "
                judge = f"{rate:.0%} | {right:.0%} | {'yes' if biased else 'no'}"
                figures = f"{alone.mean():.0f} | {at_least}{spent.mean() / alone.mean():.2f}"
                yield f"| {judge} | {at_least}{spent.mean():.0f} | {figures} |"
    yield f"""
A judge that guesses costs a few labels, and so does a bias, which costs nothing else. *Over*: not every
sequence was certified within {PROMPTS:,} prompts, and those count with the labels spent by then. Where the
true share lies far above the target, few labels are needed at all, and a judge that errs as often as the
promise is broken saves little.

False certificates, after any of 600 prompts, where the truth is 74.9% and people label three tenths:

| judge right | biased | false of {sequences} |
| --- | --- | --- |"""
    for right in JUDGE_ACCURACIES[1:]:
        for biased in (False, True):
            world = World(TARGET - 0.001, right, biased)
            _, false = count_labels(world, TARGET, sequences=sequences, prompts=600, share=0.3, seed=3)
            yield f"| {right:.0%} | {'yes' if biased else 'no'} | {false.sum()} |"
    _, control = count_labels(
        World(TARGET - 0.001, 0.8, biased=True),
        TARGET,
        sequences=sequences,
        prompts=600,
        share=0.3,
        labels="judge as people",
        seed=3,
    )
    yield f"| 80%, its labels counted as people's (control) | yes | {control.sum()} |"
    yield f"""
At most {DELTA:.0%} may be false, whenever people stop; `test_people_law.py` tests it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the page, or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sequences", type=int, default=1000, help="simulated sequences in each row")
    parser.add_argument("--page", type=Path, help="where to write the page; it is printed without")
    options = parser.parse_args(arguments)
    text = "\n".join(make_page(options.sequences)) + "\n"
    if options.page is None:
        sys.stdout.write(text)
    else:
        options.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
