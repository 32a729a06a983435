"""Tensors on a device."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tapml.api.device import Device
from tapml_rpc.client import RemoteTensor
from tapml_targets.dtype import dtype as dtype_of
from tapml_targets.errors import InputError
from tapml_targets.expression import Expression, render
from tapml_targets.float_formats import as_float64

# As numpy: beyond so many numbers only the first and last of each axis are shown.
_SHOWN_WHOLE: Final = 1000
_EDGE: Final = 3


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

    def __str__(self) -> str:
        """The values as numpy prints them, with the device; of a large tensor its corners alone.

        Only what is shown is read. Waits for pending commands, and raises their errors.
        """
        whole = prod(self.shape) <= _SHOWN_WHOLE
        values = self.numpy() if whole else self._corners()
        if dtype_of(self.dtype).is_float:
            values = as_float64(values, self.dtype)
        text = np.array2string(
            values,
            precision=4,
            threshold=_SHOWN_WHOLE if whole else 0,
            edgeitems=_EDGE,
            separator=", ",
            prefix="Tensor(",
        )
        return f"Tensor({text}, shape={self.shape}, {self.dtype}, on {self.device.name})"

    def _corners(self) -> npt.NDArray[Any]:
        """The first and last of each axis; a middle one of a long axis is there but never shown."""
        shown = [
            [*range(_EDGE), 0, *range(extent - _EDGE, extent)]
            if extent > 2 * _EDGE
            else list(range(extent))
            for extent in self.shape
        ]
        itemsize = dtype_of(self.dtype).nbytes(1)
        strides = [prod(self.shape[axis + 1 :]) * itemsize for axis in range(len(self.shape))]
        count = min(self.shape[-1], _EDGE)
        tail = (self.shape[-1] - count) * itemsize
        places = list(product(*(range(len(each)) for each in shown[:-1])))
        with self.device.commands() as session, session.batch():
            ends = []
            for place in places:
                pairs = zip(shown, place, strides, strict=False)
                start = sum(rows[at] * stride for rows, at, stride in pairs)
                ends.append(
                    [
                        session.read(self.remote.buffer, count * itemsize, start + offset)
                        for offset in (0, tail)
                    ]
                )
        values = np.zeros([len(each) for each in shown], dtype_of(self.dtype).numpy_name)
        for place, (first, last) in zip(places, ends, strict=True):
            values[place][:count] = np.frombuffer(first.result(), values.dtype)
            values[place][-count:] = np.frombuffer(last.result(), values.dtype)
        return values

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
    """Copy an array, or anything that numpy converts to one, to a device.

    Examples
    --------
    >>> import tapml as tml
    >>> tensor([[1, 2], [3, 4]], tml.cpu()).numpy().tolist()
    [[1, 2], [3, 4]]
    """
    host = np.asarray(array, order="C")
    result = Tensor(host.shape, str(host.dtype), device)
    if host.nbytes:
        device.session.write(result.remote.buffer, host.reshape(-1).view(np.uint8).data)
    return result
