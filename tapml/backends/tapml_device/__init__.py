"""A device of tapml: the plan that a migration moves, with all of its operators there."""

from tapml.backends.description import Description
from tapml.backends.parts import PROGRAM_FOLDER


def _is_device(name: str) -> bool:
    from tapml.devices.reach import is_remote
    from tapml_targets.platforms import platform_names

    return is_remote(name) or name.partition(":")[0] in platform_names()


DESCRIPTION = Description(
    title="a device: PLATFORM:INDEX, tcp://HOST:PORT, tracker:NAME",
    formats=(".onnx", PROGRAM_FOLDER),
    packages={
        "tvm": "apache-tvm==0.27.0.post1",
        "torch": "torch>=2.13,<2.14",
        "onnx": "onnx>=1.17",
        "onnxruntime": "onnxruntime>=1.20",
    },
    without=("tensorflow",),
    claims=_is_device,
)
