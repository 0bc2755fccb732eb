"""Every statement of the paper as rows of a table: where it is in the code, its test, and the verdict.

`reproduce.py` puts it into `reproduction.md`; `tests/paper/test_statements.py` checks that files and tests
exist.
"""

from __future__ import annotations

from typing import TypeAlias

# What the paper states, where the code has it (below `langchain_cfc/`), the test that holds it (below
# `tests/`), and the verdict.
Row: TypeAlias = tuple[str, str, str, str]

_SYNTHETIC = "paper/test_synthetic_experiment.py::test_two_hundred_seeds_reach_every_target"
_PATTERNS = "paper/test_studies.py::test_patterns_are_what_the_tables_say"
_NO_DATA = "not reproducible here: neither its models' answers nor their scores are published; "
_MONTE_CARLO = "guarantees/test_monte_carlo.py"

STATEMENTS: tuple[Row, ...] = (
    (
        "Definition, conformal factuality: candidates, score V, correctness A",
        "records/schema.py",
        f"{_MONTE_CARLO}::test_the_promise_holds_under_every_guaranteed_weighting",
        'a definition; the event that is promised here is "covered, or flagged as not certifiable"',
    ),
    (
        "Definition, success score S; a set covers if and only if S <= threshold",
        "set_rules.py",
        "set_rules/test_set_rules.py::test_a_correct_candidate_is_accepted_iff_the_success_score_is_reached",
        "holds if S is above every threshold where no candidate is correct",
    ),
    (
        "Appendix C: S = 1 where no candidate is correct",
        "experiments/methods.py",
        f"{_MONTE_CARLO}::test_hopeless_prompts_called_covered_at_one_break_the_promise",
        "false: {S <= 1} is then true without a correct answer. Used for its tables only",
    ),
    (
        "Equations of split conformal prediction (ICP), Section 3.2 and Appendix A",
        "thresholds/order_statistics.py",
        f"{_MONTE_CARLO}::test_covered_prompts_follow_the_beta_binomial_law",
        "holds; ranks need exact fractions",
    ),
    (
        "Pointwise conditional coverage is impossible in finite samples",
        "",
        "",
        "cited, not used",
    ),
    (
        "Function-class coverage with equality, E[f (1{covered} - (1 - alpha))] = 0",
        "thresholds/conditional.py",
        "guarantees/test_exactness.py::test_randomised_coverage_is_exact_under_every_weighting",
        "holds with a condition: equality needs randomised ties, else coverage lies up to d / (N + 1) above",
    ),
    (
        "Augmented quantile regression, and the fixed point as its threshold, Section 4.1",
        "thresholds/conditional.py",
        "thresholds/test_conditional.py::test_score_and_augmented_fit_cross_at_the_threshold",
        "holds with a condition: minimisers are not unique, and the smallest fitted value is to be taken",
    ),
    (
        "No grid of candidate scores is needed",
        "thresholds/conditional.py",
        "thresholds/test_conditional.py::test_agrees_with_the_dual_linear_programme",
        "holds: one linear programme, whose right-hand side is all that a prompt changes",
    ),
    (
        "Algorithm 1, CFC inference",
        "runnable/serving.py",
        "thresholds/test_conditional.py::test_agrees_with_bisection_of_the_definition",
        "holds",
    ),
    (
        "Theorem 4.1, conditional coverage of CFC; Theorem A.1 (Gibbs et al., Theorem 2)",
        "thresholds/conditional.py",
        "thresholds/test_coverage.py::test_the_conditional_threshold_keeps_its_promise_under_every_weighting",
        "holds with conditions: features fitted on other prompts than those that calibrate, and S as above",
    ),
    (
        "Appendix C: ranks and cut-offs fitted on the calibration prompts",
        "features/terms.py",
        f"{_MONTE_CARLO}::test_a_map_fitted_on_the_calibration_prompts_breaks_the_promise",
        "breaks the exchangeability of Theorem 4.1: counter-example",
    ),
    (
        "Section 5.2: the set truncated after its best candidate (CFC)",
        "set_rules.py",
        f"{_MONTE_CARLO}::test_a_truncated_set_keeps_the_promise_only_if_it_is_calibrated_as_truncated",
        "outside Theorem 4.1: counter-example; repaired by calibrating the truncated set's own score",
    ),
    (
        "Sections 5.1 and 5.2: bins of T as the groups that [1, T, T^2] covers",
        "features/terms.py",
        "features/test_weights.py::test_without_clipping_a_bernstein_polynomial_turns_negative",
        "not covered: bins are not in the span of [1, T, T^2]; the maps `bins` and `hat` are for that",
    ),
    (
        "Theorem 4.2, PAC coverage of CFC-PAC",
        "guarantee/stability.py",
        "test_stability.py::test_the_claim_is_false_where_all_its_assumptions_hold",
        "false: counter-example with all assumptions met. What holds instead: [guarantees](guarantees.md)",
    ),
    (
        "Algorithm 2, CFC-PAC inference",
        "guarantee/stability.py",
        "test_stability.py::test_the_slack_of_the_papers_tables_gives_their_coverage",
        "a labelled heuristic; its tables use the constant 1 and no ridge",
    ),
    (
        "Section 4.3: E|C| = M E[G_X(threshold)]",
        "experiments/efficiency_world.py",
        "paper/test_efficiency.py::test_simulated_sizes_are_those_of_the_integral",
        "holds; where T is made of the candidates, G is to be read given T",
    ),
    (
        "Section 4.3: q(t) does not fall in t",
        "experiments/efficiency_world.py",
        "paper/test_efficiency.py::test_quantiles_rise_with_difficulty_where_coverage_falls",
        "holds, by (1) and (2)",
    ),
    (
        "Assumption 1, F_t continuous and strictly increasing on [0, 1]",
        "experiments/efficiency_world.py",
        "paper/test_efficiency.py::test_what_becomes_of_it_where_one_is_broken",
        "excludes prompts without a correct candidate; needed for strictness, not for the inequality",
    ),
    (
        "Assumptions 2 and 4",
        "experiments/efficiency_world.py",
        "paper/test_efficiency.py::test_costs_that_fall_for_every_coverage_leave_no_room",
        "both are needed, (4) at u = 1 - alpha only; for every u it leaves one cost curve C for all t",
    ),
    (
        "Assumption 3, C_t convex and differentiable",
        "experiments/efficiency_world.py",
        "paper/test_efficiency.py::test_what_becomes_of_it_where_one_is_broken",
        "convexity is needed: counter-example without; differentiability is not",
    ),
    (
        "Proposition 4.3, oracle efficiency, and its strict case",
        "experiments/efficiency.py",
        "paper/test_efficiency.py::test_the_inequality_holds_strictly_where_all_assumptions_do",
        "holds if the oracle conditions on T alone",
    ),
    (
        "Proposition 4.3 as printed, with the oracle F_X^-1(1 - alpha)",
        "experiments/efficiency.py",
        "paper/test_efficiency.py::test_an_oracle_that_knows_more_than_the_difficulty_breaks_the_proposition",
        "false: counter-example with all four assumptions met by T",
    ),
    (
        "Theorem 4.4, CFC inherits oracle efficiency",
        "experiments/efficiency.py",
        "paper/test_efficiency.py::test_the_learned_rule_approaches_the_oracle_as_quantile_regressions_do",
        "holds with a condition: its uniform consistency needs q in the span of the features",
    ),
    (
        "Abstract: under mild assumptions the conditional rule's sets are smaller",
        "experiments/efficiency_recordings.py",
        "paper/test_efficiency_recordings.py::test_on_the_shipped_recording_the_conditional_sets_are_larger",
        "not in general: larger in its own table from alpha = 0.15 on, and on every recording here",
    ),
    (
        "Figure 1, illustration",
        "",
        "",
        "nothing to reproduce; [how it works](how-it-works.md) draws it with data",
    ),
    (
        "Figures 2, 3, 5 and 6; Tables 1 and 7, synthetic data",
        "experiments/paper.py",
        _SYNTHETIC,
        "reproduced within band: 116 of 120 cells, with a generator that is not the authors'",
    ),
    (
        "Table 8, synthetic ablation",
        "experiments/paper.py",
        _SYNTHETIC,
        "reproduced within band: 36 of 36 cells",
    ),
    (
        "Section 5.1: TopK keeps the smallest K that reaches the target",
        "experiments/methods.py",
        "comparison/test_methods.py::test_both_readings_of_top_k",
        "false of its tables, which have the nearest K; both readings are there",
    ),
    (
        "Section 5.1: exact correction, not the fit, makes CFC better than Learnt CP",
        "experiments/paper.py",
        "paper/test_synthetic_experiment.py::test_learnt_cp_is_the_quantile_regression_that_a_solver_finds",
        "not shown: its Learnt CP has another basis. Plain quantiles in CFC's ten bins give CFC's figures",
    ),
    ("Tables 2 and 9, Figure 4, TriviaQA", "experiments/studies.py", _PATTERNS, _NO_DATA + "patterns above"),
    (
        "Table 3, TriviaQA feature maps",
        "experiments/studies.py",
        "paper/test_conventions.py::test_the_hard_group_by_hand",
        _NO_DATA + "each map by name, held against a hand-computed example",
    ),
    (
        "Set sizes on TriviaQA below two",
        "experiments/studies.py",
        "paper/test_conventions.py::test_the_papers_icp_sizes_are_those_of_distinct_answers",
        "sizes count distinct answers, which the paper does not say",
    ),
    ("Tables 4 and 10, Figure 4, GSM8K", "experiments/studies.py", _PATTERNS, _NO_DATA + "patterns above"),
    (
        "Tables 5 and 11, GSM8K budgets of 5 and 20",
        "experiments/studies.py",
        "paper/test_studies.py::test_budgets_are_cut_to_what_was_recorded",
        _NO_DATA + "the protocol runs on records with 20 candidates",
    ),
    (
        "Tables 6, 12 and 13, Figure 4, Flickr8k",
        "experiments/studies.py",
        "paper/test_collections.py::test_a_dry_run_reads_the_dataset_and_makes_every_part",
        _NO_DATA + "the collection and the protocol are configured",
    ),
    (
        "All tables, digit for digit",
        "experiments/published.json",
        "paper/test_published.py::test_a_table_is_complete_and_nothing_stands_twice",
        "carried over; one cell contradicts itself (Learnt CP, GSC, alpha = 0.2: 1.6 and 1.5)",
    ),
)
