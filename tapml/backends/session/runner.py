"""Loads a session's folder: its plan on this processor, or as it was moved to the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tapml.backends.parts import in_steps
from tapml.backends.plan_graph import PlanGraph
from tapml.backends.runner import Array, Input, Node, to_plain
from tapml.execute.device_reference import DeviceReference, executor_on
from tapml.execute.interfaces import Reference
from tapml.offload.reference_side import from_cache
from tapml.package.from_session import open_finished
from tapml.plan.graph_plan import CallStep
from tapml.runs.events import ignore
from tapml.runs.phases import Phases
from tapml.session.kept_model import KeptModel, open_kept
from tapml.session.settings import Settings
from tapml_rpc.reach import open_device
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
        entry = self._graph.entry

        def run(step: Mapping[str, Array]) -> list[Array]:
            self._executor.reset()
            outputs = self._executor.run(entry.name, self._graph.prepared(step))
            return [to_plain(outputs[each]).copy() for each in entry.outputs]

        return dict(zip(entry.outputs, in_steps(run, inputs, self._step()), strict=True))

    def hidden(self, inputs: Mapping[str, Array]) -> dict[str, list[Array]]:
        found: dict[str, list[Array]] = {}

        def keep(call: CallStep, _: Sequence[Array], writes: Sequence[Array]) -> None:
            found[self._graph.name_of(call)] = [to_plain(each).copy() for each in writes]

        self._executor.reset()
        self._executor.run(
            self._graph.entry.name, self._graph.prepared(self._graph.filled(inputs)), keep
        )
        return found

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
