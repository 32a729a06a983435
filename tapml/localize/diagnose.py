"""Localizes one failure: the inner step, the places, the origin of a NaN, the cause."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import numpy as np

from tapml.carving.repro_failure import Failure
from tapml.compare.oracle import Oracle
from tapml.graph.plan import Operator
from tapml.localize.attribution import attribute
from tapml.localize.diagnosis import Attribution, Diagnosis, NonFiniteOrigin
from tapml.localize.inner_step import FoundStep, find_step
from tapml.localize.nonfinite import find_origin
from tapml.localize.places import describe_places
from tapml.localize.scene import Scene
from tapml.localize.value_places import describe_values
from tapml_rpc.client import Session
from tapml_targets.errors import DeviceLostError
from tapml_targets.library import Library

log = logging.getLogger(__name__)

# What is left of the budget for the cause, after the step and the NaN.
_SHARE_OF_LOCALIZATION: Final = 0.6
_LEAST_SECONDS: Final = 1.0


def diagnose(
    failure: Failure,
    session: Session,
    *,
    compile: Callable[[Operator, Mapping[str, str]], Library],
    oracle: Oracle | None = None,
    second: Callable[[], AbstractContextManager[Session]] | None = None,
    budget_seconds: float = 30.0,
) -> Diagnosis:
    """Look into a test that did not pass.

    Parameters
    ----------
    failure
        The test with the target's outputs. The operator needs its function for anything beyond the
        places; a body gives its steps their names.
    session
        The device it failed on; inner kernels run there.
    compile
        Compiles an operator, also one cut out of it, with target options; ``{}`` is the usual way.
    oracle
        Not needed: inner steps have float64 twins of their own. Taken so that callers need not ask.
    second
        Opens a session on another driver, where there is one.
    budget_seconds
        After so long nothing new is begun, and the notes say what was left out.

    Returns
    -------
    Diagnosis
        Whatever could be found. That localization itself fails is a note.

    Raises
    ------
    DeviceLostError
        If the device is lost.
    """
    started = time.monotonic()
    scene = Scene(failure, session, compile, started + budget_seconds * _SHARE_OF_LOCALIZATION)
    places: list[str] = []
    step: FoundStep | None = None
    origin: NonFiniteOrigin | None = None
    cause: Attribution | None = None
    with _guarded(scene, "places"):
        places = _places(scene)
    with _guarded(scene, "the inner step"):
        step = find_step(scene)
    with _guarded(scene, "the origin of the first NaN or Inf"):
        origin = find_origin(scene, step)
    with _guarded(scene, "the cause"):
        left = max(_LEAST_SECONDS, started + budget_seconds - time.monotonic())
        cause = attribute(failure, session, compile=compile, second=second, budget_seconds=left)
    return Diagnosis(
        operator=failure.operator.name,
        step=None if step is None else step.step,
        where=tuple(places),
        nonfinite=origin,
        attribution=cause,
        notes=tuple(scene.notes),
    )


@contextmanager
def _guarded(scene: Scene, what: str) -> Iterator[None]:
    """A part of localization that may fail without the others."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DeviceLostError:
        raise
    except Exception as error:
        # Whatever is odd about a failing operator must not hide its verdict.
        log.warning("localization of %s stopped", scene.failure.operator.name, exc_info=True)
        text = str(error).splitlines()
        reason = text[0][:300] if text else type(error).__name__
        scene.note(f"localization of {what} stopped: {type(error).__name__}: {reason}")


def _places(scene: Scene) -> list[str]:
    sentences = []
    for output in scene.outputs:
        sentences += describe_places(output.name, output.wrong)
        sentences += describe_values(output.name, output.wrong, scene.values)
    return sentences
