"""A transposed convolution of an even kernel, `same`, ``output_padding=0``: TensorFlow raises.

Keras 3.15.1 and TensorFlow 2.21 with oneDNN, "could not create a primitive"; odd kernels work.

Needs keras, jax and tensorflow.
"""

import os
import subprocess
import sys

BACKENDS = ("jax", "tensorflow")


def show() -> None:
    """Print what the backend of this process does."""
    import numpy as np
    from keras import layers

    layer = layers.Conv2DTranspose(1, 4, strides=2, padding="same", output_padding=0)
    try:
        print(np.array(layer(np.ones((1, 8, 8, 1), np.float32))).shape)
    except Exception as error:  # Of TensorFlow's own classes.
        print(f"{type(error).__name__}: {str(error)[:300]}")


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        subprocess.run([sys.executable, __file__], env=environment, check=True)
elif __name__ == "__main__":
    show()
