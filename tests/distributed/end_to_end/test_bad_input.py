"""What cannot be checked gets one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.cli.main import main
from tapml.distributed.checking import check
from tapml.distributed.results import Outcome
from tapml_targets.errors import InputError
from tests.distributed.conftest import CheckJob


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def model():\n    return 3", "must return a torch.nn.Module, got an int"),
        ("def model():\n    raise KeyError(1)", r"model\(\) raised KeyError: 1 \(job.py:\d+ in"),
        ("def batch():\n    return 3", "returned no tensor with samples"),
        ("def batch():\n    return {1, 2}", "no tensor with samples"),
        ("def batch():\n    return [torch.zeros(8), {1}]", r"the batch\[1\] is a set"),
        ("def step(m, b, o):\n    return 1 / 0", r"step\(\) raised ZeroDivisionError"),
        ("def optimizer(m):\n    return 1 / 0", r"optimizer\(\) raised ZeroDivisionError"),
        ("def step(m, b, o):\n    o.step()", r"step\(\) computes nothing on one device"),
        ("STEPS = 0", "STEPS must be a whole number of at least 1, got 0"),
        ("def predict(m, b):\n    return 'text'", r"predict\(\) must return a tensor, .*got a str"),
        (
            "def model():\n    built = nn.Linear(4, 2)\n    built.bias.data[0] = float('nan')\n"
            "    return built",
            "gives bias values that are not finite",
        ),
        (
            "def step(m, b, o):\n    import os\n    os._exit(5)",
            "on one device: it exited with code 5",
        ),
    ],
)
def test_a_job_that_cannot_be_used_is_refused(check_job: CheckJob, code: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        check_job(code)

    assert "\n" not in str(caught.value).strip()


def test_a_batch_that_does_not_divide_is_not_run(check_job: CheckJob) -> None:
    found = check_job(worlds=[1, 3, 16], engines=["ddp"])

    one, three, sixteen = found.results
    assert one.outcome is Outcome.EQUAL
    assert three.outcome is sixteen.outcome is Outcome.NOT_RUN
    assert "8 samples do not divide among 3 ranks" in three.reason
    assert "8 samples are fewer than 16 ranks" in sixteen.reason
    assert found.exit_code == 2


def test_a_reference_that_is_not_finite_is_not_judged(check_job: CheckJob) -> None:
    code = "def step(m, b, o):\n    (m(b).sum() * float('inf')).backward()\n    o.step()"
    found = check_job(code, worlds=[1])

    assert {each.outcome for each in found.results} == {Outcome.REFERENCE_NOT_FINITE}
    assert "is NaN or infinite on one device" in found.results[0].reason
    assert found.exit_code == 2


def test_a_reference_that_changes_by_itself_is_not_deterministic(check_job: CheckJob) -> None:
    code = """
import os
def step(m, b, o):
    (m(b).mean() * int.from_bytes(os.urandom(4))).backward()
    o.step()
"""
    found = check_job(code, worlds=[2], engines=["ddp"])

    assert found.results[0].outcome is Outcome.NOT_DETERMINISTIC
    assert "two runs on one device differ" in found.results[0].reason


def test_a_model_that_the_library_refuses_is_no_finding(check_job: CheckJob) -> None:
    code = """
def model():
    return nn.Linear(4, 2).requires_grad_(False)
def optimizer(m):
    return torch.optim.SGD(m.parameters())
def step(m, b, o):
    m(b)
"""
    found = check_job(code, worlds=[2], engines=["ddp"])

    assert found.results[0].outcome is Outcome.REFUSED
    assert "doesn't have any parameter that requires a gradient" in found.results[0].reason
    assert found.exit_code == 2


def test_lazy_layers_are_built_first(check_job: CheckJob) -> None:
    code = "def model():\n    return nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2))"
    found = check_job(code, worlds=[2])

    assert [each.outcome for each in found.results] == [Outcome.EQUAL] * 2


def test_a_layer_that_some_ranks_leave_out_is_found(check_job: CheckJob) -> None:
    code = """
class Sometimes(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.extra = nn.Linear(4, 2)
    def forward(self, x):
        large = x[:, 0] > 0
        found = super().forward(x)
        return found + self.extra(x) * large[:, None] if large.any() else found
def model():
    return Sometimes()
def batch():
    x = torch.randn(8, 4)
    x[:, 0] = torch.tensor([1.0] * 4 + [-1.0] * 4)
    return x
"""
    (found,) = check_job(code, worlds=[2], engines=["ddp"], deadline_seconds=8).results

    assert (found.outcome, found.ranks) == (Outcome.HANG, (1,))
    assert "rank 1 has finished without all_reduce(20)" in found.reason
    assert "find_unused_parameters=True" in found.remedy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "missing.py cannot be read: No such file or directory"),
        (["missing.py", "--engine", "dpp"], "unknown engine 'dpp'; did you mean 'ddp'?"),
        (["missing.py", "--world", "1,,2"], "expected a list of numbers of ranks"),
        (["missing.py", "--world", "0"], "expected"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["distributed", "check", *arguments])
    except SystemExit as refused:
        code = int(str(refused.code))

    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert code == 2


def test_a_deadline_that_is_too_short_is_refused(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.touch()
    with pytest.raises(InputError, match="a deadline of at least 2 s"):
        check(job, deadline_seconds=1)
