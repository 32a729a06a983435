"""The key of a verdict: a hash of everything it depends on, and the parts to tell changes by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class VerdictKey:
    """What a verdict depends on.

    Attributes
    ----------
    hash
        Of all of it, hexadecimal: equal exactly where the verdict still holds.
    parts
        The same by name (``kernel``, ``tests``, ``policy``, ``driver``, ...): versions and names as
        text, what is long as a hash. :func:`tapml.offload.changes.what_changed` compares them.
    """

    hash: str
    parts: Mapping[str, str]


def hash_parts(**parts: str) -> str:
    """Hash of named parts (kernel, body, tests, policy, compiler, device, ...), hexadecimal."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
