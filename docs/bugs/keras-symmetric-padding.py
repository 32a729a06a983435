"""Symmetric padding by more than one repeats the border on PyTorch, Keras 3.15.1.

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

    x = np.arange(4, dtype=np.float32).reshape(1, 2, 2, 1)
    padded = ops.pad(x, ((0, 0), (2, 0), (0, 0), (0, 0)), mode="symmetric")
    print(ops.convert_to_numpy(padded)[0, :, :, 0].tolist())


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        subprocess.run([sys.executable, __file__], env=environment, check=True)
elif __name__ == "__main__":
    show()
