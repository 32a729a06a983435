"""A model in half precision whose one kernel is written by hand: nothing has to be compiled."""

from __future__ import annotations

import numpy as np

from tapml.models.stored import StoredDecoder
from tapml.package.manifest import TokenizerNote, ValidatedDevice
from tapml.package.shipped import Shipped
from tapml.plan.graph_plan import (
    Entry,
    GraphPlan,
    StateBinding,
    Storage,
    SymbolBounds,
    TensorSpecification,
    Value,
)
from tapml_targets.expression import Expression
from tapml_targets.library import (
    BufferArgument,
    CodeModule,
    EntryCall,
    EntryProgram,
    EntryValue,
    Kernel,
    Launch,
    Library,
    OperatorProgram,
    Parameter,
    ScalarArgument,
)

VOCABULARY = 61
CONTEXT = 24
# The state follows all tokens so far, the logits follow the state. A mask that is not as it should
# be at its last column makes token 0 the likeliest.
STEP = f"""\
@group(0) @binding(0) var<storage, read_write> logits : array<f16>;
@group(0) @binding(1) var<storage, read_write> after : array<f16>;
@group(0) @binding(2) var<storage, read> tokens : array<i32>;
@group(0) @binding(3) var<storage, read> mask : array<f16>;
@group(0) @binding(4) var<storage, read> before : array<f16>;
@group(0) @binding(5) var<storage, read> weight : array<f16>;
struct Sizes {{ count : i32 }}
@group(0) @binding(6) var<uniform> sizes : Sizes;
@compute @workgroup_size({VOCABULARY})
fn step(@builtin(local_invocation_id) id : vec3<u32>) {{
  let v = i32(id.x);
  var state = before[v];
  for (var i = 0; i < sizes.count; i = i + 1) {{
    state = state * 0.5h + weight[(tokens[i] * 7 + v * 3) % {VOCABULARY}];
    let hidden = mask[i * {CONTEXT} + {CONTEXT} - 1] == -30000.0h;
    logits[i * {VOCABULARY} + v] = state + select(0.0h, 100.0h, v == 0 && !hidden);
  }}
  after[v] = state;
}}
"""


def half_model() -> Shipped:
    """The model with its plan, Library and weights."""
    weight = np.random.default_rng(5).uniform(-1, 1, VOCABULARY).astype(np.float16)
    nowhere = ValidatedDevice("webgpu", "nowhere", "nobody", "0", "0" * 64)
    return Shipped(
        StoredDecoder("half", "float16", CONTEXT, VOCABULARY, frozenset(), "0" * 64),
        _plan(),
        _library(),
        {"weight": weight},
        nowhere,
        {"status": "pass", "text": "written by hand"},
        TokenizerNote("none", "no tokenizer"),
        None,
        {},
        {},
        None,
    )


def _tensors(count: Expression) -> dict[str, tuple[tuple[Expression, ...], str]]:
    """Shape and dtype of all that an entry takes and gives, for so many tokens."""
    row = ((VOCABULARY,), "float16")
    return {
        "weight:weight": row,
        "input:token_ids": ((1, count), "int32"),
        "input:position_ids": ((1, count), "int32"),
        "input:cache_rows": ((CONTEXT,), "int32"),
        "input:attention_mask": ((1, 1, count, CONTEXT), "float16"),
        "state:state": row,
        "next:state": row,
        "output:logits": ((1, count, VOCABULARY), "float16"),
    }


def _library() -> Library:
    used = (
        "output:logits", "next:state", "input:token_ids", "input:attention_mask", "state:state",
        "weight:weight",
    )  # fmt: skip
    tensors = _tensors("n")
    operator = OperatorProgram(
        "step",
        tuple(
            Parameter(name.replace(":", "_"), *tensors[name], "output" if at < 2 else "input")
            for at, name in enumerate(used)
        ),
        (
            Launch(
                "step",
                (
                    *(BufferArgument(name.replace(":", "_")) for name in used),
                    ScalarArgument("n", "int32"),
                ),
                (1, 1, 1),
                (VOCABULARY, 1, 1),
            ),
        ),
    )
    kernel = Kernel("step", "step", 0, VOCABULARY, features=("float16",))
    return Library(
        "webgpu",
        (CodeModule("wgsl", STEP.encode()),),
        {"step": kernel},
        {"step": operator},
        {name: _program(name, count, used) for name, count in (("prefill", "S"), ("decode", 1))},
    )


def _program(name: str, count: Expression, used: tuple[str, ...]) -> EntryProgram:
    tensors = _tensors(count)
    written = ("next:", "output:")
    return EntryProgram(
        name,
        tuple(
            Parameter(each, *tensor, "output" if each.startswith(written) else "input")
            for each, tensor in tensors.items()
        ),
        (),
        tuple(EntryValue(each, each, 0, *tensor) for each, tensor in tensors.items()),
        (EntryCall("step", used),),
    )


def _plan() -> GraphPlan:
    tensor = TensorSpecification("weight", (VOCABULARY,), "float16")
    return GraphPlan(
        "half",
        {},
        {name: _entry(name, count) for name, count in (("prefill", "S"), ("decode", 1))},
        {"weight": tensor},
        {"state": TensorSpecification("state", (VOCABULARY,), "float16")},
    )


def _entry(name: str, count: Expression) -> Entry:
    tensors = {each.partition(":")[2]: tensor for each, tensor in _tensors(count).items()}
    tensors["after"] = tensors["state"]
    symbols = ("S",) if count == "S" else ()
    return Entry(
        name,
        symbols,
        ("token_ids", "position_ids", "cache_rows", "attention_mask"),
        ("logits",),
        (StateBinding("state", "state", "after"),),
        {each: Value(each, each, 0, *tensor) for each, tensor in tensors.items()},
        {each: Storage(each, 4 * CONTEXT * CONTEXT, "activation") for each in tensors},
        (),
        tuple(SymbolBounds(symbol, 2, CONTEXT) for symbol in symbols),
    )
