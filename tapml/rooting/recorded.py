"""What PyTorch computed in a rooting, in a file: it roots a reference where there is no PyTorch.

The file holds, for each run of an entry, its inputs, the values that its calls make, and its
outputs; and the state before the first run.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from tapml.importing.imported import ImportedModel
from tapml.plan.graph_plan import Entry, GraphPlan
from tapml.plan.rooting_report import RootingReport
from tapml.rooting.interpreter import Functions
from tapml.rooting.rooting import exported_programs, makers_of, root_runs, run_program
from tapml_targets.errors import InputError

Array = npt.NDArray[Any]
_FORMAT: Final = "tapml-roots/1"
_FACTS: Final = "facts"


@dataclass(frozen=True)
class _RecordedProgram:
    """An entry's program that has run."""

    state: tuple[tuple[str, int, int], ...]
    inside: dict[str, Array]
    outputs: list[Array]

    def run(
        self, entry: Entry, tensors: Mapping[str, Array]
    ) -> tuple[dict[str, Array], list[Array]]:
        """What it computed then, whatever it is given."""
        return self.inside, self.outputs


@dataclass(frozen=True)
class RecordedRoots:
    """PyTorch's values of a model's runs, of one run an entry.

    Attributes
    ----------
    runs
        Each entry that ran, with its inputs, in order.
    before
        The state before the first.
    programs
        What each entry computed.
    """

    runs: tuple[tuple[str, dict[str, Array]], ...]
    before: dict[str, Array]
    programs: dict[str, _RecordedProgram]

    @classmethod
    def record(
        cls,
        imported: ImportedModel,
        runs: Sequence[tuple[str, Mapping[str, Array]]],
        state: Mapping[str, Array],
    ) -> Self:
        """Run a model's programs.

        Raises
        ------
        InputError
            If its plan has no programs, or an entry runs twice.
        """
        programs: dict[str, _RecordedProgram] = {}
        known = dict(state)
        for name, inputs in runs:
            if name in programs:
                raise InputError(f"the entry {name} runs twice: one run an entry is recorded")
            entry = imported.plan.entries[name]
            program = exported_programs(imported)[name]
            inside, outputs = run_program(program, entry, {**imported.weights, **known, **inputs})
            bindings = _bindings(program)
            wanted = {
                key
                for made in makers_of(imported.plan, entry)
                for key in (made, f"{made}[0]")
                if key in inside
            }
            kept = {key: np.array(inside[key]) for key in wanted}
            programs[name] = _RecordedProgram(bindings, kept, [np.array(each) for each in outputs])
            known |= {state: outputs[output] for state, _, output in bindings}
        plain = tuple((name, {key: np.array(each) for key, each in i.items()}) for name, i in runs)
        return cls(plain, {name: np.array(each) for name, each in state.items()}, programs)

    def root(
        self, plan: GraphPlan, weights: Mapping[str, Array], reference: Functions
    ) -> RootingReport:
        """Compare a plan's operators, on the reference, with what was recorded.

        Raises
        ------
        MismatchError
            As :func:`tapml.rooting.rooting.root_runs` does.
        """
        imported = ImportedModel(plan, weights, self.programs)
        return root_runs(imported, self.runs, reference=reference, state=self.before)

    def write(self, path: Path) -> None:
        """Write a file of NumPy's format ``.npz``."""
        arrays: list[Array] = []

        def at(array: Array) -> int:
            arrays.append(array)
            return len(arrays) - 1

        facts = {
            "format": _FORMAT,
            "before": {name: at(each) for name, each in self.before.items()},
            "runs": [
                {
                    "entry": name,
                    "inputs": {key: at(each) for key, each in inputs.items()},
                    "state": self.programs[name].state,
                    "inside": {key: at(each) for key, each in self.programs[name].inside.items()},
                    "outputs": [at(each) for each in self.programs[name].outputs],
                }
                for name, inputs in self.runs
            ],
        }
        named: dict[str, Any] = {str(number): each for number, each in enumerate(arrays)}
        named[_FACTS] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        with path.open("wb") as file:
            np.savez(file, **named)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what :meth:`write` wrote.

        Raises
        ------
        InputError
            If it is something else.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                facts = json.loads(file[_FACTS].tobytes())
                if facts["format"] != _FORMAT:
                    raise InputError(f"{path}: expected {_FORMAT}, got {facts['format']}")
                runs = []
                programs = {}
                for each in facts["runs"]:
                    inputs = {key: file[str(n)] for key, n in each["inputs"].items()}
                    runs.append((each["entry"], inputs))
                    programs[each["entry"]] = _RecordedProgram(
                        tuple((name, read, written) for name, read, written in each["state"]),
                        {key: file[str(n)] for key, n in each["inside"].items()},
                        [file[str(n)] for n in each["outputs"]],
                    )
                before = {name: file[str(n)] for name, n in facts["before"].items()}
        except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} holds no recorded values of PyTorch: {error}") from error
        return cls(tuple(runs), before, programs)


def _bindings(program: Any) -> tuple[tuple[str, int, int], ...]:
    return tuple((str(name), int(read), int(written)) for name, read, written in program.state)
