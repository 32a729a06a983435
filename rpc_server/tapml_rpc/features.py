"""The features of this release beyond the protocol's version, as a welcome names them."""

from __future__ import annotations

from typing import Final

from tapml_rpc import wire
from tapml_rpc.program_body import PROGRAMS

FEATURES: Final = (
    "batch",
    "credit",
    "library-hash",
    "entries",
    "timing",
    "workspace-poison",
    wire.RECORDED_CALLS,
    PROGRAMS,
)
