"""A predict that fails leaves a model on JAX without its weights, Keras 3.15.1.

``predict`` takes the weights out of the model while it runs and puts them back at its end, which
an error skips: the model then fails on right inputs too. Found by tapml compare on a model of
``ops.max_pool`` without strides. Needs keras, jax and torch.
"""

import os
import subprocess
import sys

BACKENDS = ("torch", "jax")


def show() -> None:
    """Print what the backend of this process does."""
    import keras
    import numpy as np

    rows, dense = keras.Input((None, 3)), keras.layers.Dense(2)
    joined = keras.Model(rows, keras.ops.reshape(dense(rows), (-1, 7)))
    values = np.ones((1, 2, 3), np.float32)
    for what, call in (("predict", lambda: joined.predict(values, verbose=0)),
                       ("layer", lambda: dense(values))):  # fmt: skip
        try:
            print(what, call().shape)
        except Exception as error:  # Of the library's own classes.
            print(what, type(error).__name__, str(error).partition("\n")[0][:100])


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        subprocess.run([sys.executable, __file__], env=environment, check=True)
elif __name__ == "__main__":
    show()
