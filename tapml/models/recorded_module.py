"""A torch module that was recorded with ``torch.export``, in memory and as a folder.

::

    config.json          recorded: the signature (tapml.models.stored.StoredModule)
    program.json         the graph (tapml.models.program_text)
    model.safetensors    weights under the module's names, constants under ``constants.``
    samples.safetensors  inputs ``x<sample>.<input>``, and what the module itself gave for them,
                         ``y<sample>.<output>``

The folder is a model like any other: ``tapml offload --model FOLDER``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from tapml.durable.files import replace_folder, write_bytes
from tapml.models.checkpoint import read_json
from tapml.models.entries import EntryModule
from tapml.models.file_names import CONFIG, PROGRAM
from tapml.models.loaded import LoadedModule, OwnStep
from tapml.models.program_text import MAX_PROGRAM_BYTES, read_program, write_program
from tapml.models.stored import MODULE, StoredModule
from tapml.models.tensor_file import open_tensors, write_tensors
from tapml.models.weights_hash import hash_tensors
from tapml_targets.errors import InputError

Array: TypeAlias = npt.NDArray[Any]

KEY: Final = "recorded"
WEIGHTS: Final = "model.safetensors"
SAMPLES: Final = "samples.safetensors"
_CONSTANT: Final = "constants."
_FILES: Final = frozenset((CONFIG, PROGRAM, WEIGHTS, SAMPLES))


@dataclass(frozen=True)
class RecordedModule(LoadedModule):
    """A module as ``torch.export`` recorded it; `module` runs the recording.

    Attributes
    ----------
    program
        The recording: tensors in order, to a tuple of tensors.
    expected
        For each sample, the outputs of the module that was recorded.
    """

    program: torch.export.ExportedProgram = field(kw_only=True)
    expected: tuple[tuple[Array, ...], ...] = field(kw_only=True)

    def entry_modules(self) -> tuple[EntryModule, ...]:
        """The one entry, ``forward``, exported already."""
        (entry,) = super().entry_modules()
        shapes = tuple(
            {
                at: torch.export.Dim(each)
                for at, each in enumerate(port.shape)
                if isinstance(each, str)
            }
            for port in self.stored.inputs
        )
        return (replace(entry, program=self.program, dynamic_shapes=shapes),)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Also what was recorded as a constant."""
        return {**self.program.state_dict, **self.program.constants}

    def own_steps(self) -> Iterator[OwnStep]:
        """The recording beside what the module itself gave, output by output."""
        for (arrays, _), expected in zip(self.samples, self.expected, strict=True):
            inputs = [torch.from_numpy(each) for each in self.stored.prepare(arrays).values()]
            with torch.no_grad():
                given = self.module(*inputs)
            for ours, own in zip(given, expected, strict=True):
                yield OwnStep.of_output(MODULE, ours, own)

    def save(self, folder: str | Path) -> RecordedModule:
        """Write its folder, or replace one; returns the model with that source.

        Raises
        ------
        InputError
            If there is something else.
        SetupError
            If it cannot be written.
        """
        path = Path(folder)
        if path.exists() and not (
            path.is_dir() and {each.name for each in path.iterdir()} <= _FILES
        ):
            raise InputError(f"{path} holds something else: expected a new folder, or a recording")
        with replace_folder(path) as made:
            self.write(made)
        return replace(self, source=path.resolve())

    def write(self, folder: Path) -> None:
        """Write the files of its folder into one that is there."""
        tensors = dict(self.program.state_dict)
        tensors |= {f"{_CONSTANT}{name}": each for name, each in self.program.constants.items()}
        samples = {
            f"{kind}{number}.{index}": array
            for number, ((inputs, _), outputs) in enumerate(
                zip(self.samples, self.expected, strict=True)
            )
            for kind, arrays in (("x", inputs), ("y", outputs))
            for index, array in enumerate(arrays)
        }
        signature = json.dumps({KEY: self.signature.to_json()}, indent=1)
        write_bytes(folder / CONFIG, signature.encode())
        write_bytes(folder / PROGRAM, write_program(self.program))
        _write(folder / WEIGHTS, {name: to_array(each) for name, each in tensors.items()})
        _write(folder / SAMPLES, samples)


def to_array(tensor: torch.Tensor) -> Array:
    """A tensor's numbers on the host."""
    return tensor.detach().cpu().contiguous().numpy()


def load_recorded(folder: Path) -> RecordedModule:
    """Load a recorded module's folder.

    Raises
    ------
    InputError
        If a file is missing, is damaged or does not fit the others.
    """
    signature = StoredModule.from_json(read_json(folder / CONFIG).get(KEY))
    path = folder / PROGRAM
    if path.stat().st_size > MAX_PROGRAM_BYTES:
        raise InputError(f"{path} is larger than {MAX_PROGRAM_BYTES} bytes: record it again")
    state: dict[str, torch.Tensor] = {}
    constants: dict[str, torch.Tensor] = {}
    for name, array in open_tensors(folder / WEIGHTS, writable=True).items():
        home = constants if name.startswith(_CONSTANT) else state
        home[name.removeprefix(_CONSTANT)] = torch.from_numpy(array)
    program = read_program(path.read_bytes(), state, constants)
    samples, expected = _read_samples(folder / SAMPLES, signature)
    model = recorded(signature, program, samples, expected, folder)
    if model.weights_hash != signature.weights_hash:
        raise InputError(
            f"{folder / WEIGHTS} has other weights than were recorded: record it again"
        )
    return model


def recorded(
    signature: StoredModule,
    program: torch.export.ExportedProgram,
    samples: tuple[tuple[tuple[Array, ...], str], ...],
    expected: tuple[tuple[Array, ...], ...],
    folder: Path,
) -> RecordedModule:
    """The model of a program; its inputs and results are tensors in order."""
    tensors = {**program.state_dict, **program.constants}
    signature = replace(signature, weights_hash=hash_tensors(tensors))
    return RecordedModule(
        signature.name,
        {KEY: "torch.export"},
        None,
        program.module(check_guards=False).requires_grad_(False),
        signature.dtype,
        1,
        signature.weights_hash,
        folder,
        signature=signature,
        samples=samples,
        program=program,
        expected=expected,
    )


def _read_samples(
    path: Path, signature: StoredModule
) -> tuple[tuple[tuple[tuple[Array, ...], str], ...], tuple[tuple[Array, ...], ...]]:
    file = open_tensors(path)
    samples: list[tuple[tuple[Array, ...], str]] = []
    expected: list[tuple[Array, ...]] = []
    while f"x{len(samples)}.0" in file:
        number = len(samples)
        try:
            inputs = [np.array(file[f"x{number}.{at}"]) for at in range(len(signature.inputs))]
            outputs = [np.array(file[f"y{number}.{at}"]) for at in range(len(signature.outputs))]
        except KeyError as error:
            raise InputError(f"{path} lacks {error}: record the module again") from error
        signature.prepare(inputs)
        samples.append((tuple(inputs), f"sample {number}"))
        expected.append(tuple(outputs))
    if not samples:
        raise InputError(f"{path} has no inputs x0.0, ...: record the module again")
    return tuple(samples), tuple(expected)


def _write(path: Path, arrays: Mapping[str, Array]) -> None:
    write_tensors(path, arrays, {name: array.dtype.name for name, array in arrays.items()})
