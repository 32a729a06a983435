"""The stored form of a GraphPlan: msgpack, versioned, every field checked when read.

Needs neither TVM nor torch: a packaged model is run by the base install.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Final

import msgpack
import msgspec

from tapml.plan.graph_plan import GraphPlan
from tapml.plan.validation import check_plan
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.library_format import plain_text

FORMAT: Final = "tapml plan"
VERSION: Final = 3
MAX_PLAN_BYTES: Final = 256 << 20
_MAX_ITEMS: Final = 1 << 20
_MAX_TEXT_BYTES: Final = 64 << 20


def pack(plan: GraphPlan) -> bytes:
    """The bytes of a plan; equal plans give equal bytes.

    Raises
    ------
    ProtocolError
        If the plan is larger than ``MAX_PLAN_BYTES``.
    """
    packed = msgspec.msgpack.encode((FORMAT, VERSION, plan), enc_hook=plain_text)
    if len(packed) > MAX_PLAN_BYTES:
        raise ProtocolError(
            f"the plan takes {len(packed)} bytes, at most {MAX_PLAN_BYTES} are allowed"
        )
    return packed


def unpack(data: bytes | bytearray | memoryview) -> GraphPlan:
    """Read packed bytes back, trusting nothing in them.

    Raises
    ------
    ProtocolError
        If the bytes are no plan of this version or the plan breaks an invariant.
    """
    if len(data) > MAX_PLAN_BYTES:
        raise ProtocolError(f"a plan has at most {MAX_PLAN_BYTES} bytes, got {len(data)}")
    try:
        frame = msgpack.unpackb(
            data,
            use_list=False,
            max_array_len=_MAX_ITEMS,
            max_map_len=_MAX_ITEMS,
            max_str_len=_MAX_TEXT_BYTES,
            max_bin_len=0,
            max_ext_len=0,
        )
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"not a plan: {type(error).__name__} {error}") from None
    if not isinstance(frame, tuple) or len(frame) != 3 or frame[0] != FORMAT:
        raise ProtocolError("not a plan: it does not begin as one")
    if frame[1] != VERSION:
        raise ProtocolError(
            f"plan version {str(frame[1])[:20]} is not supported, expected {VERSION}"
        )
    try:
        plan = msgspec.convert(frame[2], GraphPlan)
        check_plan(plan)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a plan: {error}") from None
    except InputError as error:
        raise ProtocolError(str(error)) from None
    return plan


def plan_hash(plan: GraphPlan) -> str:
    """SHA-256 of what a plan computes, hexadecimal: its name and metadata do not count."""
    return hashlib.sha256(pack(replace(plan, name="", metadata={}))).hexdigest()
