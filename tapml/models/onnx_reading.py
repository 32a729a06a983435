"""Reads an ONNX file with bounds: it is untrusted.

Its size is bounded, tensors outside of it lie in its folder, and the size of each is checked before
it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml_targets.errors import InputError, SetupError, UnsupportedOperatorError

NO_MODEL: Final = " is no valid ONNX model: "
AGAIN: Final = "; export it again"
_LARGEST: Final = (1 << 31) - 1
MOST_NODES: Final = 1 << 17


def check_installed() -> None:
    """Raise SetupError if onnx or onnxruntime is not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise SetupError(f"an ONNX file needs {error.name}: pip install 'tapml[models]'") from error


def read_onnx(path: Path) -> tuple[Any, tuple[str, ...]]:
    """The model with all its tensors, and the names of the other files they come from."""
    import onnx

    if path.stat().st_size > _LARGEST:
        raise InputError(f"{path} is larger than {_LARGEST} bytes: put its tensors beside it")
    with reading(path):
        model = onnx.load(path, load_external_data=False)
        if not model.graph.node or len(model.graph.node) > MOST_NODES:
            raise InputError(
                f"{path} has {len(model.graph.node)} nodes: expected 1 to {MOST_NODES}"
            )
        total = sum(_external_bytes(each, path.parent) for each in _tensors(model.graph))
        entries = (entry for each in _tensors(model.graph) for entry in each.external_data)
        outside = sorted({entry.value for entry in entries if entry.key == "location"})
        if total > _LARGEST - path.stat().st_size:
            raise InputError(f"{path} has {total} bytes of tensors: expected at most {_LARGEST}")
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
        _check_model(model)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
    return model, tuple(outside)


def _check_model(model: Any) -> None:
    """Check a model. Outputs may lack their shapes, which the checker alone asks for."""
    import onnx

    types = [each.type.tensor_type for each in model.graph.output]
    unshaped = [each for each in types if each.elem_type and not each.HasField("shape")]
    for each in unshaped:
        each.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    finally:
        for each in unshaped:
            each.ClearField("shape")


@contextmanager
def reading(path: Path, fault: str = NO_MODEL, remedy: str = AGAIN) -> Iterator[None]:
    """What the libraries raise for a malformed file becomes one line."""
    try:
        yield
    except (InputError, UnsupportedOperatorError, MemoryError):
        raise
    except Exception as error:  # errors of any class, from protobuf, onnx and onnxruntime
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = (lines or [type(error).__name__])[0]
        if fault == NO_MODEL and "NOT_IMPLEMENTED" in reason:
            raise UnsupportedOperatorError(
                f"{path}: onnxruntime, which is the reference of an ONNX file, has no kernel for "
                f"one of its nodes ({reason[:300]})"
            ) from error
        raise InputError(f"{path}{fault}{reason[:300]}{remedy}") from error


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and those inside of its nodes."""
    pending = [graph]
    while pending:
        each = pending.pop()
        yield each
        for node in each.node:
            for attribute in node.attribute:
                pending += [attribute.g, *attribute.graphs]


def _tensors(graph: Any) -> Iterator[Any]:
    """Every stored tensor of a graph, its attributes and subgraphs."""
    for each in _graphs(graph):
        yield from each.initializer
        for node in each.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)


def settle_weights(model: Any) -> None:
    """Make stored tensors constants, not inputs with a default, and leave unused ones out."""
    graph = model.graph
    used = {name for each in _graphs(graph) for node in each.node for name in node.input}
    used |= {each.name for inner in _graphs(graph) for each in inner.output}
    stored = {each.name for each in graph.initializer}
    for stored_in, kept in (
        (graph.input, [each for each in graph.input if each.name not in stored]),
        (graph.initializer, [each for each in graph.initializer if each.name in used]),
    ):
        del stored_in[:]
        stored_in.extend(kept)
    # Older files name every stored tensor among their inputs.
    model.ir_version = max(model.ir_version, _OWN_WEIGHTS)


# The version from which on stored tensors need not be inputs.
_OWN_WEIGHTS: Final = 4


def widen(model: Any) -> bool:
    """Make bfloat16 float32, in place, which onnxruntime has no kernels for; whether any was."""
    import onnx

    narrow, wide = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    found = False
    for tensor in _tensors(model.graph):
        if tensor.data_type == narrow:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
            found = True
    for graph in _graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == narrow:
                value.type.tensor_type.elem_type = wide
                found = True
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in ("to", "dtype") and attribute.i == narrow:
                    attribute.i = wide
                    found = True
    return found


def _external_bytes(tensor: Any, folder: Path) -> int:
    """Bytes of a tensor outside of the file; raises InputError if it leaves the folder."""
    if not tensor.external_data:
        return 0
    facts = {each.key: each.value for each in tensor.external_data}
    location = facts.get("location", "")
    inside = folder.resolve()
    file = (inside / location).resolve()
    if file.name != location or file.parent != inside or not file.is_file():
        raise InputError(
            f"tensor {tensor.name[:100]!r} lies in {location[:100]!r}: expected a file in {folder}"
        )
    size = file.stat().st_size
    try:
        offset = int(facts.get("offset", 0))
        length = int(facts.get("length", size - offset))
    except ValueError as error:
        raise InputError(f"tensor {tensor.name[:100]!r}: {error}") from error
    if offset < 0 or length < 0 or offset + length > size:
        raise InputError(
            f"tensor {tensor.name[:100]!r} is at {offset} to {offset + length} of {file.name}, "
            f"which has {size} bytes: fetch the file again"
        )
    return length
