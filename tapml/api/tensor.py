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
from tapml_targets.expression import Expression, render


class Tensor:
    """A tensor in a device's memory, freed with this object.

    Attributes
    ----------
    shape
        Extents.
    dtype
        Name of the element type; :meth:`numpy` returns bfloat16 as uint16 bits.
    device
        The device.
    """

    def __init__(self, shape: Sequence[Expression], dtype: str, device: Device) -> None:
        self.shape = _concrete(shape)
        self.dtype = dtype
        self.device = device
        self.nbytes = dtype_of(dtype).nbytes(prod(self.shape))
        session = device.session
        buffer = session.allocate(self.nbytes)
        self.remote = RemoteTensor(buffer, 0, self.shape, dtype)
        self._finalizer = weakref.finalize(self, session.free, buffer)

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host. Waits for pending commands, and raises their errors."""
        with self.device.commands() as session:
            data = session.read(self.remote.buffer, self.nbytes)
        return np.frombuffer(data, dtype_of(self.dtype).numpy_name).reshape(self.shape).copy()

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype!r}, device={self.device.name!r})"


def allocate(shape: Sequence[Expression], dtype: str, device: Device) -> Tensor:
    """Allocate a tensor with undefined contents.

    Parameters
    ----------
    shape
        Extents, for example of a module's output without symbols.
    dtype
        Name of the element type.
    device
        The device.

    Raises
    ------
    InputError
        If an extent is negative or symbolic, or the dtype is unknown.
    """
    return Tensor(shape, dtype, device)


def _concrete(shape: Sequence[Expression]) -> tuple[int, ...]:
    extents: list[int] = []
    for extent in shape:
        if isinstance(extent, str | tuple):
            raise InputError(
                f"the extent {render(extent)} depends on the inputs; "
                "Module.output_shapes(inputs) gives the shapes for specific inputs"
            )
        if extent < 0:
            raise InputError(f"expected extents of at least 0, got {tuple(shape)}")
        extents.append(int(extent))
    return tuple(extents)


def tensor(array: npt.ArrayLike, device: Device) -> Tensor:
    """Copy an array, or anything that numpy converts to one, to a device."""
    host = np.asarray(array, order="C")
    result = Tensor(host.shape, str(host.dtype), device)
    if host.nbytes:
        device.session.write(result.remote.buffer, host.reshape(-1).view(np.uint8).data)
    return result
