"""Fields of reports that programs may rely on."""

from __future__ import annotations

REPORT_FIELDS = {
    "alpha",
    "target_coverage",
    "n_calibration",
    "n_test",
    "n_candidates",
    "attainable_coverage",
    "methods",
}
GROUP_FIELDS = {
    "name",
    "n",
    "coverage",
    "kept_promise",
    "kept_promise_ci",
    "not_certifiable_rate",
    "mean_set_size",
}
METHOD_FIELDS = GROUP_FIELDS - {"name", "n"} | {"abstention_rate", "mean_distinct_answers", "groups"}
