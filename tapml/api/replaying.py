"""Replaying a suite in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tapml.api.device import Device, device

if TYPE_CHECKING:
    from tapml.carving.replay_suite import SuiteReplay
    from tapml.compare.policy import Policy


def replay(
    suite: str | Path,
    *,
    target: Device | None = None,
    operators: Sequence[str] = (),
    layers: Sequence[int] = (),
    steps: Sequence[int] = (),
    entries: Sequence[str] = (),
    policy: Policy | None = None,
) -> SuiteReplay:
    """Replay the carved tests of a suite on a device; the model is not needed.

    OPWISEVALIDATION of Algorithm 1 of the paper, for every operator that has tests.

    Parameters
    ----------
    suite
        Folder of a suite, as :func:`tapml.carve` makes it.
    target
        The device under test; ``tapml.opencl()`` if None.
    operators, layers, steps, entries
        Which tests, as in :func:`tapml.carve`; empty means all.
    policy
        The limits; the calibrated ones if None.

    Returns
    -------
    SuiteReplay
        ``.status``, one verdict per operator in ``.operators``, and ``.to_json()`` for
        ``tapml diff``.

    Raises
    ------
    InputError
        If there is no suite.
    DeviceLostError
        If a kernel took the device down.

    Examples
    --------
    >>> found = replay("attention", target=tml.opencl(1))  # doctest: +SKIP
    >>> [each.operator for each in found.operators if each.status != "pass"]  # doctest: +SKIP
    """
    from tapml.carving.replay_suite import replay_suite
    from tapml.carving.selection import Filters
    from tapml.carving.suite import Suite
    from tapml.compare.expectation_store import store_of
    from tapml.compare.oracle import Oracle
    from tapml.compare.policy import Policy
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.twin import compile_twins

    where, limits = target or device("opencl"), policy or Policy()
    filters = Filters(tuple(operators), tuple(layers), tuple(steps), tuple(entries))
    with (
        Suite.open(suite) as opened,
        Compiler() as compiler,
        Oracle(opened.operators, compile_twins, limits, cache=store_of(opened.path)) as oracle,
    ):
        return replay_suite(opened, where.session, compiler, oracle, limits, filters)
