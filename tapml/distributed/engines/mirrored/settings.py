"""What TensorFlow's MirroredStrategy runs on: logical devices that one process drives."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from tapml.distributed.engine import Published, Rule, Traits
from tapml.distributed.frameworks import Framework
from tapml.distributed.results import Setting
from tapml_targets.installed import install_hint

TITLE: Final = "MirroredStrategy (TensorFlow, Keras 3)"
PRELOAD: Final = ("tensorflow", "keras", "tapml.distributed.engines.mirrored.ranks")
SPLITS: Final = True
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "device": ("cpu", "gpu"),
    "quantization": ("plain", "quantize_8_8"),
}
RULES: Final[tuple[Rule, ...]] = ()
FRAMEWORK: Final = Framework(
    prepare="tapml.distributed.engines.mirrored.ranks:prepare",
    run="tapml.distributed.engines.mirrored.ranks:run",
    slices="tapml.distributed.engines.mirrored.ranks:slice_gradients",
    package="tensorflow",
    preload=PRELOAD,
    one_process=True,
    variables=(("KERAS_BACKEND", "tensorflow"), ("TF_CPP_MIN_LOG_LEVEL", "2")),
)
_DEVICES: Final = (0, 1, 2, 3, 4, 8)


def usual(traits: Traits) -> dict[str, tuple[str, ...]]:
    """What is not quantized, on the CPU."""
    del traits
    return dict.fromkeys(OPTIONS, ())


def missing(setting: Setting) -> str:
    """TensorFlow; a GPU, and the toolkit that quantizes, for settings that need them."""
    if find_spec("tensorflow") is None or find_spec("keras") is None:
        return f"TensorFlow and Keras: {install_hint('compare')}"
    if setting.options.get("device") == "gpu":
        return "a GPU of TensorFlow"
    if setting.options.get("quantization", "plain") != "plain":
        return "tensorflow-model-optimization: it needs Keras 2, so it is not part of any extra"
    return ""


def refuse(setting: Setting, traits: Traits) -> str:
    """It takes any model."""
    del setting, traits
    return ""


def published() -> list[Published]:
    """The 24 settings of the paper's TensorFlow experiments; no device is one without strategy."""
    found = []
    for device in ("cpu", "gpu"):
        for count in _DEVICES:
            for kind in ("plain", "quantize_8_8"):
                options = {"device": device, "quantization": kind}
                setting = Setting(engine="mirrored", world=max(count, 1), options=options)
                name = f"mirrored x {count}" if count else "no strategy"
                found.append(Published(f"{name}, {device}, {kind}", missing(setting)))
    return found
