"""Mutants of Keras models and of torch modules, made in processes that import these libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tapml.backends.finding import find_backend
from tapml.comparing.fuzzing import keras_mutants, torch_mutants
from tapml.comparing.run import environment_of
from tapml.isolate.pool import Pool

JOBS = [f"{__name__}:{name}" for name in ("of_keras", "of_torch")]
EDITS = {
    "activation": [["activation", 0, 1]],
    "removed": [["removed", 0, 0]],
    "doubled": [["doubled", 0, 0]],
    "reordered": [["reordered", 0, 0]],
    "misfit": [["reordered", 1, 0]],  # For Keras alone.
}


def of_keras(folder: str) -> dict[str, list[str] | str]:
    """Kinds of layers by kind of edit, or why there is no mutant."""
    import keras

    from tapml.backends.keras_runner import KerasRunner

    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((6, 6, 2)), layers.ReLU(), layers.Conv2D(3, 3), layers.BatchNormalization(),
         layers.Flatten(), layers.Dense(2, activation="softmax")]
    )  # fmt: skip
    path = Path(folder) / "plain.keras"
    model.save(path)
    found: dict[str, list[str] | str] = {}
    for name, edits in EDITS.items():
        made = Path(folder) / f"{name}.keras"
        # "misfit" puts the normalization of three channels where there are two.
        reason = keras_mutants.make({"model": str(path), "edits": edits, "made": str(made)})
        if reason:
            found[name] = reason
            continue
        mutant = keras.saving.load_model(made)
        mutant.predict(np.ones((1, 6, 6, 2)), verbose=0)
        found[name] = [each.kind for each in KerasRunner(mutant, "numpy").nodes()]
    return found


def of_torch(folder: str) -> dict[str, list[str] | str]:
    """Kinds of operations by kind of edit."""
    import torch

    from tapml.backends.torch_graph import TorchGraph
    from tapml.importing.recording import record_module

    net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 4), torch.nn.Softmax(-1))
    path, x = Path(folder) / "plain", np.ones((3, 4), np.float32)
    record_module(
        net, [torch.from_numpy(x)], [{0: "batch"}], name="net", samples=[], measure="values",
        labels=(),
    ).save(path)  # fmt: skip
    arrays = {each.name: x for each in TorchGraph(path).inputs()}
    found: dict[str, list[str] | str] = {}
    for name, edits in EDITS.items():
        made = Path(folder) / name
        given = {"model": str(path), "edits": edits, "made": str(made), "arrays": arrays}
        assert torch_mutants.make(given) == ""
        mutant = TorchGraph(made)
        assert mutant.inputs()[0].shape == (None, 4)
        found[name] = [each.kind for each in mutant.nodes()]
    # One that takes three instances, of which the data has two.
    record_module(
        net, [torch.from_numpy(x)], None, name="net", samples=[], measure="values", labels=()
    ).save(Path(folder) / "fixed")
    few = {name: each[:2] for name, each in arrays.items()}
    made = Path(folder) / "of fixed"
    given = {"model": str(Path(folder) / "fixed"), "edits": [["removed", 0, 0]],
             "made": str(made), "arrays": few}  # fmt: skip
    assert torch_mutants.make(given) == ""
    assert TorchGraph(made).inputs()[0].shape == (3, 4)
    return found


def test_keras_layers_are_swapped_removed_doubled_and_reordered(tmp_path: Path) -> None:
    with Pool(JOBS, workers=1, environment=environment_of(find_backend("keras-numpy"))) as pool:
        found = pool.submit(JOBS[0], str(tmp_path)).result()
    rest = ["Conv2D", "BatchNormalization", "Flatten", "Dense"]
    assert found["activation"] == ["Activation", *rest]
    assert found["removed"] == rest
    assert found["doubled"] == ["ReLU", "ReLU", *rest]
    assert found["reordered"] == ["Conv2D", "ReLU", *rest[1:]]
    assert isinstance(found["misfit"], str)


def test_operations_of_a_torch_module_are_swapped_removed_doubled_and_reordered(
    tmp_path: Path,
) -> None:
    with Pool(JOBS, workers=1, environment=environment_of(find_backend("torch-eager"))) as pool:
        found = pool.submit(JOBS[1], str(tmp_path)).result()
    assert found == {
        "activation": ["tanh", "linear", "softmax"],
        "removed": ["linear", "softmax"],
        "doubled": ["relu", "relu", "linear", "softmax"],
        "reordered": ["linear", "relu", "softmax"],
        "misfit": ["relu", "linear", "softmax"],
    }
