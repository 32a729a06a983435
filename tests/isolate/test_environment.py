"""Jobs run in the interpreter, with the variables and with the modules they ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tapml
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tapml_targets.errors import SetupError, TapmlError
from tests.isolate.jobs import name
from tests.isolate.processes import PATIENCE_SECONDS, servers, wait_until


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without any package."""
    folder = tmp_path_factory.mktemp("environments") / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def test_a_job_runs_in_another_virtual_environment(pool: Pool, bare: Path) -> None:
    environment = Environment(python=bare / "bin" / "python")
    found = pool.submit(name("prefix"), environment=environment).result(PATIENCE_SECONDS)
    assert found == str(bare)
    payload = {"bytes": bytes(1 << 20), "text": ["plain"]}
    assert pool.submit(name("echo"), payload, environment=environment).result() == payload


def test_it_is_lent_the_packages_of_the_jobs_and_no_others(pool: Pool, bare: Path) -> None:
    environment = Environment(python=bare / "bin" / "python", preload=("wave",))
    lent = pool.submit(name("load"), "tapml", environment=environment).result(PATIENCE_SECONDS)
    assert lent == tapml.__file__
    for missing in ("msgpack", "numpy", "pytest", "tapml_rpc"):
        with pytest.raises(TapmlError, match=f"No module named '{missing}'"):
            pool.submit(name("load"), missing, environment=environment).result(PATIENCE_SECONDS)


def test_an_array_sent_where_there_is_no_numpy_says_so(pool: Pool, bare: Path) -> None:
    environment = Environment(python=bare / "bin" / "python")
    job = pool.submit(name("echo"), np.zeros(3), environment=environment)
    with pytest.raises(TapmlError, match=r"has no numpy; install numpy there"):
        job.result(PATIENCE_SECONDS)


def test_the_temporary_files_of_a_process_are_removed_with_it(pool: Pool) -> None:
    environment = Environment(scratch=True)
    with pool.worker(name("echo"), None, environment=environment) as worker:
        left = Path(worker.call(name("leave_a_file"), None))
        assert left.exists()
    wait_until(lambda: not left.parent.exists())
    done = pool.submit(name("leave_a_file"), environment=environment).result(PATIENCE_SECONDS)
    wait_until(lambda: not Path(done).parent.exists())


def test_workers_and_groups_run_there_too(pool: Pool, bare: Path) -> None:
    environment = Environment(python=bare / "bin" / "python")
    with pool.worker(name("open_account"), 1, environment=environment) as account:
        assert account.call(name("deposit"), 1) == 2
    found = pool.group(2, name("talk"), port=True, environment=environment).result(PATIENCE_SECONDS)
    assert found == ["greeted", "hello"]


def test_variables_are_set_where_they_were_asked_for(pool: Pool) -> None:
    environment = Environment(variables={"KERAS_BACKEND": "numpy"})
    wanted = name("variable")
    assert pool.submit(wanted, "KERAS_BACKEND", environment=environment).result() == "numpy"
    assert pool.submit(wanted, "KERAS_BACKEND").result() is None


def test_a_package_of_one_module_is_shared_like_one_of_many(bare: Path) -> None:
    *_, shared = Environment(python=bare / "bin" / "python").command(0, ["pytest:main"])
    assert set(json.loads(shared)) == {"tapml", "tapml_targets", "pytest"}


def test_a_module_can_be_kept_out(pool: Pool) -> None:
    environment = Environment(without=("wave",))
    with pytest.raises(TapmlError, match="wave"):
        pool.submit(name("load"), "wave", environment=environment).result(PATIENCE_SECONDS)


def test_equal_environments_share_a_server(pool: Pool) -> None:
    def environment() -> Environment:
        return Environment(variables={"SHARED": "1"})

    first = pool.submit(name("processes"), environment=environment()).result(PATIENCE_SECONDS)
    before = servers()
    second = pool.submit(name("processes"), environment=environment()).result(PATIENCE_SECONDS)
    assert (first[0], before) == (second[0], servers())


def test_an_interpreter_that_is_not_there_is_named(pool: Pool, tmp_path: Path) -> None:
    environment = Environment(python=tmp_path)
    pool.start(environment)
    with pytest.raises(SetupError, match="is not an executable Python interpreter"):
        pool.submit(name("echo"), environment=environment).result(PATIENCE_SECONDS)
    with (
        pool.worker(name("echo"), environment=environment) as worker,
        pytest.raises(SetupError, match="is not an executable"),
    ):
        worker.call(name("echo"))
