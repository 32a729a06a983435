"""Calls as the evaluator keeps them: planned, bound to memory, recorded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tapml_targets.call_plan import CallPlan
from tapml_targets.driver import Buffer, LaunchSequence, TensorUse


@dataclass(frozen=True)
class CallReport:
    """The result of one call.

    Attributes
    ----------
    launches
        Kernels launched.
    damaged_guards
        Workspaces whose guard bands a kernel overwrote; needs ``workspace_poison``.
    kernel_nanoseconds
        For a call with ``timed=True``: gives the time in kernels once the driver has finished.
    """

    launches: int
    damaged_guards: tuple[str, ...] = ()
    kernel_nanoseconds: Callable[[], int] | None = None


@dataclass(frozen=True)
class BoundCall:
    """A plan's launches on memory; `generation` counts how often the workspaces had moved."""

    launches: LaunchSequence
    buffers: tuple[Buffer, ...]
    generation: int


class PreparedCall:
    """A plan, and its launches as they were bound to memory the last few times.

    `bound` is keyed by the identities of the buffers, which :class:`BoundCall` keeps from being
    reused.
    """

    def __init__(self, plan: CallPlan) -> None:
        self.plan = plan
        self.bound: OrderedDict[object, BoundCall] = OrderedDict()


class RecordedCall:
    """A call with its tensors, ready to run again.

    Made by :meth:`tapml_targets.evaluator.LoadedLibrary.record`. A run binds it again if the
    workspaces have moved.
    """

    def __init__(
        self, name: str, plan: CallPlan, tensors: tuple[TensorUse, ...], bound: BoundCall
    ) -> None:
        self.name = name
        self.plan = plan
        self.tensors = tensors
        self.bound = bound
