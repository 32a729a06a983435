"""Digests and summaries of values."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tapml.invariants.summaries import bits_of, digest, parts_of, summarise_call


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
@given(place=st.integers(0, 63))
def test_a_digest_sees_every_row(dtype: torch.dtype, place: int) -> None:
    one = torch.zeros(16, 4, dtype=dtype)
    other = one.clone()
    other.view(-1)[place] = 1
    assert digest(one) != digest(other)
    assert digest(one) == digest(one.t().contiguous().t())


def test_a_digest_tells_small_numbers_from_zero_and_nan_from_infinity() -> None:
    values = [0.0, 1e-9, float("nan"), float("inf"), -float("inf")]
    assert len({digest(torch.full((4, 4), value)) for value in values}) == len(values)


def test_a_digest_sees_order_shape_and_dtype() -> None:
    one = torch.arange(6)
    others = [one.flip(0), one.reshape(2, 3), one.to(torch.int32), one.to(torch.float32)]
    assert len({digest(each) for each in [one, *others]}) == 5
    assert digest(torch.empty(3, device="meta")) == ""


@given(place=st.integers(0, 62))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_sum_of_a_tensors_bits_sees_a_change_of_any_element(
    dtype: torch.dtype, place: int
) -> None:
    def mark(tensor: torch.Tensor) -> int:
        bits = bits_of(tensor)
        assert bits is not None
        return int(bits.sum())

    one = torch.ones(7, 9, dtype=dtype)
    other = one.clone()
    other.view(-1)[place] += 2 * torch.finfo(dtype).eps
    assert mark(one) != mark(other)
    assert mark(one) == mark(one.clone())


@pytest.mark.parametrize("begin", range(9))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_the_bits_of_a_slice_begin_anywhere(dtype: torch.dtype, begin: int) -> None:
    part = torch.arange(1, 65).to(dtype)[begin : begin + 32]
    bits = bits_of(part)
    assert bits is not None
    assert torch.equal(bits.view(dtype), part)


def test_a_storage_can_be_resized_after_a_look_at_it() -> None:
    whole = torch.ones(4, 4)
    assert digest(whole)
    assert bits_of(whole) is not None
    # As ranks do that share a model's parameters.
    whole.untyped_storage().resize_(0)
    assert digest(whole) == ""
    assert bits_of(whole) is None


def test_parts_of_a_batch_are_samples_and_no_labels() -> None:
    ids, labels = torch.arange(48).view(8, 6), torch.tensor([0.0, 1.0] * 4)
    several = torch.tensor([[0.0, 1.0] * 4] * 8)
    assert parts_of((ids, labels, labels[:, None], several, torch.full((8, 9), 0.5))) == [""] * 5
    images, empty = torch.rand(8, 1, 3, 3), torch.empty(0, 9)
    assert [bool(each) for each in parts_of((images, empty, images.half()))] == [True, False, True]


def test_summaries_are_plain_data_without_contents() -> None:
    fields = summarise_call(
        [torch.ones(2, 3), [1, 2], {"a": torch.ones(1)}, object()], {"p": 0.5, "dtype": torch.half}
    )
    assert fields["arg.0.dtype"] == "float32"
    assert fields["arg.0.shape"] == [2, 3]
    assert fields["arg.p"] == 0.5
    assert fields["arg.dtype"] == "float16"
    assert fields["arg.3.type"] == "object"
    assert "0x" not in json.dumps(fields)
