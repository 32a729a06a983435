"""Weights that stay in their file: mapped, read where they are used, and given back.

A model that takes a good part of the memory is never in it as a whole. Its tensors are the file's
pages, and a thread returns those pages to the system when many are resident. Generated code needs
aligned tensors of the model's dtype; of files that have others, such a file is written once in the
user's cache, a tensor at a time.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import shutil
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from tapml.models.checkpoint import Checkpoint
from tapml.models.tensor_file import ALIGNMENT, Array, TensorFile, open_tensors, write_tensors
from tapml.models.weight_names import plain_names
from tapml_targets.cache_folder import cache_folder
from tapml_targets.dtype import dtype as data_type
from tapml_targets.errors import InputError
from tapml_targets.host_memory import usable_bytes

BOUND: Final = "TAPML_MAP_WEIGHTS"
"""Environment variable: models with more bytes of weights are mapped, and at most about so many are
resident. By default a quarter of the memory that this process may use, and 1 GiB of them."""

_SHARE: Final = 4
_FLOATS: Final = frozenset({"float32", "float16", "bfloat16"})
# Pages are returned above this many bytes; reading them again from the system's cache is cheap.
_MOST_RESIDENT: Final = 1 << 30
_SECONDS: Final = 0.05
_SPARE_BYTES: Final = 1 << 30


def map_weights(checkpoint: Checkpoint, empty: Any, dtype: torch.dtype) -> nn.Module | None:
    """A module whose parameters are pages of a file; None if the model is not large.

    Nothing may write to them.

    Parameters
    ----------
    checkpoint
        Its names and shapes were compared with those of `empty`.
    empty
        A module of the class on ``meta``.
    dtype
        Of the parameters.

    Returns
    -------
    nn.Module or None
        None as well where a parameter is made of several stored tensors, where the class keeps
        some in float32, or where the cache has no room for an aligned file.

    Raises
    ------
    InputError
        If the environment variable is no number of bytes.
    """
    from transformers import GenerationConfig
    from transformers.initialization import no_init_weights

    kind = str(dtype).removeprefix("torch.")
    size = data_type(kind).itemsize
    if not are_large(sum(size * math.prod(each.shape) for each in checkpoint.tensors.values())):
        return None
    names = plain_names(empty, checkpoint)
    if names is None or not checkpoint.dtypes <= _FLOATS:
        return None
    if not _has_all(empty, names) or (kind != "float32" and _keeps_float32(empty)):
        return None
    arrays = _arrays(checkpoint, names, kind)
    if arrays is None:
        return None
    # Memory that is never written takes none; buffers that no file has are computed.
    with no_init_weights():
        module: nn.Module = type(empty)._from_config(
            empty.config,
            dtype=dtype,
            attn_implementation="eager",
            **dict(checkpoint.family.loading),
        )
    tensors = {name: tensor_of(each) for name, each in arrays.items()}
    _put(module, tensors)
    tied: Any = module
    tied.tie_weights()
    places = {each.data_ptr() for each in tensors.values()}
    if any(each.data_ptr() not in places for each in module.parameters()):
        return None
    if (checkpoint.folder / "generation_config.json").is_file():
        module.generation_config = GenerationConfig.from_pretrained(checkpoint.folder)
    return module


def _has_all(empty: nn.Module, names: Mapping[str, str]) -> bool:
    """Whether each parameter, or one that it is tied to, is among the names."""
    found: dict[int, bool] = {}
    for name, each in empty.named_parameters(remove_duplicate=False):
        found[id(each)] = found.get(id(each), False) or name in names
    return all(found.values())


def _keeps_float32(module: nn.Module) -> bool:
    kept = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
    return any(getattr(part, name, None) for part in module.modules() for name in kept)


def are_large(nbytes: int) -> bool:
    """Whether weights of so many bytes are to be mapped.

    Raises
    ------
    InputError
        If the environment variable is no number of bytes.
    """
    return nbytes > _bound()


def _bound() -> int:
    given = os.environ.get(BOUND, "")
    if not given:
        return usable_bytes() // _SHARE
    if not given.isdecimal():
        raise InputError(f"{BOUND}={given[:40]}: expected a number of bytes")
    return int(given)


def _arrays(
    checkpoint: Checkpoint, names: Mapping[str, str], kind: str
) -> Mapping[str, Array] | None:
    """Weights by the class's names: of the files if they fit, else of a file that is written."""
    stored = checkpoint.tensors
    files = {each.file: open_tensors(each.file) for each in stored.values()}
    found = {here: files[stored[name].file][name] for here, name in names.items()}
    if all(
        stored[name].dtype == kind and found[here].ctypes.data % ALIGNMENT == 0
        for here, name in names.items()
    ):
        for each in files.values():
            return_pages_of(each)
        return found
    kinds = {here: stored[name].dtype for here, name in names.items()}
    path = cache_folder("mapped") / f"{_key(list(files), names, kind)}.safetensors"
    if not path.is_file():
        needed = sum(data_type(kind).itemsize * each.size for each in found.values())
        if shutil.disk_usage(path.parent).free < needed + _SPARE_BYTES:
            return None
        for each in files.values():
            return_pages_of(each)
        write_tensors(path, _Converted(found, kinds, kind), dict.fromkeys(found, kind))
    made = open_tensors(path)
    return_pages_of(made)
    return made


