"""Runs a Library on a driver: what calling an operator or an entry means on a device.

The first call with new shapes plans and checks (:mod:`tapml_targets.call_plan`); the plan is kept,
so that a later call with the same shapes only binds memory, and one with the same memory only
launches. Workspaces are kept between calls and shared by all calls: launches run in order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, TypeAlias

from tapml_targets.call_plan import (
    BufferSlot,
    CallPlan,
    PlannedLaunch,
    TensorShape,
    TensorSlot,
    WorkspaceSlot,
    plan_call,
)
from tapml_targets.driver import (
    BoundLaunch,
    Buffer,
    BufferUse,
    Driver,
    KernelArgument,
    LaunchSequence,
    LoadedKernel,
    TensorUse,
)
from tapml_targets.dtype import dtype
from tapml_targets.errors import CompileError, InputError, LimitExceededError
from tapml_targets.library import Kernel, Library
from tapml_targets.library_check import check_library
from tapml_targets.module_check import check_module, unmet
from tapml_targets.prepared_call import BoundCall, CallReport, PreparedCall, RecordedCall

MAX_PLANNED_LAUNCHES: Final = 1 << 18
MAX_BOUND: Final = 4
MAX_KEPT_WORKSPACE_BYTES: Final = 256 << 20
GUARD_PATTERN: Final = bytes.fromhex("c3a55a3c96690ff0")

_Place: TypeAlias = tuple[Buffer, int]
_Band: TypeAlias = tuple[int, int]


class LoadedLibrary:
    """A Library whose kernels are built on a device.

    Parameters
    ----------
    driver
        The open device. It outlives this object.
    library
        The Library to load; it is checked first.
    guard_bytes
        Size of the guard bands on either side of each workspace of a poisoned call.

    Raises
    ------
    CompileError
        If a module does not build, with the compiler's log.
    ProtocolError
        If the Library is inconsistent.
    """

    def __init__(self, driver: Driver, library: Library, *, guard_bytes: int = 4096) -> None:
        check_library(library)
        if guard_bytes <= 0 or guard_bytes % 4096:
            # Guards move a window's start: it must stay aligned for every device.
            raise InputError(f"guard_bytes must be a multiple of 4096, got {guard_bytes}")
        self.driver = driver
        self.library = library
        self.guard_bytes = guard_bytes
        self._kernels = _load_kernels(driver, library)
        self._prepared: OrderedDict[object, PreparedCall] = OrderedDict()
        self._planned_launches = 0
        self._workspaces: dict[int, tuple[Buffer, int]] = {}
        self._generation = 0

    def __enter__(self) -> LoadedLibrary:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        name: str,
        tensors: Sequence[TensorUse],
        symbols: Mapping[str, int] | None = None,
        *,
        workspace_poison: bytes | None = None,
        timed: bool = False,
    ) -> CallReport:
        """Run an operator or an entry. Launches may still be running when this returns.

        Parameters
        ----------
        name
            An entry's or an operator's name.
        tensors
            One per parameter, in order; outputs are written in place.
        symbols
            The integers no shape gives.
        workspace_poison
            Bytes to fill every workspace and intermediate with before the call, repeated. Guard
            bands around them are checked afterwards, which waits for the call to end.
        timed
            Measure the time in kernels.

        Raises
        ------
        InputError
            If the tensors or symbols do not fit the parameters or the buffers behind them.
        LimitExceededError
            If a launch needs more threads than the device allows.
        """
        prepared = self._prepare(name, tensors, symbols or {})
        if workspace_poison is not None:
            return self._call_poisoned(name, prepared.plan, tensors, workspace_poison, timed)
        key = tuple([(id(tensor.buffer), tensor.byte_offset) for tensor in tensors])
        bound = prepared.bound.get(key)
        if bound is None or bound.generation != self._generation:
            bound = self._bind(name, prepared.plan, tensors)
            prepared.bound[key] = bound
            if len(prepared.bound) > MAX_BOUND:
                prepared.bound.popitem(last=False)
        return self._launch(bound.launches, len(prepared.plan.launches), timed)

    def record(
        self, name: str, tensors: Sequence[TensorUse], symbols: Mapping[str, int] | None = None
    ) -> RecordedCall:
        """Check and plan a call once, to :meth:`run` it many times on the same memory.

        Raises
        ------
        InputError, LimitExceededError
            As :meth:`call` does.
        """
        plan = self._prepare(name, tensors, symbols or {}).plan
        return RecordedCall(name, plan, tuple(tensors), self._bind(name, plan, tensors))

    def run(self, recorded: RecordedCall, *, timed: bool = False) -> CallReport:
        """Run a recorded call. Its buffers must still be there; launches may run on."""
        if recorded.bound.generation != self._generation:
            # Another call has moved the workspaces since.
            recorded.bound = self._bind(recorded.name, recorded.plan, recorded.tensors)
        return self._launch(recorded.bound.launches, len(recorded.plan.launches), timed)

    def release_workspaces(self) -> None:
        """Free the workspaces kept between calls; the next call allocates them again."""
        for buffer, _ in self._workspaces.values():
            self.driver.free(buffer)
        self._workspaces.clear()
        self._generation += 1
        for prepared in self._prepared.values():
            prepared.bound.clear()

    def close(self) -> None:
        """Free workspaces and forget the kernels."""
        self.release_workspaces()
        self._prepared.clear()
        self._kernels.clear()

    def _prepare(
        self, name: str, tensors: Sequence[TensorUse], symbols: Mapping[str, int]
    ) -> PreparedCall:
        key = (
            name,
            tuple([(tensor.shape, tensor.dtype) for tensor in tensors]),
            tuple(sorted(symbols.items())) if symbols else (),
        )
        prepared = self._prepared.get(key)
        if prepared is None:
            shapes = [TensorShape(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
            plan = plan_call(self.library, name, shapes, symbols)
            for launch in plan.launches:
                self._check_limits(launch)
            prepared = self._prepared[key] = PreparedCall(plan)
            self._planned_launches += len(plan.launches) + 1
            while self._planned_launches > MAX_PLANNED_LAUNCHES and len(self._prepared) > 1:
                _, dropped = self._prepared.popitem(last=False)
                self._planned_launches -= len(dropped.plan.launches) + 1
        elif len(self._prepared) > 1:
            self._prepared.move_to_end(key)
        return prepared

    def _check_limits(self, launch: PlannedLaunch) -> None:
        limits = self.driver.description.limits
        x, y, z = launch.block
        most = limits.max_threads_per_block
        if most and x * y * z > most:
            raise LimitExceededError(
                f"kernel {launch.kernel!r} needs {x * y * z} threads per block, "
                f"{self.driver.description.name} allows {most}"
            )
        declared = self.library.kernels[launch.kernel].shared_memory_bytes
        shared, most = declared + launch.dynamic_shared_bytes, limits.max_shared_memory_bytes
        if most and launch.dynamic_shared_bytes and shared > most:
            raise LimitExceededError(
                f"kernel {launch.kernel!r} needs {shared} bytes of shared memory per block, "
                f"{self.driver.description.name} allows {most}"
            )
        for what, extents, bounds in (
            ("block", launch.block, limits.max_block),
            ("grid", launch.grid, limits.max_grid),
        ):
            if any(bound and extent > bound for extent, bound in zip(extents, bounds, strict=True)):
                raise LimitExceededError(
                    f"kernel {launch.kernel!r} needs a {what} of {extents}, "
                    f"{self.driver.description.name} allows {bounds}"
                )

    def _check_windows(
        self, name: str, plan: CallPlan, tensors: Sequence[TensorUse]
    ) -> list[_Place]:
        places = []
        for index, (tensor, shape) in enumerate(zip(tensors, plan.tensors, strict=True)):
            have = self.driver.nbytes(tensor.buffer)
            offset, need = tensor.byte_offset, shape.nbytes
            itemsize = dtype(shape.dtype).itemsize
            if not 0 <= offset <= offset + need <= have or offset % itemsize:
                program = self.library.operators.get(name) or self.library.entries[name]
                raise InputError(
                    f"{name}: parameter {program.parameters[index].name!r}: a tensor of {need} "
                    f"bytes at byte {offset} must lie within its buffer of {have} bytes and start "
                    f"at a multiple of {itemsize}"
                )
            places.append((tensor.buffer, offset))
        return places

    def _bind(self, name: str, plan: CallPlan, tensors: Sequence[TensorUse]) -> BoundCall:
        places = self._check_windows(name, plan, tensors)
        places += self._place_workspaces(plan.workspaces)
        buffers = tuple([tensor.buffer for tensor in tensors])
        return BoundCall(self._bind_launches(plan, places), buffers, self._generation)

    def _bind_launches(
        self, plan: CallPlan, places: Sequence[_Place], bands: Sequence[_Band] = ()
    ) -> LaunchSequence:
        """Bind launches to buffers, with the guard bands behind them."""
        kernels = self._kernels
        bound: list[BoundLaunch] = []
        for launch in plan.launches:
            arguments: list[KernelArgument] = []
            for argument in launch.arguments:
                if isinstance(argument, BufferSlot):
                    buffer, base = places[argument.slot]
                    start, nbytes, behind = argument.byte_offset, argument.nbytes, 0
                    if bands:
                        size, band = bands[argument.slot]
                        behind = band if start + nbytes == size else 0
                    arguments.append(BufferUse(buffer, base + start, nbytes, behind))
                elif isinstance(argument, TensorSlot):
                    buffer, base = places[argument.slot]
                    arguments.append(
                        TensorUse(
                            buffer, base + argument.byte_offset, argument.shape, argument.dtype
                        )
                    )
                else:
                    arguments.append(argument)
            kernel = kernels[launch.kernel]
            bound.append(
                BoundLaunch(
                    kernel,
                    tuple(arguments),
                    launch.grid,
                    launch.block,
                    launch.dynamic_shared_bytes,
                )
            )
        return self.driver.bind(bound)

    def _place_workspaces(self, workspaces: Sequence[WorkspaceSlot]) -> list[_Place]:
        needed: dict[int, int] = {}
        for workspace in workspaces:
            needed[workspace.shared] = max(needed.get(workspace.shared, 0), workspace.nbytes)
        grown = {
            shared: nbytes
            for shared, nbytes in needed.items()
            if shared not in self._workspaces or self._workspaces[shared][1] < nbytes
        }
        if grown:
            self._generation += 1
            kept = sum(size for shared, (_, size) in self._workspaces.items() if shared in needed)
            drop_others = kept + sum(grown.values()) > MAX_KEPT_WORKSPACE_BYTES
            for shared in list(self._workspaces):
                if shared in grown or (drop_others and shared not in needed):
                    self.driver.free(self._workspaces.pop(shared)[0])
            for shared, nbytes in grown.items():
                self._workspaces[shared] = (self.driver.allocate(nbytes), nbytes)
        return [(self._workspaces[workspace.shared][0], 0) for workspace in workspaces]

    def _launch(self, sequence: LaunchSequence, count: int, timed: bool) -> CallReport:
        if not timed:
            self.driver.launch_all(sequence)
            return _untimed(count)
        self.driver.begin_timing()
        try:
            self.driver.launch_all(sequence)
        finally:
            elapsed = self.driver.end_timing()
        return CallReport(count, kernel_nanoseconds=elapsed)

    def _call_poisoned(
        self, name: str, plan: CallPlan, tensors: Sequence[TensorUse], poison: bytes, timed: bool
    ) -> CallReport:
        """Run with separate, poisoned memory for every workspace, between two guard bands."""
        if not poison:
            raise InputError("workspace_poison must hold at least one byte")
        driver, guard = self.driver, self.guard_bytes
        places = self._check_windows(name, plan, tensors)
        # Each poison has other guard bands, so that a kernel that reads them gives another result.
        pattern = bytes(byte ^ poison[0] for byte in GUARD_PATTERN)
        buffers = []
        try:
            for workspace in plan.workspaces:
                buffers.append(buffer := driver.allocate(workspace.nbytes + 2 * guard))
                driver.fill(buffer, 0, workspace.nbytes + 2 * guard, pattern)
                driver.fill(buffer, guard, workspace.nbytes, poison)
                places.append((buffer, guard))
            launches = self._bind_launches(plan, places, self._bands(plan, tensors))
            report = self._launch(launches, len(plan.launches), timed)
            driver.finish()
            damaged = tuple(
                workspace.name
                for workspace, buffer in zip(plan.workspaces, buffers, strict=True)
                if not self._guards_intact(buffer, workspace.nbytes, pattern)
            )
        finally:
            for buffer in buffers:
                driver.free(buffer)
        return replace(report, damaged_guards=damaged)

    def _bands(self, plan: CallPlan, tensors: Sequence[TensorUse]) -> list[_Band]:
        """Per slot its bytes, and how many behind it belong to no other tensor of the call."""
        bands = []
        for tensor, shape in zip(tensors, plan.tensors, strict=True):
            end = tensor.byte_offset + shape.nbytes
            starts = [
                other.byte_offset
                for other in tensors
                if other.buffer is tensor.buffer and other.byte_offset >= end
            ]
            limit = min([self.driver.nbytes(tensor.buffer), end + self.guard_bytes, *starts])
            bands.append((shape.nbytes, limit - end))
        return bands + [(workspace.nbytes, self.guard_bytes) for workspace in plan.workspaces]

    def _guards_intact(self, buffer: Buffer, nbytes: int, pattern: bytes) -> bool:
        guard = self.guard_bytes
        end = guard + nbytes
        phase = end % len(pattern)
        pattern = pattern * (guard // len(pattern) + 2)
        front = self.driver.read(buffer, 0, guard)
        rear = self.driver.read(buffer, end, guard)
        return front == pattern[:guard] and rear == pattern[phase : phase + guard]


@lru_cache(maxsize=1024)
def _untimed(launches: int) -> CallReport:
    """One for all calls of so many launches: a recorded call takes microseconds."""
    return CallReport(launches)


def _load_kernels(driver: Driver, library: Library) -> dict[str, LoadedKernel]:
    by_module: dict[int, list[Kernel]] = {}
    for module in library.modules:
        check_module(module, driver.dialects, driver.description.name)
    for kernel in library.kernels.values():
        needs = unmet(kernel, library.modules[kernel.module], driver.description.limits)
        missing = [str(each) for each in needs]
        if missing:
            raise LimitExceededError(
                f"kernel {kernel.name!r} needs {', '.join(missing)}, which "
                f"{driver.description.name} does not have"
            )
        by_module.setdefault(kernel.module, []).append(kernel)
    loaded: dict[str, LoadedKernel] = {}
    for index, kernels in by_module.items():
        loaded.update(driver.load(library.modules[index], kernels))
        for kernel in kernels:
            if kernel.name not in loaded:
                raise CompileError(f"module {index} built without the kernel {kernel.symbol!r}")
    return loaded
