"""Gaussian blur with a kernel that is no square loses channels on PyTorch, Keras 3.15.1.

Needs keras, jax and torch.
"""

import os
import subprocess
import sys

BACKENDS = ("jax", "torch")


def show() -> None:
    """Print what the backend of this process does."""
    import numpy as np
    from keras import ops

    x = np.random.default_rng(0).random((1, 5, 5, 3)).astype(np.float32)
    print(ops.image.gaussian_blur(x, (3, 5), (1.0, 0.7)).shape)


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        subprocess.run([sys.executable, __file__], env=environment, check=True)
elif __name__ == "__main__":
    show()
