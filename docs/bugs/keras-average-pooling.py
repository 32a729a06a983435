"""Average pooling with padding "same" counts the padding on PyTorch, Keras 3.15.1.

Where only one side is padded, the border is replicated and averaged: 7.67 in place of 7. Found by
tapml compare on classifiers of digits. Needs keras, jax and torch.
"""

import os
import subprocess
import sys

BACKENDS = ("jax", "torch")


def show() -> None:
    """Print what the backend of this process does."""
    import numpy as np
    from keras import layers

    values = np.array([[[0.0], [1.0], [5.0], [9.0]]], np.float32)
    print(np.array(layers.AveragePooling1D(3, 2, padding="same")(values)).ravel())


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        code = subprocess.run([sys.executable, __file__], env=environment, check=False).returncode
        if code:
            print(f"ended with {code}")
elif __name__ == "__main__":
    show()
