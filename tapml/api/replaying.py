"""Replaying a suite in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tapml.api.device import Device, device
from tapml_targets.platforms import DEFAULT_PLATFORM

if TYPE_CHECKING:
    from tapml.replaying.suite_replay import SuiteReplay
    from tapml.verdicts.policy import Policy


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
    """Replay the carved tests of a suite on a device, without the model.

    OPWISEVALIDATION of Algorithm 1 of the paper, for every operator that has tests.

    Parameters
    ----------
    suite
        Folder of a suite that :func:`tapml.carve` made.
    target
        The device under test; default: ``tapml.opencl()``.
    operators, layers, steps, entries
        Select tests, as in :func:`tapml.carve`; empty means all.
    policy
        The limits; default: the calibrated ones.

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
        If a kernel crashed the device.

    Examples
    --------
    >>> import tapml as tml
    >>> tml.carve("pydoc-llama", "first", tokens=[[1, 2, 3]], layers=[0], steps=[0]).close()
    >>> found = replay("first", target=tml.cpu())
    >>> [each.operator for each in found.operators if each.status != "pass"]
    []
    """
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.twin import compile_twins
    from tapml.oracles.expectation_store import store_of
    from tapml.oracles.oracle import Oracle
    from tapml.replaying.suite_replay import replay_suite
    from tapml.suite.selection import Filters
    from tapml.suite.suite import Suite
    from tapml.verdicts.policy import Policy

    where, limits = target or device(DEFAULT_PLATFORM), policy or Policy()
    filters = Filters(tuple(operators), tuple(layers), tuple(steps), tuple(entries))
    with (
        Suite.open(suite) as opened,
        Compiler() as compiler,
        Oracle(opened.operators, compile_twins, limits, cache=store_of(opened.path)) as oracle,
    ):
        return replay_suite(opened, where.session, compiler, oracle, limits, filters)
