"""What a kernel for each platform is written in: dialect, file extension, build options.

A platform that takes no source text is not here: a shared object cannot be edited and watched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tapml.carving.replay_repro import EXTENSIONS
from tapml.kernels.opencl_signature import (
    OPENCL_OPTIONS,
    read_opencl_entries,
    read_opencl_signature,
)
from tapml.kernels.opencl_skeleton import write_opencl_skeleton
from tapml.kernels.signature import Signature
from tapml.kernels.wgsl_signature import WGSL_OPTIONS, read_wgsl_entries, read_wgsl_signature
from tapml.kernels.wgsl_skeleton import write_wgsl_skeleton
from tapml_targets.errors import InputError
from tapml_targets.library import Parameter
from tapml_targets.platforms import platform_names


@dataclass(frozen=True)
class Dialect:
    """The language of a platform's kernels.

    Attributes
    ----------
    name
        As a Library's modules name it.
    extension
        Of source files, without the dot.
    options
        Build options by name, each with what it is for.
    read_entries
        The kernels of a source text by name, those that can be read.
    read_signature
        Finds an entry in a source text; None where it is not there in a form that can be read.
    write_skeleton
        The source of a kernel to be written: its entry, the operator's parameters, the symbols it
        is given as numbers, and behind them the elements of the first output.
    integer
        The dtype of those numbers.
    """

    name: str
    extension: str
    options: dict[str, str]
    read_entries: Callable[[str], list[str]]
    read_signature: Callable[[str, str], Signature | None]
    write_skeleton: Callable[[str, Sequence[Parameter], Sequence[str]], str]
    integer: str


_DIALECTS: Final = {
    "opencl": Dialect(
        "opencl-c",
        EXTENSIONS["opencl-c"],
        OPENCL_OPTIONS,
        read_opencl_entries,
        read_opencl_signature,
        write_opencl_skeleton,
        "int64",
    ),
    "webgpu": Dialect(
        "wgsl",
        EXTENSIONS["wgsl"],
        WGSL_OPTIONS,
        read_wgsl_entries,
        read_wgsl_signature,
        write_wgsl_skeleton,
        "int32",
    ),
}


def dialect_of(platform: str) -> Dialect:
    """The dialect of hand-written kernels for a platform.

    Raises
    ------
    InputError
        If there is no such platform, or its kernels cannot be written by hand.
    """
    known = ", ".join(_DIALECTS)
    if platform not in platform_names():
        raise InputError(f"unknown target {platform[:40]!r}; kernels can be written for {known}")
    dialect = _DIALECTS.get(platform)
    if dialect is None:
        raise InputError(
            f"the target {platform!r} loads machine code (shared objects), so it takes no "
            f"hand-written kernel: kernels can be written for {known}"
        )
    return dialect
