"""The tensors that entries share: the model's parameters, and constants found on import."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tapml.importing.imported import CONSTANT
from tapml.importing.symbolic import dtype_name
from tapml.plan.graph_plan import TensorSpecification
from tapml_targets.dtype import dtype
from tapml_targets.errors import InputError

Array = npt.NDArray[Any]


class WeightTable:
    """Collects weights once each: tied parameters and equal constants share one name.

    Attributes
    ----------
    arrays
        Raw values by name; bfloat16 as uint16.
    specifications
        Name, shape and dtype by name.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.specifications: dict[str, TensorSpecification] = {}
        self._parameters: dict[tuple[Any, ...], str] = {}
        self._constants: dict[tuple[Any, ...], str] = {}
        self._known: dict[str, str] = {}

    def parameter(self, name: str, tensor: torch.Tensor) -> str:
        """The name under which a parameter of the model is stored.

        Raises
        ------
        InputError
            If another entry has a different tensor of this name.
        """
        place = _place(tensor)
        if place in self._parameters:
            return self._parameters[place]
        array, data_type = to_numpy(tensor)
        if name in self.arrays:
            if not np.array_equal(self.arrays[name], array):
                raise InputError(
                    f"two entries have different weights named {name!r}: entries of one model "
                    "share their parameters"
                )
        else:
            self._add(name, array, data_type)
        self._parameters[place] = name
        return name

    def array(self, name: str, array: Array) -> str:
        """The name under which a weight that is no torch tensor is stored: its own."""
        self._add(name, array, array.dtype.name)
        return name

    def constant(self, value: Any) -> str:
        """The name under which a constant of the graph, a TVM ``GenericConst``, is stored."""
        data_type = dtype_name(value.ty.dtype)
        array = np.asarray(value.value.numpy())
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        key = (data_type, array.shape, digest)
        if key not in self._constants:
            name = f"{CONSTANT}{len(self._constants)}"
            self._add(name, array.view(dtype(data_type).numpy_name), data_type)
            self._constants[key] = name
        return self._constants[key]

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The name under which a parameter of the model is stored; None if it is not."""
        return self._parameters.get(_place(tensor))

    @property
    def constants(self) -> frozenset[str]:
        """Names of the constants found on import."""
        return frozenset(self._constants.values())

    def _add(self, name: str, array: Array, data_type: str) -> None:
        self.arrays[name] = array
        shape = tuple(int(extent) for extent in array.shape)
        self.specifications[name] = TensorSpecification(name, shape, data_type)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def to_numpy(tensor: torch.Tensor) -> tuple[Array, str]:
    """A tensor's values on the host, without a copy if they are already there, and its dtype."""
    data_type = str(tensor.dtype).removeprefix("torch.")
    numpy_name = dtype(data_type).numpy_name
    detached = tensor.detach().cpu().contiguous()
    if numpy_name != data_type:
        detached = detached.view(getattr(torch, numpy_name))
    return detached.numpy(), data_type
