from __future__ import annotations

import json
import logging
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from langchain_cfc import CalibrationArtifact, calibrate, evaluate, read_records
from langchain_cfc.certificates import verification
from langchain_cfc.cli import demo as demo_command
from langchain_cfc.cli import main
from langchain_cfc.demo import load_recording, run_demo
from langchain_cfc.errors import MissingExtraError
from langchain_cfc.guarantee import PaperPAC
from langchain_cfc.records import write_records
from tests.claims import chains as claims
from tests.cli.running import Ran, run
from tests.evaluation.fields import GROUP_FIELDS, REPORT_FIELDS
from tests.recordings import list_facts

COMMANDS = ["demo", "calibrate", "certify", "evaluate", "inspect", "ask"]
FEATURES = "hard(mean_score, 0.8) + group(topic)"
# Of the recorded questions, one that is answered and one that is not.
PERU, PRODUCT = "What is the capital of Peru?", "787 * 967"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording as a user's file."""
    path = tmp_path_factory.mktemp("records") / "facts.jsonl"
    write_records(path, load_recording())
    return path


@pytest.fixture(scope="module")
def artifact(records: Path) -> Path:
    path = records.parent / "artifact.json"
    options = ["--alpha", "0.2", "--features", FEATURES, "--set-rule", "unique", "--test-fraction", "0.5"]
    assert run("calibrate", records, "-o", path, *options).code == 0
    return path


@pytest.fixture(scope="module", autouse=True)
def cached_demos() -> Iterator[None]:
    """Run the demo once for each seed, since it takes seconds, and write its artifact every time."""

    made: dict[str, Any] = {}

    def run_or_remember(seed: str, out: Path, progress: Any) -> Any:
        if seed not in made:
            made[seed] = run_demo(seed, out, progress)
        made[seed].sets.save(out)
        made[seed].bot.save(out.with_name("bot.json"))
        return made[seed]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_command, "run_demo", run_or_remember)
        yield


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    path = tmp_path_factory.mktemp("demo") / "new folder" / "artifact.json"
    return run("demo", "--json", "--out", path), path


def test_demo_reports_a_kept_promise_overall_and_on_every_group(demo: tuple[Ran, Path]) -> None:
    ran, path = demo
    report = ran.data
    assert ran.code == 0
    assert ran.err == ""
    assert set(report) >= REPORT_FIELDS
    conditional = report["methods"]["conditional"]
    assert conditional["kept_promise_ci"][1] >= report["target_coverage"] == 0.8
    assert len(conditional["groups"]) == 13
    for group in conditional["groups"]:
        assert set(group) >= GROUP_FIELDS
        assert group["kept_promise_ci"][1] >= 0.8, group
    assert report["contradicted"] == []
    assert ["hard questions (smallest alpha" in note for note in report["notes"]] == [True]
    assert CalibrationArtifact.load(path).digest == report["artifact_digest"]


def test_readme_table_equals_the_figures_of_demo(demo: tuple[Ran, Path]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    seen = demo[0].data
    rows = [
        ("the model alone: its first answer", 1.0, seen["plain"]["wrong_rate"]),
        ("the model alone: of ten answers the likeliest", 1.0, seen["plain"]["best_wrong_rate"]),
    ]
    rows += [
        (f"certified: at most {one['max_wrong_rate']:.0%} wrong", one["answered_rate"], one["wrong_rate"])
        for one in reversed(seen["answers"])
    ]
    for name, answered, wrong in rows:
        assert f"| {name.replace('%', ' %')} | {round(100 * answered)} % | {100 * wrong:.1f} % |" in readme
    assert f"on {seen['n_test']} questions not used to calibrate" in readme


def test_demo_shows_that_the_marginal_rule_fails_on_the_hardest_fifth(demo: tuple[Ran, Path]) -> None:
    groups = {group["name"]: group for group in demo[0].data["methods"]["marginal"]["groups"]}
    assert groups["hard(mean_score, 0.8)=hard"]["kept_promise_ci"][1] < 0.8


def test_demo_output_fits_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = Path(sys.executable).with_name("langchain-cfc")
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", str(program.parent))
    ran = run("demo")
    assert ran.code == 0
    assert str(program) not in ran.out
    lines = ran.out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.startswith(("the model alone", "bot, at most"))]
    assert [row.split("  ")[0] for row in rows] == [
        "the model alone, its first answer",
        "the model alone, its likeliest answer",
        "bot, at most 10 % wrong",
        "bot, at most 5 % wrong",
    ]
    assert sum(line.rstrip().endswith("agree)") for line in lines) == 3
    assert ran.out.count("abstained: ") == 2
    # The commands to go on with work as printed.
    commands = ran.out.partition("Next, ")[2].replace("\\\n", " ").splitlines()
    asked, *inspected = (shlex.split(line)[1:] for line in commands if "langchain-cfc" in line)
    assert run(*asked).code == 0
    of_bot, of_sets = (" ".join(run(*one).out.split()) for one in inspected)
    assert "at most 5 %" in of_bot
    assert "the answer set holds a correct answer" in of_sets


