"""Which hand-written kernel counts for an operator: the session's own, then shared ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tapml.kernels import written
from tapml.kernels.written import WrittenKernels
from tapml.plan.graph_plan import Operator
from tapml_targets.call_plan import TensorShape, plan_call
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import Parameter
from tests.kernels.operators import MANIFEST, SCALE, SOURCE, TARGET, put_kernel

HASH = f'target = "opencl"\nhash = "{SCALE.hash}"\n'
STATED = (
    'target = "opencl"\nparameters = ["input input_0 float32[1, S, 128]", '
    '"input input_1 float32[128]", "output output_0 float32[1, S, 128]"]\n'
)
WITH_HASH = MANIFEST.replace('target = "opencl"\n', HASH)
WITH_PARAMETERS = MANIFEST.replace('target = "opencl"\n', STATED)


def found(operator: Operator, *folders: Path) -> Path | None:
    """The folder of the kernel that counts."""
    kernel = WrittenKernels(folders, TARGET).find(operator)
    return None if kernel is None else kernel.folder


def replace_shape(parameter: Parameter, numbers: dict[str, int]) -> Parameter:
    """The parameter with numbers in place of symbols."""
    shape = tuple(numbers.get(str(extent), extent) for extent in parameter.shape)
    return Parameter(parameter.name, shape, parameter.dtype, parameter.role)


def test_without_a_kernel_there_is_none(tmp_path: Path) -> None:
    assert found(SCALE, tmp_path / "own", tmp_path / "shared") is None


def test_in_the_sessions_own_folder_the_name_is_enough(tmp_path: Path) -> None:
    path = put_kernel(tmp_path)
    kernel = WrittenKernels([tmp_path], TARGET).find(SCALE)
    assert kernel is not None
    assert kernel.folder == path.parent
    assert Path(kernel.source) == path.parent / "scale.cl"
    assert kernel.files == (path, path.parent / "scale.cl")


def test_the_sessions_own_kernel_comes_before_a_shared_one(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    put_kernel(shared, WITH_HASH)
    assert found(SCALE, own, shared) == shared / "scale" / "opencl"
    put_kernel(own)
    assert found(SCALE, own, shared) == own / "scale" / "opencl"


def test_the_first_shared_folder_wins(tmp_path: Path) -> None:
    for name in ("second", "third"):
        put_kernel(tmp_path / name, WITH_HASH)
    assert found(SCALE, tmp_path / "own", tmp_path / "third", tmp_path / "second") == (
        tmp_path / "third" / "scale" / "opencl"
    )


def test_a_shared_kernel_is_found_by_its_hash_whatever_it_is_called(tmp_path: Path) -> None:
    put_kernel(tmp_path, WITH_HASH, name="multiply_of_another_model")
    renamed = replace(SCALE, name="scale_7")
    assert found(renamed, tmp_path / "own", tmp_path) is not None


def test_a_shared_kernel_of_the_same_name_and_another_function_is_not_taken(
    tmp_path: Path,
) -> None:
    put_kernel(tmp_path, WITH_HASH)
    other = replace(SCALE, hash="another")
    assert found(other, tmp_path / "own", tmp_path) is None


def test_a_shared_kernel_without_a_hash_is_taken_by_name_and_parameters(tmp_path: Path) -> None:
    put_kernel(tmp_path, WITH_PARAMETERS)
    assert found(SCALE, tmp_path / "own", tmp_path) is not None
    wider = replace(
        SCALE,
        parameters=(Parameter("input_0", (1, "S", 256), "float32", "input"), *SCALE.parameters[1:]),
    )
    assert found(wider, tmp_path / "own", tmp_path) is None


def test_a_shared_kernel_must_say_what_it_is_for(tmp_path: Path) -> None:
    put_kernel(tmp_path)
    with pytest.raises(CompileError, match=f'expected hash = "{SCALE.hash}" or the parameters'):
        found(SCALE, tmp_path / "own", tmp_path)


def test_a_kernel_that_is_shared_or_mended_or_removed_during_a_session_counts_at_once(
    tmp_path: Path,
) -> None:
    kernels = WrittenKernels([tmp_path / "own", tmp_path], TARGET)
    assert kernels.find(SCALE) is None
    path = put_kernel(tmp_path, "format = ", name="of_another_model")
    assert kernels.find(SCALE) is None
    assert len(kernels.unreadable) == 1
    path.write_text(WITH_HASH)
    assert kernels.manifest_path(SCALE) == path
    assert kernels.unreadable == []
    path.unlink()
    assert kernels.find(SCALE) is None


def test_a_shared_folder_with_too_many_kernels_is_refused_and_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "MAX_KERNELS", 2)
    for name in ("a", "b"):
        put_kernel(tmp_path, WITH_HASH, name=name)
    assert found(SCALE, tmp_path / "own", tmp_path) is not None
    put_kernel(tmp_path, WITH_HASH, name="c")
    with pytest.raises(InputError, match=r"holds 3 kernels for opencl, at most 2 .* split it"):
        found(SCALE, tmp_path / "own", tmp_path)


def test_symbols_may_have_other_names_in_another_model(tmp_path: Path) -> None:
    manifest = WITH_PARAMETERS.replace("[1, S, 128]", "[1, rows, 128]").replace('"S"', '"rows"')
    put_kernel(tmp_path, manifest)
    kernel = WrittenKernels([tmp_path], TARGET).find(SCALE)
    assert kernel is not None
    shapes = [TensorShape(shape, "float32") for shape in ((1, 3, 128), (128,), (1, 3, 128))]
    (launch,) = plan_call(kernel.library, "scale", shapes, {}).launches
    assert launch.grid == (6, 1, 1)


def test_a_symbol_of_a_shared_kernel_stands_for_a_number_where_a_model_has_one(
    tmp_path: Path,
) -> None:
    wide = WITH_PARAMETERS.replace("128]", "N]").replace("output_0.size", "S * N")
    put_kernel(tmp_path, wide)
    fixed = replace(
        SCALE, parameters=tuple(replace_shape(each, {"S": 3}) for each in SCALE.parameters)
    )
    kernel = WrittenKernels([tmp_path / "own", tmp_path], TARGET).find(fixed)
    assert kernel is not None
    shapes = [TensorShape(shape, "float32") for shape in ((1, 3, 128), (128,), (1, 3, 128))]
    (launch,) = plan_call(kernel.library, "scale", shapes, {}).launches
    assert launch.grid == (6, 1, 1)
    # N is 128 in the first parameter, so it is that in the second.
    uneven = (fixed.parameters[0], Parameter("input_1", (64,), "float32", "input"))
    other = replace(fixed, parameters=(*uneven, fixed.parameters[2]))
    assert found(other, tmp_path / "own", tmp_path) is None


def test_a_broken_manifest_of_another_operator_costs_nothing_and_is_told(tmp_path: Path) -> None:
    put_kernel(tmp_path, "format = ", name="broken")
    put_kernel(tmp_path, WITH_HASH)
    kernels = WrittenKernels([tmp_path / "own", tmp_path], TARGET)
    assert kernels.find(SCALE) is not None
    (problem,) = kernels.unreadable
    assert str(tmp_path / "broken") in problem


def test_a_broken_manifest_of_the_operator_itself_is_an_error(tmp_path: Path) -> None:
    put_kernel(tmp_path, "format = ")
    with pytest.raises(CompileError, match="expected TOML"):
        found(SCALE, tmp_path / "own", tmp_path)


def test_a_kernel_is_read_from_disk_at_every_call(tmp_path: Path) -> None:
    path = put_kernel(tmp_path)
    kernels = WrittenKernels([tmp_path], TARGET)
    before = kernels.find(SCALE)
    (path.parent / "scale.cl").write_text(SOURCE.replace("*", " *"))
    after = kernels.find(SCALE)
    assert before is not None
    assert after is not None
    assert before.library != after.library
