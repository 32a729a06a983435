"""The memory a server may use is the machine's, or the limit that its container or service has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tapml_targets.host_memory import usable_bytes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
V2 = "0::/system.slice/tapml.service\n"
V1 = "5:cpu,cpuacct:/\n4:memory:/docker/4f\n"


def system(root: Path, groups: str, limits: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": groups, **limits}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        (V2, {"sys/fs/cgroup/system.slice/tapml.service/memory.max": "67108864\n"}, 64 << 20),
        (
            V2,
            {
                "sys/fs/cgroup/system.slice/tapml.service/memory.max": "max\n",
                "sys/fs/cgroup/system.slice/memory.max": "33554432\n",
            },
            32 << 20,
        ),
        (V2, {"sys/fs/cgroup/memory.max": "1048576\n"}, 1 << 20),
        (V1, {"sys/fs/cgroup/memory/docker/4f/memory.limit_in_bytes": "67108864\n"}, 64 << 20),
        (V1, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "67108864\n"}, 64 << 20),
        (V1, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        (V2, {"sys/fs/cgroup/memory.max": "max\n"}, MACHINE),
        (V2, {"sys/fs/cgroup/memory.max": "a lot\n"}, MACHINE),
        ("nonsense\n", {}, MACHINE),
    ],
    ids=[
        "of the service",
        "of the slice around it",
        "of the container, whose path leads nowhere",
        "of the first version",
        "of the first version, whose path leads nowhere",
        "more than the machine has",
        "none",
        "damaged",
        "no groups",
    ],
)
def test_the_smallest_limit_is_what_there_is(
    tmp_path: Path, groups: str, limits: dict[str, str], expected: int
) -> None:
    assert usable_bytes(system(tmp_path, groups, limits)) == expected


def test_where_nothing_is_said_it_is_the_machines(tmp_path: Path) -> None:
    assert usable_bytes(tmp_path) == MACHINE
