"""Keras files with classes of the user's own, loaded where Keras runs on NumPy."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tapml.backends.finding import find_backend
from tapml.backends.keras_loading import CODE, load_keras
from tapml.backends.keras_runner import KerasRunner
from tapml.comparing.run import environment_of, own_code
from tapml.isolate.pool import Pool
from tapml_targets.errors import InputError, UnsupportedOperatorError

JOB = f"{__name__}:load_all"
CLASSES = """
import os
import keras

class Scale(keras.layers.Layer):
    def call(self, x):
        from tripled_beside import tripled
        return tripled(x)

class Failing(keras.layers.Layer):
    def call(self, x):
        if "TAPML_FAILING" in os.environ:
            raise {"type": TypeError, "lack": NotImplementedError}[os.environ["TAPML_FAILING"]](
                "no such kernel"
            )
        return x

class Plain(keras.Model):
    def __init__(self, **named):
        super().__init__(**named)
        self.first, self.scale = keras.layers.Dense(4, name="first"), Scale(name="scale")

    def call(self, x):
        return keras.ops.relu(self.scale(self.first(x)))

class Joining(Plain):
    def call(self, sides):
        return {"sum": self.first(sides["left"]) + self.first(sides["right"])}

class Hidden(Plain):
    def call(self, left, right=None):
        return self.first(left) + self.first(right)

class Building(Plain):
    def build(self, shape):
        self.first.build(shape)

    def call(self, x):
        return self.first(x) if float(keras.ops.sum(x)) > 0 else x

class Unbuilt(Plain):
    def build_from_config(self, config):
        self._build_shapes_dict = config
"""


def load_all(folder: str) -> dict[str, Any]:
    """Save and load a model of each class: its inputs and its nodes."""
    import keras

    file = Path(folder) / "classes.py"
    file.write_text(CLASSES, encoding="utf-8")
    file.with_name("tripled_beside.py").write_text("def tripled(x):\n    return 3 * x\n")
    os.environ[CODE] = str(file)
    image = keras.Input((4,), name="image")
    keras.Model(image, keras.layers.Activation("relu")(image)).save(Path(folder) / "none.keras")
    load_keras(Path(folder) / "none.keras")
    classes = sys.modules["tapml_model_code"]
    x = np.ones((2, 4), np.float32)
    given: dict[str, Any] = {"Plain": x, "Joining": {"left": x, "right": 3 * x}, "Building": x}
    found: dict[str, Any] = {}
    for name, value in given.items():
        path = Path(folder) / f"{name}.keras"
        model = getattr(classes, name)(name=name.lower())
        expected = keras.tree.flatten(model(value))[0]
        model.save(path)
        runner = KerasRunner(load_keras(path), "numpy")
        inputs = value if isinstance(value, dict) else {"x": value}
        (output,) = runner.run(inputs).values()
        np.testing.assert_allclose(output, expected, rtol=1e-6)
        hidden = runner.hidden(inputs)
        for node in runner.nodes() if name != "Building" else ():
            (until,) = runner.prefix(node.name, inputs)
            np.testing.assert_allclose(until, hidden[node.name][0], rtol=1e-6)
        found[name] = [
            [each.name for each in runner.inputs()],
            [each.name for each in runner.nodes()],
        ]
    classes.Plain().save(Path(folder) / "never called.keras")
    for name, values in {"Hidden": (x, x), "Unbuilt": (x,)}.items():
        model = getattr(classes, name)()
        model(*values)
        model.save(Path(folder) / f"{name}.keras")
    del os.environ[CODE]
    refused = {
        "never called": "before it is saved",
        "Hidden": "as one dict",
        "Unbuilt": "weights of Unbuilt.keras are not restored",
        "Plain": "--code FILE names the Python file that defines them: class 'Plain'",
    }
    for name, said in refused.items():
        os.environ.update({CODE: str(file)} if name != "Plain" else {})
        with pytest.raises(UnsupportedOperatorError, match=said):
            load_keras(Path(folder) / f"{name}.keras")
        os.environ.pop(CODE, None)
    os.environ[CODE] = str(file)
    keras.Model(image, classes.Failing()(image)).save(Path(folder) / "Failing.keras")
    for kind, error in {"type": TypeError, "lack": UnsupportedOperatorError}.items():
        os.environ["TAPML_FAILING"] = kind
        with pytest.raises(error, match=r"^Failing\.call: no such kernel$") as caught:
            load_keras(Path(folder) / "Failing.keras")
        assert caught.traceback[-1].path == file  # Where it is raised, not where Keras wraps it.
    del os.environ["TAPML_FAILING"], os.environ[CODE]
    whole = (Path(folder) / "none.keras").read_bytes()
    (Path(folder) / "cut.keras").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut\.keras is no .* or the first part of one"):
        load_keras(Path(folder) / "cut.keras")
    return found


def test_the_layers_of_a_subclassed_model_are_its_nodes(tmp_path: Path) -> None:
    with Pool([JOB], workers=1, environment=environment_of(find_backend("keras-numpy"))) as pool:
        found = pool.submit(JOB, str(tmp_path)).result()
    assert found == {
        "Plain": [["x"], ["first", "scale", "relu"]],
        "Joining": [["left", "right"], ["first", "first#1", "add"]],
        "Building": [["x"], ["building"]],
    }


def test_code_is_a_file_of_a_keras_model(tmp_path: Path) -> None:
    assert own_code(Path("m.onnx"), None) is None
    with pytest.raises(InputError, match=r"the model is m\.onnx"):
        own_code(Path("m.onnx"), __file__)
    with pytest.raises(InputError, match="there is no file"):
        own_code(Path("m.keras"), tmp_path / "nothing.py")
