"""Cases about what a driver refuses, and how it says so; and about opening it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tapml_targets.conformance.bench import Bench, expect_equal, expect_refusal
from tapml_targets.conformance_kernels import ADD, built, kernel_table
from tapml_targets.description import fingerprint
from tapml_targets.driver import ScalarUse
from tapml_targets.errors import CompileError, NoSuchDeviceError, TapmlError
from tapml_targets.library import CodeModule, Kernel


def modules_that_are_not_the_devices(bench: Bench) -> None:
    """A module of another dialect, an unknown option and bytes that are no code are refused."""
    (module,), kernels = built(bench.platform, ADD)
    wanted = list(kernels.values())
    other = CodeModule("punch-cards", b"")
    expect_refusal(
        lambda: bench.driver.load(other, [Kernel("add", "add", 0)]),
        CompileError, ["'punch-cards'"], "another dialect",
    )  # fmt: skip
    odd = replace(module, options=("unheard-of",))
    expect_refusal(
        lambda: bench.driver.load(odd, wanted), CompileError, ["build option"], "an option"
    )
    for code in (b"", b"\xff\xfe no code"):
        damaged = replace(module, code=code)
        expect_refusal(
            lambda given=damaged: bench.driver.load(given, wanted),  # type: ignore[misc]
            CompileError, [], f"code {code!r}",
        )  # fmt: skip


def a_kernel_that_does_not_compile(bench: Bench) -> None:
    """The error of a module that does not build says what its compiler says."""
    (module,), kernels = built(bench.platform, ADD)
    table = kernel_table(bench.platform)
    expect_refusal(
        lambda: bench.driver.load(table.broken(module), list(kernels.values())),
        CompileError, [table.BROKEN], "a broken module",
    )  # fmt: skip


def a_wrong_number_of_arguments(bench: Bench) -> None:
    """Fewer arguments than a kernel takes are refused, and the kernel is named."""
    add, target = bench.load(ADD), bench.floats([0.0] * 4)
    launch = bench.bound(ADD, add, [(target, 0), (target, 0)], 4, amount=1)
    few = launch._replace(arguments=(ScalarUse(1, "int32"),))
    expect_refusal(lambda: bench.run(few), TapmlError, ["'add'"], "one argument")


def opening_again(bench: Bench) -> None:
    """The device is found again, also at another index."""
    here = bench.driver.description
    opened = bench.open_device(replace(here, index=99))
    expect_equal(fingerprint(opened.description), fingerprint(here), "the device opened again")
    opened.close()


def another_device(bench: Bench) -> None:
    """A device of another name or version is not taken for this one."""
    here = bench.driver.description
    for other in (replace(here, name="another"), replace(here, driver_version="0")):
        expect_refusal(
            lambda given=other: bench.open_device(given),  # type: ignore[misc]
            NoSuchDeviceError, ["is not here"], "a device of another name or version",
        )  # fmt: skip


CASES: Final = (
    modules_that_are_not_the_devices,
    a_kernel_that_does_not_compile,
    a_wrong_number_of_arguments,
    opening_again,
    another_device,
)
