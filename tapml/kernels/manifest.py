"""``kernel.toml``: the operator of a hand-written kernel, and its launches.

::

    format = 1
    operator = "softmax"
    target = "opencl"
    source = "softmax.cl"

    [[launches]]
    entry = "softmax_kernel"
    arguments = ["input_0", "output_0", { scalar = "S", dtype = "int64" }]
    grid = ["4 * S"]
    block = [256]

This module only parses a manifest; :mod:`tapml.kernels.assembly` applies it to an operator. Nothing
in it is trusted: keys and sizes are bounded, and every file it names must be in its folder.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from tapml.kernels.manifest_places import Key, Places
from tapml_targets.errors import CompileError

MANIFEST: Final = "kernel.toml"
FORMAT: Final = 1
MAX_MANIFEST_BYTES: Final = 256 << 10
MAX_SOURCE_BYTES: Final = 4 << 20
MAX_LAUNCHES: Final = 1024
MAX_LAUNCH_DEPTH: Final = 8
MAX_ARGUMENTS: Final = 256
MAX_WORKSPACES: Final = 64

Text: TypeAlias = "int | str"
"""An expression in the manifest: a number, or text to be parsed."""

_TOP: Final = (
    "format", "operator", "hash", "target", "source", "options", "parameters", "symbols",
    "workspaces", "launches",
)  # fmt: skip
_LAUNCH: Final = (
    "entry", "source", "options", "arguments", "grid", "block", "shared_memory_bytes", "features",
    "when",
)  # fmt: skip
_GROUP: Final = ("for", "from", "count", "when", "launches")


@dataclass(frozen=True)
class ManifestArgument:
    """One argument of a launch.

    Attributes
    ----------
    buffer
        Name of a parameter or a workspace; empty for a number.
    value
        The number, or the byte offset into the buffer.
    dtype
        Dtype of the number; empty for a buffer.
    nbytes
        Bytes of the buffer from that offset; None for all.
    """

    buffer: str
    value: Text
    dtype: str
    key: Key
    nbytes: Text | None = None


@dataclass(frozen=True)
class ManifestLaunch:
    """One ``[[launches]]`` with an entry."""

    entry: str
    source: str
    options: tuple[str, ...]
    arguments: tuple[ManifestArgument, ...]
    grid: tuple[Text, ...]
    block: tuple[Text, ...]
    shared_memory_bytes: int
    features: tuple[str, ...]
    when: Text | None
    key: Key


@dataclass(frozen=True)
class ManifestGroup:
    """A ``[[launches]]`` that contains others: a host loop, a condition, or both."""

    symbol: str
    start: Text
    count: Text
    when: Text | None
    launches: tuple[ManifestLaunch | ManifestGroup, ...]
    key: Key


@dataclass(frozen=True)
class Manifest:
    """A parsed manifest.

    Attributes
    ----------
    path
        The file.
    operator, hash
        The operator it is for; `hash` is empty if not given.
    target
        Platform.
    parameters
        The operator's tensors when the kernel was written, such as ``input input_0 float32[1, S,
        128]``; None if not given.
    symbols
        Integers that the operator takes along with its tensors.
    workspaces
        Bytes of each workspace.
    launches
        In order.
    places
        Positions of its keys.
    """

    path: Path
    operator: str
    hash: str
    target: str
    parameters: tuple[str, ...] | None
    symbols: tuple[str, ...]
    workspaces: Mapping[str, Text]
    launches: tuple[ManifestLaunch | ManifestGroup, ...]
    places: Places = field(repr=False, compare=False)

    @property
    def folder(self) -> Path:
        """The folder of the manifest and its sources."""
        return self.path.parent


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest, without its sources.

    Raises
    ------
    CompileError
        Naming file, line, key, the expected and the actual value.
    """
    text = read_text(path, MAX_MANIFEST_BYTES, path)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CompileError(f"{path}: expected TOML: {error}") from None
    return _Reader(path, Places(path, text)).manifest(data)


