"""Sanitise untrusted text for terminals and messages, and format numbers and names in messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import ROUND_FLOOR, Context
from itertools import chain

# C0 and C1 controls and DEL, which terminals interpret as commands, except newline and tab; and characters
# that change the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# JSON already escapes characters below a space.
_CONTROLS_IN_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

REDACTED = "[redacted]"
_WITHHOLDS_QUOTES: ContextVar[bool] = ContextVar("langchain_cfc_withholds_quotes", default=False)
# Whose value is a secret in any form, and only if it looks like one, as `sort_key: name` does not.
_SENSITIVE_NAME = (
    r"api(?:[-_ ]|%5f)?key|secret(?:[-_ ](?:access[-_ ])?key)?|passw(?:or)?[dt]|pwd|passphrase"
    r"|kennwort|contraseña|mot de passe|senha"
    r"|(?<![a-z])(?:access|auth|bearer|id|refresh|security|session)[-_ ]?token"
)
_KEY_NAME = rf"{_SENSITIVE_NAME}|(?<!mon|don|tur)key|token|signature|credentials?"
# Between a name and its value in HTTP, JSON, Python, a query or a pair of texts.
_BETWEEN = r"""(?:\\?["']?\s*[:=]\s*|["']\s*,\s*)b?"""
_VALUE = r"""(\\?["'])(?:(?!\3)[^\r\n])+|[^\s"'`,;&<>{}()\[\]\\]+"""
_LIKELY_VALUE = r"""(?:\\?["'])?(?=[^\s"'&,;]{,99}\d)[^\s"'`,;&<>{}()\[\]\\]{8,}"""
# User and password, or a token, before the host of a URL, where a password may hold any sign; the same
# without a scheme, before a port, a path or a dot; parameters; and the path of a webhook.
_PARAMETERS = "auth|credential|hmac|jwt|key|pass(?:word)?|secret|session|sid|sig|signature|token"
_PAIR = r"(?<![\w/:@.%+-])(?!(?:e-?)?mail(?:to)?:)([\w.%+-]{1,99}:)(?![*\\/]|\d+[/?#]|[^\s@]{,99}@sha\d)"
_IN_ADDRESSES = (
    (r"(:/|//)[^\s/@:\"']{,99}:(?!\*{3}@|\d+[/?#])[^\s\"']{1,199}@", rf"\1{REDACTED}@"),
    (r"(:/|//)[^\s/@:\"']{1,199}@", rf"\1{REDACTED}@"),
    (rf"{_PAIR}[^\s\"'<>]{{1,199}}@(?=\[|[\w.-]+(?::\d|/))", rf"\1{REDACTED}@"),
    (rf"{_PAIR}(?=\S{{,99}}\d\S{{,99}}@)[^\s\"'<>]{{6,199}}@(?=[\w-]+\.[a-z])", rf"\1{REDACTED}@"),
    (
        rf"(?<=[?&])((?:auth|device|user)?[-_]?code|[\w-]*(?<!mon|don|tur)(?:{_PARAMETERS}))=[^\s\"'&]+",
        rf"\1={REDACTED}",
    ),
    (
        r"(/(?:(?:web)?hooks(?:\.slack\.com)?|IncomingWebhook)/|/bot(?=\d+:))(?=[\w:@/.-]{,99}\d)[\w:@/.-]{12,}",
        rf"\1{REDACTED}",
    ),
)
_PREFIXES = (
    r"(?:github_pat|glpat|lsv2|nvapi|pplx|r8|SG|tvly|xai|ya29)[-_.]|(?:dop_v1|npm|ntn|shpat|whsec)_|hvs\."
)
_SECRETS = tuple(
    (re.compile(pattern, re.IGNORECASE), shown)
    for pattern, shown in (
        *_IN_ADDRESSES,
        (r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(?s:.+?)(?=-----END|\Z)", rf"\1{REDACTED}"),
        (
            rf"((?:authorization|cookie)({_BETWEEN}))(?:(\\?[\"'])(?:(?!\3)[^\r\n])+|[^\s\"'][^\r\n]*)",
            rf"\1\3{REDACTED}",
        ),
        (rf"({_SENSITIVE_NAME})({_BETWEEN})(?:{_VALUE})", rf"\1\2\3{REDACTED}"),
        (rf"({_KEY_NAME})({_BETWEEN}|\s+(?:(?:provided|is|was):?\s+)?){_LIKELY_VALUE}", rf"\1\2{REDACTED}"),
        (r"((?<![\w-])--[a-z-]{0,30}(?:key|token|secret|password)\s+)\S+", rf"\1{REDACTED}"),
        (r"(\bcurl\b[^\r\n]{,199}?\s(?:-u|--user)\s+[\w.-]+:)\S+", rf"\1{REDACTED}"),
        (r"\b(bearer|basic):?\s+(?=\S*[0-9=])[a-z0-9._~+/-]{8,}=*", rf"\1 {REDACTED}"),
        # Keys with a known prefix. Providers quote some with asterisks in the middle.
        (r"\b(?:sk|pk|rk|gsk|hf|gh[oprsu]|xox[a-z])[-_][\w*-]{8,}", REDACTED),
        (rf"\b(?:{_PREFIXES})(?=[\w.-]*\d)[\w.-]{{8,}}", REDACTED),
        (r"\b(?:AKIA[0-9A-Z]{16}|AIza[\w-]{20,}|eyJ[\w-]+\.[\w-]+\.[\w-]+)", REDACTED),
    )
)
# Names of environment variables that hold secrets.
_VARIABLE = re.compile(r"(?i)(?:KEY|TOKEN|SECRET|PASSWORD)S?$")
_MIN_SECRET_LENGTH = 8
# Maximum number of characters that a message quotes.
_MAX_QUOTED = 500


def escape_controls(text: str) -> str:
    r"""Replace control characters except newlines and tabs by a visible form, such as `\x1b` for escape."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def escape_controls_in_json(text: str) -> str:
    r"""Escape the control characters of a JSON document that JSON itself does not, such as `\u009b`."""
    return _CONTROLS_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def redact_secrets(text: str) -> str:
    """Redact keys, tokens, passwords and cookies, known by form, by name or from environment variables."""
    # A variable may hold several.
    held = (
        (value, *value.replace(",", " ").split())
        for name, value in os.environ.items()
        if _VARIABLE.search(name)
    )
    for secret in chain.from_iterable(held):
        text = text.replace(secret, REDACTED) if len(secret) >= _MIN_SECRET_LENGTH else text
    for form, shown in _SECRETS:
        text = form.sub(shown, text)
    return text


def redact_addresses(text: str) -> str:
    """Redact what is secret in URLs alone: for own texts, which name keys and options."""
    for secret, shown in _SECRETS[: len(_IN_ADDRESSES)]:
        text = secret.sub(shown, text)
    return text


@contextmanager
def withhold_quotes() -> Iterator[None]:
    """Leave out of messages what they would quote: the error of a served call may reach its end user."""
    token = _WITHHOLDS_QUOTES.set(True)
    try:
        yield
    finally:
        _WITHHOLDS_QUOTES.reset(token)


def withholds_quotes() -> bool:
    """Return whether messages leave out what they would quote."""
    return _WITHHOLDS_QUOTES.get()


def quote(text: str, *, is_own: bool = False) -> str:
    """Return the beginning of an untrusted text, without secrets or control characters, for a message.

    `is_own` says that it is a message of this package, which quotes by this function.
    """
    if withholds_quotes() and not is_own:
        return "(withheld, as it may quote a candidate: see `__cause__`)"
    # Cut after redaction, because half a secret is not recognisable; a rough cut before bounds the work.
    shown = escape_controls(redact_secrets(text[: 20 * _MAX_QUOTED]))
    if len(shown) <= _MAX_QUOTED:
        return shown
    return f"{shown[:_MAX_QUOTED]}... ({len(text):,} characters)"


def format_percent(share: float, spec: str = ".0f") -> str:
    """Return a share as text in percent, with the number in a format such as `.1f`.

    Examples:
        >>> format_percent(0.825), format_percent(0.8254, ".1f")
        ('82 %', '82.5 %')
    """
    return f"{100 * share:{spec}} %"


def format_limit(number: float) -> str:
    """Return an upper limit as text, rounded down to four significant digits.

    Examples:
        >>> format_limit(0.59), format_limit(0.43999999999999995), format_limit(0.0)
        ('0.59', '0.4399', '0')
    """
    digits = Context(prec=4, rounding=ROUND_FLOOR).create_decimal(repr(number)).normalize()
    return f"{digits:f}"


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    Examples:
        >>> pluralize(1, "answer"), pluralize(1200, "prompt")
        ('1 answer', '1,200 prompts')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def join_names(names: Sequence[str], most: int | None = None) -> str:
    """Return names joined by commas and "and"; names beyond the first `most` are only counted.

    Examples:
        >>> join_names(["a", "b", "c"]), join_names(["a", "b", "c"], 2)
        ('a, b and c', 'a, b and 1 more')
    """
    if most is not None and len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
