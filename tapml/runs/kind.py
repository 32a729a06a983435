"""Kinds of long work that write run folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunKind:
    """A kind of long work: a migration, a comparison, a check.

    Attributes
    ----------
    format
        Name and version, such as ``tapml-session/1``; folders of another format are refused.
    statuses
        Possible statuses of a result.
    results, events
        Types (for ``msgspec.convert``) of result data by stage, and of event data by kind. A row
        that does not match its type counts as missing. Unlisted data may be any JSON object.
    restart
        Advice to the user if a folder cannot be read.
    """

    format: str
    statuses: tuple[str, ...] = ("pass", "fail")
    results: Mapping[str, Any] = field(default_factory=dict)
    events: Mapping[str, Any] = field(default_factory=dict)
    restart: str = "start again in another folder"
