"""Loads an ONNX model or a torch module as the plan that is migrated, all of it on one device."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapml.backends.parts import Graph, PartsRunner, Prepared, graph_of
from tapml.backends.runner import Array
from tapml.backends.torch_graph import TorchPart
from tapml.compiler.compiler import Compiler
from tapml.devices.reach import open_device
from tapml.execute.device_reference import DeviceReference, compile_on, executor_on
from tapml.importing.imported import ImportedModel
from tapml.importing.importer import import_model, import_module
from tapml.models.onnx_file import load_onnx
from tapml_targets.errors import (
    CompilerFailedError,
    InputError,
    ReferenceFailedError,
    UnsupportedOperatorError,
)
from tapml_targets.platforms import DEFAULT_PLATFORM

if TYPE_CHECKING:
    from tapml.plan.graph_plan import GraphPlan
    from tapml_rpc.client import Session


def _imported(part: Any, inputs: Mapping[str, Array]) -> ImportedModel:
    """Raises UnsupportedOperatorError for a part that cannot be imported, whatever the reason."""
    try:
        return _read_part(part, inputs)
    except UnsupportedOperatorError:
        raise
    except InputError as error:
        raise UnsupportedOperatorError(str(error)) from error


def _read_part(part: Any, inputs: Mapping[str, Array]) -> ImportedModel:
    import onnx

    if isinstance(part, TorchPart):
        return import_module(part.module, part.tensors(inputs))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.onnx"
        # Outputs that were added have no types, which a file must have.
        path.write_bytes(onnx.shape_inference.infer_shapes(part).SerializeToString())
        model = load_onnx(path, [(dict(inputs), "the first instances")])
    if model.stored.fixed:
        # Other instances may have other values of it.
        name = model.stored.fixed[0].name
        raise UnsupportedOperatorError(f"{name} decides extents, axes or a branch")
    return import_model(model)


def _fed(part: Any) -> tuple[Any, dict[str, Array]]:
    """A part without inputs, with its first weight as one: it is folded before it is compiled.

    Whole numbers of 64 bits stay, as they may decide extents.
    """
    import onnx

    weights = {each.name: each for each in part.graph.initializer}
    name = next((each for node in part.graph.node for each in node.input if each in weights), "")
    if not name or weights[name].data_type == onnx.TensorProto.INT64:
        return part, {}
    given: Array = onnx.numpy_helper.to_array(weights[name])
    model = onnx.ModelProto()
    model.CopyFrom(part)
    model.graph.initializer.remove(weights[name])
    model.graph.input.append(
        onnx.helper.make_tensor_value_info(name, weights[name].data_type, given.shape)
    )
    return model, {name: given}


def compiled_or_unsupported(session: Session, plan: GraphPlan) -> DeviceReference:
    """The plan's operators on the session's device.

    Raises
    ------
    UnsupportedOperatorError
        If the device's compiler refuses an operator, or it exceeds a limit.
    CompilerFailedError
        If the compiler crashed.
    """
    try:
        with Compiler() as compiler:
            return compile_on(session, plan, compiler)
    except ReferenceFailedError as error:
        if isinstance(error.__cause__, CompilerFailedError):
            raise error.__cause__ from None
        raise UnsupportedOperatorError(str(error.__cause__ or error)) from error


def _prepare(session: Session, part: Any, inputs: Mapping[str, Array]) -> Prepared:
    part, fed = (part, {}) if inputs or isinstance(part, TorchPart) else _fed(part)
    inputs = inputs or fed
    imported = _imported(part, inputs)
    (entry,) = imported.plan.entries.values()
    kernels = compiled_or_unsupported(session, imported.plan)
    executor = executor_on(imported.plan, imported.weights, kernels)
    names = list(part.inputs) if isinstance(part, TorchPart) else list(inputs)
    if len(names) != len(entry.inputs):
        raise UnsupportedOperatorError(f"the plan takes {len(entry.inputs)} inputs, not {names}")

    def run(given: Mapping[str, Array]) -> list[Array]:
        arrays = (fed[name] if name in fed else given[name] for name in names)
        try:
            outputs = executor.run(entry.name, dict(zip(entry.inputs, arrays, strict=True)))
        except InputError as error:  # As a server says that does not load what was compiled.
            raise UnsupportedOperatorError(str(error)) from error
        return [outputs[name].copy() for name in entry.outputs]

    return run


def load(model: Path, variant: str) -> PartsRunner:
    """Load an ``.onnx`` file or a module's folder; the variant is a device's name.

    Raises
    ------
    InputError
        If the model is neither, or the device's name is malformed.
    NoSuchDeviceError
        If there is no such device.
    """
    graph = graph_of(model)
    # It ends with this process, which does nothing else.
    session = open_device(variant or DEFAULT_PLATFORM)

    def prepare(graph: Graph, part: Any, inputs: Mapping[str, Array]) -> Prepared:
        del graph
        return _prepare(session, part, inputs)

    def versions() -> dict[str, str]:
        device = session.device
        return {device.name: f"{device.vendor_platform} {device.driver_version}"}

    return PartsRunner(graph, prepare, versions, step=1)
