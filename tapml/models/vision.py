"""Models of images or sound from a folder of transformers: a batch of one size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from tapml.models.entries import EntryModule
from tapml.models.families.family import Family
from tapml.models.loaded import LoadedModule, OwnStep
from tapml.models.one_entry import one_entry
from tapml.models.said_by import said_by
from tapml.models.stored import MODULE, ModuleTensor, StoredModule
from tapml_targets.errors import InputError

_SAMPLES: Final = 2
_WAVES: Final = 4


class DoesNotRun(InputError):
    """A class's forward ends in an error on the inputs of its kind."""


class _Results(nn.Module):
    """Results of a model of images or sound by name, or the first: its logits, or vectors."""

    def __init__(self, model: Any, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, values: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Normalized images ``[batch, channels, height, width]``, or sound, to ``[batch, ...]``."""
        output = self.model(**{self.model.main_input_name: values})
        if not self.names:
            first: Tensor = output[0]
            return first
        found = results(output)
        return tuple(found[name] for name in self.names)


def results(output: Any) -> dict[str, Tensor]:
    """Tensors of numbers in what a class gives, by its names; those in a row are numbered."""
    found: dict[str, Tensor] = {}
    for name, value in output.items():
        several = isinstance(value, list | tuple)
        for at, each in enumerate(value if several else (value,)):
            if isinstance(each, Tensor) and each.dtype.is_floating_point and each.dim():
                found[f"{name}_{at}" if several else name] = each
    return found


@dataclass(frozen=True)
class LoadedVision(LoadedModule):
    """A model of images or sound."""

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """The one entry, ``forward``."""
        inputs = self.stored.prepare(self.samples[0][0])
        if self.stored.measure != "values":
            return (one_entry(MODULE, _Results(self.module).eval(), inputs),)
        names = tuple(each.name for each in self.stored.outputs)
        return (one_entry(MODULE, _Results(self.module, names).eval(), inputs, names),)

    def own_steps(self) -> Iterator[OwnStep]:
        """Each sample, against ``forward`` of each of its images alone."""
        (entry,) = self.entry_modules()
        network: Any = self.module
        source = str(network.main_input_name)
        for arrays, _ in self.samples:
            (images,) = (torch.from_numpy(each) for each in self.stored.prepare(arrays).values())
            if self.stored.measure == "values":
                with torch.no_grad():
                    ours = entry.module(images)
                    alone = [results(network(**{source: each[None]})) for each in images]
                for name, found in zip(entry.output_names, ours, strict=True):
                    joined = torch.cat([each[name] for each in alone])
                    # What all images share has no row for each.
                    shared = len(joined) != len(found)
                    expected = alone[0][name] if shared else joined
                    yield OwnStep.of_output(MODULE, found.numpy(), expected.numpy())
                continue
            with torch.no_grad():
                own = [self.module(each[None])[0][0].numpy() for each in images]
                ours = entry.module(images).numpy()
            yield OwnStep(MODULE, ours, np.stack(own))


def load_vision(
    module: Any, family: Family, folder: Path, dtype: str, weights_hash: str, batch: int
) -> LoadedVision:
    """The model of a loaded module, with images or sound by seed as samples."""
    assert family.image is not None  # noqa: S101 - a family of images says their shape
    source = module.main_input_name
    what = "images" if source == "pixel_values" else "sounds"
    shape = (batch, *family.image(module.config))
    classes = family.measure == "classes"
    labels = dict(getattr(module.config, "id2label", None) or {})
    names: tuple[str, ...] = ("logits" if classes else "vectors",)
    if family.measure == "values":
        with torch.no_grad():
            values = torch.zeros((1, *shape[1:]), dtype=getattr(torch, dtype))
            try:
                names = tuple(results(module(**{source: values})))
            except Exception as error:  # a class may ask for anything
                raise DoesNotRun(
                    f"{type(module).__name__} does not run on {what} of {list(shape[1:])} "
                    f"({type(error).__name__}: {said_by(error)}): expected a folder whose "
                    "configuration fits its class"
                ) from error
    signature = StoredModule(
        name=folder.name,
        dtype=dtype,
        inputs=(ModuleTensor(source, dtype, shape),),
        outputs=tuple(ModuleTensor(each, dtype) for each in names),
        measure=family.measure,
        labels=tuple(str(labels[each]) for each in sorted(labels)) if classes else (),
        weights_hash=weights_hash,
    )
    samples = tuple(
        ((images_by_seed(shape, number),), f"{what} by seed {number}") for number in range(_SAMPLES)
    )
    return LoadedVision(
        folder.name,
        module.config,
        None,
        module,
        dtype,
        1,
        weights_hash,
        folder,
        notes=(f"{what} are made by seed unless given (--input)",),
        signature=signature,
        samples=samples,
    )


def images_by_seed(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Smooth images from -1 to 1, a few waves in each channel, as of normalized photographs.

    A sound without channels is noise: its waves would be far too slow.
    """
    random = np.random.default_rng(seed)
    if len(shape) == len(("batch", "samples")):
        return random.standard_normal(shape, np.float32)
    *outer, height, width = shape
    rows, columns = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)[None]
    images = np.zeros(shape)
    for _ in range(_WAVES):
        down, across, phase = (random.uniform(-9, 9, outer)[..., None, None] for _ in range(3))
        images += np.sin(down * rows + across * columns + phase) / _WAVES
    return images.astype(np.float32)
