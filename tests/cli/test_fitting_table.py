"""A table of devices at the widths of terminals: names and drivers are never broken."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tapml.cli.fitting_table import fitting_table

DEVICES = {
    "device": ["cpu:0 *", "opencl:0", "opencl:2", "webgpu:1"],
    "name": [
        "AMD EPYC",
        "pthread-skylake-avx512-AMD EPYC",
        "Oclgrind Simulator",
        "SwiftShader Device (Subzero)",
    ],
    "driver": [
        "apache-tvm-ffi",
        "Portable Computing Language",
        "Oclgrind",
        "SwiftShader driver (Vulkan, wgpu)",
    ],
    "type": ["cpu", "cpu", "checker", "cpu"],
    "probe": ["-", "130 ms", "-", "299 ms"],
    "memory": ["23.5 GiB", "16.2 GiB", "0.1 GiB", "23.5 GiB"],
    "threads": ["-", "4096", "1024", "256"],
    "features": ["float16 float64 int16 int64 int8", "float64", "float64", "subgroups"],
}


def shown(width: int) -> tuple[list[str], tuple[str, ...]]:
    """The printed lines and the titles that were left out."""
    file = io.StringIO()
    table, left_out = fitting_table(
        DEVICES, width, spare=("features", "threads", "memory", "probe"), below=("name", "driver")
    )
    Console(file=file, width=width, emoji=False).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()], left_out


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_names_and_drivers_are_whole_and_lines_fit(width: int) -> None:
    lines, left_out = shown(width)
    text = "\n".join(lines)
    for column in ("device", "name", "driver", "type"):
        assert all(each in text for each in DEVICES[column])
    for title in set(DEVICES) - set(left_out):
        assert title in lines[0]
    assert max(map(len, lines)) <= width


def test_what_is_needed_least_is_left_out_first() -> None:
    assert [shown(width)[1] for width in (200, 120, 80, 70, 60)] == [
        (),
        ("features",),
        ("features",),
        ("features", "threads"),
        ("features", "threads", "memory"),
    ]


def test_a_driver_is_below_its_device_where_both_do_not_fit_beside_each_other() -> None:
    (wide, _), (narrow, _) = shown(120), shown(80)
    assert wide[2].split("  ")[0] == "opencl:0"
    assert "EPYC  Portable Computing Language" in wide[2]
    assert narrow[0].split()[:3] == ["device", "name,", "driver"]
    assert narrow[4].strip() == "Portable Computing Language"


def test_text_of_other_machines_is_no_markup() -> None:
    file = io.StringIO()
    table, _ = fitting_table({"name": ["[red]x[/red]"]}, 80, spare=())
    Console(file=file, width=80).print(table)
    assert "[red]x[/red]" in file.getvalue()
