"""The pooling bug with TensorFlow, whose import is the dearest, among the backends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comparing.end_to_end.test_keras import BACKENDS, digits, find_the_pooling_bug

__all__ = ["digits"]


def test_the_pooling_bug_is_found_beside_tensorflow_too(
    digits: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find_the_pooling_bug(digits, tmp_path, capsys, (*BACKENDS, "keras-tensorflow"))
