"""Imports an ONNX model: TVM's importer with every variable named after its node.

The same naming as of torch programs (:mod:`tapml.importing.translate`), so that call sites know the
nodes they come from and every value can be compared with onnxruntime's.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tapml.importing.donation import with_donations
from tapml.importing.entry_import import bounds_of, flattener_for
from tapml.importing.flatten import FunctionTensor
from tapml.importing.guides import NamedGuide
from tapml.importing.imported import ImportedModel
from tapml.importing.lowering import lower
from tapml.importing.onnx_entry import onnx_entry, value_names
from tapml.importing.operators import OperatorTable
from tapml.importing.relax_function import bindings, operands
from tapml.importing.translate import NamingBuilder, NodeNames
from tapml.importing.weights import WeightTable
from tapml.models.onnx_file import OnnxModel
from tapml.models.onnx_static import SIZED_BY
from tapml.models.stored import MODULE
from tapml.plan.graph_plan import GraphPlan, Origin
from tapml.plan.validation import check_plan
from tapml_targets.errors import UnsupportedOperatorError

Array = npt.NDArray[Any]
_SHOWN: Final = 5
# Inputs that say which tensor of a sequence is meant.
_POSITIONS: Final = {"SequenceAt": (1,), "SequenceErase": (1,), "SequenceInsert": (2,)}


def import_onnx(model: OnnxModel) -> ImportedModel:
    """Import a model as a plan with one entry.

    Raises
    ------
    UnsupportedOperatorError
        If an operator has no converter, or a converter refuses it; the message names the node.
    """
    graph = model.folded.graph
    _check_converters(model)
    importer = _NamingOnnxImporter(graph)
    opset = next(e.version for e in model.folded.opset_import if e.domain in ("", "ai.onnx"))
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            module = importer.from_onnx(graph, opset)
        except Exception as error:  # TVM raises errors of any class
            raise UnsupportedOperatorError(
                f"{model.name} cannot be imported: {importer.place}: {error}"
            ) from error
    values = list(module["main"].attrs["params"]) if "params" in module["main"].attrs else []
    module["main"] = module["main"].without_attr("params")
    lowered = lower(module, model.name)
    table, weights = OperatorTable((MODULE,)), WeightTable()
    names = NodeNames(importer.nodes, importer.results)
    guide = NamedGuide(importer.origins, names, lowered)
    flattener = flattener_for(MODULE, lowered, table, weights, guide)
    parameters = list(lowered.main.params)
    count = int(lowered.main.attrs["num_input"])
    tensors = {
        parameter: FunctionTensor(port.name, "input")
        for parameter, port in zip(parameters[:count], model.stored.inputs, strict=True)
    }
    read = {name for binding in bindings(lowered.main) for name in operands(binding.value)}
    for parameter, value in zip(parameters[count:], values, strict=True):
        name = str(parameter.name)
        # What was a shape is in the code by now.
        if parameter in read:
            weights.array(name, np.asarray(value.numpy()))
        tensors[parameter] = FunctionTensor(name, "weight")
    flat, outputs = flattener.flatten(lowered.main, tensors, bounds_of(lowered.main))
    entry = with_donations(replace(flat, outputs=outputs), table)
    plan = GraphPlan(
        name=model.name,
        operators=table.finish(),
        entries={MODULE: entry},
        weights=dict(weights.specifications),
        state={},
        metadata={"tvm": tvm.__version__},
    )
    check_plan(plan)
    return ImportedModel(plan, weights.arrays, {MODULE: onnx_entry(model)})


def onnx_weights(
    model: OnnxModel, plan: GraphPlan, constants: Mapping[str, Array]
) -> dict[str, Array]:
    """The weights of a cached plan: the model's tensors and the plan's constants."""
    from onnx import numpy_helper

    stored = {_weight_name(each.name): each for each in model.folded.graph.initializer}
    return {
        name: constants[name] if name in constants else numpy_helper.to_array(stored[name])
        for name in plan.weights
    }


def _weight_name(name: str) -> str:
    """TVM leaves PyTorch's prefix out."""
    return name.removeprefix("onnx::")


def _check_converters(model: OnnxModel) -> None:
    known = onnx_frontend._get_convert_map()
    missing: dict[str, list[str]] = {}
    for node in model.folded.graph.node:
        if node.op_type not in known and node.op_type != "Constant":
            missing.setdefault(node.op_type, []).append(node.name)
    if missing:
        lines = (
            f"  {operator} in {', '.join(nodes[:_SHOWN])}"
            + (f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else "")
            for operator, nodes in missing.items()
        )
        raise UnsupportedOperatorError(
            f"{model.name} uses {len(missing)} operator{'s' if len(missing) > 1 else ''} that "
            "cannot be imported:\n" + "\n".join(lines) + "\nExport the model without these nodes."
        )


class _NamingOnnxImporter(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer with named variables, and weights as parameters."""

    def __init__(self, graph: Any) -> None:
        super().__init__({}, {}, keep_params_in_input=True, sanitize=False)
        self._names = value_names(graph)
        self._waiting = [node for node in graph.node if node.op_type != "If"]
        self.bb: Any = NamingBuilder(relax.BlockBuilder(), self)
        self.current: Any = None
        self.nodes: list[str] = []
        self.results: dict[str, str] = {}
        self.origins: dict[str, Origin] = {}

    @property
    def place(self) -> str:
        """The node at hand."""
        node = self.current
        return "the graph" if node is None else f"{node.op_type} in node {node.name!r}"

    def note_results(self, parts: Any) -> None:
        """Note the tensors of a result with several parts."""
        for index, part in enumerate(parts):
            if isinstance(part, tvm.ir.Var) and self._is_own(part):
                self.results[part.name] = f"{self.nodes[-1]}[{index}]"

    def _is_own(self, variable: Any) -> bool:
        return str(variable.name).startswith(f"fx{len(self.nodes) - 1}__")

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        node = self._waiting.pop(0)
        self.current = node
        name = self._names[node.output[0]].removesuffix("[0]")
        self.nodes.append(name)
        *path, _ = [part for part in node.name.split("/") if part] or [""]
        self.origins[name] = Origin(".".join(path), f"node {node.name}", node.op_type, name)
        known = [self._nodes, self._params]
        for place in SIZED_BY.get(op_name) or _POSITIONS.get(op_name) or ():
            # Some converters take sizes that are weights for what is known only when it runs.
            if place < len(inputs) and inputs[place] is not None:
                inputs[place] = onnx_frontend.get_constant(inputs[place], known)
        made = super()._convert_operator(op_name, inputs, attrs, opset)
        if isinstance(made, tvm.ir.Call):
            made = self.bb.emit(made)
        if isinstance(getattr(made, "ty", None), relax.TupleType) and not isinstance(
            made, relax.Tuple
        ):
            items = range(len(made.ty.fields))
            made = relax.Tuple([self.bb.emit(relax.TupleGetItem(made, at)) for at in items])
        if isinstance(made, relax.Tuple):
            fields = [each if isinstance(each, tvm.ir.Var) else self.bb.emit(each) for each in made]
            made = relax.Tuple(fields)
            self.note_results(fields)
        elif isinstance(made, tvm.ir.Var) and self._is_own(made):
            self.results[made.name] = name
        return made
