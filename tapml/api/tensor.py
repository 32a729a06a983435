"""Tensors on a device."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tapml.api.device import Device
from tapml_rpc.client import RemoteTensor
from tapml_targets.dtype import dtype as dtype_of
from tapml_targets.errors import InputError


class Tensor:
    """A tensor in a device's memory, freed when it is no longer used.

    Attributes
    ----------
    shape
        Extents.
    dtype
        Name of the element type; bfloat16 comes back from :meth:`numpy` as uint16 bits.
    device
        Where it is.
    """

    def __init__(self, shape: Sequence[int], dtype: str, device: Device) -> None:
        if any(extent < 0 for extent in shape):
            raise InputError(f"expected extents of at least 0, got {tuple(shape)}")
        self.shape = tuple(int(extent) for extent in shape)
        self.dtype = dtype
        self.device = device
        self.nbytes = dtype_of(dtype).nbytes(prod(self.shape))
        session = device.session
        buffer = session.allocate(self.nbytes)
        self.remote = RemoteTensor(buffer, 0, self.shape, dtype)
        self._finalizer = weakref.finalize(self, session.free, buffer)

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host; waits for the work that writes it, and raises its error."""
        data = self.device.session.read(self.remote.buffer, self.nbytes)
        return np.frombuffer(data, dtype_of(self.dtype).numpy_name).reshape(self.shape).copy()

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype!r}, device={self.device.name!r})"


def allocate(shape: Sequence[int], dtype: str, device: Device) -> Tensor:
    """Reserve a tensor whose contents are not set.

    Parameters
    ----------
    shape
        Extents.
    dtype
        Name of the element type.
    device
        Where.
    """
    return Tensor(shape, dtype, device)


def tensor(array: npt.ArrayLike, device: Device) -> Tensor:
    """Copy a host array to a device.

    Parameters
    ----------
    array
        Anything numpy takes, any shape.
    device
        Where.
    """
    host = np.ascontiguousarray(array)
    result = Tensor(host.shape, str(host.dtype), device)
    if host.nbytes:
        device.session.write(result.remote.buffer, host.reshape(-1).view(np.uint8).data)
    return result
