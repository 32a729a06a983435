"""The hybrid graph: runs a plan with every operator on the host or on a device.

Section III-D of the paper: initially all operators are on the reference; they are placed on the
target one by one, and the complete model can run at any time. The reference is this process, or a
device like the target: a graph spans the host and any number of devices.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from tapml.execute.arrays import AlignedArrays, Array
from tapml.execute.binding import BoundEntry, bind_entry, bind_symbols, entry_of
from tapml.execute.frame import Frame
from tapml.execute.interfaces import Observer, Reference, RunSink
from tapml.execute.memory import HostMemory
from tapml.execute.place import DEVICE, HOST, Place
from tapml.execute.prepared import PreparedProgram
from tapml.execute.program import Program, plan_program
from tapml.execute.state import StateCell, zero_state
from tapml.plan.graph_plan import GraphPlan
from tapml_targets.dtype import dtype
from tapml_targets.errors import (
    DeviceLostError,
    InputError,
    ReferenceFailedError,
    RemoteError,
)
from tapml_targets.library import Library

if TYPE_CHECKING:
    from tapml.execute.device import DeviceMemory, ReadLibrary
    from tapml_rpc.client import Session

# Programs of an entry differ by prompt length and placement; planning one takes milliseconds.
PROGRAMS_KEPT: Final = 128

StateSnapshot: TypeAlias = Mapping[str, StateCell]
Kept = TypeVar("Kept")


@dataclass
class _Placed:
    library: Library | ReadLibrary
    sites: frozenset[str]

    def read(self) -> Library:
        return self.library if isinstance(self.library, Library) else self.library()


class Executor:
    """Runs a plan.

    Parameters
    ----------
    plan
        The model's plan.
    weights
        Every weight of the plan by name; copied on first use if not contiguous and aligned.
    reference
        Runs operators on the host.
    session
        The target; None if everything stays where it is. :meth:`attach` adds other devices.

    Raises
    ------
    InputError
        If a weight is missing or has another shape or dtype.
    """

    def __init__(
        self,
        plan: GraphPlan,
        weights: Mapping[str, Array],
        reference: Reference,
        session: Session | None = None,
    ) -> None:
        self.plan = plan
        self.weights: Mapping[str, Array] = _checked_weights(plan, weights)
        self.reference = reference
        self._devices: dict[Place, DeviceMemory] = {}
        self._placed: dict[Place, dict[str, _Placed]] = {}
        self._bound: OrderedDict[tuple[object, ...], BoundEntry] = OrderedDict()
        self._programs: OrderedDict[tuple[object, ...], PreparedProgram] = OrderedDict()
        self._state: dict[str, StateCell] = {}
        self._zeros = zero_state(plan)
        self._memory = HostMemory()
        if session is not None:
            self.attach(session)
        self.reset()

    @property
    def placed(self) -> frozenset[str]:
        """Names of the operators that have call sites on the target."""
        return frozenset(self._placed.get(DEVICE, ()))

    @property
    def placement(self) -> Mapping[str, Place]:
        """The device of each call site that is on one; of two, the target."""
        return {
            site: place
            for place in sorted(self._placed, key=lambda place: place == DEVICE)
            for placed in self._placed[place].values()
            for site in placed.sites
        }

    @property
    def device(self) -> DeviceMemory | None:
        """The target's memory and its counts of moved bytes; None without a session."""
        return self._devices.get(DEVICE)

    @property
    def devices(self) -> Mapping[Place, DeviceMemory]:
        """The memory of every device."""
        return self._devices

    def attach(self, session: Session, place: Place = DEVICE, *, reference: str = "") -> None:
        """Add a device, or switch to this session of it, for instance after the old one was lost.

        Placed operators and weights are uploaded again when a run needs them. State that was only
        on the old device is reset to zero.

        Parameters
        ----------
        session
            The connection to the device.
        place
            Its name in this graph; the target if none is given.
        reference
            What the device is called, if it is the reference: its failures are then not the
            target's, and become :class:`~tapml_targets.errors.ReferenceFailedError`.
        """
        from tapml.execute.device import DeviceMemory

        self._programs.clear()
        self._devices[place] = device = DeviceMemory(session, reference)
        for operator, placed in self._placed.setdefault(place, {}).items():
            device.load_later(operator, placed.read)
        if any(_is_only_at(cell, {place}) for cell in self._state.values()):
            self.reset()
        for cell in (*self._state.values(), *self._zeros.values()):
            cell.buffers.pop(place, None)

    def place(
        self,
        operator: str,
        library: Library | ReadLibrary,
        *,
        sites: Collection[str] | None = None,
        place: Place = DEVICE,
    ) -> None:
        """Move an operator to a device. Nothing is sent until a run needs it.

        Parameters
        ----------
        operator
            Its name in the plan, and in the Library.
        library
            The device's implementation, or a function that reads it just before a run needs it:
            a resumed session places hundreds of operators that already passed.
        sites
            The call sites to move; None for all of them, as in Algorithm 1.
        place
            The device; the target if none is given.

        Raises
        ------
        InputError
            If the plan or the Library has no such operator, a site is not one of its call sites,
            or there is no session.
        """
        from tapml.execute.device import check_holds

        own = {call.site for call in self.plan.sites_of(self._check_operator(operator))}
        chosen = own if sites is None else set(sites)
        if chosen - own:
            raise InputError(
                f"not a call site of operator {operator}: {', '.join(sorted(chosen - own))}; "
                f"its call sites: {', '.join(sorted(own))}"
            )
        device = self._devices.get(place)
        if device is None:
            raise InputError(
                f"operator {operator} cannot move to a device: "
                "the executor has no session (Executor(..., session=...) or attach)"
            )
        if isinstance(library, Library):
            check_holds(operator, library)
        placed = _Placed(library, frozenset(chosen))
        device.load_later(operator, placed.read)
        self._placed[place][operator] = placed
        self._programs.clear()

    def unplace(self, operator: str) -> None:
        """Move an operator from the target back to the reference, if it is not there."""
        name = self._check_operator(operator)
        if self._placed.get(DEVICE, {}).pop(name, None) is not None:
            self._programs.clear()

    def reset(self) -> None:
        """Set the state to zero."""
        self._state = dict(self._zeros)

    def release_device(self) -> None:
        """Free the devices' memory: weights are sent again when a run needs them.

        State that was only there is reset to zero. Snapshots keep their buffers.
        """
        if any(cell.array is None for cell in self._state.values()):
            self.reset()
        for cell in (*self._state.values(), *self._zeros.values()):
            cell.buffers.clear()
        for device in self._devices.values():
            device.forget_weights()
            device.trim()

    def snapshot_state(self) -> StateSnapshot:
        """The current state. Nothing is copied, because runs replace state and never modify it.

        Raises
        ------
        TapmlError
            If the state is only on a device and an earlier command failed there.
        """
        for place, device in self._devices.items():
            if any(
                _is_only_at(cell, self._devices) and place in cell.buffers
                for cell in self._state.values()
            ):
                with device.faults():
                    device.session.fence()
        return MappingProxyType(dict(self._state))

    def restore_state(self, snapshot: StateSnapshot) -> None:
        """Restore a snapshot."""
        self._state = dict(snapshot)

    def run(
        self,
        entry: str,
        inputs: Mapping[str, Array],
        observer: Observer | None = None,
        *,
        sink: RunSink | None = None,
    ) -> dict[str, Array]:
        """Run an entry on the current state and replace the state by the result.

        Parameters
        ----------
        entry
            ``prefill``, ``decode``.
        inputs
            The entry's inputs by name, without state.
        observer
            Called after every call site, in order, with the arrays it read and wrote; they stay
            valid and unchanged as long as the observer keeps them.
        sink
            Receives the host memory of the run, at a lower cost than an observer.

        Returns
        -------
        dict
            The entry's outputs by name.

        Raises
        ------
        InputError
            If there is no such entry, or an input is missing, unknown or of another shape or dtype.
        RemoteError
            If a command failed on the target. State that was only there is zero afterwards.
        ReferenceFailedError
            The same for a device that is the reference.
        CompileError
            If a kernel of a placed operator does not build there.
        """
        bound = self._bind(entry, inputs)
        prepared = self._prepare(
            bound, observed=observer is not None or (sink is not None and self._on_devices)
        )
        for place, operators in prepared.program.device_operators.items():
            with self._devices[place].faults():
                self._devices[place].load_waiting(operators)
        frame = Frame(prepared, self._state, self._memory, self._devices)
        try:
            outputs, state = frame.run(inputs, observer, sink)
        except (RemoteError, ReferenceFailedError) as error:
            self._recover(error)
            raise
        self._state.update(state)
        return outputs

    def program(
        self, entry: str, inputs: Mapping[str, Array], *, recorded: bool = False
    ) -> Program:
        """The program of a run with these inputs, under the current placement and state.

        `recorded` says whether the run is to have a sink.
        """
        observed = recorded and self._on_devices
        return self._prepare(self._bind(entry, inputs), observed=observed).program

    @property
    def _on_devices(self) -> bool:
        return any(self._placed.values())

    def _recover(self, error: RemoteError | ReferenceFailedError) -> None:
        """After a failure on a device, discard what was written to any since the last reply."""
        if isinstance(error, DeviceLostError | ReferenceFailedError):
            # Of a lost device, or one that ends the run, nothing is used again.
            return
        for device in self._devices.values():
            device.distrust()
        for name, cell in self._state.items():
            if cell.array is None:
                self._state[name] = self._zeros[name]
        for cell in (*self._state.values(), *self._zeros.values()):
            cell.buffers.clear()
        for device in self._devices.values():
            device.session.reset()

    def _bind(self, entry: str, inputs: Mapping[str, Array]) -> BoundEntry:
        key = (entry, *((name, a.shape, a.dtype) for name, a in inputs.items()))
        bound = _kept(self._bound, key)
        if bound is None:
            symbols = bind_symbols(entry_of(self.plan, entry), inputs)
            bound = bind_entry(self.plan, entry, symbols)
            _keep(self._bound, key, bound)
        return bound

    def _prepare(self, bound: BoundEntry, *, observed: bool) -> PreparedProgram:
        places = tuple([_places(self._state[name]) for name in bound.before])
        key = (bound, observed, places)
        prepared = _kept(self._programs, key)
        if prepared is None:
            program = plan_program(
                bound,
                self.placement,
                {name: _places(self._state[name]) for name in bound.before},
                observed=observed,
            )
            prepared = PreparedProgram(program, self.weights, self.reference)
            _keep(self._programs, key, prepared)
        return prepared

    def _check_operator(self, operator: str) -> str:
        if operator not in self.plan.operators:
            known = ", ".join(self.plan.operators)
            raise InputError(f"{self.plan.name} has no operator {operator!r}; it has {known}")
        return operator


