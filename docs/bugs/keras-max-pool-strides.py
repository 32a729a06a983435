"""ops.max_pool without strides is a TypeError on JAX and NumPy, Keras 3.15.1.

The documentation says that strides default to the window. Needs keras, torch and jax.
"""

import os
import subprocess
import sys

BACKENDS = ("torch", "jax", "numpy")


def show() -> None:
    """Print what the backend of this process does."""
    import numpy as np
    from keras import ops

    print(np.array(ops.max_pool(np.ones((1, 4, 4, 1), np.float32), 2)).shape)


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        code = subprocess.run([sys.executable, __file__], env=environment, check=False).returncode
        if code:
            print(f"ended with {code}")
elif __name__ == "__main__":
    show()
