"""Loads a session's folder: its plan on this processor, or as it was moved to the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tapml.backends.plan_graph import PlanGraph
from tapml.backends.runner import Array, Input, Node, to_plain
from tapml.backends.steps import in_steps
from tapml.devices.reach import open_device
from tapml.execute.device_reference import DeviceReference, executor_on
from tapml.execute.interfaces import Reference
from tapml.offload.reference_side import from_cache
from tapml.package.from_session import open_finished
from tapml.plan.graph_plan import CallStep
from tapml.runs.events import ignore
from tapml.runs.phases import Phases
from tapml.session.kept_model import KeptModel, open_kept
from tapml.session.settings import Settings
from tapml_targets.errors import InputError
from tapml_targets.installed import package_version


class _Moved:
    def __init__(self, kept: KeptModel, reference: Reference, versions: dict[str, str]) -> None:
        self._graph = PlanGraph(kept.model, kept.plan)
        self._weights = kept.weights
        self._reference = reference
        self._versions = versions
        self._executor = executor_on(kept.plan, kept.weights, reference)

    def versions(self) -> dict[str, str]:
        return self._versions

    def inputs(self) -> list[Input]:
        return self._graph.inputs()

    def nodes(self) -> list[Node]:
        return self._graph.nodes()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names: list[str] = []

        def run(step: Mapping[str, Array]) -> list[Array]:
            found = self._run(step)
            names[:] = found
            return list(found.values())

        values = in_steps(run, inputs, self._step())
        return dict(zip(names, values, strict=True))

    def hidden(self, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        found: dict[str, list[Array]] = {}
        self._run(self._graph.filled(inputs), found)
        return found

    def _run(
        self, inputs: Mapping[str, Array], found: dict[str, list[Array]] | None = None
    ) -> dict[str, Array]:
        """The outputs; `found` receives what each node wrote in the first run of its entry."""
        self._executor.reset()
        runs = self._graph.runs(inputs)
        last = runs[-1][0]
        outputs = []
        for name, given in runs:
            observer = None if found is None else partial(self._keep, found, name)
            made = self._executor.run(name, given, observer)
            if name == last:
                outputs.append({key: each.copy() for key, each in made.items()})
        return self._graph.outputs_of(outputs, inputs)

    def _keep(
        self, found: dict[str, list[Array]], entry: str, call: CallStep, _: Sequence[Array],
        writes: Sequence[Array],
    ) -> None:  # fmt: skip
        name = self._graph.name_of(entry, call)
        if name not in found:
            found[name] = [to_plain(each).copy() for each in writes]

    def replay(self, node: str, inputs: Sequence[Array]) -> list[Array]:
        call, arguments, symbols, written = self._graph.call_alone(node, inputs, self._weights)
        function = self._reference[call.operator]
        if symbols:
            function(*arguments, symbols=symbols)
        else:
            function(*arguments)
        return [to_plain(arguments[at]) for at in written]

    def _step(self) -> int:
        return (self._graph.inputs()[0].shape or (1,))[0] or 1


def load(model: Path, variant: str) -> _Moved:
    """Load a session's folder.

    Raises
    ------
    InputError
        If the folder is no session that has finished, or its model has changed.
    NoSuchDeviceError
        If its device is not there.
    """
    finished = open_finished(model)
    kept = open_kept(model)
    if kept is None:
        raise InputError(f"the stored model of {model.name} is gone: run the session again")
    if variant == "source":
        versions = {"apache-tvm": package_version("apache-tvm") or "source"}
        return _Moved(kept, from_cache(kept, Phases(ignore)).reference, versions)
    settings = Settings.from_json(kept.settings)
    # It ends with this process, which does nothing else.
    session = open_device(settings.device or settings.target)
    libraries = dict.fromkeys(finished.plan.operators, finished.library)
    device = session.device
    versions = {device.name: f"{device.vendor_platform} {device.driver_version}"}
    return _Moved(kept, DeviceReference(session, kept.plan.operators, libraries), versions)
