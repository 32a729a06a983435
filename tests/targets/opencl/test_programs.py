"""Program binaries are kept on disk, and a bad file there costs a build and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tapml_targets.driver import BufferUse, Driver
from tapml_targets.errors import CompileError
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.opencl.precise_math import precise


def run(driver: Driver, value: int) -> int:
    source = f"__kernel void put(__global int* o) {{ o[0] = {value}; }}".encode()
    kernel = driver.load(CodeModule("opencl-c", source), [Kernel("put", "put", 0)])["put"]
    buffer = driver.allocate(4)
    driver.launch(kernel, (BufferUse(buffer, 0, 4),), (1, 1, 1), (1, 1, 1))
    return int(np.frombuffer(driver.read(buffer, 0, 4), np.int32)[0])


def binaries(cache: Path) -> list[Path]:
    return sorted((cache / "opencl-binaries").iterdir())


def test_a_second_build_uses_the_file_of_the_first(driver: Driver, own_cache: Path) -> None:
    assert run(driver, 41) == 41
    (path,) = binaries(own_cache)
    written = path.stat().st_mtime_ns
    assert run(driver, 41) == 41
    assert [p.stat().st_mtime_ns for p in binaries(own_cache)] == [written]


def test_other_source_gets_a_file_of_its_own(driver: Driver, own_cache: Path) -> None:
    assert (run(driver, 1), run(driver, 2)) == (1, 2)
    assert len(binaries(own_cache)) == 2


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_replaced(driver: Driver, own_cache: Path, damage: str) -> None:
    assert run(driver, 7) == 7
    (path,) = binaries(own_cache)
    good = path.read_bytes()
    bad = {
        "cut": good[: len(good) // 2],
        "changed": good[:-1] + bytes([good[-1] ^ 1]),
        "empty": b"",
    }[damage]
    path.write_bytes(bad)
    assert run(driver, 7) == 7
    assert path.read_bytes() != bad
    assert len(path.read_bytes()) > 32


def test_a_folder_that_cannot_be_written_costs_the_cache_only(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "file"))
    assert run(driver, 5) == 5


def build(driver: Driver, source: bytes, *options: str) -> int:
    """What a kernel with one int output writes."""
    module = CodeModule("opencl-c", source, options)
    kernel = driver.load(module, [Kernel("put", "put", 0)])["put"]
    buffer = driver.allocate(4)
    driver.launch(kernel, (BufferUse(buffer, 0, 4),), (1, 1, 1), (1, 1, 1))
    return int(np.frombuffer(driver.read(buffer, 0, 4), np.int32)[0])


def test_fast_math_reaches_the_compiler_and_has_separate_binaries(
    driver: Driver, own_cache: Path
) -> None:
    source = b"""__kernel void put(__global int* o) {
    #ifdef __FAST_RELAXED_MATH__
      o[0] = 1;
    #else
      o[0] = 0;
    #endif
    }"""
    assert [build(driver, source), build(driver, source, "fast-math")] == [0, 1]
    assert [build(driver, source), build(driver, source, "fast-math")] == [0, 1]
    assert len(binaries(own_cache)) == 2


@pytest.mark.parametrize("option", ["exact-division", "no-optimiser"])
def test_the_other_build_options_are_accepted(driver: Driver, option: str) -> None:
    assert build(driver, b"__kernel void put(__global int* o) { o[0] = 3; }", option) == 3


@pytest.mark.parametrize("option", ["-cl-fast-relaxed-math", "-I /", "unheard-of"])
def test_an_unknown_build_option_never_reaches_a_compiler(driver: Driver, option: str) -> None:
    with pytest.raises(CompileError, match=f"no build option {option!r}"):
        build(driver, b"", option)


def test_precise_math_has_no_fast_functions_and_keeps_its_lines(driver: Driver) -> None:
    source = b"""__kernel void put(__global int* o) {
      float third = native_divide(1.0f, 3.0f) + 0 * half_recip(3.0f) + 0 * native_powr(2.0f, 2.0f);
      o[0] = __LINE__ * 100 + (third == 1.0f / 3.0f && native_exp(1.0f) == exp(1.0f));
    }"""
    module = precise(CodeModule("opencl-c", source, ("fast-math",)))
    assert module.options == ("exact-division",)
    assert build(driver, module.code, *module.options) == 301


def test_source_that_is_not_text_is_refused(driver: Driver) -> None:
    with pytest.raises(CompileError, match="UTF-8"):
        driver.load(CodeModule("opencl-c", b"\xff\xfe"), [Kernel("k", "k", 0)])


def test_another_dialect_is_refused(driver: Driver) -> None:
    with pytest.raises(CompileError, match="takes 'opencl-c' modules, this one holds 'wgsl'"):
        driver.load(CodeModule("wgsl", b"fn main() {}"), [Kernel("k", "k", 0)])
