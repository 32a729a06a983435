"""Devices that cannot be opened: one raises its error, several are listed in the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from tapml.matrix.implementation import Column
from tapml.validation.run import check_opened, lost_with
from tapml_rpc.client import Session
from tapml_targets.errors import (
    EXIT_DEVICE_LOST,
    EXIT_NO_DEVICE,
    DeviceLostError,
    NoSuchDeviceError,
    TapmlError,
)


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


def test_without_devices_nothing_was_lost() -> None:
    assert lost_with([]) == 0
