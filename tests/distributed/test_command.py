"""The command: table, JSON, page; and the fixture for pytest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tapml
from tapml.cli.main import main
from tapml.distributed import page
from tapml.distributed.results import Check
from tests.distributed.conftest import CheckJob

_SUMMED = """
def distribute(model, rank, world):
    from torch.nn.parallel import DistributedDataParallel
    from tests.distributed.jobs.planted import _sum
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, _sum)
    return wrapped
"""


@pytest.fixture
def command(
    check_job: CheckJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., int]:
    """Runs the command on a job whose gradients are summed, in the pool that is warm."""

    def check(job: Path, **options: object) -> Check:
        assert job.name == "train.py"
        return check_job(_SUMMED, **options)

    def run(*arguments: str) -> int:
        monkeypatch.setattr("tapml.distributed.checking.check", check)
        return main(["distributed", "check", str(tmp_path / "train.py"), *arguments])

    return run


def test_the_command_prints_a_table_the_mistake_and_the_remedy(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--world", "1,2", "--explain") == 1

    printed = capsys.readouterr()
    assert "own x 2  inconsistent  gradient of bias" in printed.out
    assert "mistake: gradients are summed over the ranks, not averaged" in printed.out
    assert "remedy: divide by the number of ranks" in printed.out
    assert "triggers: world" in printed.out
    assert "2 settings: 1 equal, 1 inconsistent" in printed.out
    assert "[2/2] own x 2: inconsistent" in printed.err


def test_json_and_page_hold_what_was_found(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    assert command("--world", "2,3", "--json", "--report", str(report)) == 1

    found = json.loads(capsys.readouterr().out)
    summed, not_run = found["results"]
    assert found["format"] == "tapml-distributed/1"
    assert summed["outcome"] == "inconsistent"
    assert (summed["phase"], summed["tensor"], summed["ranks"]) == ("gradient", "bias", [0, 1])
    assert summed["ratio"] == pytest.approx(2)
    assert "summed" in summed["mistake"]
    assert summed["published"] in ("equal", "inconsistent")
    assert not_run["outcome"] == "not run"
    text = report.read_text()
    assert "gradients are summed over the ranks, not averaged" in text
    assert "https://" not in text.replace("http://www.w3.org", "")


def test_a_page_of_settings_that_were_not_run_can_be_drawn(check_job: CheckJob) -> None:
    assert "not run" in page.render(check_job(worlds=[3], engines=["ddp"]))


def test_the_fixture_of_pytest_fails_with_the_mistake(
    tapml_distributed: Callable[..., Check], tmp_path: Path, check_job: CheckJob
) -> None:
    check_job(_SUMMED, worlds=[1])  # Writes the job.
    assert tapml_distributed(tmp_path / "job.py", worlds=[1]).exit_code == 0
    with pytest.raises(pytest.fail.Exception, match="gradients are summed"):
        tapml_distributed(tmp_path / "job.py", worlds=[2])


def test_the_engines_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distributed", "engines", "--json"]) == 0

    listed = json.loads(capsys.readouterr().out)
    ours = {"ddp", "fsdp2", "hsdp", "own", "tensor_parallel", "torchrec", "zero"}
    assert ours <= {each["name"] for each in listed}
    assert "check" in tapml.distributed.__all__
