"""Gaussian blur with a kernel that is no square: four results on five libraries, Keras 3.15.1.

A bright pixel becomes a Gaussian on NumPy, a line on JAX, and a scrambled kernel on TensorFlow and
OpenVINO; PyTorch pads for the other axis, raises, and makes one channel of three. Needs keras,
jax, torch, tensorflow and openvino.
"""

import os
import subprocess
import sys

BACKENDS = ("numpy", "jax", "tensorflow", "openvino", "torch")


def show() -> None:
    """Print what the backend of this process does."""
    import numpy as np
    from keras import ops

    pixel = np.zeros((1, 7, 7, 1), np.float32)
    pixel[0, 3, 3] = 1
    for image in (pixel, np.repeat(pixel, 3, axis=-1)):
        try:
            found = ops.convert_to_numpy(ops.image.gaussian_blur(image, (3, 5), (1.0, 0.7)))
        except RuntimeError as error:
            print(error)
            continue
        print(found.shape, found[0, 2:5, :, 0].round(2).tolist())


if "KERAS_BACKEND" not in os.environ:
    for each in BACKENDS:
        print(f"{each}:", flush=True)
        environment = {**os.environ, "KERAS_BACKEND": each}
        subprocess.run([sys.executable, __file__], env=environment, check=True)
elif __name__ == "__main__":
    show()
