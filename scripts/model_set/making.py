"""Makes Keras models and their data, in a process of its own.

Small models are made on JAX, which compiles the step of their training. Large graphs run on
PyTorch, which compiles nothing; where Keras refuses to build NASNet, on TensorFlow.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from scripts.model_set.applications import APPLICATIONS, make_application
from scripts.model_set.rare import RARE, make_rare
from scripts.model_set.trained import TRAINED, make_trained


def main(folder: Path, names: list[str]) -> None:
    """Write ``NAME.keras`` and ``NAME.npz`` into a folder; a line about each."""
    small = names[0] not in APPLICATIONS
    large = "tensorflow" if names[0].startswith("NASNet") else "torch"
    os.environ["KERAS_BACKEND"] = "jax" if small else large
    if small:
        blocked: dict[str, Any] = sys.modules  # Keras would import it for its data sets.
        blocked["tensorflow"] = None
    for name in names:
        make = {**dict.fromkeys(TRAINED, make_trained), **dict.fromkeys(APPLICATIONS,
                make_application), **dict.fromkeys(RARE, make_rare)}[name]  # fmt: skip
        unfinished = folder / f"{name}.unfinished.keras"
        score = make(name, unfinished, folder / f"{name}.npz")
        unfinished.replace(folder / f"{name}.keras")
        print(json.dumps({"name": name, "score": round(score, 4)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