def test_demo_reports_the_figures_of_its_bot_artifact(demo: tuple[Ran, Path]) -> None:
    report, artifact = demo[0].data, CalibrationArtifact.load(demo[0].data["bot_artifact"])
    assert Path(report["bot_artifact"]).parent == demo[1].parent
    by_rate = {one["max_wrong_rate"]: one for one in report["answers"]}
    assert list(by_rate) == [0.05, 0.1]
    # As `evaluate` measures it from the files; the model alone by its first candidates.
    records = list_facts()
    found = evaluate(artifact, records, provenance=load_recording().provenance)
    assert [one.model_dump(mode="json") for one in found.answers] == list(by_rate.values())
    split = artifact.calibration.split
    held_out = [one for one in records if split.find_part(one.id, one.cluster) == "test"]
    assert len(held_out) == report["n_test"]
    wrong = sum(not one.candidates[0].correct for one in held_out)
    best = sum(not min(one.candidates, key=lambda it: it.score).correct for one in held_out)
    assert report["plain"] == {
        "wrong": wrong,
        "wrong_rate": wrong / len(held_out),
        "best_wrong": best,
        "best_wrong_rate": best / len(held_out),
    }


def test_ask_uses_the_bot_if_sets_have_no_promise(demo: tuple[Ran, Path]) -> None:
    bot = demo[0].data["bot_artifact"]
    strict = ("--replay", "demo", "--max-wrong-rate", "0.05")
    ran = run("ask", bot, PRODUCT, *strict, "--json")
    assert (ran.code, ran.data["reason"]) == (1, "mean_score_too_high")
    assert ran.data["guarantee"]["wrong_answers"]["max_wrong_rate"] == "0.05"
    # Of two certified rates one is chosen before the question.
    run("ask", bot, PRODUCT, "--replay", "demo").assert_refused(
        "several promises (--max-wrong-rate 0.05, --max-wrong-rate 0.1)"
    )
    # Nothing is promised about its sets.
    run("ask", bot, PRODUCT, "--replay", "demo", "--alpha", "0.05").assert_refused("calibrated without alpha")
    # Where an artifact promises something about sets, these are what it answers with.
    assert (
        run("ask", demo[1], "36 + 503", "--replay", "demo", "--json").data["guarantee"]["wrong_answers"]
        is None
    )


def test_demo_refuses_to_write_two_artifacts_to_one_file(tmp_path: Path) -> None:
    run("demo", "--out", tmp_path / "bot.json").assert_refused("give --out another name")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_demo_with_another_seed_uses_another_split(demo: tuple[Ran, Path], tmp_path: Path) -> None:
    other = run("demo", "--json", "--out", tmp_path / "a.json", "--seed", "1")
    assert other.data["n_test"] != demo[0].data["n_test"]


