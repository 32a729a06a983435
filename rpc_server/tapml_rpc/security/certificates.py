"""A device's own certificate: made once, kept in the config folder, identified by its fingerprint.

No authority signs for a board on a desk. Instead the client is given the certificate's fingerprint,
as ssh shows a host key's.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from tapml_rpc.security.private_files import (
    PUBLIC_MODE,
    check_mode,
    config_folder,
    folder_lock,
    make_folder,
    read_checked,
    write_private,
)
from tapml_targets.errors import InputError, SetupError

# Phones reject certificates that are valid for longer.
VALID_DAYS: Final = 825
_RENEW_DAYS: Final = 7
_FILE_BYTES: Final = 256 << 10
_OPENSSL_SECONDS: Final = 60.0
_HEX: Final = re.compile(r"(?:sha256:)?([0-9a-f]{2}(?::?[0-9a-f]{2}){31})", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as files in PEM."""

    certificate: Path
    key: Path

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the (first) certificate, as :func:`fingerprint_of` gives it."""
        text = read_checked(self.certificate, secret=False, limit=_FILE_BYTES)
        return fingerprint_of(_first_der(text, self.certificate))


def fingerprint_of(der: bytes) -> str:
    """SHA-256 of a certificate as ``openssl x509 -fingerprint -sha256`` shows it: ``AB:CD:...``."""
    return hashlib.sha256(der).digest().hex(":").upper()


def parse_fingerprint(text: str) -> str:
    """A fingerprint as people give it, as `fingerprint_of` gives it; raises InputError."""
    match = _HEX.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"expected the SHA-256 fingerprint of a certificate, 64 hex digits, got {text[:100]!r}"
        )
    return bytes.fromhex(match[1].replace(":", "")).hex(":").upper()


def given_certificate(certificate: Path, key: Path) -> Certificate:
    """A certificate that others made, checked; raises InputError or SetupError."""
    given = Certificate(certificate, key)
    _ = given.fingerprint
    try:
        check_mode(key, key.stat().st_mode, secret=True)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise InputError(
            f"{certificate} and {key} are not a certificate and its key: {error.reason or error}"
        ) from None
    except OSError as error:
        raise InputError(f"cannot read {key}: {error.strerror}") from None
    return given


def own_certificate(names: Sequence[str], folder: Path | None = None) -> Certificate:
    """The device's own certificate, made if there is none that still fits.

    `names` are those of :func:`host_names`; `folder` is the user's own ``tls`` if None. Raises
    SetupError if it cannot be made: there is no command ``openssl``.
    """
    folder = config_folder("tls") if folder is None else folder
    make_folder(folder)
    kept = Certificate(folder / "device.crt", folder / "device.key")
    note = folder / "device.names"
    # A host name may be anything; a comma or a line break in it would add a line.
    names = [name for name in names if _is_address(name) or _NAME.fullmatch(name)]
    with folder_lock(folder):
        if not _still_fits(kept, note, names):
            certificate, key = _make(names)
            # The note is removed first and written last: without it the pair is made again.
            note.unlink(missing_ok=True)
            write_private(kept.key, key, replace=True)
            write_private(kept.certificate, certificate, mode=PUBLIC_MODE, replace=True)
            write_private(note, _note(certificate, names), mode=PUBLIC_MODE, replace=True)
    return given_certificate(kept.certificate, kept.key)


def host_names(bound: str) -> list[str]:
    """The names and addresses of a server that is bound to a numeric address."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    address = ip_address(bound)
    if not address.is_unspecified:
        names.append(str(address))
    else:
        # Nothing is sent: connecting a datagram socket only asks the routing table.
        for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                names.append(probe.getsockname()[0])
        with suppress(OSError):
            names += [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    return list(dict.fromkeys(name.partition("%")[0] for name in names))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _note(certificate: str, names: Sequence[str]) -> str:
    """What the standard library cannot read back from a certificate: its names and its age."""
    der = _first_der(certificate, Path("certificate"))
    return "\n".join([fingerprint_of(der), str(int(time.time())), *names]) + "\n"


def _still_fits(kept: Certificate, note: Path, names: Sequence[str]) -> bool:
    try:
        read_checked(kept.key, secret=True, limit=_FILE_BYTES)
        fingerprint, made, *known = read_checked(note, secret=False, limit=_FILE_BYTES).split()
        age = time.time() - int(made)
        same = fingerprint == kept.fingerprint
    except (InputError, ValueError):
        return False
    fresh = 0 <= age < (VALID_DAYS - 1 - _RENEW_DAYS) * 86400
    return fresh and same and set(names) <= set(known)


def _first_der(text: str, path: Path) -> bytes:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    body, found, _ = text.partition(begin)[2].partition(end)
    try:
        der = ssl.PEM_cert_to_DER_cert(f"{begin}{body}{end}") if found else b""
    except ValueError:
        der = b""
    if not der:
        raise InputError(f"{path} holds no certificate in PEM")
    return der


_CONFIG: Final = """\
[req]
distinguished_name = subject
x509_extensions = extensions
prompt = no
[subject]
CN = tapml device
[extensions]
subjectAltName = {names}
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
"""


def _make(names: Sequence[str]) -> tuple[str, str]:
    command = shutil.which("openssl")
    if command is None:
        raise SetupError(
            "a certificate is needed and cannot be made here: install the command openssl, or "
            "give --certificate and --certificate-key"
        )
    shown = ", ".join(("IP:" if _is_address(name) else "DNS:") + name for name in names)
    # mkdtemp makes the folder private to this user: nobody else can read the key meanwhile.
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config").write_text(_CONFIG.format(names=shown))
        words = [command, "req", "-x509", "-new", "-nodes", "-sha256", "-days", str(VALID_DAYS - 1)]
        words += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        words += ["-config", "config", "-keyout", "key.pem", "-out", "certificate.pem"]
        try:
            done = subprocess.run(
                words,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_OPENSSL_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SetupError(f"the command openssl did not make a certificate: {error}") from None
        if done.returncode:
            raise SetupError(
                f"the command openssl did not make a certificate: {done.stderr.strip()[-500:]}"
            )
        return (folder / "certificate.pem").read_text(), (folder / "key.pem").read_text()
