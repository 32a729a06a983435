"""An affine transform with fill mode "wrap" gives other values on TensorFlow, Keras 3.15.1.

Needs keras, jax and tensorflow.
"""

import os
import subprocess
import sys

BACKENDS = ("jax", "tensorflow")


def show() -> None:
    """Print what the backend of this process does."""
    import numpy as np
    from keras import ops

    image = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    shift = np.array([[1.0, 0.0, 1.5, 0.0, 1.0, 0.0, 0.0, 0.0]], np.float32)
    found = ops.image.affine_transform(
        image, shift, interpolation="bilinear", fill_mode="wrap", data_format="channels_last"
    )
    print(np.array(found)[0, :, :, 0].tolist())


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        code = subprocess.run([sys.executable, __file__], env=environment, check=False).returncode
        if code:
            print(f"ended with {code}")
elif __name__ == "__main__":
    show()
