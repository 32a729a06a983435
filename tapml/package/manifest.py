"""``package.json``: what a package holds, what it was validated on, and a hash of every file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from tapml.models.stored import StoredDecoder
from tapml.package.sample import Sample
from tapml_targets.errors import InputError

FORMAT: Final = "tapml package"
VERSION: Final = 1

MANIFEST: Final = "package.json"
PLAN: Final = "plan.msgpack"
LIBRARY: Final = "library.msgpack"
WEIGHTS: Final = "weights.safetensors"
TOKENIZER: Final = "tokenizer.json"
README: Final = "README.txt"
RUN: Final = "run.py"

MAX_MANIFEST_BYTES: Final = 4 << 20
_MOST_FILES: Final = 64
_LONGEST_TEXT: Final = 1 << 16
_NEEDED: Final = (PLAN, LIBRARY, WEIGHTS)
# One plain name: no name leads out of the folder.
_FILE_NAME: Final = re.compile(r"(?!\.)[\w.+-]{1,160}", re.ASCII)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

# Who reads tokenizer.json: tapml itself, the `tokenizers` library, or nobody.
Reader: TypeAlias = Literal["tapml", "tokenizers", "none"]
_READERS: Final = ("tapml", "tokenizers", "none")


@dataclass(frozen=True)
class StoredFile:
    """Size and SHA-256 of a file, hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ValidatedDevice:
    """The device that the model was validated on.

    Attributes
    ----------
    platform
        ``opencl``: a package runs on devices of this platform.
    name, vendor_platform, driver_version
        As the driver gave them.
    fingerprint
        :func:`tapml_targets.fingerprint.fingerprint` of it.
    """

    platform: str
    name: str
    vendor_platform: str
    driver_version: str
    fingerprint: str


@dataclass(frozen=True)
class TokenizerNote:
    """How text becomes tokens.

    Attributes
    ----------
    reader
        Who reads ``tokenizer.json``; ``none`` where it takes token ids alone.
    text
        How that was found out, a sentence.
    """

    reader: Reader
    text: str


@dataclass(frozen=True)
class Manifest:
    """What ``package.json`` says.

    Attributes
    ----------
    model
        The model's sizes.
    entries
        Inputs and outputs of each entry as text, for people.
    device
        Where it was validated.
    verdict
        Status, one line and numbers of the session's end.
    tokenizer
        How text becomes tokens.
    versions
        Of what made it.
    weights_header_sha256
        Of the first bytes of the weights, up to the data.
    files
        Every other file of the package by name.
    sample
        A text of the session; None where it has none, or an earlier tapml made the package.
    """

    model: StoredDecoder
    entries: Mapping[str, Mapping[str, str]]
    device: ValidatedDevice
    verdict: Mapping[str, Any]
    tokenizer: TokenizerNote
    versions: Mapping[str, str]
    weights_header_sha256: str
    files: Mapping[str, StoredFile]
    sample: Sample | None = None

    def to_bytes(self) -> bytes:
        """The file's content."""
        data = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model.to_json(),
            "entries": {name: dict(sides) for name, sides in self.entries.items()},
            "device": asdict(self.device),
            "verdict": dict(self.verdict),
            "tokenizer": asdict(self.tokenizer),
            "sample": None if self.sample is None else self.sample.to_json(),
            "versions": dict(self.versions),
            "weights_header_sha256": self.weights_header_sha256,
            "files": {name: asdict(each) for name, each in sorted(self.files.items())},
        }
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """Read a file's content, trusting nothing in it.

        Raises
        ------
        InputError
            If it is no package's, of a newer version, or damaged.
        """
        try:
            data = json.loads(content, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{MANIFEST} is not valid JSON ({error})") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InputError(f"{MANIFEST} is not that of a package made by `tapml package`")
        version = data.get("version")
        if type(version) is int and version > VERSION:
            raise InputError(
                f"it has version {version} of the format and this tapml reads up to {VERSION}: "
                "install a newer tapml, or make the package anew with this one"
            )
        if version != VERSION:
            raise InputError(f"{MANIFEST} has version {str(version)[:20]}, expected {VERSION}")
        device = _texts(data, "device")
        reader, note = _texts(data, "tokenizer").get("reader"), _texts(data, "tokenizer")
        if reader not in _READERS:
            raise _malformed("tokenizer")
        entries = data.get("entries")
        verdict = data.get("verdict")
        if not isinstance(entries, dict) or not isinstance(verdict, dict):
            raise _malformed("entries or verdict")
        try:
            return cls(
                model=StoredDecoder.from_json(data.get("model")),
                entries={name: _texts(entries, name) for name in entries},
                device=ValidatedDevice(**device),
                verdict=verdict,
                tokenizer=TokenizerNote(reader, note["text"]),  # type: ignore[arg-type]
                versions=_texts(data, "versions"),
                weights_header_sha256=_hash(data.get("weights_header_sha256")),
                files=_files(data.get("files")),
                sample=_sample(data.get("sample")),
            )
        except (TypeError, KeyError) as error:
            raise _malformed(str(error)) from error


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _files(data: object) -> dict[str, StoredFile]:
    if not isinstance(data, dict) or len(data) > _MOST_FILES:
        raise _malformed("files")
    found: dict[str, StoredFile] = {}
    for name, entry in data.items():
        match entry:
            case {"bytes": int(nbytes), "sha256": sha256} if (
                0 <= nbytes < 1 << 62 and _FILE_NAME.fullmatch(name) and name != MANIFEST
            ):
                found[name] = StoredFile(nbytes, _hash(sha256))
            case _:
                raise _malformed(f"file {name[:100]!r}")
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise InputError(f"{MANIFEST} names no {', '.join(missing)}")
    return found


def _texts(data: Mapping[str, Any], name: str) -> dict[str, str]:
    """An object of short texts; a terminal shows them."""
    value = data.get(name)
    if not isinstance(value, dict) or not all(
        isinstance(each, str) and len(each) <= _LONGEST_TEXT for each in value.values()
    ):
        raise _malformed(name)
    return {
        key: "".join(each if each.isprintable() else "?" for each in text)
        for key, text in value.items()
    }


def _sample(data: object) -> Sample | None:
    try:
        return None if data is None else Sample.from_json(data)
    except ValueError as error:
        raise _malformed("sample") from error


def _hash(value: object) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise _malformed("a SHA-256")
    return value


def _malformed(what: str) -> InputError:
    return InputError(f"{MANIFEST} is damaged: {what} makes no sense")
