"""Findings of a checked replay: faults with the kernel's source line and the operator.

A wrong kernel is wrong in many work-items, with a message from each. Messages that differ only in
work-item and address are one finding, with a count and the first as the example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from tapml.plan.graph_plan import Origin
from tapml_targets.check_messages import Access, Kind, Message, Place
from tapml_targets.library import Library

FindingKind: TypeAlias = Kind | Literal["input changed", "launch refused"]

_CONTEXT_LINES: Final = 2
_LINE_CHARACTERS: Final = 4000
_EXCERPT_CHARACTERS: Final = 120
# An address: buffer number, and byte offset within the buffer.
_OFFSET_BITS: Final = 48


@dataclass(frozen=True)
class SourcePlace:
    """A source line of a kernel in a finding.

    Attributes
    ----------
    module
        Index into ``Library.modules``; -1 if the kernel is not in the Library.
    line, column
        From 1; 0 if unknown.
    text
        The line, stripped.
    access
        ``read``, ``write``, ``barrier``, or empty.
    work_item, group
        Indices of the first work-item found there, ``(x,y,z)``, and of its work-group.
    excerpt
        The line with two lines on either side, numbered.
    """

    module: int
    line: int
    column: int
    text: str
    access: Access
    work_item: str
    group: str
    excerpt: tuple[str, ...]

    def sentence(self) -> str:
        """The access as a sentence."""
        does = {"read": "reads", "write": "writes", "barrier": "waits"}.get(self.access, "is")
        who = f"work-item {self.work_item}" if self.work_item else "a work-item"
        group = f" of group {self.group}" if self.group else ""
        column = f", column {self.column}" if self.column else ""
        return f"{who}{group} {does} at line {self.line}{column}:"


@dataclass(frozen=True)
class Finding:
    """One fault of a kernel.

    Attributes
    ----------
    kind
        Kind of fault.
    operator, test
        The operator, and the first test that showed it.
    kernel
        The kernel; empty if unknown.
    message
        The simulator's message of the first occurrence.
    places
        Source lines: two for a race, none if unknown.
    address_space
        ``global``, ``local``, ``private``, ``constant``; empty if unknown.
    tensor
        Parameter or workspace of a global address; empty if unknown.
    byte
        Accessed byte of the tensor, or of an array in local or private memory; may be out of
        bounds. None if unknown.
    tensor_bytes
        Size of the tensor.
    count
        Occurrences.
    at_least
        Whether the simulator's log was truncated.
    origins
        The operator's origins in the model, if known.
    """

    kind: FindingKind
    operator: str
    test: str
    kernel: str
    message: str
    places: tuple[SourcePlace, ...] = ()
    address_space: str = ""
    tensor: str = ""
    byte: int | None = None
    tensor_bytes: int = 0
    count: int = 1
    at_least: bool = False
    origins: tuple[Origin, ...] = ()

    @property
    def line(self) -> int:
        """The source line, the first if there are two; 0 if unknown."""
        return self.places[0].line if self.places else 0

    @property
    def text(self) -> str:
        """The text of :attr:`line`."""
        return self.places[0].text if self.places else ""

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for occurrences of the same fault."""
        places = frozenset((place.module, place.line, place.access) for place in self.places)
        return (self.kind, self.operator, self.kernel, places, self.address_space, self.tensor)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "line": self.line, "text": self.text}

    def lines(self) -> list[str]:
        """The finding as text: a headline, then the source."""
        times = f"{'at least ' if self.at_least else ''}{self.count} times" * (self.count > 1)
        where = f"kernel {self.kernel}" if self.kernel else ""
        head = ", ".join(part for part in (f"{self.kind} in {self.operator}", where, times) if part)
        lines = [head, f"  {self.what()}; first in test {self.test}"]
        shown: tuple[str, ...] = ()
        for place in self.places:
            lines.append(f"  {place.sentence()}")
            if place.excerpt != shown:
                lines.extend(f"    {line}" for line in place.excerpt)
            shown = place.excerpt
        for origin in self.origins[:1]:
            lines.append(f"  from {origin.source} ({origin.module_path}), {origin.operation}")
        return lines

    def what(self) -> str:
        """The simulator's message, with tensor and byte in place of an address."""
        words, address, _ = self.message.partition(" memory address ")
        if not address or self.byte is None:
            return self.message
        if self.tensor:
            words = words.removesuffix(" global")
            return f"{words} byte {self.byte} of {self.tensor}, which has {self.tensor_bytes}"
        return f"{words} memory, byte {self.byte}"


