"""Bicubic resizing takes other cubics on PyTorch and OpenVINO than on JAX, Keras 3.15.1.

Needs keras, jax, torch and openvino.
"""

import os
import subprocess
import sys

BACKENDS = ("jax", "torch", "openvino")


def show() -> None:
    """Print what the backend of this process does."""
    import numpy as np
    from keras import ops

    x = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1) ** 2
    resized = ops.image.resize(x, (8, 8), interpolation="bicubic")
    print(ops.convert_to_numpy(resized)[0, 3, :, 0].round(2).tolist())


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        subprocess.run([sys.executable, __file__], env=environment, check=True)
elif __name__ == "__main__":
    show()
