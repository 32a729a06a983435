"""What a run is told is remembered for the next; memory is with_memory_limit and never raised."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml.session import run_settings
from tapml.session.journal import open_journal
from tapml.session.run_settings import (
    KERNELS,
    POLICY,
    kernel_folders,
    limits_of,
    policy_of,
    with_memory_limit,
)
from tapml.session.settings import RunOptions
from tapml.verdicts.policy import Policy
from tapml_targets.errors import InputError
from tapml_targets.limits import Limits


def test_folders_of_kernels_are_those_of_the_run_before_until_others_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared").mkdir()
    with open_journal(tmp_path / "journal") as journal:
        assert kernel_folders(journal, RunOptions()) == ()
        given = RunOptions(kernels=(Path("shared"),))
        # The next run may begin in another folder.
        assert kernel_folders(journal, given) == (tmp_path / "shared",)
        assert kernel_folders(journal, RunOptions()) == (tmp_path / "shared",)
        assert kernel_folders(journal, RunOptions(kernels=())) == ()
        assert kernel_folders(journal, RunOptions()) == ()


def test_the_kernels_of_own_operators_are_remembered_by_their_word_not_by_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_journal(tmp_path / "journal") as journal:
        kernel_folders(journal, RunOptions(kernels=(Path("own-operators"),)))
        monkeypatch.setattr(run_settings, "KERNELS_HERE", tmp_path / "another installation")
        assert kernel_folders(journal, RunOptions()) == (tmp_path / "another installation",)


def test_a_limit_profile_holds_until_another_is_named_or_the_device_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("[limits]\nmax_threads_per_block = 64\n")
    device = Limits(max_threads_per_block=1024, memory_bytes=1 << 30)
    with open_journal(tmp_path / "journal") as journal:

        def threads(name: str | None = None) -> int:
            limits = limits_of(journal, RunOptions(limits=name), "webgpu", device)
            assert limits.memory_bytes == device.memory_bytes
            return limits.max_threads_per_block

        assert threads() == 1024
        assert threads("mali") == 256
        assert threads() == 256
        assert threads("mine.toml") == 64
        # The next run may begin in another folder.
        monkeypatch.chdir("/")
        assert threads() == 64
        with pytest.raises(InputError, match="no limit profile 'nokia' of webgpu"):
            threads("nokia")
        assert threads() == 64
        assert threads("device") == 1024
        assert threads() == 1024


@pytest.mark.parametrize("text", ["{", "1", "[1]"])
def test_what_cannot_be_read_names_the_option(tmp_path: Path, text: str) -> None:
    with open_journal(tmp_path / "journal") as journal:
        journal.write_setting(KERNELS, text)
        with pytest.raises(InputError, match="--kernels"):
            kernel_folders(journal, RunOptions())
        journal.write_setting(POLICY, text)
        with pytest.raises(InputError, match="--policy"):
            policy_of(journal, RunOptions())


def test_a_policy_is_that_of_the_run_before(tmp_path: Path) -> None:
    with open_journal(tmp_path / "journal") as journal:
        assert policy_of(journal, RunOptions()) == Policy()
        given = Policy(repeats=Policy().repeats + 1)
        assert policy_of(journal, RunOptions(policy=given)) == given
        assert policy_of(journal, RunOptions()) == given


@pytest.mark.parametrize(
    ("memory", "buffer", "most", "expected"),
    [
        (1000, 500, 0, (1000, 500)),
        (1000, 500, 2000, (1000, 500)),
        (1000, 500, 700, (700, 500)),
        (1000, 500, 400, (400, 400)),
        (0, 0, 400, (400, 400)),
    ],
)
def test_memory_is_what_the_device_has_or_less(
    memory: int, buffer: int, most: int, expected: tuple[int, int]
) -> None:
    limits = with_memory_limit(Limits(memory_bytes=memory, max_buffer_bytes=buffer), most)
    assert (limits.memory_bytes, limits.max_buffer_bytes) == expected


def test_a_mistyped_folder_of_kernels_is_refused_and_not_remembered(tmp_path: Path) -> None:
    with open_journal(tmp_path / "journal.sqlite") as journal:
        with pytest.raises(InputError, match="is not a folder"):
            kernel_folders(journal, RunOptions(kernels=(tmp_path / "shraed",)))
        assert kernel_folders(journal, RunOptions()) == ()
