"""Devices by name, and a package that loads nothing before it is needed."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

import tapml as tml
from tapml.api.device import Device
from tapml_targets.errors import InputError, NoSuchDeviceError, TapmlError


def test_a_name_means_the_same_device_each_time() -> None:
    assert tml.opencl() is tml.device("opencl")
    assert tml.opencl(1) is tml.device("opencl:1")
    assert tml.opencl() is not tml.cpu()


def test_naming_a_device_starts_nothing() -> None:
    assert tml.device("opencl:77")._session is None


def test_an_unknown_platform_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(InputError, match=r"opnecl.*cpu.*opencl"):
        tml.device("opnecl")


def test_an_unknown_attribute_of_the_package_lists_the_platforms() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'metall'; platforms: .*cpu.*opencl"):
        tml.metall()


def test_a_device_that_is_not_there_is_said_on_first_use(opencl: Device) -> None:
    with pytest.raises(NoSuchDeviceError, match="77"):
        tml.tensor(np.ones(2, np.float32), tml.opencl(77))


def test_a_closed_device_opens_again(opencl: Device) -> None:
    device = Device(f"opencl:{opencl.description.index}")
    try:
        assert tml.tensor(np.ones(2, np.float32), device).numpy().sum() == 2
        device.close()
        assert tml.tensor(np.ones(2, np.float32), device).numpy().sum() == 2
    finally:
        device.close()


def test_a_server_ends_with_the_last_object_that_uses_its_device(opencl: Device) -> None:
    device = tml.device(f"opencl:{opencl.description.index}")
    tensor, session = tml.tensor(np.ones(2, np.float32), device), device.session
    same = tml.device(device.name)
    assert same is device
    del device, same
    gc.collect()
    assert tensor.numpy().sum() == 2, "a tensor keeps its device"
    del tensor
    gc.collect()
    with pytest.raises(TapmlError):
        session.fence()


def test_importing_tapml_loads_neither_compiler_nor_torch() -> None:
    code = (
        "import sys, tapml; tapml.opencl; tapml.cpu(); dir(tapml);"
        "heavy = {'tvm', 'tvm_ffi', 'torch', 'transformers', 'pyopencl'} & set(sys.modules);"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_public_name_is_there() -> None:
    for name in tml.__all__:
        assert getattr(tml, name) is not None
        assert name in dir(tml)
