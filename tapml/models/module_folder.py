"""Loads the folder of a plain module: a class of tapml's own, weights, and samples of its input.

::

    config.json          architectures: one name of a family; the sizes of its class; labels
    model.safetensors    weights under the names of the class
    samples.safetensors  x, float32 [samples, *input]; y, int32 [samples, batch], what is right
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import nn

from tapml.models.checkpoint import Checkpoint
from tapml.models.loaded import LoadedModule
from tapml.models.stored import ModuleTensor, StoredModule
from tapml.models.tensor_file import open_tensors
from tapml.models.weights_hash import hash_weights
from tapml_targets.errors import InputError

SAMPLES: Final = "samples.safetensors"
_LONGEST: Final = 1 << 16


def load_module_folder(checkpoint: Checkpoint, dtype: str) -> LoadedModule:
    """Build the class, read its weights and its samples.

    Raises
    ------
    InputError
        If a weight is missing, is not of the class or has another shape, or there is no sample.
    """
    folder, config = checkpoint.folder, checkpoint.config
    build = checkpoint.family.own_class
    assert build is not None  # noqa: S101 - a family of modules has a class
    module: nn.Module = build()(config)
    _read_weights(module, checkpoint)
    module.to(getattr(torch, dtype)).requires_grad_(False).eval()
    labels = config.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(each, str) for each in labels[:_LONGEST]):
        raise InputError(f"{folder / 'config.json'} has labels {str(labels)[:60]}: expected texts")
    samples = _samples(checkpoint, tuple(labels))
    signature = StoredModule(
        name=folder.name,
        dtype=dtype,
        inputs=(ModuleTensor("x", dtype, samples[0][0][0].shape),),
        outputs=(ModuleTensor("result", dtype),),
        measure=checkpoint.family.measure,
        labels=tuple(labels),
        weights_hash=hash_weights(module),
    )
    return LoadedModule(
        folder.name,
        config,
        None,
        module,
        dtype,
        1,
        signature.weights_hash,
        folder,
        signature=signature,
        samples=samples,
    )


def _read_weights(module: nn.Module, checkpoint: Checkpoint) -> None:
    expected: dict[str, Any] = module.state_dict()
    for name in sorted(expected.keys() | checkpoint.tensors.keys()):
        want = tuple(expected[name].shape) if name in expected else None
        stored = checkpoint.tensors.get(name)
        found = None if stored is None else stored.shape
        if want != found:
            raise InputError(
                f"{name} in {checkpoint.folder} has shape {found or 'none'}, but the class has "
                f"{want or 'none'}: config.json and the weights belong to different models"
            )
    tensors = {
        name: torch.from_numpy(np.array(open_tensors(stored.file)[name], dtype=np.float32))
        for name, stored in checkpoint.tensors.items()
    }
    module.load_state_dict(tensors)


def _samples(
    checkpoint: Checkpoint, labels: tuple[str, ...]
) -> tuple[tuple[tuple[np.ndarray[Any, Any], ...], str], ...]:
    path = checkpoint.folder / SAMPLES
    if not path.is_file():
        raise InputError(f"{checkpoint.folder} has no {SAMPLES}: expected inputs to run it on")
    file = open_tensors(path)
    inputs, right = file.get("x"), file.get("y")
    if inputs is None or inputs.ndim < 2 or not len(inputs):
        raise InputError(f"{path} has no inputs x [samples, *input]")
    texts = [f"sample {index}" for index in range(len(inputs))]
    if right is not None and right.ndim == 2 and len(right) == len(inputs):
        names = [[labels[int(y)] if 0 <= y < len(labels) else str(y) for y in row] for row in right]
        texts = [f"{text}: {' '.join(row)}" for text, row in zip(texts, names, strict=True)]
    return tuple(
        ((np.array(each, dtype=np.float32),), text)
        for each, text in zip(inputs, texts, strict=True)
    )