def test_calibrate_prints_facts_and_json_alike(records: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    levels = ("--alpha", "0.3", "--alpha", "0.2")
    ran = run("calibrate", records, "-o", path, *levels, "--draws", "fixed(5)", "--json")
    assert ran.code == 0
    assert ran.data["alphas"] == ["0.2", "0.3"]
    assert ran.data["n"] == 5
    assert ran.data["digest"] == CalibrationArtifact.load(path).digest
    assert [promise["alpha"] for promise in ran.data["guarantees"]] == ["0.2", "0.3"]
    readable = run("calibrate", records, "-o", path, "--alpha", "0.2").out
    assert "10 per question" in " ".join(readable.split())
    assert "smallest alpha" in readable


def test_calibrate_notes_groups_out_of_reach_on_standard_error(records: Path, tmp_path: Path) -> None:
    ran = run(
        "calibrate", records, "-o", tmp_path / "a.json", "--alpha", "0.2", "--features", FEATURES, "--json"
    )
    assert ran.code == 0
    assert "note:" in ran.err
    assert "The worst is hard questions" in ran.err
    assert "note:" not in ran.out


def test_calibrate_exits_with_1_if_alpha_is_out_of_reach(records: Path, tmp_path: Path) -> None:
    ran = run("calibrate", records, "-o", tmp_path / "a.json", "--alpha", "0.05")
    assert ran.code == 1
    assert "alpha = 0.05 is out of reach" in ran.err
    assert list(tmp_path.iterdir()) == []
    shortest = ran.err.partition("allow more: ")[2].replace(",", "").split()[:2]
    assert shortest[0] == "--alpha"
    assert run("calibrate", records, "-o", tmp_path / "a.json", *shortest).code == 0


def write_changed(records: Path, path: Path, change: Callable[[int, dict[str, Any]], None]) -> Path:
    """Write records to another file after changing each of them, which are numbered from 1."""
    lines = records.read_text().splitlines()
    for number, line in enumerate(lines[1:], start=1):
        record = json.loads(line)
        change(number, record)
        lines[number] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_calibrate_notes_scores_that_point_the_wrong_way(records: Path, tmp_path: Path) -> None:
    def invert(_: int, record: dict[str, Any]) -> None:
        for candidate in record["candidates"]:
            candidate["score"] = 1.0 - candidate["score"]

    path = write_changed(records, tmp_path / "confidence.jsonl", invert)
    options: list[str | Path] = ["-o", tmp_path / "a.json", "--alpha", "0.2", "--features", "1"]
    ran = run("calibrate", path, *options)
    assert ran.code == 0
    assert "note: correct candidates score worse than wrong ones: AUROC" in " ".join(ran.err.split())
    assert run("calibrate", records, *options).err == ""


def test_evaluate_uses_the_held_out_part_of_the_same_file(artifact: Path, records: Path) -> None:
    ran = run("evaluate", artifact, records, "--json")
    assert ran.code == 0
    held_out = CalibrationArtifact.load(artifact).calibration.held_out_size
    assert ran.data["n_test"] == held_out
    assert "held out" in ran.data["test_prompts"]
    readable = run("evaluate", artifact, records)
    assert readable.code == 0
    assert "all questions" in readable.out
    assert "Consistent with the promise: kept for " in readable.out


def test_evaluate_refuses_calibration_records_without_a_held_out_part(records: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    run("calibrate", records, "-o", path, "--alpha", "0.2")
    run("evaluate", path, records).assert_refused("calibrated on")


def test_evaluate_exits_with_1_if_the_promise_is_broken(
    artifact: Path, records: Path, tmp_path: Path
) -> None:
    """With labels set to wrong in nine of ten records, the promise does not hold."""

    def spoil(number: int, record: dict[str, Any]) -> None:
        record["id"] = f"new-{record['id']}"
        for candidate in record["candidates"]:
            candidate["correct"] &= number % 10 == 0

    spoiled = write_changed(records, tmp_path / "spoiled.jsonl", spoil)
    ran = run("evaluate", artifact, spoiled, "--json")
    assert ran.code == 1
    assert "1" in ran.data["contradicted"]


def test_inspect_prints_the_guarantee(artifact: Path) -> None:
    ran = run("inspect", artifact)
    assert ran.code == 0
    flat = " ".join(ran.out.split())
    assert "With probability at least 80 %" in flat
    assert "Nothing is promised after drift" not in flat
    assert "Nothing is promised after drift" in " ".join(run("inspect", artifact, "--details").out.split())
    assert run("inspect", artifact, "--json").data["guarantees"][0]["kind"] == "conditional"


def test_inspect_verify_confirms_thresholds_by_other_solvers(artifact: Path) -> None:
    ran = run("inspect", artifact, "--verify", "--prompts", "5")
    assert ran.code == 0
    assert "agree" in ran.out
    [level] = run("inspect", artifact, "--verify", "--prompts", "5", "--json").data["verification"]
    assert level["prompts"] == 6
    assert level["largest_difference"] < 1e-9


def test_inspect_verify_json_contains_no_solver_output(artifact: Path) -> None:
    # HiGHS 1.16 prints a banner from compiled code, past `sys.stdout`.
    command = [sys.executable, "-c", "from langchain_cfc.cli import main; main()", "inspect", str(artifact)]
    ran = subprocess.run([*command, "--verify", "--prompts", "1", "--json"], capture_output=True, check=True)
    assert len(json.loads(ran.stdout)["verification"]) == 1


def test_inspect_verify_exits_with_1_if_solvers_contradict(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = verification.verify

    def contradicting(*args: Any, **options: Any) -> list[verification.LevelVerification]:
        return [replace(level, contradicted=2) for level in honest(*args, **options)]

    monkeypatch.setattr(verification, "verify", contradicting)
    ran = run("inspect", artifact, "--verify", "--prompts", "2")
    assert ran.code == 1
    assert "2 contradicted" in ran.out
    assert "another solver contradicts" in ran.err


def test_inspect_refuses_a_changed_file(artifact: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "a.json"
    damaged.write_text(artifact.read_text().replace('"n": 10', '"n": 9'))
    run("inspect", damaged).assert_refused("does not match its digest")


def test_ask_answers_or_abstains_with_its_exit_code(artifact: Path) -> None:
    yes = run("ask", artifact, PERU, "--replay", "demo")
    assert yes.code == 0
    assert "answers agree; " in yes.out
    no = run("ask", artifact, PRODUCT, "--replay", "demo", "--show-rejected")
    assert no.code == 1
    assert "No answer, because" in " ".join(no.out.split())


def test_ask_imports_parts_from_a_module_of_the_user(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "capitals_bot.py").write_text(
        "from langchain_core.language_models import FakeListChatModel\n"
        "def model():\n    return FakeListChatModel(responses=['Lima'])\n"
        "def judge(prompt, candidates):\n    return [0.001] * len(candidates)\n"
    )
    monkeypatch.chdir(tmp_path)
    lines = records.read_text().splitlines(keepends=True)[1:]
    Path("unbound.jsonl").write_text("".join(lines))
    assert run("calibrate", "unbound.jsonl", "--alpha", "0.2").code == 0
    parts = ["--generator", "capitals_bot:model", "--verifier", "capitals_bot:judge"]
    ran = run("ask", "artifact.json", "What is the capital of Peru?", *parts, "--json")
    assert ran.data["best"] == "Lima"
    assert ran.data["guarantee"]["binding"] == "unbound"


def test_ask_prints_the_kept_claims_of_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    claims.make_artifact(provenance=None).save(Path("claims.json"))
    (tmp_path / "claiming_bot.py").write_text(
        "from tests.claims.chains import ANSWER, verify\n"
        "from tests.fakes import ScriptedModel\n"
        "def model():\n    return ScriptedModel(texts=[ANSWER] * 4)\n"
        "def judge():\n    return verify\n"
    )
    named = ["--generator", "claiming_bot:model", "--verifier", "claiming_bot:judge"]
    ran = run("ask", "claims.json", "What is Lima?", *named)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(claims.LEFT)
    assert "  + 0.0500  Lima is the capital. [1]" in ran.out
    assert "moons" not in ran.out
    assert "claims kept below a score of" in ran.out
    assert "  0.9900  It has 9 moons." in run("ask", "claims.json", "?", *named, "--show-rejected").out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["calibrate", "missing.jsonl"], 2, "missing.jsonl"),
        (["calibrate", "missing.jsonl", "--out", "nowhere/a.json"], 2, "nowhere does not exist"),
        (["inspect", "RECORDS"], 2, "holds labelled records"),
        (["evaluate", "missing.json", "missing.jsonl"], 2, "missing.json"),
        (["inspect", "missing:key:.json"], 2, "missing:key:.json: cannot be read"),
        (["ask", "missing.json", "?"], 2, "cannot be read"),
        (["calibrate", "RECORDS", "--features", "mean_scor"], 2, "did you mean 'mean_score'"),
        (["calibrate", "RECORDS", "--features", "group(topics)"], 2, "did you mean 'topic'?"),
        (["calibrate", "RECORDS", "--alpha", "1.5"], 2, "strictly between 0 and 1"),
        (["calibrate", "RECORDS", "--alpha", "20"], 2, "did you mean 0.2?"),
        (["calibrate", "RECORDS", "--max-wrong-rate", "5%"], 2, "did you mean 0.05?"),
        (["calibrate", "RECORDS", "--test-fraction", "30"], 2, "did you mean 0.3?"),
        (["calibrate", "RECORDS", "--set-rule", "bestprefix"], 2, "did you mean 'best_prefix'?"),
        (["calibrate", "RECORDSl"], 2, "facts.jsonl?"),
        (["evaluate", "FOLDER/artefact.json", "RECORDS"], 2, "artifact.json?"),
        (["ask", "ARTIFACT", "?", "--replay", "dmeo"], 2, "no such file"),
        (["calibrate", "RECORDS", "--set-rule", "topk"], 2, "known are all"),
        (["ask", "ARTIFACT", "?"], 2, "--generator and --verifier"),
        (["ask", "ARTIFACT", "?", "--generator", "nowhere:x", "--verifier", "nowhere:y"], 2, "cannot import"),
        (["ask", "ARTIFACT", "never recorded", "--replay", "demo"], 2, "not recorded"),
        (["ask", "ARTIFACT", PERU, "--replay", "demo", "--alpha", "0.3"], 2, "it holds --alpha 0.2"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_commands_report_bad_input_without_a_traceback(
    arguments: Sequence[str], code: int, says: str, records: Path, artifact: Path
) -> None:
    known = {"RECORDS": str(records), "ARTIFACT": str(artifact), "FOLDER": str(artifact.parent)}
    for word, path in known.items():
        arguments = [one.replace(word, path) for one in arguments]
    ran = run(*arguments)
    assert ran.code == code
    assert says in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_names_json(command: str) -> None:
    ran = run(command, "--help")
    assert ran.code == 0
    assert "--json" in ran.out


def test_console_script_prints_its_version() -> None:
    script = Path(sys.executable).with_name("langchain-cfc")
    ran = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "0.1.0"


def test_console_script_without_typer_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert "pip install 'langchain-cfc[calibrate]'" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("error", "code"), [(RuntimeError("\x1b[2J broken"), 2), (MissingExtraError("broken"), 2), (None, 0)]
)
def test_console_script_shows_what_ends_it_without_control_characters(
    error: Exception | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_app() -> None:
        logging.getLogger("elsewhere").warning("\x1b[2J logged")
        if error is not None:
            raise error

    monkeypatch.setattr("langchain_cfc.cli.commands.app", run_app)
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler())
    monkeypatch.setattr(logging.getLogger("elsewhere"), "propagate", False)
    try:
        main()
        ended = 0
    except SystemExit as stop:
        ended = int(str(stop.code))
    said = capsys.readouterr()
    assert ended == code
    assert ("broken" in said.err) == (code > 0)
    assert r"\x1b[2J logged" in said.err
    assert "\x1b" not in said.err


def test_calibrate_overwrites_artifacts_only(records: Path, tmp_path: Path) -> None:
    mine = tmp_path / "labels.jsonl"
    mine.write_bytes(records.read_bytes())
    run("calibrate", mine, "-o", mine, "--alpha", "0.2").assert_refused("will not be overwritten")
    assert mine.read_bytes() == records.read_bytes()
    path = tmp_path / "a.json"
    assert [run("calibrate", mine, "-o", path, "--alpha", "0.2").code for _ in range(2)] == [0, 0]
    # An artifact of another version, or a damaged one, is an artifact still.
    changed = path.read_text().replace('"version": 1\n', '"version": 99\n')
    path.write_text(changed.replace('"n": 10', '"n": 9'))
    assert run("inspect", path).code == 2
    assert run("calibrate", mine, "-o", path, "--alpha", "0.2").code == 0
    assert run("inspect", path).code == 0


def test_calibrate_names_the_record_that_lacks_metadata(records: Path, tmp_path: Path) -> None:
    broken: dict[str, Any] = {}

    def remove_metadata(number: int, record: dict[str, Any]) -> None:
        if number == 600:
            record["metadata"] = {}
            broken.update(record)

    path = write_changed(records, tmp_path / "broken.jsonl", remove_metadata)
    run(
        "calibrate", path, "-o", tmp_path / "a.json", "--alpha", "0.2", "--features", "group(topic)"
    ).assert_refused(f"record '{broken['id']}' has no metadata 'topic'")


def test_commands_report_unwritable_folders_and_failing_factories(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    run("demo", "-o", tmp_path / "file" / "a.json").assert_refused("error:")
    (tmp_path / "failing_bot.py").write_text("def model():\n    raise RuntimeError('no key')\n")
    monkeypatch.chdir(tmp_path)
    run(
        "ask", artifact, "?", "--generator", "failing_bot:model", "--verifier", "failing_bot:model"
    ).assert_refused("no key")


@pytest.mark.filterwarnings("ignore::langchain_cfc.errors.AttainabilityWarning")
def test_commands_print_no_guarantee_without_a_theorem(records: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    calibrate(read_records(records), alpha="0.2", test_fraction=0.3, pac=PaperPAC(ridge=0.001)).save(path)
    assert "holds if" not in run("inspect", path).out
    assert "Assumptions" not in run("inspect", path, "--details").out
    assert "No promise to check" in run("evaluate", path, records).out


def test_ask_suggests_recorded_questions_for_an_unknown_one(artifact: Path) -> None:
    ran = run("ask", artifact, "What is the capital of France?", "--replay", "demo")
    assert (ran.code, ran.out) == (2, "")
    assert "What is the capital of Iran?" in ran.err
    # Not a failure of ten candidates, which a retry might cure.
    assert "could not be drawn" not in ran.err


def test_help_names_the_exit_codes() -> None:
    assert "Exit codes: 0 done, 1 the answer is no" in " ".join(run("--help").out.split())


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_commands_work_in_any_terminal_encoding(encoding: str, tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("langchain-cfc")
    environment = {"PYTHONIOENCODING": encoding, "PATH": "", "PYTHONUTF8": "0"}
    command: list[str | Path] = [script, "demo", "-o", tmp_path / "a.json", "--seed", "1"]
    ran = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert b"bot.json" in ran.stdout
    asked = ("ask", tmp_path / "a.json", "What is the currency of Costa Rica?", "--replay", "demo")
    command = [script, *asked, "--json", "--show-rejected"]
    ran = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert ran.returncode in {0, 1}, ran.stderr
    assert any("Col\u00f3n" in str(one["text"]) for one in json.loads(ran.stdout)["candidates"])


def test_broken_pipe_of_a_command_prints_no_traceback(artifact: Path) -> None:
    script = Path(sys.executable).with_name("langchain-cfc")
    line = f"{script} inspect {artifact} | head -1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert ran.returncode in {0, 1}
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_below_the_output_does_not_read_as_no(
    unbuffered: str, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    script = Path(sys.executable).with_name("langchain-cfc")
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run([script, "inspect", artifact], stdout=full, stderr=subprocess.PIPE, check=False)
    assert ran.returncode == 2
    assert b"No space left" in ran.stderr
