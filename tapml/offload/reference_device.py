"""The reference's device of a run, where the reference is one (``--reference``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from tapml.devices.reach import is_remote, open_device
from tapml.execute.device_reference import LLVM, DeviceReference, compile_on, reference_name
from tapml.runs.events import Note
from tapml.session.device import open_for_model
from tapml.session.journal import REFERENCE
from tapml_targets.errors import NoSuchDeviceError, SetupError, TapmlError

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.reference_module import ReferenceModule
    from tapml.plan.graph_plan import GraphPlan
    from tapml.runs.journal import Journal
    from tapml.runs.phases import Phases
    from tapml.session.settings import Settings
    from tapml_rpc.client import Session

SETTING: Final = "reference device"


@contextmanager
def opened_reference(
    settings: Settings, phases: Phases, journal: Journal | None = None
) -> Iterator[Session | None]:
    """A session with the device that is the reference; None where it is this process.

    Parameters
    ----------
    settings
        Its `reference` names the device.
    journal
        Knows the device of the session's previous run: of equal ones, a resumed session keeps its.

    Raises
    ------
    NoSuchDeviceError
        If there is no such device.
    SetupError
        If its server does not start.
    """
    if not settings.reference:
        yield None
        return
    with phases.phase(
        "open reference", group="overhead", platform=settings.reference, once=True
    ) as phase:
        session = _open(settings, phases, "" if journal is None else _used(settings, journal))
        phase.detail = reference_name(session)
    with session:
        if journal is not None and not is_remote(settings.reference):
            device = session.device
            journal.write_setting(SETTING, f"{device.platform}:{device.index}")
        yield session


def open_operators(
    plan: GraphPlan, phases: Phases, on: Session | None, compiler: Compiler | None = None
) -> ReferenceModule | DeviceReference:
    """Compile a plan's operators for the reference; `on` is its device, None for this process.

    Raises
    ------
    ReferenceFailedError
        If the reference's device has no kernel for an operator.
    """
    platform = LLVM if on is None else on.device.platform
    with phases.phase("compile reference", group="overhead", platform=platform, once=True) as phase:
        # Imported here: a kept model whose code is cached needs neither compiler.
        if on is None:
            from tapml.compiler.reference import compile_reference

            phase.detail = REFERENCE
            return compile_reference(plan)
        from tapml.compiler.compiler import Compiler

        phase.detail = reference_name(on)
        with nullcontext(compiler) if compiler is not None else Compiler() as own:
            return compile_on(on, plan, own)


def _open(settings: Settings, phases: Phases, used: str) -> Session:
    spec = settings.reference
    try:
        if is_remote(spec):
            return open_device(spec, say=lambda line: phases.watcher(Note(line)))
        if used and used != spec:
            try:
                return open_for_model(used, settings)
            except NoSuchDeviceError:
                text = f"the session's reference {used} is gone; using the best other one"
                phases.watcher(Note(text))
        return open_for_model(spec, settings)
    except (NoSuchDeviceError, SetupError) as error:
        raise _named(spec, error) from error


def _named(spec: str, error: TapmlError) -> TapmlError:
    """The error, which says that the device was to be the reference."""
    return type(error)(f"--reference {spec}: {error}")


def _used(settings: Settings, journal: Journal) -> str:
    """The device of the previous run, if it is one of the named platform."""
    used = journal.read_setting(SETTING) or ""
    platform, _, index = settings.reference.partition(":")
    return used if not index and used.partition(":")[0] == platform else ""
