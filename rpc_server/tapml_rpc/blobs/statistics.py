"""What a blob store holds and has done, for ``tapml devices``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class BlobStatistics:
    """A blob store in numbers; sizes in bytes.

    Attributes
    ----------
    blobs
        Blobs held, in memory or on disk.
    memory_bytes, memory_budget
        Memory in use, in whole pages, uploads that are not finished included; and its bound.
    disk_bytes, disk_budget
        Disk in use, and its bound.
    attached_bytes
        Memory of blobs that live sessions have attached.
    arriving_bytes
        Memory of uploads that are not finished.
    owned_bytes
        By identity, the blobs it owns; one that two own counts for each.
    received, attached
        Blobs that came whole so far, and times one was attached.
    evicted, damaged
        Blobs that went from memory or disk for lack of room, and files found damaged.
    disk_problem
        Why the last copy was not written, or empty.
    """

    blobs: int = 0
    memory_bytes: int = 0
    memory_budget: int = 0
    disk_bytes: int = 0
    disk_budget: int = 0
    attached_bytes: int = 0
    arriving_bytes: int = 0
    owned_bytes: Mapping[str, int] = field(default_factory=dict)
    received: int = 0
    attached: int = 0
    evicted: int = 0
    damaged: int = 0
    disk_problem: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
