"""Data sets on disk: a folder of arrays, or of images with their classes as subfolders."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np

from tapml.backends.runner import Array
from tapml_targets.errors import InputError, SetupError

LARGEST_BYTES: Final = 8 << 30
CLASSES: Final = "classes.txt"
"""A file that may list the names of all classes beside their subfolders, in their order."""
_CHANNELS: Final = (1, 3)
_GREY: Final = np.array([0.299, 0.587, 0.114])
_ENDINGS: Final = frozenset((
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff",
))  # fmt: skip
_EIGHT_BITS: Final = frozenset(
    ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV")
)


def read_folder(folder: Path) -> tuple[dict[str, Array], bool]:
    """The arrays of a folder by name, and whether ``x`` holds images.

    Either ``NAME.npy`` files, or images: ``x`` is then float32 [instances, height, width, channels]
    from 0 to 1, one channel if all are grey, and ``y`` the place of an image's subfolder in the
    order of their names, or in the file ``classes.txt``. Images without subfolders have no ``y``.

    Raises
    ------
    InputError
        If the folder has neither, is too large, its images differ in size or cannot be read, or
        ``classes.txt`` does not name a subfolder or names a class twice.
    SetupError
        If there are images and no Pillow.
    """
    if arrays := sorted(folder.glob("*.npy")):
        return {each.stem: read_array(each) for each in arrays}, False
    classes = sorted(
        each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")
    )
    order = _order(folder, [each.name for each in classes])
    files = [(file, order[each.name]) for each in classes for file in _images(each)]
    beside = _images(folder)
    if files and beside:
        raise InputError(
            f"{beside[0]} lies beside the subfolders of classes; expected every image in one"
        )
    if not classes:
        files = [(file, 0) for file in beside]
    if not files:
        raise InputError(
            f"{folder} has no data; expected NAME.npy files, or images in subfolders by class"
        )
    try:
        from PIL import Image
    except ImportError as error:
        raise SetupError("reading images needs Pillow: pip install pillow") from error
    found: list[Array] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for file, _ in files:
            found.append(_image(file, Image))
            if found[-1].shape[:2] != found[0].shape[:2]:
                raise InputError(
                    f"{file} is {found[-1].shape[1]} x {found[-1].shape[0]}, and {files[0][0]} "
                    f"{found[0].shape[1]} x {found[0].shape[0]}: make all images equally large"
                )
            if 4 * found[0].size * len(found) > LARGEST_BYTES:
                raise InputError(f"the images of {folder} take more than {LARGEST_BYTES} bytes")
    if any(each.shape[2] == 3 for each in found):
        found = [np.broadcast_to(each, (*each.shape[:2], 3)) for each in found]
    x = (np.stack(found) / np.float32(255)).astype(np.float32)
    labels = {"y": np.array([label for _, label in files])} if classes else {}
    return {"x": x, **labels}, True


def _order(folder: Path, found: list[str]) -> dict[str, int]:
    """The label of each subfolder that was found."""
    file = folder / CLASSES
    try:
        names = file.read_text("utf-8-sig").split("\n") if file.exists() else found
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is no text in UTF-8 ({error})") from error
    order: dict[str, int] = {}
    for place, name in enumerate(map(str.strip, names)):
        if name and name in order:
            raise InputError(
                f"{file} names {name!r} in lines {order[name] + 1} and {place + 1}; expected "
                "each class once"
            )
        order[name] = place
    if unknown := [each for each in found if each not in order]:
        raise InputError(
            f"{file} does not name {unknown[0]!r}; expected a line for each subfolder's class"
        )
    return order


def _images(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.suffix.lower() in _ENDINGS)


def _image(file: Path, image: Any) -> Array:
    """uint8 [height, width, 1 or 3]."""
    try:
        with image.open(file) as opened:
            # Pillow opens colours of 16 bits as RGB and cuts them to 8: its decoder's form tells.
            wide = any(";16" in str(each) for each in getattr(opened, "tile", ()))
            if wide or opened.mode not in _EIGHT_BITS:
                raise InputError(
                    f"{file} holds {opened.mode} pixels{' of 16 bits' * wide}; expected 8 bits a "
                    "channel: a .npy file takes others"
                )
            grey = opened.mode in {"1", "L"}
            pixels = np.asarray(opened.convert("L" if grey else "RGB"))
    except (OSError, ValueError, SyntaxError, Warning, image.DecompressionBombError) as error:
        raise InputError(f"{file} is no image that can be read: {error}") from error
    return pixels[..., None] if grey else pixels


def read_array(file: Path) -> Array:
    """A ``.npy`` file, mapped. Raises InputError if it cannot be read as one."""
    try:
        found: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} is no .npy file of numbers ({error})") from error
    return found


def fitted(images: Array, shape: tuple[int | None, ...]) -> Array:
    """Images in the order of a model's axes, channels first if its shape says so, and as many.

    Colours become grey (ITU-R 601, as Pillow does) where the model has one channel, and grey
    becomes three equal channels where it has three.

    Examples
    --------
    >>> fitted(np.zeros((5, 8, 9, 3)), (None, 3, 8, 9)).shape
    (5, 3, 8, 9)
    >>> fitted(np.zeros((5, 8, 9, 3)), (None, 8, 9, 1)).shape
    (5, 8, 9, 1)
    """
    if len(shape) != images.ndim:
        return images
    found = images.shape[-1]
    first = shape[1] in _CHANNELS and (
        shape[-1] not in _CHANNELS or (shape[1] == found != shape[-1])
    )
    wanted = shape[1 if first else -1]
    if wanted in _CHANNELS and wanted != found:
        images = (
            np.broadcast_to(images, (*images.shape[:-1], wanted))
            if found == 1
            else (images @ _GREY.astype(images.dtype))[..., None]
        )
    return np.moveaxis(images, -1, 1) if first else images
