"""Layers rebuilt from JAX's own calls, and from TensorFlow's."""

import pytest

from tests.backends.end_to_end.test_own_calls import check


@pytest.mark.parametrize("name", ["keras-jax", "keras-tensorflow"])
def test_own_calls_give_what_keras_gives(name: str) -> None:
    check(name)
