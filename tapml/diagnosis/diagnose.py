"""Localizes one failure: the inner step, the wrong elements, the origin of a NaN, the cause."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import numpy as np

from tapml.diagnosis.attribution import attribute
from tapml.diagnosis.failure_context import FailureContext
from tapml.diagnosis.inner_step import FoundStep, find_step
from tapml.diagnosis.nonfinite import find_origin
from tapml.failures.diagnosis import Attribution, Diagnosis, NonFiniteOrigin
from tapml.failures.places import describe_places, describe_values
from tapml.plan.graph_plan import Operator
from tapml.replaying.failure import Failure
from tapml_rpc.client import Session
from tapml_targets.errors import DeviceLostError
from tapml_targets.library import Library

log = logging.getLogger(__name__)

# Share of the budget that is left for the cause, after the step and the NaN.
_SHARE_OF_LOCALIZATION: Final = 0.6
_LEAST_SECONDS: Final = 1.0


def diagnose(
    failure: Failure,
    session: Session,
    *,
    compile: Callable[[Operator, Mapping[str, str]], Library],
    second: Callable[[], AbstractContextManager[Session]] | None = None,
    budget_seconds: float = 30.0,
) -> Diagnosis:
    """Diagnose a test that did not pass.

    Parameters
    ----------
    failure
        The test with the target's outputs. All but the wrong elements needs the operator's
        function; a body names its steps.
    session
        The device it failed on, on which inner kernels run.
    compile
        Compiles an operator, or one cut out of it, with target options; ``{}`` for the defaults.
    second
        Opens a session on another driver, if there is one.
    budget_seconds
        Nothing starts after this time; the notes name what was left out.

    Returns
    -------
    Diagnosis
        All findings. A failure of localization itself becomes a note.

    Raises
    ------
    DeviceLostError
        If the device is lost.
    """
    started = time.monotonic()
    context = FailureContext(
        failure, session, compile, started + budget_seconds * _SHARE_OF_LOCALIZATION
    )
    places: list[str] = []
    step: FoundStep | None = None
    origin: NonFiniteOrigin | None = None
    cause: Attribution | None = None
    with _guarded(context, "places"):
        places = _places(context)
    with _guarded(context, "the inner step"):
        step = find_step(context)
    with _guarded(context, "the origin of the first NaN or Inf"):
        origin = find_origin(context, step)
    with _guarded(context, "the cause"):
        left = max(_LEAST_SECONDS, started + budget_seconds - time.monotonic())
        cause = attribute(failure, session, compile=compile, second=second, budget_seconds=left)
    return Diagnosis(
        operator=failure.operator.name,
        step=None if step is None else step.step,
        where=tuple(places),
        nonfinite=origin,
        attribution=cause,
        notes=tuple(context.notes),
    )


@contextmanager
def _guarded(context: FailureContext, what: str) -> Iterator[None]:
    """Run a part of localization; its failure does not affect the others."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DeviceLostError:
        raise
    except Exception as error:
        # No error in here may hide the operator's verdict.
        log.warning("localization of %s stopped", context.failure.operator.name, exc_info=True)
        text = str(error).splitlines()
        reason = text[0][:300] if text else type(error).__name__
        context.note(f"localization of {what} stopped: {type(error).__name__}: {reason}")


def _places(context: FailureContext) -> list[str]:
    sentences = []
    for output in context.outputs:
        sentences += describe_places(output.name, output.wrong)
        sentences += describe_values(output.name, output.wrong, context.values)
    return sentences
