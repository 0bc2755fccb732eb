"""Text that models, providers and users wrote, made safe to show on a terminal and in messages."""

from __future__ import annotations

import re

# C0 and C1 controls and DEL, which terminals take as commands, except newline and tab; and the characters
# that change the direction in which a line is read.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# In JSON, what is below a space is escaped already.
_CONTROLS_IN_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_REDACTED = "[redacted]"
_NAME = (
    r"\b(?:proxy-)?authorization|\b(?:x-)?api[-_ ]?key|\b(?:\w+[-_])?secret(?:[-_ ](?:access[-_ ])?key)?"
    r"|\bpassw(?:or)?d|\b(?:access|auth|bearer|id|refresh|session)[-_ ]?token|\b(?:set-)?cookie"
    r"|(?<=[?&])(?:key|token|sig|signature)"
)
_SECRETS = (
    # User and password, or a token, before the host of a URL.
    (re.compile(r"(://)[^\s/@\"']+@"), rf"\1{_REDACTED}@"),
    # Headers, parameters and settings by their names, in HTTP, JSON, Python or a query.
    (
        re.compile(
            rf"""(?i)({_NAME})(["']?\s*[:=]\s*["']?)(?:(?:bearer|basic|token)\s+)?[^\s"'`,;&<>{{}}()\[\]\\]+"""
        ),
        rf"\1\2{_REDACTED}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+(?=\S*[0-9=])[a-z0-9._~+/-]{8,}=*"), rf"\1 {_REDACTED}"),
    # Keys that say what they are. Providers quote some with asterisks in the middle.
    (re.compile(r"\b(?:sk|pk|rk|gsk|hf|ghp|gho|xox[abp])[-_][\w*-]{8,}"), _REDACTED),
    (re.compile(r"\b(?:AKIA[0-9A-Z]{16}|AIza[\w-]{20,}|eyJ[\w-]+\.[\w-]+\.[\w-]+)"), _REDACTED),
)
_LONGEST = 500


def escape_controls(text: str) -> str:
    r"""A text with its control characters in a visible form, such as `\x1b` for escape."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def escape_controls_in_json(text: str) -> str:
    r"""The text of a JSON document with the control characters that JSON does not escape as `\u009b`."""
    return _CONTROLS_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def redact_secrets(text: str) -> str:
    """A text without API keys, tokens, passwords and cookies, as far as their form or name tells them."""
    for secret, shown in _SECRETS:
        text = secret.sub(shown, text)
    return text


def quote(text: str, longest: int = _LONGEST) -> str:
    """A text of somebody else as a message may quote it."""
    # Cut last, or half a secret would not be known by its form; first roughly, for a text may be of any size.
    shown = escape_controls(redact_secrets(text[: 20 * longest]))
    if len(shown) <= longest:
        return shown
    return f"{shown[:longest]}... ({len(text):,} characters)"
