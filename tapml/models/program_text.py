"""A recorded torch program as JSON, and back, where nothing in the text can run.

PyTorch's own files of programs (``torch.export.save``) hold pickles. Its JSON of the graph has
none, but is read with names that are looked up in ``torch`` and with expressions that Python
evaluates. So only operators of ATen, plain names, and sums, products and quotients of sizes are let
through; guards and trees of arguments are left out and made again: a program takes tensors in order
and gives a tuple of tensors.

This uses ``torch._export.serde``, whose schema has a version; PyTorch's minor version is pinned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch._export.serde import schema
from torch._export.serde import serialize as _serialize
from torch.utils import _pytree

from tapml.models.said_by import said_by
from tapml_targets.errors import InputError

# PyTorch does not annotate all of it.
serde: Any = _serialize
MAX_PROGRAM_BYTES: Final = 256 << 20
_TARGET: Final = re.compile(
    r"torch\.ops\.aten\.[A-Za-z0-9_]+\.[A-Za-z0-9_]+"
    r"|_operator\.(getitem|add|sub|mul|floordiv|mod|neg|pow|truediv|eq|ne|lt|le|gt|ge)"
    r"|torch\.sym_(max|min|int|float|not|ite)"
)
# Sizes in sympy's own notation: Add(Integer(1), Symbol('s7', integer=True)). No dot, no attribute.
_EXPRESSION: Final = re.compile(
    r"(?:Symbol\('[su]\d{1,6}'(?:, (?:positive|nonnegative|integer)=True)*\)"
    r"|(?:Integer|Add|Mul|Max|Min|FloorDiv|CleanDiv|Mod|PythonMod)\(|-?\d{1,18}|[ ,)])*"
)
_NAME: Final = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_LONGEST_EXPRESSION: Final = 1000
_KEPT_METADATA: Final = ("stack_trace", "nn_module_stack")


def write_program(program: torch.export.ExportedProgram) -> bytes:
    """The program without its tensors.

    Raises
    ------
    InputError
        If it has something that :func:`read_program` would not read back.
    """
    whole = program.module_call_graph[0].signature
    if whole is not None:
        # Names of a result's parts are written elsewhere, and not every kind of tuple has a text.
        whole.out_spec = _pytree.tree_structure((0,) * whole.out_spec.num_leaves)
    serialized = serde.ExportedProgramSerializer().serialize(program).exported_program
    text = json.dumps(serde._dataclass_to_dict(serialized), cls=serde.EnumEncoder)
    data = json.loads(text)
    _leave_out(data)
    _check(data)
    return json.dumps(data, allow_nan=False).encode()


def read_program(
    text: bytes, state: Mapping[str, torch.Tensor], constants: Mapping[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    """Read back what :func:`write_program` gave, trusting nothing in it.

    Raises
    ------
    InputError
        If it is something else, or of another version of PyTorch.
    """
    try:
        data = json.loads(text)
        _leave_out(data)
        _check(data)
        module = data["graph_module"]
        inputs = sum("user_input" in each for each in module["signature"]["input_specs"])
        data["verifiers"] = ["TRAINING"]
        serialized = serde._dict_to_dataclass(schema.ExportedProgram, data)
        named = {
            each["parameter"]["parameter_name"]: each["parameter"]
            for each in module["signature"]["input_specs"]
            if "parameter" in each
        }
        weights = {
            name: torch.nn.Parameter(each, requires_grad=False) if name in named else each
            for name, each in state.items()
        }
        outputs = len(serialized.graph_module.graph.outputs)
        serialized.graph_module.module_call_graph = [_call(inputs, outputs)]
        program: torch.export.ExportedProgram = serde.ExportedProgramDeserializer().deserialize(
            serialized, weights, dict(constants), None
        )
        return program
    except InputError:
        raise
    except Exception as error:  # PyTorch raises errors of any class on a malformed program
        raise InputError(
            f"the recorded program cannot be read ({said_by(error)}): record the module again "
            "with this PyTorch (tapml.from_torch)"
        ) from error


def _leave_out(data: dict[str, Any]) -> None:
    """What an importer does not need, and what would be evaluated: guards, trees of arguments."""
    data["guards_code"] = []
    module = data["graph_module"]
    module |= {"module_call_graph": [], "metadata": {}, "treespec_namedtuple_fields": {}}
    for node in module["graph"]["nodes"]:
        metadata = node["metadata"].items()
        node["metadata"] = {key: value for key, value in metadata if key in _KEPT_METADATA}


def _call(inputs: int, outputs: int) -> Any:
    """The signature of a call: tensors in order, a tuple of tensors."""
    tree = _pytree.treespec_dumps
    return schema.ModuleCallEntry(
        fqn="",
        signature=schema.ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=tree(_pytree.tree_structure(((0,) * inputs, {})), 1),
            out_spec=tree(_pytree.tree_structure((0,) * outputs), 1),
            forward_arg_names=None,
        ),
    )


_REFUSED: Final = ("as_graph", "as_custom_obj", "as_operator", "custom_obj_values")
_ONLY: Final = "expected operators of ATen, and sums, products and quotients of sizes"


def _check(value: Any) -> None:
    """Raise :class:`InputError` for anything that would be looked up, evaluated or become code."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            pending += each.values()
            for key, inner in each.items():
                _check_member(each, key, inner)


def _check_member(owner: Mapping[str, Any], key: str, value: Any) -> None:
    if key == "target" and "inputs" in owner and not _matches(_TARGET, value):
        remedy = "; take torch.autocast out of the module" if "autocast" in str(value) else ""
        if "set_grad_enabled" in str(value):
            remedy = "; take torch.no_grad out of the module, or save program.run_decompositions()"
        raise InputError(f"a recorded program calls {str(value)[:80]!r}: {_ONLY}{remedy}")
    if key == "expr_str" and not _matches(_EXPRESSION, value):
        raise InputError(f"a recorded size is {str(value)[:80]!r}: {_ONLY}")
    if key in _REFUSED and value:
        raise InputError(f"a recorded program has a {key}: {_ONLY}")
    # Names become variables of the code that PyTorch generates for a graph.
    named = key == "name" or key.endswith("_name")
    names = [value] if named and value is not None else []
    if key.endswith("_values") and isinstance(value, dict):
        names += value
    for name in names:
        if not _matches(_NAME, name):
            raise InputError(f"a recorded program has the name {str(name)[:80]!r}: {_ONLY}")


def _matches(pattern: re.Pattern[str], text: object) -> bool:
    return (
        isinstance(text, str)
        and len(text) <= _LONGEST_EXPRESSION
        and pattern.fullmatch(text) is not None
    )
