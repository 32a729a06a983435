"""A job's file is what it is when it is loaded, and defines functions that can be called."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tapml.distributed.job_file import MODULE, Job, load_job
from tapml.distributed.job_sources import worlds
from tapml.distributed.parts import split
from tapml_targets.errors import InputError
from tests.distributed.conftest import PLAIN_JOB


@pytest.fixture(autouse=True)
def unchanged_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a job changes what can be imported: in the runs' own processes, and not here."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, MODULE, sys)


def test_a_file_that_changed_within_its_second_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "job.py"
    for rate in (1, 2):
        path.write_text(f"def model(): return {rate}\n")
        os.utime(path, (1e9, 1e9))
        assert load_job(path, {"model": ""}).module.model() == rate


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError"),
        ("def f(:", r"cannot be loaded: SyntaxError: .*\(job.py:\d+\)"),
        ("raise SystemExit(3)", "ended the process when it was loaded"),
        ("del step", r"lacks step\(\); a job defines model\(\), batch\(\) and step|, step"),
        ("predict = 3", r"predict must be a function predict\(model, batch\), got an int"),
        ("def part(batch, rank):\n    ...", r"function part\(batch, rank, world\), got part\(batc"),
        ("def step(m, b):\n    ...", r"step must be a function step\(model, batch, optimizer\)"),
        ("def distribute(model):\n    ...", r"got distribute\(model\)$"),
        ("def optimizer(m, a, b):\n    ...", r"optimizer\(model\), got optimizer\(m, a, b\)$"),
    ],
)
def test_what_cannot_be_called_as_it_will_be_is_refused(
    tmp_path: Path, code: str, message: str
) -> None:
    path = tmp_path / "job.py"
    path.write_text(f"{PLAIN_JOB}\n{code}\n")
    with pytest.raises(InputError, match=message) as caught:
        load_job(path)

    assert "\n" not in str(caught.value)


def test_a_function_may_take_more_that_has_a_default(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(PLAIN_JOB + "def optimizer(model, rate=0.1, *rest): ...\npredict = None\n")
    job = load_job(path)

    assert job.has("optimizer")
    assert not job.has("predict")


def job_of(**defined: object) -> Job:
    module = ModuleType(MODULE)
    vars(module).update(defined)
    return Job(Path("job.py"), module)


def test_a_model_in_place_of_the_function_that_builds_it_is_refused() -> None:
    with pytest.raises(InputError, match="a function that builds the model, got a Linear"):
        job_of(model=torch.nn.Linear(1, 1)).model()


@pytest.mark.parametrize("returned", ["adam", None, torch.optim.SGD, [], ["adam"]])
def test_what_steps_nothing_is_no_optimizer(returned: object) -> None:
    with pytest.raises(InputError, match=r"optimizer\(\) must return an optimizer, or a list"):
        job_of(optimizer=lambda model: returned).optimizer(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("returned", ["text", None, {"x": torch.tensor(1.0)}])
def test_a_part_without_samples_is_refused(returned: object) -> None:
    job = job_of(part=lambda batch, rank, world: returned)
    with pytest.raises(InputError, match=r"part\(batch, 0, 2\) must return the samples of a rank"):
        split(job, torch.zeros(4, 1), 2)


def test_a_part_may_change_the_batch_it_gets() -> None:
    def part(batch: dict[str, torch.Tensor], rank: int, world: int) -> dict[str, torch.Tensor]:
        batch["x"] = batch["x"].neg_()[rank::world]
        return batch

    whole = {"x": torch.arange(4)}
    first, second = split(job_of(part=part), whole, 2)

    assert first["x"].tolist() == [0, -2]
    assert second["x"].tolist() == [-1, -3]
    assert whole["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("given", ["1,2", 2, [], [0], [1.5], [True]])
def test_worlds_that_are_no_numbers_of_ranks_are_refused(given: object) -> None:
    with pytest.raises(InputError, match="WORLDS must be a list of whole numbers of at least 1"):
        worlds(job_of(WORLDS=given), None)


def test_worlds_may_be_a_range() -> None:
    assert worlds(job_of(WORLDS=range(1, 4)), None) == [1, 2, 3]
