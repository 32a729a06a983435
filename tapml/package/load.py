"""Opening a package to be run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tapml.models.chat_template import chat_template_of
from tapml.models.stored import StoredModel
from tapml.models.tensor_file import TensorFile
from tapml.package.codecs import open_codec
from tapml.package.files import PackageFiles, recover_package, unpack_programs
from tapml.package.manifest import TOKENIZER_CONFIG, WEIGHTS
from tapml.package.runnable import Runnable
from tapml.package.target_model import TargetModel
from tapml.plan.graph_plan import GraphPlan
from tapml_targets.errors import InputError

# Up to this size weights are hashed at every load, in a fraction of a second.
ALWAYS_VERIFIED_BYTES: Final = 256 << 20


def load_package(
    path: str | os.PathLike[str],
    device: str | None = None,
    *,
    verify: bool = False,
    own_process: bool = False,
) -> TargetModel:
    """Load a package onto its device.

    Parameters
    ----------
    path
        A folder or an archive made by ``tapml package``.
    device
        ``opencl:1``; None for the device the model was validated on where it is here, else for
        the best one of its platform.
    verify
        Whether the hash of the weights is checked even above ``ALWAYS_VERIFIED_BYTES``. Their size
        and header, and the hash of every other file, always are.
    own_process
        Whether a process of its own drives the device: a driver that crashes then costs an error
        here and not this process, and a kernel that hangs ends at a deadline. Every token costs a
        round trip more. Kernels that are machine code always run in a process of their own.

    Returns
    -------
    TargetModel
        A context manager; a warning says where the device or its driver is another than the one
        the model was validated on, and whether a text of the session comes out there as it did.

    Raises
    ------
    InputError
        If it is no package, is damaged or was edited, or is of a newer format.
    LimitExceededError
        If the device cannot run a kernel; the message names the kernel, the limit and the need.
    NoSuchDeviceError, SetupError
        If there is no such device, no driver, or its Python package is missing.

    Examples
    --------
    >>> import tapml as tml
    >>> model = tml.load_package("my-package")  # doctest: +SKIP
    >>> print(model.generate("The value of the attribute"))  # doctest: +SKIP
    """
    if recovered := recover_package(Path(path)):
        warnings.warn(recovered, stacklevel=2)
    model = TargetModel(open_package(Path(path), verify=verify), device, own_process=own_process)
    try:
        for note in model.notes:
            warnings.warn(note, stacklevel=2)
    except Warning:
        # If warnings are errors, the caller gets no model to close.
        model.close()
        raise
    return model


def open_package(
    path: Path, *, verify: bool = False, progress: Callable[[int, int], None] | None = None
) -> Runnable:
    """Read and check a package; see :func:`load_package`.

    Parameters
    ----------
    progress
        Called with the bytes of weights that were hashed so far, and all of them.

    Raises
    ------
    InputError
        If it is no package, is damaged or was edited, or is of a newer format.
    """
    files = PackageFiles(path)
    manifest = files.manifest
    contents = files.read_all()
    weights = files.weights()
    if verify or weights.nbytes <= ALWAYS_VERIFIED_BYTES:
        files.check_weights(progress)
    plan, library = unpack_programs(path, contents)
    _check_weights(path, plan, weights)
    _check_sizes(path, plan, manifest.model)
    if library.target != manifest.device.platform:
        raise InputError(
            f"the package {path} was edited: its kernels are for {library.target}, and it says "
            f"{manifest.device.platform}"
        )
    return Runnable(
        model=manifest.model,
        plan=plan,
        library=library,
        weights=weights,
        open_codec=lambda: open_codec(
            manifest.tokenizer, contents.get(manifest.tokenizer.file, b"")
        ),
        validated=manifest.device,
        sample=manifest.sample,
        chat_template=chat_template_of(contents.get(TOKENIZER_CONFIG), None, str(path)),
    )


def _check_sizes(path: Path, plan: GraphPlan, model: StoredModel) -> None:
    """Compare the model's sizes, which shape inputs, with its plan."""
    for entry in plan.entries.values():
        shapes = {name: entry.values[name].shape for name in (*entry.inputs, *entry.outputs[:1])}
        for what, size, found in model.sizes_in(shapes, entry.outputs[0]):
            if found != size:
                said = " x ".join(map(str, size))
                raise InputError(
                    f"the package {path} was edited: it says that the model has a {what} of "
                    f"{said}, and its plan has another ({entry.name})"
                )


def _check_weights(path: Path, plan: GraphPlan, weights: TensorFile) -> None:
    for name, expected in plan.weights.items():
        found = weights.tensors.get(name)
        if found is None or (found.dtype, found.shape) != (expected.dtype, expected.shape):
            has = "nothing" if found is None else f"{found.dtype} {found.shape}"
            raise InputError(
                f"the package {path} cannot be used: its plan takes {name} as {expected.dtype} "
                f"{expected.shape}, and {WEIGHTS} holds {has}"
            )
