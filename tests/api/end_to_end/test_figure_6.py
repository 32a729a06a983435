"""Figure 6 of the paper, as printed; CUDA is simulated where there is no NVIDIA GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import tapml as tml
from tapml.api.device import Device
from tests.api import decoder_block
from tests.conftest import RequireDevice

# Two float32 platforms order their sums differently; the outputs are of the order of 1.
TOLERANCE = 1e-5


# The figure line by line: its calls, its order, its comments.
# fmt: off
def validate(mod: tml.Module, np_inputs: list[np.ndarray[Any, Any]]) -> None:
    def run(device: Device) -> np.ndarray[Any, Any]:
        # Locally compile a module for the device platform
        lib = tml.compile(mod, device)
        remote_lib = tml.upload(lib) # Upload compiled code

        # Prepare remote inputs and outputs
        tml_inputs = [tml.tensor(inp, device) for inp in np_inputs]
        shape, dtype = mod.output[0].shape, mod.output[0].dtype
        tml_output = tml.allocate(shape, dtype, device)

        # Invoke remote function of the decoder block
        remote_fn = remote_lib.get_function("transformer_block")
        remote_fn(*tml_inputs, tml_output)

        # Copy back the remote data to local host and return
        return tml_output.numpy()

    np.testing.assert_allclose(run(tml.cuda()), run(tml.webgpu()), rtol=TOLERANCE, atol=TOLERANCE)
# fmt: on


def test_the_papers_example_runs_as_printed(require_device: RequireDevice) -> None:
    require_device("cuda")
    require_device("webgpu")
    relax_module = decoder_block.relax_module()
    mod = tml.Module(relax_module, entry="transformer_block")
    validate(mod, decoder_block.inputs(relax_module))


def test_both_platforms_compute_what_numpy_computes(opencl: Device) -> None:
    relax_module = decoder_block.relax_module()
    mod = tml.Module(relax_module, entry="transformer_block")
    arrays = decoder_block.inputs(relax_module, seed=1)
    expected = decoder_block.in_float64(relax_module, arrays)
    for device in (tml.cpu(), opencl):
        function = tml.upload(tml.compile(mod, device)).get_function("transformer_block")
        output = tml.allocate(mod.output[0].shape, mod.output[0].dtype, device)
        function(*(tml.tensor(array, device) for array in arrays), output)
        np.testing.assert_allclose(output.numpy(), expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_wrong_weight_is_distinguished_from_the_right_one(opencl: Device) -> None:
    """The tolerance is tight enough to see one weight out of place."""
    relax_module = decoder_block.relax_module()
    mod = tml.Module(relax_module, entry="transformer_block")
    arrays = decoder_block.inputs(relax_module)
    expected = decoder_block.in_float64(relax_module, arrays)
    arrays[-1] = np.roll(arrays[-1], 1, axis=1)
    function = tml.upload(tml.compile(mod, opencl)).get_function("transformer_block")
    output = tml.allocate(mod.output[0].shape, mod.output[0].dtype, opencl)
    function(*(tml.tensor(array, opencl) for array in arrays), output)
    assert np.abs(output.numpy() - expected).max() > 1000 * TOLERANCE
