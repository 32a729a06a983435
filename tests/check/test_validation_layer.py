"""Kernels for Vulkan and WebGPU under the Khronos validation layer, on every device there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tapml.check.checker import Checker, open_checker
from tapml.check.findings import Finding, TensorPlace, findings_of
from tapml_rpc.remote import RemoteTensor
from tapml_targets.conformance_kernels import ADD, KernelText, built, kernel_table
from tapml_targets.errors import NoSuchDeviceError, SetupError
from tapml_targets.library import Library, OperatorProgram
from tests.targets.libraries import VECTORS, launch

COUNT = 50
# A kernel's text, by platform: shared memory, this thread's place in it, a barrier.
SHARED = {
    "vulkan": ("void add() {", "shared float s[64];\n", "int(gl_LocalInvocationID.x)", "barrier"),
    "webgpu": (
        "@compute",
        "var<workgroup> s : array<f32, 64>;\n",
        "i32(lane.x)",
        "workgroupBarrier",
    ),
}


@pytest.fixture(scope="module", params=["vulkan:0", "vulkan:1", "webgpu:0"])
def layer(request: pytest.FixtureRequest) -> Iterator[Checker]:
    platform, _, index = request.param.partition(":")
    try:
        with open_checker(platform, device=int(index)) as checker:
            yield checker
    except (SetupError, NoSuchDeviceError) as error:
        if os.environ.get("TAPML_REQUIRE_DEVICES") == "1":
            raise
        pytest.skip(str(error))


def found(checker: Checker, body: str, *edits: tuple[str, str]) -> tuple[Finding, ...]:
    """What the layer says of ``o = a + 1`` with this body and these changes of its text."""
    kernel = KernelText(ADD.name, body, ADD.reads, ADD.scalars)
    (module,), kernels = built(checker.platform, kernel)
    text = module.code.decode()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    program = OperatorProgram(
        "add_one", VECTORS, (launch(kernel_table(checker.platform), kernel, "o", "a", amount=1),)
    )
    library = Library(
        checker.platform, (replace(module, code=text.encode()),), kernels, {"add_one": program}, {}
    )
    values = np.arange(COUNT, dtype=np.float32)
    checker.make_room(2 * values.nbytes)
    placed = [(*checker.place(values), name) for name in ("a", "o")]
    remote = checker.session.upload(library)
    with checker.session.batch() as batch:
        tensors = [RemoteTensor(buffer, 0, (COUNT,), "float32") for buffer, _, _ in placed]
        batch.call(remote, "add_one", tensors, {})
        read = batch.read(placed[1][0])
    read.result()
    messages, _ = checker.messages()
    tensors_at = [TensorPlace(number, name, values.nbytes) for _, number, name in placed]
    return findings_of(messages, library, operator="add_one", test="t", tensors=tensors_at)


def test_a_clean_kernel_is_silent_and_a_race_is_named_with_both_lines(layer: Checker) -> None:
    before, memory, place, barrier = SHARED[layer.platform]
    # Threads without an element take part: a barrier is for all of a block.
    declared = (before, memory + before)
    declare = "let" if layer.platform == "webgpu" else "float"
    index = f"{place} ^ 1"
    exchange = (
        "  if (i < n)",
        f"  s[{place}] = amount;\n  {barrier}();\n  {declare} other = s[{index}];\n  if (i < n)",
    )
    body = "o[i] = a[i] + other;"
    edits = [declared, exchange]
    if layer.platform == "webgpu":
        edits.append(
            ("  if (block.z * grid.x + block.x > arguments.packGridDimX) { return; }\n", "")
        )
    assert found(layer, body, *edits) == ()
    races = found(layer, body, *edits, (f"  {barrier}();\n", ""))
    assert {each.kind for each in races} == {"data race"}
    assert {each.kernel for each in races} == {"add"}
    assert [place.access for place in races[0].places] == ["write", "read"]
    stored, loaded = (place.text for place in races[0].places)
    assert stored.startswith(f"s[{place}] = amount")
    assert f"other = s[{index}]" in loaded


def test_an_access_out_of_bounds_names_its_tensor_byte_and_line(layer: Checker) -> None:
    (stray,) = found(layer, "o[i] = a[i + 3] + amount;") or (None,)
    if layer.platform == "webgpu":
        # wgpu clamps the index before the layer sees it.
        assert stray is None
        return
    assert stray is not None
    assert (stray.kind, stray.kernel) == ("out-of-bounds access", "add")
    assert (stray.tensor, stray.tensor_bytes) == ("a", 4 * COUNT)
    assert stray.byte is not None
    assert stray.byte >= 4 * COUNT
    assert "o[i] = a[i + 3] + amount;" in stray.text
    assert f"of a, which has {4 * COUNT}" in stray.what()
    (beyond,) = found(layer, "o[i + 2] = a[i];")
    assert (beyond.kind, beyond.tensor) == ("out-of-bounds access", "o")