def read_text(path: Path, limit: int, named_by: Path) -> str:
    """Read a UTF-8 text file of at most `limit` bytes.

    Raises
    ------
    CompileError
        If it is missing, larger, or not text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        other = "" if path == named_by else f" (named in {named_by})"
        raise CompileError(f"{path}: cannot be read{other}: {error.strerror}") from error
    if len(data) > limit:
        raise CompileError(f"{path}: expected at most {limit} bytes, it has more")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CompileError(f"{path}:{line}: expected UTF-8 text ({error.reason})") from None


class _Reader:
    """Checks types and names of a manifest's values, and enforces bounds."""

    def __init__(self, path: Path, places: Places) -> None:
        self._path = path
        self._places = places
        self._launches = 0

    def manifest(self, data: Mapping[str, Any]) -> Manifest:
        self.known((), data, _TOP)
        number = data.get("format")
        if number != FORMAT or isinstance(number, bool):
            raise self.error(
                ("format",),
                f"expected format = {FORMAT}, got {_shown(number)}; "
                "write it again with `tapml kernel new`, or use the tapml that wrote it",
            )
        source = self.text((), data, "source", "")
        options = self.texts((), data, "options") or ()
        symbols = self.texts((), data, "symbols") or ()
        workspaces = data.get("workspaces", {})
        if not isinstance(workspaces, dict) or len(workspaces) > MAX_WORKSPACES:
            raise self.error(
                ("workspaces",), f"expected a table of at most {MAX_WORKSPACES} names with bytes"
            )
        return Manifest(
            path=self._path,
            operator=self.text((), data, "operator"),
            hash=self.text((), data, "hash", ""),
            target=self.text((), data, "target"),
            parameters=self.texts((), data, "parameters"),
            symbols=symbols,
            workspaces={
                name: self.number(("workspaces", name), value) for name, value in workspaces.items()
            },
            launches=self.launches((), data, source, options, 0),
            places=self._places,
        )

    def launches(
        self,
        around: Key,
        data: Mapping[str, Any],
        source: str,
        options: tuple[str, ...],
        depth: int,
    ) -> tuple[ManifestLaunch | ManifestGroup, ...]:
        key = (*around, "launches")
        tables = data.get("launches")
        if not isinstance(tables, list) or not tables:
            raise self.error(key, f"expected at least one [[{'launches.' * depth}launches]]")
        if depth > MAX_LAUNCH_DEPTH:
            raise self.error(key, f"nested deeper than {MAX_LAUNCH_DEPTH} launches")
        found: list[ManifestLaunch | ManifestGroup] = []
        for index, table in enumerate(tables):
            at = (*key, index)
            self._launches += 1
            if self._launches > MAX_LAUNCHES:
                raise self.error(at, f"expected at most {MAX_LAUNCHES} launches")
            if not isinstance(table, dict):
                raise self.error(at, f"expected a table, got {_shown(table)}")
            if "launches" in table:
                found.append(self.group(at, table, source, options, depth))
            else:
                found.append(self.launch(at, table, source, options))
        return tuple(found)

    def group(
        self, at: Key, table: Mapping[str, Any], source: str, options: tuple[str, ...], depth: int
    ) -> ManifestGroup:
        self.known(at, table, _GROUP)
        symbol = self.text(at, table, "for", "")
        if bool(symbol) != ("count" in table):
            raise self.error(at, 'a host loop has both for = "i" and count = "..."')
        return ManifestGroup(
            symbol=symbol,
            start=self.number((*at, "from"), table.get("from", 0)),
            count=self.number((*at, "count"), table.get("count", 1)),
            when=self.when(at, table),
            launches=self.launches(at, table, source, options, depth + 1),
            key=at,
        )

    def launch(
        self, at: Key, table: Mapping[str, Any], source: str, options: tuple[str, ...]
    ) -> ManifestLaunch:
        self.known(at, table, _LAUNCH)
        own = self.texts(at, table, "options")
        arguments = table.get("arguments")
        if not isinstance(arguments, list) or len(arguments) > MAX_ARGUMENTS:
            raise self.error(
                (*at, "arguments"),
                f"expected a list of at most {MAX_ARGUMENTS} arguments in the kernel's order, such "
                'as ["input_0", "output_0", { scalar = "S", dtype = "int64" }], got '
                f"{_shown(arguments)}",
            )
        named = self.text(at, table, "source", source)
        if not named:
            raise self.error(
                (*at, "source"),
                'expected the name of a file, such as source = "kernel.cl", here or at the top',
            )
        shared = table.get("shared_memory_bytes", 0)
        if not isinstance(shared, int) or isinstance(shared, bool) or not 0 <= shared < 1 << 40:
            raise self.error(
                (*at, "shared_memory_bytes"), f"expected a number of bytes, got {_shown(shared)}"
            )
        return ManifestLaunch(
            entry=self.text(at, table, "entry"),
            source=named,
            options=options if own is None else own,
            arguments=tuple(
                self.argument((*at, "arguments", index), argument)
                for index, argument in enumerate(arguments)
            ),
            grid=self.extents(at, table, "grid"),
            block=self.extents(at, table, "block"),
            shared_memory_bytes=shared,
            features=self.texts(at, table, "features") or (),
            when=self.when(at, table),
            key=at,
        )

    def argument(self, at: Key, value: object) -> ManifestArgument:
        if isinstance(value, str):
            return ManifestArgument(value, 0, "", at)
        if isinstance(value, dict) and "scalar" in value:
            self.known(at, value, ("scalar", "dtype"))
            number = self.number((*at, "scalar"), value["scalar"])
            return ManifestArgument("", number, self.text(at, value, "dtype"), at)
        if isinstance(value, dict) and "buffer" in value:
            self.known(at, value, ("buffer", "byte_offset", "nbytes"))
            offset = self.number((*at, "byte_offset"), value.get("byte_offset", 0))
            size = self.number((*at, "nbytes"), value["nbytes"]) if "nbytes" in value else None
            return ManifestArgument(self.text(at, value, "buffer"), offset, "", at, size)
        raise self.error(
            at,
            'expected the name of a parameter or workspace, { scalar = "S", dtype = "int64" } or '
            f'{{ buffer = "input_0", byte_offset = "4 * S" }}, got {_shown(value)}',
        )

    def extents(self, at: Key, table: Mapping[str, Any], name: str) -> tuple[Text, ...]:
        key = (*at, name)
        value = table.get(name, [1])
        if isinstance(value, int | str) and not isinstance(value, bool):
            value = [value]
        if not isinstance(value, list) or not 1 <= len(value) <= 3:
            raise self.error(key, f"expected one to three extents (x, y, z), got {_shown(value)}")
        return tuple(self.number((*key, index), extent) for index, extent in enumerate(value))

    def when(self, at: Key, table: Mapping[str, Any]) -> Text | None:
        return self.number((*at, "when"), table["when"]) if "when" in table else None

    def number(self, at: Key, value: object) -> Text:
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self.error(
            at, f'expected an integer or an expression such as "4 * S", got {_shown(value)}'
        )

    def text(self, at: Key, table: Mapping[str, Any], name: str, default: str | None = None) -> str:
        value = table.get(name, default)
        if isinstance(value, str) and (value or name not in table) and len(value) <= 512:
            return value
        raise self.error(
            (*at, name), f"expected a text, got {'nothing' if value is None else _shown(value)}"
        )

    def texts(self, at: Key, table: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
        value = table.get(name)
        if value is None:
            return None
        if isinstance(value, list) and all(isinstance(each, str) and each for each in value):
            return tuple(value)
        raise self.error((*at, name), f"expected a list of texts, got {_shown(value)}")

    def known(self, at: Key, table: Mapping[str, Any], keys: Sequence[str]) -> None:
        """Refuse a key that is not one of `keys`, naming the nearest."""
        for name in table:
            if name not in keys:
                near = difflib.get_close_matches(name, keys, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise self.error(
                    (*at, name), f"this key is not known; {hint}expected {', '.join(keys)}"
                )

    def error(self, key: Key, problem: str) -> CompileError:
        return self._places.error(key, problem)


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:80]
