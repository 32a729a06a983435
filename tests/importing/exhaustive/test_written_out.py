"""More of the operations that are written out give PyTorch's results."""

from __future__ import annotations

import pytest

from tests.importing.test_written_out import CASES, SHORT, check


@pytest.mark.parametrize("case", sorted(CASES.keys() - set(SHORT)))
def test_they_are_pytorchs(case: str) -> None:
    check(case)
