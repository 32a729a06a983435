"""Devices that cannot be opened: one raises its error, several are listed in the report."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn

import pytest

from tapml.matrix.implementation import Column
from tapml.matrix.running import opened
from tapml.validation.run import check_opened, leave_out_without, lost_with
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.errors import (
    EXIT_DEVICE_LOST,
    EXIT_NO_DEVICE,
    EXIT_USAGE,
    DeviceLostError,
    NoSuchDeviceError,
    TapmlError,
)
from tests.conftest import RequireDevice


def failing(error: TapmlError) -> Callable[[], Session]:
    def connect() -> NoReturn:
        raise error

    return connect


def column(label: str, error: TapmlError) -> Column:
    made = Column(label, failing(error))
    made.open()
    return made


def test_the_only_device_that_cannot_be_opened_raises_its_error() -> None:
    missing = column("opencl:77", NoSuchDeviceError("there is no opencl:77"))
    with pytest.raises(NoSuchDeviceError, match="opencl:77"):
        check_opened([missing])


def test_of_several_devices_the_report_has_the_error() -> None:
    missing = column("opencl:77", NoSuchDeviceError("there is no opencl:77"))
    lost = column("tracker:board", DeviceLostError("the board went away"))
    check_opened([missing, lost])
    assert [each.implementation().problem for each in (missing, lost)] == [
        "there is no opencl:77",
        "the board went away",
    ]
    assert (lost_with([missing]), lost_with([missing, lost])) == (EXIT_NO_DEVICE, EXIT_DEVICE_LOST)


def test_a_device_that_lacks_the_dtype_that_is_asked_for_is_left_out(
    require_device: RequireDevice,
) -> None:
    """PoCL 3.1 has no float16."""
    devices = (
        require_device("opencl", vendor="Portable Computing Language")[0],
        require_device("opencl", vendor="Intel", dtype="float16")[0],
    )
    lacking, having = columns = [Column(each.name, partial(open_local, each)) for each in devices]
    with opened(columns):
        leave_out_without(columns, "float32")
        assert None not in (lacking.session, having.session)
        leave_out_without(columns, "float16")
        assert lacking.session is None and having.session is not None
        assert (lacking.exit_code, "has no float16" in lacking.problem) == (EXIT_USAGE, True)


def test_without_devices_nothing_was_lost() -> None:
    assert lost_with([]) == 0
