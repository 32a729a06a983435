"""Copies on disk: there for the next supervisor, whole or not there, never damaged, in a budget."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tapml_rpc.blobs.folder import BlobFolder
from tapml_rpc.blobs.store import BlobStore
from tapml_targets import failpoints as boundaries
from tapml_targets.errors import InputError, SetupError
from tests.rpc.blobs.contents import content, digest_of, put, settle

ROOM = 1 << 20
DATA = content(1, 100_000)
DIGEST = digest_of(DATA)
ROOT = Path(__file__).resolve().parents[3]
# Puts one blob and has it copied.
PUT_ONE = """
import sys
from pathlib import Path
from tapml_rpc.blobs.store import BlobStore
from tests.rpc.blobs.contents import content, put, settle

store = BlobStore(1 << 20, 1 << 20, Path(sys.argv[1]))
put(store, "one", content(1, 100_000))
settle(store)
print(store.statistics().disk_problem, flush=True)
store.close()
"""


@contextmanager
def opened(folder: Path, memory: int = ROOM, disk: int = ROOM) -> Iterator[BlobStore]:
    store = BlobStore(memory, disk, folder)
    try:
        yield store
    finally:
        store.close()


def attached(store: BlobStore, identity: str, digest: str) -> bytes | None:
    """A blob as a session gets it; None where it does not."""
    attachment = store.attach("session", identity, digest)
    if attachment is None:
        return None
    found = os.pread(attachment.fd, attachment.nbytes + 1, 0)
    store.detach("session", digest)
    return found


def put_one(folder: Path, fault: str = "") -> subprocess.CompletedProcess[str]:
    """A process that puts the blob and meets a fault."""
    return subprocess.run(
        [sys.executable, "-c", PUT_ONE, str(folder)],
        cwd=ROOT,
        env={**os.environ, boundaries.VARIABLE: fault},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("nbytes", [1, 100_000, 5 << 20])
def test_a_blob_is_there_for_the_next_supervisor_and_its_owner_alone(
    tmp_path: Path, nbytes: int
) -> None:
    data = content(2, nbytes)
    with opened(tmp_path, 8 * ROOM, 8 * ROOM) as store:
        digest = put(store, "one", data)
    with opened(tmp_path, 8 * ROOM, 8 * ROOM) as store:
        assert store.holds("one", digest) and not store.holds("other", digest)
        assert attached(store, "other", digest) is None
        assert attached(store, "one", digest) == data


def test_a_second_owner_is_remembered_too(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "one", DATA)
        settle(store)
        put(store, "other", DATA)
    with opened(tmp_path) as store:
        assert store.holds("one", DIGEST) and store.holds("other", DIGEST)
        assert store.statistics().disk_bytes == len(DATA)


def test_what_leaves_memory_comes_back_from_disk(tmp_path: Path) -> None:
    with opened(tmp_path, memory=4 * 4096) as store:
        data = content(1, 3 * 4096)
        digest = put(store, "one", data)
        settle(store)
        put(store, "one", content(2, 3 * 4096))
        assert store.holds("one", digest)
        assert attached(store, "one", digest) == data


def test_the_folder_and_its_files_are_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "blobs"
    folder.mkdir(parents=True, mode=0o755)
    with opened(folder) as store:
        put(store, "one", DATA)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    names = {path.name for path in folder.iterdir()}
    assert names == {DIGEST, f"{DIGEST}.owners", "lock"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert digest_of((folder / DIGEST).read_bytes()) == DIGEST


def test_one_supervisor_has_a_folder(tmp_path: Path) -> None:
    with (
        opened(tmp_path),
        pytest.raises(SetupError, match="another process keeps its blobs in"),
    ):
        BlobStore(ROOM, ROOM, tmp_path)
    BlobStore(ROOM, ROOM, tmp_path).close()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot keep blobs in"):
        BlobStore(ROOM, ROOM, tmp_path / "file" / "blobs")


@pytest.mark.parametrize("damage", ["a bit", "the end", "more", "everything", "gone"])
def test_a_damaged_blob_counts_as_absent_and_is_deleted(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path) as store:
        put(store, "one", DATA)
    with opened(tmp_path) as store:
        path = tmp_path / DIGEST
        assert store.holds("one", DIGEST)
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(
                {
                    "a bit": DATA[:500] + bytes([DATA[500] ^ 1]) + DATA[501:],
                    "the end": DATA[:-1],
                    "more": DATA + b"x",
                    "everything": b"",
                }[damage]
            )
        assert attached(store, "one", DIGEST) is None
        assert not store.holds("one", DIGEST)
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
        found = store.statistics()
        assert (found.damaged, found.disk_bytes, found.memory_bytes) == (1, 0, 0)
        # And it can be sent again.
        put(store, "one", DATA)
        assert attached(store, "one", DIGEST) == DATA


@pytest.mark.parametrize("owners", [b"", b"[7]", b'["one"', b'{"one": 1}', b"\xff", b"[" * 9999])
def test_a_blob_whose_owners_cannot_be_read_is_nobodys(tmp_path: Path, owners: bytes) -> None:
    with opened(tmp_path) as store:
        put(store, "one", DATA)
    (tmp_path / f"{DIGEST}.owners").write_bytes(owners)
    with opened(tmp_path) as store:
        assert not store.holds("one", DIGEST)
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize("name", ["thesis.tex", "abc", f"{DIGEST}.txt", f".{DIGEST}", "sub"])
def test_a_folder_of_somebody_elses_files_is_refused_and_left_as_it_was(
    tmp_path: Path, name: str
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / DIGEST).write_bytes(DATA)
    if name == "sub":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("precious")
    with pytest.raises(SetupError, match=f"holds other files .'{name}'.* name one that is empty"):
        BlobStore(ROOM, ROOM, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {DIGEST, name}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_what_a_killed_process_left_is_removed_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / f".{DIGEST}.partial").write_bytes(DATA[:100])
    (tmp_path / f".{DIGEST}.owners.partial").write_bytes(b"[")
    (tmp_path / f"{DIGEST}.owners").write_bytes(b'["one"]')
    with opened(tmp_path) as store:
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
        assert store.statistics().blobs == 0


def test_the_disk_has_a_budget_and_what_was_used_longest_ago_goes(tmp_path: Path) -> None:
    digests = []
    with opened(tmp_path, disk=250_000) as store:
        for seed in range(4):
            digests.append(put(store, "one", content(seed, 100_000)))
            settle(store)
        assert store.statistics().disk_bytes == 200_000
    with opened(tmp_path, disk=250_000) as store:
        assert [store.holds("one", digest) for digest in digests] == [False, False, True, True]


def test_what_was_used_lately_outlives_a_restart_and_a_smaller_budget(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        digests = [put(store, "one", content(seed, 100_000)) for seed in range(3)]
    for age, digest in enumerate(digests):
        os.utime(tmp_path / digest, (1000 + age, 1000 + age))
    with opened(tmp_path) as store:
        assert attached(store, "one", digests[0]) is not None
    with opened(tmp_path, disk=100_000) as store:
        assert [store.holds("one", digest) for digest in digests] == [True, False, False]


def test_a_blob_over_the_disk_budget_is_kept_in_memory_alone(tmp_path: Path) -> None:
    with opened(tmp_path, disk=50_000) as store:
        put(store, "one", DATA)
        settle(store)
        assert store.statistics().disk_bytes == 0
        assert attached(store, "one", DIGEST) == DATA


def test_reading_back_needs_room_in_memory(tmp_path: Path) -> None:
    with opened(tmp_path, memory=30 * 4096) as store:
        put(store, "one", DATA)
        settle(store)
        other = put(store, "one", content(2, 20 * 4096))
        store.attach("session", "one", other)
        with pytest.raises(InputError, match="no room for a blob of 100000 bytes"):
            store.attach("session", "one", DIGEST)
        store.detach("session", other)
        assert attached(store, "one", DIGEST) == DATA


def test_a_blob_evicted_while_it_is_copied_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, memory=100 * 4096) as store:
        write_owners, write = BlobFolder.write_owners, BlobFolder.write
        outcomes: list[bool] = []

        def evicting(folder: BlobFolder, digest: str, owners: object) -> None:
            write_owners(folder, digest, ["one"])
            monkeypatch.setattr(BlobFolder, "write_owners", write_owners)
            put(store, "one", content(2, 90 * 4096))

        def noted(*arguments: Any) -> bool:
            outcomes.append(write(*arguments))
            return outcomes[-1]

        monkeypatch.setattr(BlobFolder, "write_owners", evicting)
        monkeypatch.setattr(BlobFolder, "write", noted)
        put(store, "one", DATA)
        settle(store)
        settle(store)
        assert outcomes == [False, True]
        assert not store.holds("one", DIGEST)
        assert not (tmp_path / DIGEST).exists()
        assert store.statistics().disk_bytes == 90 * 4096


def test_a_blob_that_comes_while_copies_are_waited_for_at_the_end_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, write = threading.Event(), BlobFolder.write
    closing = threading.Event()

    def waiting(*arguments: Any) -> bool:
        copying.set()
        closing.wait(30)
        return write(*arguments)

    monkeypatch.setattr(BlobFolder, "write", waiting)
    store = BlobStore(ROOM, ROOM, tmp_path)
    put(store, "one", DATA)
    assert copying.wait(30) and store._background is not None
    shutdown = store._background.shutdown

    def noted(*, wait: bool) -> None:
        shutdown(wait=False)
        put(store, "one", content(2, 4096))
        closing.set()
        shutdown(wait=wait)

    monkeypatch.setattr(store._background, "shutdown", noted)
    store.close()
    with opened(tmp_path) as store:
        assert store.holds("one", DIGEST) and store.statistics().blobs == 1


BOUNDARIES = [
    f"{kind} *{name}" for kind in ("write", "fsync", "rename") for name in ("", ".owners")
]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_killed_in_the_middle_of_a_put_leaves_a_whole_blob_or_none(
    tmp_path: Path, moment: str, boundary: str
) -> None:
    kind, pattern = boundary.split()
    place = f"*{DIGEST}{pattern.removeprefix('*')}"
    ended = put_one(tmp_path, f"kill@{moment} {kind} {place}")
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    committed = (moment, boundary) == ("after", "rename *")
    with opened(tmp_path) as store:
        assert store.holds("one", DIGEST) == committed
        assert attached(store, "one", DIGEST) == (DATA if committed else None)
        names = {path.name for path in tmp_path.iterdir()}
        assert names == ({DIGEST, f"{DIGEST}.owners", "lock"} if committed else {"lock"})


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_full_disk_costs_the_copy_and_nothing_else(tmp_path: Path, boundary: str) -> None:
    kind, pattern = boundary.split()
    ended = put_one(tmp_path, f"full@before {kind} *{DIGEST}{pattern.removeprefix('*')}")
    assert ended.returncode == 0, ended.stderr
    assert "cannot write to" in ended.stdout and "No space left" in ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_real_disk_that_is_full_costs_the_copy_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    try:
        with opened(folder) as store:
            put(store, "one", DATA)
            settle(store)
            found = store.statistics()
            assert "No space left" in found.disk_problem and found.disk_bytes == 0
            assert [path.name for path in folder.iterdir()] == ["lock"]
            assert attached(store, "one", DIGEST) == DATA
            put(store, "one", content(3, 100_000))
            settle(store)
            assert capfd.readouterr().err.count("kept in memory alone") == 1
            small = put(store, "one", content(2, 10_000))
        with opened(folder) as store:
            assert store.holds("one", small) and not store.holds("one", DIGEST)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
