"""Layers rebuilt from TensorFlow's own calls."""

from tests.backends.end_to_end.test_own_calls import check


def test_own_calls_give_what_keras_gives() -> None:
    check("keras-tensorflow")
