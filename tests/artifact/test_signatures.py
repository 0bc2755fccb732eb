"""An artifact whose signature is required loads if a trusted key signed these bytes, and not otherwise."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from langchain_cfc.artifact import CalibrationArtifact
from langchain_cfc.certificates import certify
from langchain_cfc.errors import (
    ArtifactDigestError,
    ArtifactFormatError,
    ArtifactSignatureError,
    InputError,
    MissingExtraError,
)
from tests.artifact.files import make_records
from tests.cli.running import run
from tests.lengths import LONG

ENCODING, PRIVATE, PUBLIC = (
    serialization.Encoding,
    serialization.PrivateFormat,
    serialization.PublicFormat,
)


class Key(NamedTuple):
    """A pair of keys in files of their own."""

    private: Path
    public: Path
    line: str  # the public one in OpenSSH format


def make_key(folder: Path, name: str, *, ssh: bool = False, password: bytes | None = None) -> Key:
    key = Ed25519PrivateKey.generate()
    lock = serialization.NoEncryption()
    if password is not None:
        lock = serialization.BestAvailableEncryption(password)  # type: ignore[assignment]
    private, public = folder / name, folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(ENCODING.PEM, PRIVATE.OpenSSH if ssh else PRIVATE.PKCS8, lock))
    line = key.public_key().public_bytes(ENCODING.OpenSSH, PUBLIC.OpenSSH)
    pem = key.public_key().public_bytes(ENCODING.PEM, PUBLIC.SubjectPublicKeyInfo)
    public.write_bytes(line + b" me@here\n" if ssh else pem)
    return Key(private, public, line.decode())


@pytest.fixture(params=["pem", "openssh"])
def key(request: pytest.FixtureRequest, tmp_path: Path) -> Key:
    return make_key(tmp_path, "key", ssh=request.param == "openssh")


@pytest.fixture
def other_key(tmp_path: Path) -> Key:
    return make_key(tmp_path, "other")


@pytest.fixture
def path(artifact: CalibrationArtifact, tmp_path: Path) -> Path:
    saved = tmp_path / "artifact.json"
    artifact.save(saved)
    return saved


def sign_artifact(path: Path, key: Key) -> Path:
    ran = run("sign", path, "--key", key.private, "--json")
    assert ran.code == 0, ran.err
    assert ran.data["public_key"] == key.line
    written = Path(ran.data["signature"])
    assert written == path.with_name("artifact.json.sig")
    return written


def load_signed(path: Path, *keys: str | Path) -> CalibrationArtifact:
    return CalibrationArtifact.load(path, require_signature=keys)


def test_require_signature_accepts_a_file_a_text_or_several_keys(
    path: Path, key: Key, other_key: Key, artifact: CalibrationArtifact
) -> None:
    sign_artifact(path, key)
    assert CalibrationArtifact.load(path, require_signature=key.public) == artifact
    assert CalibrationArtifact.load(path, require_signature=str(key.public)) == artifact
    assert CalibrationArtifact.load(path, require_signature=key.line) == artifact
    assert load_signed(path, key.public.read_text()) == artifact
    assert load_signed(path, other_key.public, key.line) == artifact
    # Without a requirement, no signature is needed.
    path.with_name("artifact.json.sig").unlink()
    assert CalibrationArtifact.load(path) == artifact


def test_require_signature_refuses_another_key(path: Path, key: Key, other_key: Key) -> None:
    sign_artifact(path, key)
    with pytest.raises(ArtifactSignatureError, match="by the required key"):
        load_signed(path, other_key.public)
    with pytest.raises(ArtifactSignatureError, match="by any of the 2 required keys"):
        load_signed(path, other_key.public, other_key.line)


def test_require_signature_refuses_an_artifact_changed_after_signing(path: Path, key: Key) -> None:
    sign_artifact(path, key)
    # Changed by accident, which the digest finds as well, and by a forger who computes the digest again.
    original = path.read_bytes()
    path.write_bytes(original.replace(b'"n": 4,', b'"n": 5,'))
    with pytest.raises(ArtifactDigestError):
        CalibrationArtifact.load(path)
    with pytest.raises(ArtifactSignatureError, match="changed or made again"):
        load_signed(path, key.public)
    path.write_bytes(original)
    certify(load_signed(path, key.public), make_records(9, 120)).save(path)
    with pytest.raises(ArtifactSignatureError, match="changed or made again"):
        load_signed(path, key.public)
    sign_artifact(path, key)
    assert len(load_signed(path, key.public).certificates) == 2


def test_require_signature_refuses_a_signature_of_another_artifact(
    path: Path, key: Key, tmp_path: Path
) -> None:
    signature = sign_artifact(path, key)
    renamed = tmp_path / "renamed.json"
    certify(CalibrationArtifact.load(path), make_records(9, 120)).save(renamed)
    shutil.copy(signature, tmp_path / "renamed.json.sig")
    with pytest.raises(ArtifactSignatureError, match=r"not a signature of .*renamed\.json"):
        load_signed(renamed, key.public)


def test_require_signature_refuses_a_missing_signature(path: Path, key: Key) -> None:
    with pytest.raises(ArtifactSignatureError, match=r"\.sig does not exist; `langchain-cfc sign`"):
        load_signed(path, key.public)
    path.with_name("artifact.json.sig").mkdir()
    with pytest.raises(ArtifactSignatureError, match="cannot be read"):
        load_signed(path, key.public)


@pytest.mark.parametrize("change", ["empty", "short", "long", "flipped", "text"])
def test_require_signature_refuses_a_malformed_signature(path: Path, key: Key, change: str) -> None:
    signature = sign_artifact(path, key)
    good = signature.read_bytes()
    bad = {
        "empty": b"",
        "short": good[:-1],
        "long": good + b"\n",
        "flipped": bytes([good[0] ^ 1]) + good[1:],
        "text": good.hex().encode(),
    }[change]
    signature.write_bytes(bad)
    with pytest.raises(ArtifactSignatureError):
        load_signed(path, key.public)


def test_require_signature_refuses_every_flipped_bit_of_a_signature(path: Path, tmp_path: Path) -> None:
    key = make_key(tmp_path, "one")
    signature = sign_artifact(path, key)
    good = signature.read_bytes()
    for bit in range(0, 8 * len(good), 1 if LONG else 3):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        signature.write_bytes(bad)
        with pytest.raises(ArtifactSignatureError):
            load_signed(path, key.line)


def test_require_signature_refuses_missing_or_unreadable_keys(path: Path, key: Key, tmp_path: Path) -> None:
    sign_artifact(path, key)
    with pytest.raises(InputError, match="require_signature is empty"):
        load_signed(path)
    with pytest.raises(InputError, match="the key cannot be read"):
        load_signed(path, tmp_path / "none.pub")
    with pytest.raises(InputError, match="expected an Ed25519 public key"):
        load_signed(path, key.private)  # a mistake that would put the private key on servers
    curve = ec.generate_private_key(ec.SECP256R1()).public_key()
    with pytest.raises(InputError, match=r"expected an Ed25519 public key .* found a"):
        load_signed(path, curve.public_bytes(ENCODING.PEM, PUBLIC.SubjectPublicKeyInfo).decode())
    several = tmp_path / "several.pub"
    several.write_text(f"{key.line}\n{key.line}\n")
    with pytest.raises(InputError, match="one per file"):
        load_signed(path, several)
    # A key that cannot be read is an error.
    with pytest.raises(InputError, match="the key cannot be read"):
        load_signed(path, key.public, tmp_path / "none.pub")


# y of the points of order 1, 2, 4 and 8; the sign of x and adding the field's modulus encode them otherwise.
ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
FIELD = 2**255 - 19


@pytest.mark.parametrize("sign", [0, 1 << 255])
@pytest.mark.parametrize("y", [0, 1, FIELD - 1, ORDER_8, FIELD - ORDER_8, FIELD, FIELD + 1])
def test_require_signature_refuses_keys_of_low_order_for_which_anyone_can_sign(
    path: Path, y: int, sign: int
) -> None:
    point = (y | sign).to_bytes(32, "little")
    key = Ed25519PublicKey.from_public_bytes(point)
    path.with_name("artifact.json.sig").write_bytes((1).to_bytes(64, "little"))
    if y == 1 and not sign:
        key.verify((1).to_bytes(64, "little"), path.read_bytes())  # the forgery is valid: the control
    with pytest.raises(InputError, match="anyone can sign"):
        load_signed(path, key.public_bytes(ENCODING.OpenSSH, PUBLIC.OpenSSH).decode())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
def test_key_files_that_others_may_write_are_refused(path: Path, key: Key) -> None:
    sign_artifact(path, key)
    for file in (key.private, key.public):
        file.chmod(0o666)
    with pytest.raises(InputError, match="chmod o-w"):
        load_signed(path, key.public)
    ran = run("sign", path, "--key", key.private)
    assert ran.code == 2
    assert "chmod o-w" in ran.err
    key.public.chmod(0o644)
    load_signed(path, key.public)
    for mode in (0o1777, 0o777):  # a file in a sticky folder is safe
        (shared := path.with_name(f"shared{mode}")).mkdir()
        (shared / "link").symlink_to(key.public)
        shared.chmod(mode)
        with nullcontext() if mode & 0o1000 else pytest.raises(InputError, match="and its folder"):
            load_signed(path, shared / "link")


def test_sign_command_reads_the_key_password_from_the_environment(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key(tmp_path, "locked", password=b"secret")
    assert "Password was not given" in run("sign", path, "--key", key.private).err
    monkeypatch.setenv("LANGCHAIN_CFC_KEY_PASSWORD", "wrong")
    assert run("sign", path, "--key", key.private).code == 2
    assert not path.with_name("artifact.json.sig").exists()
    monkeypatch.setenv("LANGCHAIN_CFC_KEY_PASSWORD", "secret")
    sign_artifact(path, key)
    load_signed(path, key.public)


def test_sign_command_refuses_a_file_that_does_not_load(path: Path, key: Key) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    assert run("sign", path, "--key", key.private).code == 2
    assert not path.with_name("artifact.json.sig").exists()
    with pytest.raises((ArtifactFormatError, ArtifactDigestError)):
        CalibrationArtifact.load(path)


def test_inspect_and_ask_commands_require_signatures(path: Path, key: Key, other_key: Key) -> None:
    required = ("--require-signature", key.public)
    for command in (("inspect", path), ("ask", path, "What?", "--replay", "demo")):
        assert "does not exist" in run(*command, *required).err
    sign_artifact(path, key)
    assert run("inspect", path, *required).code == 0
    assert run("inspect", path, "--require-signature", other_key.public, *required).code == 0
    ran = run("inspect", path, "--require-signature", other_key.public)
    assert (ran.code, "not a signature" in ran.err) == (2, True)


def test_require_signature_without_the_extra_names_the_extra(
    path: Path, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_artifact(path, key)
    for name in [one for one in sys.modules if one.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtraError, match=r"langchain-cfc\[signing\]"):
        load_signed(path, key.public)
    CalibrationArtifact.load(path)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_makes_and_verifies_the_same_signatures(path: Path, tmp_path: Path) -> None:
    def openssl(*arguments: str | Path) -> int:
        return subprocess.run(["openssl", *map(str, arguments)], check=False, capture_output=True).returncode

    private, public, signature = tmp_path / "key.pem", tmp_path / "key.pub", f"{path}.sig"
    assert openssl("genpkey", "-algorithm", "ed25519", "-out", private) == 0
    assert openssl("pkey", "-in", private, "-pubout", "-out", public) == 0
    blob = ("-rawin", "-in", path)
    assert openssl("pkeyutl", "-sign", "-inkey", private, *blob, "-out", signature) == 0
    made = Path(signature).read_bytes()
    load_signed(path, public)
    assert run("sign", path, "--key", private).code == 0
    assert Path(signature).read_bytes() == made
    assert openssl("pkeyutl", "-verify", "-pubin", "-inkey", public, *blob, "-sigfile", signature) == 0


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_sign_command_accepts_keys_of_ssh_keygen(path: Path, tmp_path: Path) -> None:
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    assert run("sign", path, "--key", key).code == 0
    load_signed(path, f"{key}.pub")
