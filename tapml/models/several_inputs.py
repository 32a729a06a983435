"""Classes of transformers as plain modules: what their forward needs, with shapes found by trying.

A class with inputs of two kinds (CLIP, layouts, videos, series) has no entry of its own kind here.
Its forward moves as it is, for inputs of fixed shapes, and every tensor of numbers that it gives is
compared. Names are those that the forward requires, then those that it asks for while it runs.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice, product
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from tapml.models.entries import EntryModule
from tapml.models.families.masks import text_config
from tapml.models.families.preprocessed import features, image, sound
from tapml.models.loaded import LoadedModule, OwnStep
from tapml.models.one_entry import one_entry
from tapml.models.said_by import said_by
from tapml.models.stored import MODULE, ModuleTensor, StoredModule
from tapml.models.vision import images_by_seed, results
from tapml_targets.errors import InputError

Array: TypeAlias = np.ndarray[Any, Any]
_BATCH: Final = 2
_TOKENS: Final = 16
_CHOICES: Final = 2
_FRAMES: Final = 4
_REGIONS: Final = 6
_SAMPLES: Final = 2
# A coordinate of a page, as models of layouts count.
_PAGE: Final = 1000
_MOST_TRIED: Final = 96
# A large model takes long for each of them, and its user waits.
_MOST_SECONDS: Final = 120.0
# Numbers of one way of inputs.
_MOST_NUMBERS: Final = 1 << 27
_INTEGER: Final = "int32"
_Shape: TypeAlias = "tuple[int, ...]"
Trying: TypeAlias = "Callable[[int, str], None]"
"""Is told the number of a way of inputs, from 1, and the names of the inputs."""
_Shapes: TypeAlias = "Callable[[Any], Sequence[_Shape]]"


def _tokens(config: Any) -> Sequence[_Shape]:
    text = _text(config)
    limit = int(getattr(text, "max_position_embeddings", None) or _TOKENS)
    count = min(_TOKENS, limit) if limit > 0 else _TOKENS
    return (_BATCH, count), (_BATCH, _CHOICES, count)


def _images(config: Any) -> Sequence[_Shape]:
    channels, *edges = image(config)
    own = getattr(config, "vision_config", config)
    frames = int(getattr(own, "num_frames", None) or getattr(own, "frames_per_clip", None) or 0)
    still, moving = (_BATCH, channels, *edges), (_BATCH, frames or _FRAMES, channels, *edges)
    return (moving, still) if frames else (still, moving)


def _sounds(config: Any) -> Sequence[_Shape]:
    samples = (_BATCH, *sound(config))
    channels = int(getattr(config, "audio_channels", 0) or 1)
    return samples, (_BATCH, channels, *samples[1:])


def _spectrograms(config: Any) -> Sequence[_Shape]:
    found = (_BATCH, *features(getattr(config, "audio_config", config)))
    return found, (found[0], *found[:0:-1])


def _series(config: Any) -> Sequence[_Shape]:
    length = int(config.context_length)
    lags = getattr(config, "lags_sequence", None) or [0]
    channels = int(getattr(config, "num_input_channels", None) or 1)
    many = int(getattr(config, "input_size", None) or 1)
    whole = (_BATCH, length + max(lags))
    lagged = whole if many == 1 else (*whole, many)
    plain = (_BATCH, length, channels)
    # Few ways are tried of many inputs: what has lags is longer than its context.
    shapes = (lagged, plain) if max(lags) else (plain, lagged)
    return *shapes, (_BATCH, length)


def _times(config: Any) -> Sequence[_Shape]:
    length = int(config.context_length) + max(getattr(config, "lags_sequence", None) or [0])
    # transformers counts the age of a series among its features.
    return tuple((_BATCH, length, int(config.num_time_features) + more) for more in (0, 1))


def _boxes(config: Any) -> Sequence[_Shape]:
    return tuple((*each, 4) for each in _tokens(config)[:1])


def _flat(config: Any) -> Sequence[_Shape]:
    """Patches behind their row and column."""
    own = getattr(config, "vision_config", config)
    return ((_BATCH, _TOKENS, 2 + int(own.patch_embed_hidden_size)),)


def _side(config: Any) -> int:
    """Rows of patches of a square image."""
    return int(getattr(config, "vision_config", config).num_patches ** 0.5)


def _regions(config: Any) -> Sequence[_Shape]:
    return ((_BATCH, _REGIONS, int(config.visual_feat_dim)),)


def _patches_of_images(config: Any) -> Sequence[_Shape]:
    """Patches in a row, whose places come beside them."""
    own = getattr(config, "vision_config", config)
    return ((_BATCH, _side(config) ** 2, int(own.num_channels) * int(own.patch_size) ** 2),)


# Names of arguments: the dtype (empty is the model's), and shapes from the configuration.
_KNOWN: Final[dict[str, tuple[str, _Shapes]]] = {
    "input_ids": (_INTEGER, _tokens),
    "pixel_values": ("", _images),
    "pixel_values_videos": ("", _images),
    "input_features": ("", _spectrograms),
    "input_values": ("", _sounds),
    "decoder_input_ids": (_INTEGER, lambda config: _tokens(config)[:1]),
    "bbox": (_INTEGER, _boxes),
    "past_values": ("", _series),
    "past_time_features": ("", _times),
    "past_observed_mask": ("", _series),
    "flattened_patches": ("", _flat),
    "visual_feats": ("", _regions),
    "visual_pos": ("", lambda _: ((_BATCH, _REGIONS, 4),)),
    "attention_mask": (_INTEGER, _tokens),
    "token_type_ids": (_INTEGER, _tokens),
    "bool_masked_pos": ("bool", lambda config: ((_BATCH, _patches(config)),)),
    "noise": ("", lambda config: ((_BATCH, _patches(config)),)),
    "pixel_attention_mask": (_INTEGER, lambda config: ((_BATCH, _side(config) ** 2),)),
    "spatial_shapes": (_INTEGER, lambda _: ((_BATCH, 2),)),
}
_ONES: Final = frozenset(("attention_mask", "past_observed_mask", "pixel_attention_mask"))
# Patches of an image have their places beside them.
_PLACES: Final = ("pixel_attention_mask", "spatial_shapes")
# What a class may ask for although its forward has a default.
_ASKED: Final = (
    "input_ids", "pixel_values", "input_features", "input_values", "decoder_input_ids", "bbox",
    "attention_mask", "flattened_patches", "visual_feats", "visual_pos", "noise",
)  # fmt: skip


class _Results(nn.Module):
    """A class's forward with arguments in order, and its results of numbers in order."""

    def __init__(self, model: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.outputs = outputs

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """One tensor for each name."""
        # Some change what they are given, as padding that comes as -100.
        own = (each.clone() for each in values)
        found = results(self.model(**dict(zip(self.inputs, own, strict=True))))
        return tuple(found[name] for name in self.outputs)


@dataclass(frozen=True)
class LoadedSeveral(LoadedModule):
    """A class of ``transformers`` as a plain module of several inputs."""

    @property
    def identity(self) -> str:
        """Also the example inputs, whose branches the entry takes."""
        digest = hashlib.sha256()
        for each in self.samples[0][0]:
            digest.update(f"{each.dtype} {each.shape}".encode() + each.tobytes())
        return f"{super().identity} {digest.hexdigest()}"

    def of_given(self, given: tuple[tuple[tuple[Array, ...], str], ...]) -> LoadedSeveral:
        """Run on what was given; the entry takes the branches of the first.

        Raises
        ------
        InputError
            If the forward does not run on it.
        """
        network: Any = self.module
        for arrays, text in given:
            inputs = {k: torch.from_numpy(v) for k, v in self.stored.prepare(arrays).items()}
            try:
                with torch.no_grad():
                    network(**{k: v.clone() for k, v in inputs.items()})
            except Exception as error:  # a class may ask for anything
                raise InputError(
                    f"{text}: the forward of {type(network).__name__} does not run on it: "
                    f"{type(error).__name__}: {said_by(error)}"
                ) from error
        return replace(self, given=given, samples=(*given[:1], *self.samples))

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """The one entry, ``forward``."""
        inputs = self.stored.prepare(self.samples[0][0])
        outputs = tuple(each.name for each in self.stored.outputs)
        module = _Results(self.module, tuple(inputs), outputs).eval()
        return (one_entry(MODULE, module, inputs, outputs),)

    def own_steps(self) -> Iterator[OwnStep]:
        """Each sample, against the class's ``forward`` with tokens of 64 bits."""
        (entry,) = self.entry_modules()
        network: Any = self.module
        for arrays, _ in self.samples:
            inputs = {k: torch.from_numpy(v) for k, v in self.stored.prepare(arrays).items()}
            wide = {k: v.long() if v.dtype is torch.int32 else v for k, v in inputs.items()}
            with torch.no_grad():
                ours, own = entry.module(*inputs.values()), results(network(**wide))
            for name, found in zip(entry.output_names, ours, strict=True):
                yield OwnStep.of_output(MODULE, found.numpy(), own[name].numpy())


def load_several(
    module: Any,
    folder: Path,
    dtype: str,
    weights_hash: str,
    reason: str = "",
    trying: Trying | None = None,
) -> LoadedSeveral:
    """A loaded module with the first inputs that its forward runs with, as samples by seed.

    Parameters
    ----------
    module
        Of a class of ``transformers``, in evaluation mode.
    folder, dtype, weights_hash
        As of :class:`Loaded`.
    reason
        Why it does not move as a model of its kind; a note says so.
    trying
        Called before each way of inputs is tried.

    Raises
    ------
    InputError
        If its forward runs with no inputs that are known here; the message says why not. No way
        begins after two minutes.
    """
    for config in (module.config, text_config(module)):
        if getattr(config, "use_cache", None):
            config.use_cache = False
    problem = "no argument of its forward has a known shape"
    # Of inputs that its forward took, which says more than any it did not take.
    ran = ""
    started = time.monotonic()
    for number, inputs in enumerate(islice(_candidates(module, dtype), _MOST_TRIED)):
        if number and time.monotonic() - started > _MOST_SECONDS:
            problem = f"{problem}; {number} were tried in {_MOST_SECONDS:.0f} s"
            break
        if sum(math.prod(map(int, each.shape)) for each in inputs) > _MOST_NUMBERS:
            shapes = ", ".join(map(str, inputs))
            problem = f"{shapes} has more than {_MOST_NUMBERS} numbers"
            continue
        if trying is not None:
            trying(number + 1, ", ".join(each.name for each in inputs))
        try:
            tensors = {
                each.name: torch.from_numpy(_array(each, module.config, 0)) for each in inputs
            }
            with torch.no_grad():
                found, again = (
                    results(module(**{k: v.clone() for k, v in tensors.items()})) for _ in range(2)
                )
        except Exception as error:  # a class may ask for anything
            problem = f"{type(error).__name__}: {said_by(error)}"
            continue
        if found.keys() != again.keys() or not all(
            torch.equal(each.nan_to_num(), again[k].nan_to_num()) for k, each in found.items()
        ):
            ran = "two runs on the same inputs differ"
            continue
        if found:
            return _loaded(module, folder, dtype, weights_hash, inputs, tuple(found), reason)
        ran = "it gives no tensor of numbers"
    raise InputError(
        f"{type(module).__name__} runs with none of the inputs that are known of its kind "
        f"({ran or problem}): write a module around it and take tml.from_torch(module, inputs)"
    )


def _loaded(
    module: Any,
    folder: Path,
    dtype: str,
    weights_hash: str,
    inputs: Sequence[ModuleTensor],
    outputs: tuple[str, ...],
    reason: str,
) -> LoadedSeveral:
    signature = StoredModule(
        name=folder.name,
        dtype=dtype,
        inputs=tuple(inputs),
        outputs=tuple(ModuleTensor(each, dtype) for each in outputs),
        measure="values",
        labels=(),
        weights_hash=weights_hash,
    )
    names = ", ".join(each.name for each in inputs)
    notes = [f"its forward moves as it is, of {names}, which are made by seed unless given"]
    if reason:
        notes.insert(0, f"it moves as a plain module, since {reason}")
    samples = tuple(
        (tuple(_array(each, module.config, seed) for each in inputs), f"inputs by seed {seed}")
        for seed in range(_SAMPLES)
    )
    return LoadedSeveral(
        folder.name,
        module.config,
        None,
        module,
        dtype,
        1,
        weights_hash,
        folder,
        notes=tuple(notes),
        signature=signature,
        samples=samples,
    )


def _candidates(module: Any, dtype: str) -> Iterator[tuple[ModuleTensor, ...]]:
    """Inputs to try: what is required, then with one more name, then with two."""
    parameters = inspect.signature(module.forward).parameters
    source = str(getattr(module, "main_input_name", ""))
    required = [
        name
        for name, each in parameters.items()
        if (name == source and name in _KNOWN)
        or (each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD)
    ]
    if not set(required) <= _KNOWN.keys():
        return
    more = [name for name in _ASKED if name in parameters and name not in required]
    for added in chain.from_iterable(combinations(more, count) for count in range(3)):
        names = [*required, *added]
        if not names:
            continue
        known = _KNOWN
        if "pixel_values" in names and "spatial_shapes" in parameters:
            names += [each for each in _PLACES if each not in names and each in parameters]
            known = _KNOWN | {"pixel_values": ("", _patches_of_images)}
        ports = [_ports(name, module.config, dtype, known) for name in names]
        # All of one kind in turn, and not each with each: a batch of choices has them everywhere.
        yield from islice(product(*ports), 6)


def _ports(
    name: str, config: Any, dtype: str, known: Mapping[str, tuple[str, _Shapes]]
) -> list[ModuleTensor]:
    kind, shapes = known[name]
    try:
        return [ModuleTensor(name, kind or dtype, tuple(each)) for each in shapes(config)]
    except (InputError, AttributeError, TypeError, ValueError):
        return []  # The configuration has no such input.


def _array(port: ModuleTensor, config: Any, seed: int) -> Array:
    """Numbers by seed of the kind that an argument has."""
    shape = tuple(int(each) for each in port.shape)
    random = np.random.default_rng((seed, len(port.name)))
    if port.name in _ONES:
        return np.ones(shape, port.dtype)
    if port.name in ("token_type_ids", "bool_masked_pos"):
        return np.zeros(shape, port.dtype)
    if port.name == "spatial_shapes":
        return np.full(shape, _side(config), port.dtype)
    if port.name == "bbox":
        corners = np.sort(random.integers(0, _PAGE, (*shape[:-1], 2, 2)), axis=-2)
        return corners.reshape(shape).astype(port.dtype)
    if port.dtype == _INTEGER:
        text = _text(config)
        special = {
            value
            for part in (config, text)
            for key, value in part.to_dict().items()
            if key.endswith(("_token_id", "_token_index")) and isinstance(value, int)
        }
        # Of characters (CANINE) any number is one.
        size = int(getattr(text, "vocab_size", None) or _PAGE)
        ordinary = [each for each in range(1, size) if each not in special]
        made = np.asarray(ordinary)[random.integers(0, len(ordinary), shape)]
        end = getattr(text, "eos_token_id", None)
        if port.name == "input_ids" and isinstance(end, int) and 0 <= end < size:
            made[..., -1] = end  # Some read what is there.
        return made.astype(port.dtype)
    if port.name.startswith("pixel_values"):
        return images_by_seed(shape, seed).astype(port.dtype)
    return random.standard_normal(shape, np.float32).astype(port.dtype)


def _text(config: Any) -> Any:
    """The configuration that counts tokens."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(config, "text_config", text) if not hasattr(text, "vocab_size") else text


def _patches(config: Any) -> int:
    own: Any = getattr(config, "vision_config", config)
    _, height, width = image(config)
    size = own.patch_size
    rows, columns = (size, size) if isinstance(size, int) else size
    return (height // int(rows)) * (width // int(columns))
