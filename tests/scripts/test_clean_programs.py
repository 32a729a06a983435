"""The clean programs of the studies: what the table says, and that its programs train alike."""

from __future__ import annotations

from collections import Counter

import pytest

from scripts.clean_programs import LOOPS, PROGRAMS
from tapml.invariants.recording import recorded


def test_the_table_has_sixty_programs_in_four_classes() -> None:
    assert len(set(PROGRAMS)) == 60
    assert set(Counter(each.kind for each in PROGRAMS).values()) == {15}
    assert {each.loop for each in PROGRAMS} == set(LOOPS)


@pytest.mark.parametrize("kind", sorted({each.kind for each in PROGRAMS}))
def test_a_seed_makes_a_program_do_the_same_again(kind: str) -> None:
    program = next(each for each in PROGRAMS if each.kind == kind)
    digests = []
    for seed in (1, 1, 2):
        with recorded() as recording:
            program.run(seed)
        states = recording.run().windows[-1].states or recording.run().windows[-2].states
        digests.append([state.digest for state in states])
        assert digests[-1]
    assert digests[0] == digests[1] != digests[2]
