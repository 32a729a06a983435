"""Nearest resizing from 5 to 3 takes other pixels on OpenVINO, Keras 3.15.1.

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

    image = np.arange(5, dtype=np.float32).reshape(1, 1, 5, 1)
    found = ops.image.resize(image, (1, 3), interpolation="nearest", data_format="channels_last")
    print(ops.convert_to_numpy(found).ravel())


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        code = subprocess.run([sys.executable, __file__], env=environment, check=False).returncode
        if code:
            print(f"ended with {code}")
elif __name__ == "__main__":
    show()
