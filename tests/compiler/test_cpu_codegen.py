"""A shared object runs where apache-tvm-ffi is and TVM is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

from tapml_targets.cpu.codegen import generate
from tapml_targets.errors import CompileError
from tapml_targets.library import Launch, TensorArgument
from tapml_targets.target import Target
from tests.compiler.operators import from_relax, matmul_transposed, scale, softmax, source

CPU = Target("cpu")


def test_an_operator_is_one_launch_on_whole_tensors() -> None:
    library = generate(source(softmax()), CPU)
    program = library.operators["softmax"]
    assert program.statements == (Launch("softmax", (TensorArgument("p0"), TensorArgument("p1"))),)
    assert library.modules[0].dialect == "elf-shared-object"
    assert library.modules[0].code.startswith(b"\x7fELF")


def test_a_shared_object_runs_without_tvm_and_takes_its_own_scratch_memory(tmp_path: Path) -> None:
    path = tmp_path / "softmax.so"
    path.write_bytes(generate(source(softmax(columns=4000)), CPU).modules[0].code)
    script = dedent(f"""
        import sys
        import numpy as np
        import tvm_ffi
        function = tvm_ffi.load_module({str(path)!r})["softmax"]
        for rows in (1, 5, 300):
            given = np.random.default_rng(rows).standard_normal((rows, 4000), np.float32)
            result = np.full_like(given, 77)
            function(given, result)
            powers = np.exp(given.astype(np.float64))
            expected = powers / powers.sum(-1, keepdims=True)
            np.testing.assert_allclose(result, expected, rtol=1e-5)
        assert "tvm" not in sys.modules
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_tensors_may_start_at_any_element(tmp_path: Path) -> None:
    path = tmp_path / "matmul.so"
    path.write_bytes(generate(source(matmul_transposed()), CPU).modules[0].code)
    function = tvm_ffi.load_module(str(path))["matmul"]
    memory = np.random.default_rng(0).standard_normal(48 * 40, np.float32)
    weight = memory[: 48 * 32].reshape(32, 48)
    for start in range(5):
        given = memory[start : start + 3 * 48].reshape(3, 48)
        result = np.zeros(97, np.float32)[1:].reshape(3, 32)
        function(given, weight, result)
        np.testing.assert_allclose(result, given @ weight.T, atol=1e-4)


def test_the_same_operator_gives_the_same_bytes() -> None:
    assert generate(source(softmax()), CPU) == generate(source(softmax()), CPU)


def test_an_operator_that_needs_tvms_runtime_is_refused() -> None:
    sort = from_relax("sort", (4, 10), relax.op.sort)
    with pytest.raises(CompileError, match="'sort' calls functions of TVM's runtime"):
        generate(source(sort), CPU)


def test_a_missing_linker_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match=r"no linker found: none of cc, .* apt install gcc"):
        generate(source(scale()), CPU)


def test_a_linker_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    linker = tmp_path / "cc"
    linker.write_text("#!/bin/sh\necho 'cannot find crti.o' >&2\nexit 1\n")
    linker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match=r"failed:\ncannot find crti.o"):
        generate(source(scale()), CPU)
