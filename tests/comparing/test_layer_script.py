"""What is written beside a model that shows a difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tapml.comparing.layer_script import write_script
from tapml.comparing.stored import hash_model


def test_what_the_file_of_classes_imports_beside_it_is_copied_and_tells_models_apart(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own"
    (own / "pieces").mkdir(parents=True)
    code, piece = own / "layers.py", own / "pieces" / "factors.py"
    code.write_text("from pieces.factors import FACTOR\n")
    piece.write_text("FACTOR = 2\n")
    model, made = tmp_path / "m.keras", tmp_path / "made"
    model.touch()
    made.mkdir()
    before = hash_model(model, code)
    piece.write_text("FACTOR = 3\n")
    assert hash_model(model, code) != before
    write_script(made, "a layer", "m.keras", ["keras-jax"], {"x": np.ones(2)}, code)
    copied = made / "classes"
    assert hash_model(model, copied / "layers.py") == hash_model(model, code)
    assert "code=here / 'classes/layers.py'" in (made / "show.py").read_text()
