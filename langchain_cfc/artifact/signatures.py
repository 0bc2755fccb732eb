"""Ed25519 signatures of artifact files, which show who made a file; a digest cannot.

A signature is a separate file next to the artifact: the 64 bytes of RFC 8032 over the artifact's bytes. So
the artifact's format does not depend on it, `openssl pkeyutl` makes and checks the same signatures, and
nothing is parsed before the signature is checked. Keys come from `openssl genpkey -algorithm ed25519` or
`ssh-keygen -t ed25519`. Signing and checking need no network; Sigstore would need one.

RFC 8032 accepts every point as a public key A, but for a point of low order, [8]A = 0, anyone can sign: with
s = 0 and R = -[k]A, which is one of at most eight points, [s]B = R + [k]A holds for any message. Such keys
are refused. A point (x, y) of the curve -x^2 + y^2 = 1 + d x^2 y^2 has order 1 or 2 if y = 1 or y = -1,
order 4 if y = 0, and order 8 if doubling it gives y = 0, that is x^2 = -y^2, which the curve turns into
d y^4 + 2 y^2 = 1.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_cfc.errors import ArtifactSignatureError, InputError
from langchain_cfc.support.files import atomic_writer, is_replaceable, read_regular
from langchain_cfc.support.imports import require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

# Path of a key file, or the key as text.
PublicKey: TypeAlias = "str | os.PathLike[str]"
_MAX_FILE_BYTES = 1 << 16
# The field of the curve edwards25519, and its constant d = -121665/121666 (RFC 8032, section 5.1).
_FIELD = 2**255 - 19
_CURVE = -121665 * pow(121666, -1, _FIELD)
_PEM_START, _SSH_START = b"-----BEGIN ", b"ssh-ed25519 "
_COMMANDS = {
    "public": "`openssl pkey -in key.pem -pubout` or `ssh-keygen -t ed25519`",
    "private": "`openssl genpkey -algorithm ed25519` or `ssh-keygen -t ed25519`",
}


def locate_signature(path: str | os.PathLike[str]) -> Path:
    """Return the path of an artifact's signature: the artifact's path with `.sig` appended."""
    return Path(f"{os.fspath(path)}.sig")


def load_private_key(path: str | os.PathLike[str], password: bytes | None = None) -> Ed25519PrivateKey:
    """Load the private signing key from a file in PEM (PKCS 8) or OpenSSH format.

    Raises:
        InputError: If the file cannot be read, others may write it, it holds no Ed25519 key, or the password
            is wrong.
        MissingExtraError: If `cryptography` is not installed.
    """
    key: Ed25519PrivateKey = _load_key(_read_key_file(Path(path)), os.fspath(path), "private", password)
    return key


def write_signature(path: str | os.PathLike[str], data: bytes, key: Ed25519PrivateKey) -> Path:
    """Sign an artifact's bytes, write the signature next to it atomically, and return its path."""
    target = locate_signature(path)
    with atomic_writer(target) as file:
        file.write(key.sign(data))
    return target


def format_public_key(key: Ed25519PrivateKey) -> str:
    """Return the public key of a private key as one OpenSSH line, which `require_signature` accepts."""
    serialization = _require_primitives("serialization")
    formats = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return str(key.public_key().public_bytes(*formats).decode())


def check_signature(path: str | os.PathLike[str], data: bytes, keys: PublicKey | Sequence[PublicKey]) -> None:
    """Check that the signature next to an artifact's file signs `data` with one of the given keys.

    Raises:
        ArtifactSignatureError: If the signature is missing, malformed, or by none of the keys.
        InputError: If a key cannot be read, others may write its file, it is of another kind or of low order,
            or none is given.
        MissingExtraError: If `cryptography` is not installed.
    """
    listed = [keys] if isinstance(keys, (str, os.PathLike)) else list(keys)
    if not listed:
        msg = "require_signature is empty, so no artifact could be loaded; give at least one key, or omit it"
        raise InputError(msg)
    trusted = [_load_public_key(key) for key in listed]
    signature, target = _read_signature(path), locate_signature(path)
    if not any(_is_signed_by(key, signature, data) for key in trusted):
        which = "the required key" if len(trusted) == 1 else f"any of the {len(trusted)} required keys"
        msg = (
            f"{target}: not a signature of {os.fspath(path)} by {which}: the artifact was changed or made "
            "again after it was signed, or someone else signed it. Sign it only if you know its origin"
        )
        raise ArtifactSignatureError(msg)


