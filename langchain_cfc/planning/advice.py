"""What a plan comes to, in sentences: only what the reader can act upon."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from langchain_cfc.planning.estimates import pilot_size_for
from langchain_cfc.planning.model import GroupPlan, Plan


def advise(plan: Plan) -> list[str]:
    """Sentences for people.

    Args:
        plan: A plan; its own advice is not read.

    Returns:
        Where the target is out of reach or close, what drives the number of prompts, what a larger pilot
        would tell; empty where nothing stands in the way.
    """
    return [*_obstacles(plan), *_largest_group(plan), *_larger_pilot(plan)]


def _obstacles(plan: Plan) -> Iterator[str]:
    for group in plan.groups:
        whole = group is plan.groups[0]
        then = "calibration would refuse it" if whole else "its prompts would be flagged as not certifiable"
        attained = f"n = {plan.n} candidates attain {_percent(group.attainable)} coverage"
        ways = _ways_out(plan, group)
        chance = group.certifiable_chance
        if group.verdict == "out of reach":
            yield (
                f"{group.name}: alpha = {plan.alpha:g} is out of reach, however many prompts are labelled, "
                f"and {then}: {attained}. {ways}"
            )
        elif chance is None:
            yield (
                f"{group.name}: by the estimate alpha = {plan.alpha:g} is out of reach, and {then}: "
                f"{attained}. {ways}"
            )
        elif chance < 1.0 - plan.delta:
            yield (
                f"{group.name}: alpha = {plan.alpha:g} is close: {attained}. With probability "
                f"{1.0 - chance:.2f} it is missed with {group.recommended_calibration} calibration prompts, "
                f"and {then}. {ways}"
            )


def _largest_group(plan: Plan) -> Iterator[str]:
    overall, *groups = plan.groups
    if plan.labelled_prompts is None or plan.labelled_prompts == overall.prompts_needed:
        return
    largest = max(groups, key=lambda group: group.prompts_needed or 0)
    yield (
        f"{largest.name} decides how many prompts to label: being {_percent(largest.share)} of them, it "
        f"needs {largest.prompts_needed} in all; without groups {overall.prompts_needed} would do. Merging "
        "rare groups makes it fewer."
    )


def _larger_pilot(plan: Plan) -> Iterator[str]:
    overall, *_ = plan.groups
    if overall.pilot_size is None:
        yield (
            f"The attainable coverage is an assumption: {pilot_size_for(overall.attainable)} labelled pilot "
            "prompts would tell it to within 5 points."
        )
        return
    needed = {
        group.name: size
        for group in plan.groups
        if group.verdict == "uncertain" and (size := _pilot_for(group)) > overall.pilot_size
    }
    if needed:
        yield (
            f"The pilot of {overall.pilot_size} prompts is too small to tell whether alpha = {plan.alpha:g} "
            f"is within reach for {_listed(list(needed))}; about {max(needed.values())} would tell the "
            "attainable coverage to within 5 points."
        )


def _pilot_for(group: GroupPlan) -> int:
    """Pilot prompts of all groups that tell this group's attainable coverage to within 5 points."""
    # Two successes and two failures are added (Agresti and Coull 1998): 1 of 1 is no reason to expect that
    # every prompt can be covered, for which 36 would do.
    size = group.pilot_size or 0
    return math.ceil(pilot_size_for((group.attainable * size + 2) / (size + 4)) / group.share)


def _ways_out(plan: Plan, group: GroupPlan) -> str:
    certain = group.smallest_alpha_certain
    alpha = group.smallest_alpha_expected if certain is None else certain
    more = "Draw more candidates"
    if group.smallest_n is not None and group.smallest_n > plan.n:
        more += f" (n = {group.smallest_n} exceeds the target by the estimate)"
    # Rounded up, for below the number itself the target is not attainable; 1000 * 0.07 is 70.00000000000001.
    larger = math.ceil(round(1000 * alpha, 6)) / 1000
    return f"{more}, improve the model, or choose alpha above {larger:g}."


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
