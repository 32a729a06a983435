"""Arrays are aligned when they are used, and only where they are not."""

from __future__ import annotations

import numpy as np

from tapml.execute.arrays import ALIGNMENT, AlignedArrays, address, allocate


def test_an_array_is_copied_at_its_first_use_and_only_where_it_is_not_aligned() -> None:
    memory = allocate(256)
    inside, apart = memory[:64].view(np.float32), memory[68:132].view(np.float32)
    apart[:] = 5
    arrays = AlignedArrays({"inside": inside, "apart": apart})
    assert list(arrays) == ["inside", "apart"]
    assert arrays["inside"] is inside
    # Not before it is asked for: until then it is the given one that counts.
    apart[0] = 7
    copied = arrays["apart"]
    assert copied.tolist() == [7.0] + [5.0] * 15
    assert address(copied) % ALIGNMENT == 0
    assert arrays["apart"] is copied
    apart[0] = 9
    assert copied[0] == 7