def _read_signature(path: str | os.PathLike[str]) -> bytes:
    target = locate_signature(path)
    try:
        return read_regular(target, _MAX_FILE_BYTES)
    except FileNotFoundError as error:
        msg = (
            f"{os.fspath(path)}: a signature is required, but {target} does not exist; `langchain-cfc sign` "
            "writes it. Copy it along with the artifact"
        )
        raise ArtifactSignatureError(msg) from error
    except (OSError, InputError) as error:
        msg = f"{target}: the signature cannot be read ({getattr(error, 'strerror', None) or error})"
        raise ArtifactSignatureError(msg) from error


def _is_signed_by(key: Ed25519PublicKey, signature: bytes, data: bytes) -> bool:
    invalid = require("cryptography.exceptions", "signing", "a signature").InvalidSignature
    try:
        key.verify(signature, data)
    except invalid:
        return False
    return True


def _load_public_key(key: PublicKey) -> Ed25519PublicKey:
    text = key.encode() if isinstance(key, str) else b""
    is_text = text.startswith((_PEM_START, _SSH_START))
    data, name = (text, "the given key") if is_text else (_read_key_file(Path(key)), os.fspath(key))
    if data.startswith(_SSH_START) and len(data.strip().splitlines()) > 1:
        msg = f"{name}: {_expect_key('public')}, one per file"
        raise InputError(msg)
    public: Ed25519PublicKey = _load_key(data, name, "public")
    if _is_low_order(public.public_bytes_raw()):
        msg = f"{name}: with this key of low order anyone can sign any file; {_expect_key('public')}"
        raise InputError(msg)
    return public


def _is_low_order(point: bytes) -> bool:
    """Return whether eight times an encoded point is the neutral element, also if y is not reduced."""
    y = int.from_bytes(point, "little") % 2**255
    return y * (y**2 - 1) * (_CURVE * y**4 + 2 * y**2 - 1) % _FIELD == 0


def _load_key(data: bytes, name: str, kind: str, *password: bytes | None) -> Any:
    """Load a `public` or `private` key in OpenSSH or PEM format, a private one with its password if any."""
    unsupported = require("cryptography.exceptions", "signing", "a signature").UnsupportedAlgorithm
    form = "ssh" if data.startswith((_SSH_START, b"-----BEGIN OPENSSH")) else "pem"
    load = getattr(_require_primitives("serialization"), f"load_{form}_{kind}_key")
    try:
        key = load(data, *password)
    except (TypeError, ValueError, unsupported) as error:  # a missing password is a TypeError
        msg = f"{name}: {_expect_key(kind)} ({error})"
        raise InputError(msg) from error
    if not isinstance(key, getattr(_require_primitives("asymmetric.ed25519"), f"Ed25519{kind.title()}Key")):
        msg = f"{name}: {_expect_key(kind)}; found a {type(key).__name__}"
        raise InputError(msg)
    return key


def _expect_key(kind: str) -> str:
    return f"expected an Ed25519 {kind} key in PEM or OpenSSH format, as made by {_COMMANDS[kind]}"


def _read_key_file(path: Path) -> bytes:
    try:
        data = read_regular(path, _MAX_FILE_BYTES)
        is_open = is_replaceable(path)
    except (OSError, InputError) as error:
        msg = f"{path}: the key cannot be read ({getattr(error, 'strerror', None) or error})"
        raise InputError(msg) from error
    if is_open:
        msg = (
            f"{path}: every user of this machine may replace this key: `chmod o-w` it, and its folder, if it "
            "is still yours"
        )
        raise InputError(msg)
    return data


def _require_primitives(module: str) -> Any:
    return require(f"cryptography.hazmat.primitives.{module}", "signing", "a signature")