@dataclass(frozen=True)
class TensorPlace:
    """A tensor that is alone in the simulator's buffer number `buffer`."""

    buffer: int
    name: str
    nbytes: int


def findings_of(
    messages: Iterable[Message],
    library: Library,
    *,
    operator: str,
    test: str,
    tensors: Sequence[TensorPlace] = (),
    at_least: bool = False,
) -> tuple[Finding, ...]:
    """Convert messages to findings, one per fault.

    Parameters
    ----------
    messages
        From :func:`tapml.check.log.read_messages`.
    library
        The Library that ran; its modules are the source.
    operator, test
        The operator and test that ran.
    tensors
        The tensor in each buffer.
    at_least
        Whether the log is truncated.
    """
    modules = {kernel.symbol: kernel.module for kernel in library.kernels.values()}
    sources = [module.code.decode(errors="replace").split("\n") for module in library.modules]
    by_buffer = {tensor.buffer: tensor for tensor in tensors}
    found = []
    for message in messages:
        module = modules.get(message.kernel, -1)
        finding = Finding(
            kind=message.kind,
            operator=operator,
            test=test,
            kernel=message.kernel,
            message=message.headline,
            places=tuple(_source_place(place, module, sources) for place in message.places),
            address_space=message.address_space,
            at_least=at_least,
        )
        found.append(_with_place(finding, message, by_buffer))
    return merged(found)


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Merge findings of several tests, each fault once, in the order of first occurrence."""
    faults: dict[tuple[Any, ...], Finding] = {}
    for finding in findings:
        known = faults.setdefault(finding.identity, finding)
        if known is not finding:
            faults[finding.identity] = replace(
                known,
                count=known.count + finding.count,
                at_least=known.at_least or finding.at_least,
            )
    return tuple(faults.values())


def _with_place(finding: Finding, message: Message, tensors: Mapping[int, TensorPlace]) -> Finding:
    """Add the tensor and byte of the message's address."""
    if message.address is None:
        return finding
    buffer, byte = divmod(message.address, 1 << _OFFSET_BITS)
    if byte >= 1 << (_OFFSET_BITS - 1):
        # Before the first byte of the next buffer.
        buffer, byte = buffer + 1, byte - (1 << _OFFSET_BITS)
    if message.address_space != "global":
        return replace(finding, byte=byte)
    tensor = tensors.get(buffer)
    if tensor is None:
        return finding
    return replace(finding, tensor=tensor.name, byte=byte, tensor_bytes=tensor.nbytes)


def _source_place(place: Place, module: int, sources: Sequence[Sequence[str]]) -> SourcePlace:
    lines = sources[module] if module >= 0 else ()
    text, excerpt = "", []
    if 1 <= place.line <= len(lines):
        text = lines[place.line - 1].strip()[:_LINE_CHARACTERS]
        first = max(1, place.line - _CONTEXT_LINES)
        last = min(len(lines), place.line + _CONTEXT_LINES)
        for number in range(first, last + 1):
            mark, column = (">", place.column) if number == place.line else (" ", 0)
            excerpt.append(f"{mark}{number:5d}  {_cut(lines[number - 1], column)}")
    return SourcePlace(
        module,
        place.line,
        place.column,
        text,
        place.access,
        place.work_item,
        place.group,
        tuple(excerpt),
    )


def _cut(line: str, column: int) -> str:
    """The part of a generated line, which may be long, around `column`."""
    line = line.rstrip()
    if len(line) <= _EXCERPT_CHARACTERS:
        return line
    start = min(max(0, column - _EXCERPT_CHARACTERS // 2), len(line) - _EXCERPT_CHARACTERS)
    end = start + _EXCERPT_CHARACTERS
    return "…" * (start > 0) + line[start:end] + "…" * (end < len(line))
