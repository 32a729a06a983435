"""The hybrid graph: a plan run with every operator on the reference or on a device.

Section III-D of the paper: at first all operators are on the host; one after the other is placed on
the device, and at any moment the whole model runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from tapml.execute.arrays import AlignedArrays, Array, aligned
from tapml.execute.binding import BoundEntry, bind_entry, bind_symbols, entry_of
from tapml.execute.frame import Frame
from tapml.execute.interfaces import Observer, Reference, RunSink
from tapml.execute.memory import HostMemory
from tapml.execute.prepared import PreparedProgram
from tapml.execute.program import DEVICE, HOST, Place, Program, plan_program
from tapml.execute.state import StateCell, zero_state
from tapml.graph.plan import GraphPlan
from tapml_targets.dtype import dtype
from tapml_targets.errors import DeviceLostError, InputError, RemoteError
from tapml_targets.library import Library

if TYPE_CHECKING:
    from tapml.execute.device import DeviceMemory, ReadLibrary
    from tapml_rpc.client import Session

# Programs of one entry differ by prompt length and placement; each is planned in milliseconds.
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
        Every weight of the plan by name; copied at its first use where it is not contiguous and
        aligned.
    reference
        Runs operators on the host.
    session
        The device; None where everything stays on the host.

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
        self._device: DeviceMemory | None = None
        self._placed: dict[str, _Placed] = {}
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
        """Names of the operators that have call sites on the device."""
        return frozenset(self._placed)

    @property
    def device_sites(self) -> frozenset[str]:
        """Names of the call sites on the device."""
        return frozenset().union(*(placed.sites for placed in self._placed.values()))

    @property
    def device(self) -> DeviceMemory | None:
        """The device's memory, with its counts of bytes moved; None without a session."""
        return self._device

    def attach(self, session: Session) -> None:
        """Use this session from now on, for instance after the old one was lost.

        When a run needs them, placed operators and weights are uploaded again. State that was only
        on the old device is gone: it is set to zero.
        """
        from tapml.execute.device import DeviceMemory

        self._programs.clear()
        self._device = DeviceMemory(session)
        for operator, placed in self._placed.items():
            self._device.load_later(operator, placed.read)
        if any(cell.array is None for cell in self._state.values()):
            self.reset()
        for cell in (*self._state.values(), *self._zeros.values()):
            cell.buffer = None

    def place(
        self,
        operator: str,
        library: Library | ReadLibrary,
        *,
        sites: Collection[str] | None = None,
    ) -> None:
        """Move an operator to the device. Nothing is sent there before a run needs it.

        Parameters
        ----------
        operator
            Its name in the plan, and in the Library.
        library
            What the device runs for it; or a function that reads it, called before a run needs it:
            a resumed session places hundreds of operators that are known to be right.
        sites
            The call sites to move; None for all of them, as in Algorithm 1.

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
        if self._device is None:
            raise InputError(
                f"operator {operator} cannot move to a device: "
                "the executor has no session (Executor(..., session=...) or attach)"
            )
        if isinstance(library, Library):
            check_holds(operator, library)
        placed = _Placed(library, frozenset(chosen))
        self._device.load_later(operator, placed.read)
        self._placed[operator] = placed
        self._programs.clear()

    def unplace(self, operator: str) -> None:
        """Move an operator back to the reference; nothing happens where it is there already."""
        if self._placed.pop(self._check_operator(operator), None) is not None:
            self._programs.clear()

    def reset(self) -> None:
        """Set the state to zero."""
        self._state = dict(self._zeros)

    def release_device(self) -> None:
        """Give back the device's memory: weights are sent again when a run needs them.

        State that was only there is set to zero. Snapshots keep what they hold.
        """
        if self._device is None:
            return
        if any(cell.array is None for cell in self._state.values()):
            self.reset()
        for cell in (*self._state.values(), *self._zeros.values()):
            cell.buffer = None
        self._device.forget_weights()
        self._device.trim()

    def snapshot_state(self) -> StateSnapshot:
        """The state as it is now. Nothing is copied: a run replaces state and never writes into it.

        Raises
        ------
        TapmlError
            If the state is only on the device and an earlier command failed there.
        """
        if self._device is not None and any(cell.array is None for cell in self._state.values()):
            self._device.session.fence()
        return MappingProxyType(dict(self._state))

    def restore_state(self, snapshot: StateSnapshot) -> None:
        """Go back to a snapshot."""
        self._state = dict(snapshot)

    def read_state(self, name: str) -> Array:
        """A state tensor's present content, fetched from the device where it is only there."""
        try:
            cell = self._state[name]
        except KeyError:
            known = ", ".join(self._state) or "none"
            raise InputError(f"no state tensor {name!r}; there are: {known}") from None
        return cell.fetch(self.plan.state[name], self._device)

    def write_state(self, name: str, array: Array) -> None:
        """Replace a state tensor.

        Raises
        ------
        InputError
            If there is none of this name, or shape or dtype differ.
        """
        if name not in self.plan.state:
            known = ", ".join(self.plan.state) or "none"
            raise InputError(f"no state tensor {name!r}; there are: {known}")
        spec = self.plan.state[name]
        _check_tensor(f"state tensor {name}", spec.shape, spec.dtype, array)
        self._state[name] = StateCell.of(aligned(array.copy()))

    def run(
        self,
        entry: str,
        inputs: Mapping[str, Array],
        observer: Observer | None = None,
        *,
        sink: RunSink | None = None,
    ) -> dict[str, Array]:
        """Run an entry on the present state and leave the state it produces.

        Parameters
        ----------
        entry
            ``prefill``, ``decode``.
        inputs
            The entry's inputs by name, without state.
        observer
            Called after every call site, in order, with the arrays it read and the arrays it
            wrote; they stay valid and unchanged as long as the observer keeps them.
        sink
            Told about the host memory of the run as a whole, which costs less than an observer.

        Returns
        -------
        dict
            The entry's outputs by name.

        Raises
        ------
        InputError
            If there is no such entry, or an input is missing, unknown or of another shape or dtype.
        RemoteError
            If a command failed on the device. State that was only there is zero afterwards.
        CompileError
            If a kernel of a placed operator does not build there.
        """
        bound = self._bind(entry, inputs)
        on_device = bool(self._placed)
        prepared = self._prepare(
            bound, observed=observer is not None or (sink is not None and on_device)
        )
        if self._device is not None:
            self._device.load_waiting(prepared.program.device_operators)
        frame = Frame(prepared, self._state, self._memory, self._device)
        try:
            outputs, state = frame.run(inputs, observer, sink)
        except RemoteError as error:
            self._recover(error)
            raise
        self._state.update(state)
        return outputs

    def program(self, entry: str, inputs: Mapping[str, Array]) -> Program:
        """What a run with these inputs would do, under the present placement and state."""
        return self._prepare(self._bind(entry, inputs), observed=False).program

    def _recover(self, error: RemoteError) -> None:
        """After a failure on the device nothing written there since the last answer is sure."""
        if self._device is None or isinstance(error, DeviceLostError):
            return
        self._device.distrust()
        for name, cell in self._state.items():
            if cell.array is None:
                self._state[name] = self._zeros[name]
        for cell in (*self._state.values(), *self._zeros.values()):
            cell.buffer = None
        self._device.session.reset()

    def _bind(self, entry: str, inputs: Mapping[str, Array]) -> BoundEntry:
        key = (entry, *((name, a.shape, a.dtype) for name, a in inputs.items()))
        bound = self._bound.get(key)
        if bound is None:
            symbols = bind_symbols(entry_of(self.plan, entry), inputs)
            bound = bind_entry(self.plan, entry, symbols)
            _keep(self._bound, key, bound)
        return bound

    def _prepare(self, bound: BoundEntry, *, observed: bool) -> PreparedProgram:
        places = tuple(
            [
                (self._state[name].array is None, self._state[name].buffer is None)
                for name in bound.before
            ]
        )
        key = (bound, observed, places)
        prepared = self._programs.get(key)
        if prepared is None:
            program = plan_program(
                bound,
                self.device_sites,
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
    places: set[Place] = set()
    if cell.array is not None:
        places.add(HOST)
    if cell.buffer is not None:
        places.add(DEVICE)
    return frozenset(places)


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
