"""ops.norm of an axis is an error on JAX and NumPy in a functional model, Keras 3.15.1.

The operation keeps the axis as a list, which those libraries do not take. Needs keras, torch and
jax.
"""

import os
import subprocess
import sys

BACKENDS = ("torch", "jax", "numpy")


def show() -> None:
    """Print what the backend of this process does."""
    import keras
    import numpy as np

    rows = keras.Input((3, 4))
    model = keras.Model(rows, keras.ops.norm(rows, axis=-1))
    print(np.array(model(np.ones((1, 3, 4), np.float32))))


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        code = subprocess.run([sys.executable, __file__], env=environment, check=False).returncode
        if code:
            print(f"ended with {code}")
elif __name__ == "__main__":
    show()
