"""What a rank that died without a word is said to have ended with."""

from __future__ import annotations

import pytest

from tapml.distributed.culprits import blame
from tapml.isolate.death import DeathReport, GroupReport

_ABORTED = """terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 32 vs 16
Fatal Python error: Aborted
Thread 0x1 (most recent call first):
Extension modules: numpy, torch._C (total: 9)
"""


@pytest.mark.parametrize(
    ("tail", "said", "remedy"),
    [
        (_ABORTED, "what():  [enforce fail at pair.cc:446] op.preamble.length", "every layer"),
        (_ABORTED.partition("\n")[2].partition("\n")[2], "Fatal Python error: Aborted", ""),
        ("a warning\nout of luck\n", "out of luck", ""),
    ],
)
def test_the_line_that_says_why_is_shown(tail: str, said: str, remedy: str) -> None:
    death = DeathReport.of_exit(-6, tail)
    report = GroupReport("run", 2, 1, death.reason, death, (), ("", tail))

    found = blame(report)

    assert found.ranks == (1,)
    assert found.reason.startswith("rank 1 was killed by SIGABRT: " + said)
    assert remedy in found.remedy