def _key(files: list[Path], names: Mapping[str, str], kind: str) -> str:
    digest = hashlib.sha256(f"{kind} {sorted(names.items())}".encode())
    for path in files:
        status = path.stat()
        digest.update(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


class _Converted(Mapping[str, Array]):
    """Arrays in another dtype, each converted when it is taken."""

    def __init__(self, arrays: Mapping[str, Array], kinds: Mapping[str, str], kind: str) -> None:
        self._arrays = arrays
        self._kinds = kinds
        self._kind = kind

    def __getitem__(self, name: str) -> Array:
        tensor = tensor_of(self._arrays[name])
        if self._kinds[name] == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        converted: Array = tensor.to(getattr(torch, self._kind)).numpy()
        return converted

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def tensor_of(array: Array) -> Tensor:
    """The tensor of an array, which nothing may write to, at the same place."""
    with warnings.catch_warnings():
        # Of arrays that nothing may write to.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def _put(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace parameters and stored buffers; tied ones stay tied."""
    parts = dict(module.named_modules(remove_duplicate=False))
    # What is replaced stays alive, so that its identity is of nothing else.
    replaced: dict[int, tuple[Tensor, Tensor]] = {}
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        old: Tensor = getattr(parts[path], last)
        new = nn.Parameter(tensor, requires_grad=False) if isinstance(old, nn.Parameter) else tensor
        replaced[id(old)] = old, new
    for part in parts.values():
        holders: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for held in holders:
            for last, old_one in list(held.items()):
                if id(old_one) in replaced:
                    held[last] = replaced[id(old_one)][1]


_mapped: Final[list[weakref.ref[mmap.mmap]]] = []
_started: Final = threading.Event()


def return_pages_of(file: TensorFile) -> None:
    """Have the pages of a mapped file returned when many are resident, while it is mapped.

    Nothing may write to its arrays.
    """
    for name in file:
        memory: Any = file[name]
        while memory is not None and not isinstance(memory, mmap.mmap):
            memory = memory.base
        if memory is None:
            return
        _mapped.append(weakref.ref(memory, _mapped.remove))
        if not _started.is_set() and hasattr(mmap, "MADV_DONTNEED"):
            _started.set()
            threading.Thread(target=_return_pages, name="tapml-pages", daemon=True).start()
        return


def _return_pages() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    # Code of libraries is among them.
    most = _resident_pages() + min(_bound(), _MOST_RESIDENT) // page
    while True:
        time.sleep(_SECONDS)
        if _resident_pages() > most:
            for reference in list(_mapped):
                memory = reference()
                if memory is not None:
                    memory.madvise(mmap.MADV_DONTNEED)
                # Else the last one stays mapped for as long as this thread sleeps.
                del memory


def _resident_pages() -> int:
    """Pages of files in this process's memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[2])
    except (OSError, ValueError, IndexError):
        return 0
