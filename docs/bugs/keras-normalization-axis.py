"""Layer and RMS normalization of axis 1 normalize the last axis on PyTorch, Keras 3.15.1.

Needs keras, jax and torch.
"""

import os
import subprocess
import sys

BACKENDS = ("jax", "torch")


def show() -> None:
    """Print what the backend of this process does."""
    import numpy as np
    from keras import layers

    values = np.array([[[1.0, 2.0], [3.0, 6.0]]], np.float32)
    for layer in (layers.LayerNormalization(axis=1), layers.RMSNormalization(axis=1)):
        output = layer(values)
        output = output.detach() if hasattr(output, "detach") else output
        print(type(layer).__name__, np.array(output).round(3).tolist())


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        code = subprocess.run([sys.executable, __file__], env=environment, check=False).returncode
        if code:
            print(f"ended with {code}")
elif __name__ == "__main__":
    show()
