"""TLS on both ends of a WebSocket: contexts, and what a failure means."""

from __future__ import annotations

import hmac
import ssl
from pathlib import Path
from typing import Any, Final

from tapml_rpc.security.certificates import Certificate, fingerprint_of, parse_fingerprint
from tapml_targets.errors import InputError, SetupError

# X509_V_ERR_* of OpenSSL: what it knows no issuer of, or what has signed itself.
_UNKNOWN_AUTHORITY: Final = frozenset({2, 18, 19, 20, 21})
_EXPIRED: Final = 10


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """A server's side of TLS 1.2 and newer; raises InputError for files that do not match."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate.certificate, certificate.key)
    except OSError as error:
        raise InputError(
            f"cannot use {certificate.certificate} with {certificate.key}: {error}"
        ) from None
    return context


def client_context(
    *, ca_file: Path | None = None, fingerprint: str | None = None
) -> ssl.SSLContext:
    """A client's side: whom to trust, by default the system's authorities.

    `ca_file` holds authorities, or the device's own certificate, in PEM. `fingerprint` is the
    SHA-256 of the one accepted certificate, for any signer and any name in it; it is compared
    before anything is sent. Raises InputError if both are given, the file holds no certificate, or
    the fingerprint is malformed.
    """
    if fingerprint is not None and ca_file is not None:
        raise InputError("trust either a file of authorities or a fingerprint, not both")
    if fingerprint is not None:
        return _pinned_context(parse_fingerprint(fingerprint))
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise InputError(f"{ca_file} holds no certificate in PEM") from None
    except OSError as error:
        raise InputError(f"cannot read {ca_file}: {error.strerror}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _pinned_context(fingerprint: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The fingerprint says more than an authority could. TLS itself proves that the peer has the
    # certificate's key, with or without authorities.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    # Every user of the context gets these classes, and so cannot forget to compare.
    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            _compare(self.getpeercert(binary_form=True), fingerprint)

    class PinnedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            _compare(self.getpeercert(binary_form=True), fingerprint)

    context.sslsocket_class = PinnedSocket
    context.sslobject_class = PinnedObject
    return context


class _OtherFingerprint(ssl.SSLCertVerificationError):
    """The certificate is not the one whose fingerprint is known."""


def _compare(der: bytes | None, fingerprint: str) -> None:
    found = fingerprint_of(der or b"")
    if not hmac.compare_digest(found, fingerprint):
        raise _OtherFingerprint(
            1, f"the certificate's fingerprint is {found}, expected {fingerprint}"
        )


def tls_failure(error: ssl.SSLError, address: str) -> SetupError:
    """What an error of a client's TLS handshake means, with what to do next."""
    return SetupError(f"no TLS connection to {address}: {_meaning(error)}")


def _meaning(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _why_untrusted(error)
    reason: Any = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "what answers does not speak TLS; is it a ws:// address, or another port?"
    return str(reason or error)


def _why_untrusted(error: ssl.SSLCertVerificationError) -> str:
    message = getattr(error, "verify_message", "") or str(error.args[-1])
    code = getattr(error, "verify_code", 0)
    if code in _UNKNOWN_AUTHORITY:
        return (
            "no authority known here signed its certificate. If it is a device's own, give the "
            "fingerprint that `tapml rpc serve` printed there (TAPML_RPC_FINGERPRINT), or the "
            "certificate's file (TAPML_RPC_CA)"
        )
    if isinstance(error, _OtherFingerprint):
        return (
            f"{message}. Either the device made a new certificate, then compare with what "
            "`tapml rpc serve` prints there, or somebody is in between"
        )
    if code == _EXPIRED:
        return "its certificate has expired; a device makes a new one when it is started again"
    return (
        f"{message}. A certificate holds for the names in it: use one of those, or give its "
        "fingerprint"
    )
