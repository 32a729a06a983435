"""What a checked replay finds: faults with the kernel's source line and the operator.

A wrong kernel is wrong in many work-items and says so for each. Messages that differ in work-item
and address alone are one finding, with the first of them as its example and their count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from tapml.check.log import Access, Kind, Message, Place
from tapml.graph.plan import Origin
from tapml_targets.library import Library

FindingKind: TypeAlias = Kind | Literal["input changed", "launch refused"]

_CONTEXT_LINES: Final = 2
_LINE_CHARACTERS: Final = 400
# An address: the number of the buffer, and the byte within it.
_OFFSET_BITS: Final = 48


@dataclass(frozen=True)
class SourcePlace:
    """A line of a kernel that has a part in a finding.

    Attributes
    ----------
    module
        Index into ``Library.modules``; -1 where the kernel is not of the Library.
    line, column
        From 1; 0 where the simulator does not know.
    text
        The line, without the space around it.
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


@dataclass(frozen=True)
class Finding:
    """One fault of a kernel.

    Attributes
    ----------
    kind
        What is wrong.
    operator, test
        The operator, and the first test that showed it.
    kernel
        The kernel; empty where none is named.
    message
        The simulator's words about the first occurrence.
    places
        Where: two for a race, none where it is not known.
    address_space
        ``global``, ``local``, ``private``, ``constant``; empty where none is named.
    tensor
        Parameter or workspace behind a global address; empty where it is not known.
    byte
        Byte of the tensor, from 0; outside of it where the access was. None where it is not known.
    tensor_bytes
        Size of the tensor.
    count
        Occurrences.
    at_least
        Whether there are more that the simulator left unsaid.
    origins
        Where in the model the operator comes from, where that is known.
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
        """The source line; the first of two; 0 where it is not known."""
        return self.places[0].line if self.places else 0

    @property
    def text(self) -> str:
        """The text of :attr:`line`."""
        return self.places[0].text if self.places else ""

    @property
    def identity(self) -> tuple[Any, ...]:
        """What two occurrences of one fault have in common."""
        places = frozenset((place.module, place.line, place.access) for place in self.places)
        return (self.kind, self.operator, self.kernel, places, self.address_space, self.tensor)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "line": self.line, "text": self.text}

    def lines(self) -> list[str]:
        """The finding for people: a headline, then the source."""
        times = f"{'at least ' if self.at_least else ''}{self.count} times" * (self.count > 1)
        where = f"kernel {self.kernel}" if self.kernel else ""
        head = ", ".join(part for part in (f"{self.kind} in {self.operator}", where, times) if part)
        lines = [head, f"  {self.what()}; first in test {self.test}"]
        for place in self.places:
            did = {"read": "reads", "write": "writes", "barrier": "waits"}.get(place.access, "is")
            who = f"work-item {place.work_item}" if place.work_item else "a work-item"
            group = f" of group {place.group}" if place.group else ""
            lines.append(f"  {who}{group} {did} at line {place.line}, column {place.column}:")
            lines.extend(f"    {line}" for line in place.excerpt)
        for origin in self.origins[:1]:
            lines.append(f"  from {origin.source} ({origin.module_path}), {origin.operation}")
        return lines

    def what(self) -> str:
        """The simulator's words, with the tensor in place of its address."""
        if self.byte is None:
            return self.message
        words, _, _ = self.message.partition(" memory address ")
        place = f"byte {self.byte} of {self.tensor}, which has {self.tensor_bytes}"
        return f"{words.removesuffix(' global')} {place}"


@dataclass(frozen=True)
class TensorPlace:
    """A tensor that lies alone in buffer number `buffer` of the simulator."""

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
    """Make findings of messages, one per fault.

    Parameters
    ----------
    messages
        From :func:`tapml.check.log.read_messages`.
    library
        What ran; its modules are the source.
    operator, test
        What ran.
    tensors
        Which buffer held what.
    at_least
        Whether the log is cut off.
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
        found.append(_with_tensor(finding, message, by_buffer))
    return merged(found)


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings of several tests as one list, each fault once, in the order of their first."""
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


def _with_tensor(finding: Finding, message: Message, tensors: Mapping[int, TensorPlace]) -> Finding:
    if message.address is None or message.address_space != "global":
        return finding
    buffer, byte = divmod(message.address, 1 << _OFFSET_BITS)
    if byte >= 1 << (_OFFSET_BITS - 1):
        # Before the first byte of the buffer that follows.
        buffer, byte = buffer + 1, byte - (1 << _OFFSET_BITS)
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
        excerpt = [
            f"{'>' if number == place.line else ' '}{number:5d}  "
            f"{lines[number - 1].rstrip()[:_LINE_CHARACTERS]}"
            for number in range(first, last + 1)
        ]
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
