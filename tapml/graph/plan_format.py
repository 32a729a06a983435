"""The stored form of a GraphPlan: msgpack, versioned, every field checked when read.

Needs neither TVM nor torch: a packaged model is run by the base install.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Final, get_args

import msgpack

from tapml.graph.codec import (
    Codec,
    choice,
    expression,
    integer,
    many,
    mapping,
    named,
    one_of,
    optional,
    pair,
    record,
    text,
)
from tapml.graph.plan import (
    Body,
    CallStep,
    Entry,
    GraphPlan,
    Lifetime,
    Operator,
    Origin,
    OutputKind,
    StateBinding,
    Storage,
    SymbolBounds,
    TensorSpecification,
    Value,
    ViewStep,
)
from tapml.graph.torch_subgraph_format import torch_form
from tapml.graph.validate import check_plan
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.library import Parameter, Role

FORMAT: Final = "tapml plan"
VERSION: Final = 2
MAX_PLAN_BYTES: Final = 256 << 20
_MAX_ITEMS: Final = 1 << 20
_MAX_TEXT_BYTES: Final = 64 << 20

_parameter = record(Parameter, text, many(expression), text, choice(*get_args(Role)))
_origin = record(Origin, text, text, text, text)
_storage = record(Storage, text, expression, choice(*get_args(Lifetime)), integer)
_value = record(Value, text, text, expression, many(expression), text)
_call = record(
    CallStep,
    text,
    text,
    many(text),
    many(pair(text, expression)),
    many(_origin),
    optional(integer),
    many(pair(text, text)),
)
_step = one_of(call=(CallStep, _call), view=(ViewStep, record(ViewStep, text, text)))
_entry = record(
    Entry,
    text,
    many(text),
    many(text),
    many(text),
    many(record(StateBinding, text, text, text)),
    named(_value),
    named(_storage),
    many(_step),
    many(record(SymbolBounds, text, integer, optional(integer))),
)


def _operator(body: Codec) -> Codec:
    return record(
        Operator,
        text,
        text,
        many(_parameter),
        many(text),
        text,
        text,
        many(choice(*get_args(OutputKind))),
        optional(body),
        mapping(text),
        many(torch_form),
    )


def _no_body(data: Any) -> None:
    raise ProtocolError(f"plan: operators of a body have no body, got {type(data).__name__}")


_body = record(Body, named(_operator(Codec(_no_body, _no_body))), _entry)
_tensor = record(TensorSpecification, text, many(integer), text)
_plan = record(
    GraphPlan,
    text,
    named(_operator(_body)),
    named(_entry),
    named(_tensor),
    named(_tensor),
    mapping(text),
)


def pack(plan: GraphPlan) -> bytes:
    """The bytes of a plan; equal plans give equal bytes.

    Raises
    ------
    ProtocolError
        If the plan is larger than ``MAX_PLAN_BYTES``.
    """
    packed: bytes = msgpack.packb([FORMAT, VERSION, _plan.encode(plan)])
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
            max_array_len=_MAX_ITEMS,
            max_str_len=_MAX_TEXT_BYTES,
            max_bin_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"not a plan: {type(error).__name__} {error}") from None
    if not isinstance(frame, list) or len(frame) != 3 or frame[0] != FORMAT:
        raise ProtocolError("not a plan: it does not begin as one")
    if frame[1] != VERSION:
        raise ProtocolError(
            f"plan version {str(frame[1])[:20]} is not supported, expected {VERSION}: "
            "import the model again"
        )
    plan: GraphPlan = _plan.decode(frame[2])
    try:
        check_plan(plan)
    except InputError as error:
        raise ProtocolError(str(error)) from None
    return plan


def plan_hash(plan: GraphPlan) -> str:
    """SHA-256 of what a plan computes, hexadecimal: its name and metadata do not count."""
    return hashlib.sha256(pack(replace(plan, name="", metadata={}))).hexdigest()
