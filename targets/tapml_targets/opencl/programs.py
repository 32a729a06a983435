"""Builds OpenCL programs, keeping binaries on disk: a build takes 0.1 to 3 s, a binary 2 ms.

pyopencl's own cache reads pickles; here a file is a SHA-256 and a binary.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final

from tapml_targets.errors import CompileError
from tapml_targets.kept_code import KeptCode
from tapml_targets.opencl.discovery import import_pyopencl
from tapml_targets.opencl.language import BUILD_OPTIONS

# Before any module of pyopencl: it looks for drivers once, when it is imported.
cl = import_pyopencl()

# The minimum that operators need: -cl-fast-relaxed-math would change results.
BASE_OPTIONS: Final = "-cl-std=CL1.2"
_FORMAT = b"tapml-opencl-binary-2"


def build_program(context: Any, device: Any, source: bytes, options: Sequence[str] = ()) -> Any:
    """Build `source` for `device`, or load the binary from the cache.

    Parameters
    ----------
    options
        Names of :data:`~tapml_targets.opencl.language.BUILD_OPTIONS`. ``exact-division`` (float32
        division and square root rounded correctly) is ignored if the device does not offer it.

    Raises
    ------
    CompileError
        If the driver's compiler refuses the source; its log is in the message. Also if an option is
        none of these.
    """
    flags = _flags(device, options)
    platform = device.platform
    kept = KeptCode(
        "opencl-binaries",
        ".bin",
        _FORMAT,
        platform.name,
        platform.version,
        device.name,
        device.version,
        device.driver_version,
        flags,
        source,
    )
    binary = kept.read()
    if binary is not None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return cl.Program(context, [device], [binary]).build(flags)
        except cl.Error:
            # The driver rejects what it once wrote, e.g. after an update that kept its version.
            kept.drop()
    program = _build_source(context, device, source, flags)
    binary = _binary_of(program)
    if binary:
        kept.write(binary)
    return program


def _flags(device: Any, options: Sequence[str]) -> str:
    unknown = [option for option in options if option not in BUILD_OPTIONS]
    if unknown:
        raise CompileError(
            f"OpenCL programs have no build option {unknown[0]!r}; there are "
            f"{', '.join(sorted(BUILD_OPTIONS))}"
        )
    exact = device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    meant = [option for option in options if option != "exact-division" or exact]
    return " ".join((BASE_OPTIONS, *(BUILD_OPTIONS[option] for option in meant)))


def _build_source(context: Any, device: Any, source: bytes, flags: str) -> Any:
    try:
        text = source.decode()
    except UnicodeDecodeError:
        raise CompileError("OpenCL source must be UTF-8 text") from None
    with warnings.catch_warnings():
        # Asking for the handle before the build is pyopencl's way around its pickled cache; it
        # warns of that, and of every non-empty build log.
        warnings.simplefilter("ignore")
        program = cl.Program(context, text)
        try:
            _ = program.int_ptr
            return program.build(flags)
        except cl.Error as error:
            raise CompileError(
                f"{device.name} ({device.platform.name}) does not build this program:\n{error}"
            ) from None


def _binary_of(program: Any) -> bytes | None:
    try:
        binaries = program.get_info(cl.program_info.BINARIES)
    except cl.Error:
        return None
    return bytes(binaries[0]) if binaries else None
