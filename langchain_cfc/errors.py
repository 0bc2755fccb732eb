"""Errors and warnings of the package, as a hierarchy.

A caller may catch any branch of the tree:

    CFCError
    ├── InputError (ValueError)          an invalid argument or array
    │   ├── RecordError                  an invalid line of a records file
    │   ├── PromptKindError              a prompt of another kind (text, messages, object) than in calibration
    │   └── FeatureError                 invalid feature text, or metadata unknown to the feature map
    ├── NotFittedError                   a rule or feature map was used before it was fitted
    ├── ThresholdError                   the solver could not prove its threshold
    │   └── OutsideCertifiedRegionError  the kept calibration prompts do not determine the threshold
    ├── CalibrationError
    │   ├── UnattainableTargetError      the target coverage is out of reach for these records
    │   └── OverlapError                 calibration records were used as if they were new
    ├── ArtifactError
    │   ├── ArtifactFormatError          not an artifact, truncated, of another version, or with wrong fields
    │   ├── ArtifactDigestError          the content differs from what was saved
    │   ├── ArtifactSignatureError       a required signature is missing, malformed or by another key
    │   └── FingerprintError             generator, verifier or answer extractor differ from calibration
    ├── CollectionError                  labelled records could not be collected
    │   ├── LabelerError                 the labeler failed, has no label or returned an invalid one
    │   └── StoreError                   the store cannot be opened, read or written, or has other content
    ├── ServingError
    │   ├── DrawError                    fewer than n candidates, or an unreadable one
    │   ├── VerifierError                the verifier failed or returned an invalid score
    │   ├── SplitterError                an answer could not be split into claims
    │   ├── DescriptionError             the answer extractor or metadata function failed
    │   └── ServingTimeoutError (TimeoutError)  the prompt was not answered in time
    ├── AbstentionError                  an abstention, if the runnable is configured to raise it
    └── MissingExtraError (ImportError)  an optional dependency is not installed

    CFCWarning (UserWarning)
    ├── AttainabilityWarning             a group whose target is out of reach: most prompts will be flagged
    ├── SamplingWarning                  candidates may be identical, or visible outside the runnable
    ├── FingerprintWarning               no fingerprint to compare with, or another served model version
    ├── OrientationWarning               correct candidates score worse than wrong ones
    └── CollectionWarning                the collected records will not calibrate well
"""

from __future__ import annotations

from typing import Any


class CFCError(Exception):
    """Base of all errors that this package raises deliberately."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle without calling `__init__`, whose arguments are others, to survive a worker process."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class InputError(CFCError, ValueError):
    """An argument or an array is invalid."""


class RecordError(InputError):
    """A line of a records file is invalid.

    Attributes:
        source: The file or other source of the record.
        line: Line number, counted from 1; 0 for the whole source.
        field: Path of the field, such as `candidates[3].score`; empty for the whole line.
        problem: What was found and what was expected.
    """

    def __init__(self, source: str, line: int, field: str, problem: str) -> None:
        self.source = source
        self.line = line
        self.field = field
        self.problem = problem
        where = source if line == 0 else f"{source}, line {line}"
        super().__init__(f"{where}: {field}: {problem}" if field else f"{where}: {problem}")


class PromptKindError(InputError):
    """A prompt has another kind (text, messages or an object) than the calibration prompts."""


class FeatureError(InputError):
    """Feature text is invalid, or a category or metadata is unknown to the feature map.

    Attributes:
        row: Position of the prompt that the message calls `prompt <row>`; None if no prompt is concerned.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        self.row = row
        super().__init__(message)


class NotFittedError(CFCError):
    """A rule or feature map was used before `fit`."""


class ThresholdError(CFCError):
    """The solver could not prove a threshold; never raised for an infinite threshold."""


class OutsideCertifiedRegionError(ThresholdError):
    """The calibration prompts that the rule kept do not determine a threshold.

    Attributes:
        rows: Positions of the prompts concerned, counted from 0.
    """

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        listed = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")  # noqa: PLR2004
        super().__init__(
            f"outside the certified region: the thresholds of prompts {listed} depend on calibration prompts "
            "that were not kept; ConditionalThreshold keeps more with a larger window=..., and all with "
            "window=None"
        )


class CalibrationError(CFCError):
    """Calibration or evaluation cannot be carried out as requested."""


class UnattainableTargetError(CalibrationError):
    """The target coverage is out of reach for these records with any threshold, or was not certified.

    Attributes:
        attempts: The ledger of the attempts on these labels, this one included; None if no label was used for
            a certificate. `calibrate(..., after=error)` makes the next attempt at its share of delta.
    """

    def __init__(self, message: str, *, attempts: Any = None) -> None:
        """Make the error."""
        super().__init__(message)
        self.attempts = attempts


class OverlapError(CalibrationError):
    """Records that the artifact was calibrated on were passed as if they were new."""


class ArtifactError(CFCError):
    """A calibration artifact cannot be used."""


class ArtifactFormatError(ArtifactError):
    """A file is not an artifact of a version that this library reads."""


class ArtifactDigestError(ArtifactError):
    """The content of an artifact differs from what was saved."""


class ArtifactSignatureError(ArtifactError):
    """The required signature of an artifact is missing, malformed, or by another key."""


class FingerprintError(ArtifactError):
    """Generator, verifier or answer extractor differ from those that the artifact was calibrated for."""


class CollectionError(CFCError):
    """Labelled records could not be collected; earlier results are kept."""


class LabelerError(CollectionError):
    """The labeler failed, holds no label, or returned something other than one boolean per candidate."""


class StoreError(CollectionError):
    """The store of a collection cannot be opened, read or written, or belongs to another collection."""


class ServingError(CFCError):
    """A prompt could not be served, so there is no answer set.

    Missing metadata that the feature map needs is a `FeatureError`, as in calibration.
    """


class DrawError(ServingError):
    """Fewer than n candidates were drawn, or a candidate cannot be read as text."""


class VerifierError(ServingError):
    """The verifier failed, or returned something other than one finite score in [0, 1] per candidate."""


class SplitterError(ServingError):
    """The splitter failed, or returned something other than spans of the answer."""


class DescriptionError(ServingError):
    """The answer extractor or the metadata function failed."""


class ServingTimeoutError(ServingError, TimeoutError):
    """The prompt was not answered within its time limit."""


class AbstentionError(CFCError):
    """A chain or chat model with `on_abstain="raise"` abstained; others never raise this error.

    It is not a `ServingError`, because nothing failed. A second draw after an abstention has no guarantee.

    Attributes:
        result: The `CFCResult`, whose `reason` is the reason of the abstention.
    """

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__(
            f"{result.explain_reason().rstrip('.')} ({result.reason}); answer in another way, for example "
            "by with_fallbacks or a person; do not draw again, because no guarantee covers that"
        )


class MissingExtraError(CFCError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    __reduce__ = ImportError.__reduce__  # which keeps `msg` as well


class CFCWarning(UserWarning):
    """Base of all warnings of this package."""


class AttainabilityWarning(CFCWarning):
    """The target is out of reach for a guaranteed group: some or all of its prompts will be flagged."""


class SamplingWarning(CFCWarning):
    """Candidates may be identical, visible to others or sorted, which the package cannot prevent."""


class FingerprintWarning(CFCWarning):
    """A fingerprint could not be compared, or the served model reports another version than calibrated."""


class OrientationWarning(CFCWarning):
    """Correct candidates score worse than wrong ones: the scores may have the wrong orientation."""


class CollectionWarning(CFCWarning):
    """The collected records will not calibrate well."""
