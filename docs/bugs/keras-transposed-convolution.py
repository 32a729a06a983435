"""A transposed convolution with ``output_padding=0`` and `same` ends TensorFlow, Keras 3.15.1.

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

    layer = layers.Conv2DTranspose(1, 3, strides=2, padding="same", output_padding=0)
    print(np.array(layer(np.ones((1, 4, 4, 1), np.float32))).shape)


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        code = subprocess.run([sys.executable, __file__], env=environment, check=False).returncode
        if code:
            print(f"ended with {code}")
elif __name__ == "__main__":
    show()
