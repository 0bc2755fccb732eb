"""Every error and warning of the package, and which is a kind of which.

A caller may catch any branch of the tree:

    CFCError
    ├── InputError (ValueError)          an argument or array that cannot be used
    │   ├── RecordError                  one line of a records file
    │   ├── PromptKindError              text, messages or an object, other than the calibration prompts
    │   └── FeatureError                 feature text, or metadata unknown to the feature map
    ├── NotFittedError                   a rule or feature map used before it was fitted
    ├── ThresholdError                   the solver could not prove its threshold
    │   └── OutsideCertifiedRegionError  the calibration data kept does not decide the threshold
    ├── CalibrationError
    │   ├── UnattainableTargetError      the target coverage is out of reach for these records
    │   └── OverlapError                 records that the artifact was calibrated on, used as if they were new
    ├── ArtifactError
    │   ├── ArtifactFormatError          not an artifact, truncated, of another version, with wrong fields
    │   ├── ArtifactDigestError          the content is not what was saved
    │   └── FingerprintError             generator, verifier or answer extractor are not those calibrated
    ├── CollectionError                  labelled records could not be made
    │   ├── LabelerError                 the labeler failed, has no label or returned something that is none
    │   └── StoreError                   the store cannot be opened, read or written, or holds something else
    ├── ServingError
    │   ├── DrawError                    fewer than n candidates, or one that cannot be read
    │   ├── VerifierError                the verifier failed or returned something that is no score
    │   ├── DescriptionError             the answer extractor or metadata function failed
    │   └── ServingTimeoutError (TimeoutError)  the prompt was not decided in time
    ├── AbstentionError                  an abstention, where the runnable is asked to raise it
    └── MissingExtraError (ImportError)  an optional dependency is not installed

    CFCWarning (UserWarning)
    ├── AttainabilityWarning             a group whose target is out of reach: most prompts will be flagged
    ├── SamplingWarning                  candidates may be identical or be seen, beyond the reach from here
    ├── FingerprintWarning               no fingerprint to compare with, or another served model version
    ├── OrientationWarning               correct candidates score worse than wrong ones
    └── CollectionWarning                what is being collected will not calibrate well
"""

from __future__ import annotations

from typing import Any


class CFCError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(CFCError, ValueError):
    """An argument or an array that cannot be used."""


class RecordError(InputError):
    """One line of a records file that cannot be used.

    Attributes:
        source: The file, or what else the record came from.
        line: Line number, counted from 1; 0 where the whole source is meant.
        field: Path of the field, such as `candidates[3].score`; empty where the whole line is meant.
        problem: What was found and what was expected.
    """

    def __init__(self, source: str, line: int, field: str, problem: str) -> None:
        self.source = source
        self.line = line
        self.field = field
        self.problem = problem
        where = source if line == 0 else f"{source}, line {line}"
        super().__init__(f"{where}: {field}: {problem}" if field else f"{where}: {problem}")

    def __reduce__(self) -> tuple[type[RecordError], tuple[str, int, str, str]]:
        """Pickle by the four parts, so that the error survives a worker process."""
        return type(self), (self.source, self.line, self.field, self.problem)


class PromptKindError(InputError):
    """A prompt of another kind than the calibration prompts: text, messages or an object."""


class FeatureError(InputError):
    """Feature text, a category or metadata that the feature map does not know.

    Attributes:
        row: Position of the prompt that it speaks of as `prompt <row>`; None where it speaks of none.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        self.row = row
        super().__init__(message)

    def naming(self, name: str) -> FeatureError:
        """The same error with another name for its prompt."""
        return FeatureError(str(self).replace(f"prompt {self.row}", name))


class NotFittedError(CFCError):
    """A rule or feature map was used before `fit`."""


class ThresholdError(CFCError):
    """The solver stopped without a threshold that it can prove; never raised for an infinite threshold."""


class OutsideCertifiedRegionError(ThresholdError):
    """The calibration prompts that the rule kept do not decide a threshold, so none is given.

    Attributes:
        rows: Positions of the prompts asked about, counted from 0.
    """

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        listed = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")  # noqa: PLR2004
        super().__init__(
            f"outside the certified region: the thresholds of prompts {listed} depend on calibration prompts "
            "that were not kept; keep more of them with a larger window=..., or all with window=None"
        )

    def __reduce__(self) -> tuple[type[OutsideCertifiedRegionError], tuple[list[int]]]:
        """Pickle by the rows, so that the error survives a worker process."""
        return type(self), (self.rows,)


class CalibrationError(CFCError):
    """Calibration or evaluation cannot be carried out as asked."""


class UnattainableTargetError(CalibrationError):
    """The target coverage is out of reach for these records, whatever the threshold."""


class OverlapError(CalibrationError):
    """Records that the artifact was calibrated on were offered as if they were new."""


class ArtifactError(CFCError):
    """A calibration artifact that cannot be used."""


class ArtifactFormatError(ArtifactError):
    """A file that is not an artifact of a version this library reads."""


class ArtifactDigestError(ArtifactError):
    """An artifact whose content differs from what was saved."""


class FingerprintError(ArtifactError):
    """Generator, verifier or answer extractor differ from those that the artifact was calibrated for."""


class CollectionError(CFCError):
    """Labelled records could not be made; what was made before stays as it is."""


class LabelerError(CollectionError):
    """The labeler failed, holds no label, or returned something other than one boolean per candidate."""


class StoreError(CollectionError):
    """The store of a collection cannot be opened, read or written, or it holds another collection."""


class ServingError(CFCError):
    """A prompt could not be served; no answer set was made.

    Metadata that the feature map needs is a `FeatureError` where a prompt lacks it, as in calibration.
    """


class DrawError(ServingError):
    """Fewer than n candidates were drawn, or a candidate cannot be read as text."""


class VerifierError(ServingError):
    """The verifier failed, or returned something other than one finite score in [0, 1] per candidate."""


class DescriptionError(ServingError):
    """The answer extractor or the metadata function failed."""


class ServingTimeoutError(ServingError, TimeoutError):
    """The prompt was not decided in the time that it was given."""


class AbstentionError(CFCError):
    """An abstention of a runnable with `on_abstain="raise"`; never raised by any other.

    Not a `ServingError`: nothing failed, and what is drawn again after an abstention carries no guarantee.

    Attributes:
        result: The `CFCResult`, whose `reason` says why.
    """

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__(
            f"abstained with the reason {result.reason!r}, and on_abstain='raise' makes an error of it; the "
            "error's attribute `result` holds the decision"
        )

    def __reduce__(self) -> tuple[type[AbstentionError], tuple[Any]]:
        """Pickle by the result, so that the error survives a worker process."""
        return type(self), (self.result,)


class MissingExtraError(CFCError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class CFCWarning(UserWarning):
    """Base of every warning of this package."""


class AttainabilityWarning(CFCWarning):
    """The target is out of reach for a guaranteed group: some or all of its prompts will be flagged."""


class SamplingWarning(CFCWarning):
    """Candidates may come out identical, or be seen by others, in a way that cannot be helped from here."""


class FingerprintWarning(CFCWarning):
    """A fingerprint could not be compared, or the served model reports another version of itself."""


class OrientationWarning(CFCWarning):
    """Correct candidates score worse than wrong ones: the scores seem to point the wrong way."""


class CollectionWarning(CFCWarning):
    """What is being collected will not calibrate well, and why."""