def _places(cell: StateCell) -> frozenset[Place]:
    return frozenset((*cell.buffers, *([] if cell.array is None else [HOST])))


def _is_only_at(cell: StateCell, places: Collection[Place]) -> bool:
    """Whether all copies of a state tensor are at these places."""
    return cell.array is None and all(place in places for place in cell.buffers)


def _kept(kept: OrderedDict[tuple[object, ...], Kept], key: tuple[object, ...]) -> Kept | None:
    """The cached item under `key`, now the most recently used."""
    if key not in kept:
        return None
    kept.move_to_end(key)
    return kept[key]


def _keep(kept: OrderedDict[tuple[object, ...], Kept], key: tuple[object, ...], new: Kept) -> None:
    kept[key] = new
    if len(kept) > PROGRAMS_KEPT:
        kept.popitem(last=False)


def _checked_weights(plan: GraphPlan, weights: Mapping[str, Array]) -> AlignedArrays:
    missing = [name for name in plan.weights if name not in weights]
    if missing:
        raise InputError(f"{plan.name} needs weights that were not given: {', '.join(missing)}")
    for name, spec in plan.weights.items():
        _check_tensor(f"weight {name}", spec.shape, spec.dtype, weights[name])
    return AlignedArrays({name: weights[name] for name in plan.weights})


def _check_tensor(what: str, shape: tuple[int, ...], dtype_name: str, array: Array) -> None:
    expected = dtype(dtype_name).numpy_name
    if array.shape != shape or array.dtype.name != expected:
        raise InputError(
            f"{what}: expected {expected} {shape}, got {array.dtype.name} {array.shape}"
        )
