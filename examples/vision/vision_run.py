"""Collect, calibrate, ask: questions about images from end to end, over HTTP.

    python vision_run.py                      with the stand-in, which is no model
    python vision_run.py --folder elsewhere   where records and artifact are written

The line of `collect.toml` that names the model decides who answers. As it stands, the stand-in is started
beside this on a free port; with any other model nothing is started.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from langchain_cfc_collect import CollectionOptions, Components, Store, collect
from langchain_cfc_collect.config import CollectionConfig, read_config
from vision_chain import with_images
from vision_questions import examples
from vision_stand_in import MODEL, standing_in

from langchain_cfc import CalibrationArtifact, CFCChatModel, CFCRunnable, calibrate, evaluate, read_records
from langchain_cfc.records import Example, write_records

CONFIG = Path(__file__).with_name("collect.toml")
ALPHA = "0.2"
FEATURES = "hat(mean_score, 3)"


def collect_records(config: CollectionConfig, asked: Sequence[Example], folder: Path) -> Path:
    """Draw, score and label answers; interrupted, run it again and it goes on."""
    store, records = folder / "cuttings.db", folder / "records.jsonl"
    collect(
        asked,
        config.create_components(),
        store,
        CollectionOptions(call_policy=config.run, settings=config.record_settings()),
    )
    with Store(store) as opened:
        write_records(records, opened.read_records(), opened.read_provenance())
    return records


def calibrate_records(records: Path, artifact: Path) -> CalibrationArtifact:
    """Calibrate, hold three tenths out, and say what happened there."""
    made = calibrate(read_records(records), alpha=ALPHA, features=FEATURES, test_fraction=0.3)
    made.save(artifact)
    report = evaluate(made, read_records(records))
    seen = report.methods["conditional"]
    print(
        f"{report.n_calibration} questions calibrated; of {report.n_test} held out, the promise (at least "
        f"{report.target_coverage:.0%}) was kept on {seen.kept_promise:.0%}: {seen.coverage:.0%} covered, "
        f"{seen.not_certifiable_rate:.0%} flagged"
    )
    return made


def make_chain(parts: Components, artifact: CalibrationArtifact) -> CFCRunnable:
    """Make the chain, with the same parts that collected."""
    return CFCRunnable(
        generator=parts.generator,
        generator_id=parts.generator_id,
        sampling=parts.sampling,
        verifier=parts.verifier,
        answer=parts.answer,
        answer_id=parts.answer_id,
        artifact=artifact,
    )


def ask(chain: CFCRunnable, asked: Sequence[Example]) -> None:
    """Ask about images by their addresses, and about the last one as a chat model, with the image itself."""
    *first, last = asked
    for one in first:
        result = chain.invoke(one.input)
        _show(one, "abstained, " + result.reason if result.abstained else ", ".join(result.answers))
    chat = CFCChatModel(chain=chain, abstain_message="I cannot tell.")
    message = chat.invoke(with_images(last.input))
    _show(last, f"as a chat model: {message.text}")
    print(f"{chain.guarantee.sentence}\nserved and calibrated parts: {chain.guarantee.binding}")


def _show(one: Example, answer: str) -> None:
    image, question = cast("Any", one.input)[0]["content"]
    print(f"\n{image['image_url']['url']}: {question['text']}\n  {answer} (true: {one.reference})")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the example: collect, calibrate and ask."""
    parser = argparse.ArgumentParser(description="Questions about images: collect, calibrate, ask.")
    parser.add_argument("--folder", type=Path, default=Path("cfc-demo/vision"), help="where files are put")
    parser.add_argument("--questions", type=int, default=400, help="how many to collect (%(default)s)")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    config = read_config(CONFIG)
    with contextlib.ExitStack() as stack:
        if config.generator.arguments["model"] == f"openai:{MODEL}":
            print("The answers come from a stand-in that reads pixels and errs on purpose. It is no model.")
            server = stack.enter_context(standing_in())
            config = read_config(CONFIG, settings=[f"generator.arguments.base_url={server.url}"])
        everything = examples(options.questions)
        records = collect_records(config, everything, options.folder)
        artifact = calibrate_records(records, options.folder / "artifact.json")
        split = artifact.calibration.split
        held_out = [one for one in everything if split.find_part(one.id, None) == "test"]
        ask(make_chain(config.create_components(), artifact), held_out[:6])
    print(f"\nrecords: {records}, {records.stat().st_size // 1024} kB without images")


if __name__ == "__main__":
    main()
