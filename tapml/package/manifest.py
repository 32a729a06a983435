"""``package.json``: what a package holds, what it was validated on, and a hash of every file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tapml.models.longest_match import VOCABULARY
from tapml.models.stored import StoredModel, decode_hook
from tapml.package.sample import Sample
from tapml_targets.errors import InputError

FORMAT: Final = "tapml package"
VERSION: Final = 1

MANIFEST: Final = "package.json"
PLAN: Final = "plan.msgpack"
LIBRARY: Final = "library.msgpack"
WEIGHTS: Final = "weights.safetensors"
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
README: Final = "README.txt"
RUN: Final = "run.py"

MAX_MANIFEST_BYTES: Final = 4 << 20
_Text: TypeAlias = Annotated[str, Meta(max_length=1 << 16)]
# One plain name: no name leads out of the folder.
_FileName: TypeAlias = Annotated[
    str, Meta(pattern=r"^(?!\.|package\.json\Z)[A-Za-z0-9_.+-]{1,160}\Z")
]
_Sha256: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

Reader: TypeAlias = Literal["tokenizers", "longest-match", "none", "tapml"]


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


@dataclass(frozen=True)
class StoredFile:
    """Size and SHA-256 of a file, hexadecimal."""

    bytes: Annotated[int, Meta(ge=0, lt=1 << 62)]
    sha256: _Sha256


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
        :func:`tapml_targets.description.fingerprint` of it.
    """

    platform: _Text
    name: _Text
    vendor_platform: _Text
    driver_version: _Text
    fingerprint: _Text


@dataclass(frozen=True)
class TokenizerNote:
    """How text becomes tokens.

    Attributes
    ----------
    reader
        What reads its file: the library `tokenizers`, or tapml itself by the longest match;
        ``none`` where it takes token ids alone.
    text
        The same as a sentence, for people.
    """

    reader: Reader
    text: _Text

    def __post_init__(self) -> None:
        # A reader of its own, in packages that were made with an earlier tapml.
        if self.reader == "tapml":
            object.__setattr__(self, "reader", "tokenizers")

    @property
    def file(self) -> str:
        """The name of its file."""
        return VOCABULARY if self.reader == "longest-match" else TOKENIZER


@dataclass(frozen=True)
class Manifest:
    """The content of ``package.json``.

    `entries` are for people; `verdict` has status, text and numbers of the session;
    `weights_header_sha256` covers the weights up to their data; `files` are all others.
    """

    model: StoredModel
    entries: Mapping[str, Mapping[str, _Text]]
    device: ValidatedDevice
    verdict: Mapping[str, Any]
    tokenizer: TokenizerNote
    versions: Mapping[str, _Text]
    weights_header_sha256: _Sha256
    files: Annotated[Mapping[_FileName, StoredFile], Meta(max_length=64)]
    sample: Sample | None = None

    def to_bytes(self) -> bytes:
        """The file's content."""
        data = {"format": FORMAT, "version": VERSION, **msgspec.to_builtins(self, order="sorted")}
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
            head = msgspec.json.decode(content, type=_Head)
            if head.format == FORMAT and head.version > VERSION:
                raise InputError(
                    f"it has version {head.version} of the format and this tapml reads up to "
                    f"{VERSION}: install a newer tapml, or make the package again with this one"
                )
            if (head.format, head.version) != (FORMAT, VERSION):
                raise InputError(f"{MANIFEST} is not that of a package made by `tapml package`")
            found = msgspec.json.decode(content, type=cls, dec_hook=decode_hook)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{MANIFEST} is damaged: {error}") from error
        missing = [name for name in (PLAN, LIBRARY, WEIGHTS) if name not in found.files]
        if missing:
            raise InputError(f"{MANIFEST} names no {', '.join(missing)}")
        return replace(
            found,
            entries={name: _printable(sides) for name, sides in found.entries.items()},
            device=ValidatedDevice(**_printable(asdict(found.device))),
            tokenizer=TokenizerNote(
                found.tokenizer.reader, _printable({"text": found.tokenizer.text})["text"]
            ),
            versions=_printable(found.versions),
        )


def _printable(texts: Mapping[str, str]) -> dict[str, str]:
    """Texts as a terminal may show them."""
    return {
        key: "".join(each if each.isprintable() else "?" for each in text)
        for key, text in texts.items()
    }
