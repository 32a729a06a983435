"""The numbers of a blob store, for ``tapml devices``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class BlobStatistics:
    """A blob store in numbers; sizes in bytes.

    `memory_bytes` counts complete pages and unfinished uploads. `attached_bytes` are those of live
    sessions. `owned_bytes` is by identity; a blob with two owners counts for each. `received` and
    `attached` count blobs and attachments so far, `evicted` and `damaged` removals for lack of room
    and damaged files. `disk_problem` says why the last copy was not written, or is empty.
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
