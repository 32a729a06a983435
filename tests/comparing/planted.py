"""A backend of another distribution: ONNX's reference implementation with a planted fault."""

from __future__ import annotations

from pathlib import Path

_DESCRIPTION = """
from tapml.backends.description import Description

DESCRIPTION = Description(
    title="ONNX's reference implementation with a fault",
    formats=(".onnx",),
    packages={"onnx": "onnx"},
    variants={each: "" for each in (
        "epsilon", "crash", "hang", "error", "error-again", "nan", "noise", "shape", "killed",
        "memory", "unsupported", "narrow", "rows", "steps",
        "single", "fused", "together",
    )},
)
"""
_RUNNER = """
import os
import signal
import time

import numpy as np
from onnx.reference.ops import op_batch_normalization, op_relu
from tapml.backends.onnx_reference.runner import load as load_reference
from tapml.backends.steps import in_steps


def epsilon(self, x, scale, bias, mean, var, **_):
    # The bug of CRADLE's figure 2: the root of the variance without epsilon.
    one = (1, -1) + (1,) * (x.ndim - 2)
    normal = (x - mean.reshape(one)) / np.sqrt(var.reshape(one))
    return ((normal * scale.reshape(one) + bias.reshape(one)).astype(x.dtype),)


def broken(self, x):
    raise RuntimeError("no kernel for this shape")


def unsupported(self, x):
    raise NotImplementedError("no Relu here")


RELUS = {
    "crash": lambda self, x: os.abort(),
    "hang": lambda self, x: time.sleep(600),
    "error": broken,
    "error-again": broken,
    "killed": lambda self, x: os.kill(os.getpid(), signal.SIGKILL),
    "memory": lambda self, x: (np.ones(1 << 45),),
    "unsupported": unsupported,
    "nan": lambda self, x: (np.where(x > 0, x, np.nan).astype(x.dtype),),
    # Every run deviates far, and from the other runs in every element.
    "noise": lambda self, x: (
        (np.maximum(x, 0)[..., ::-1] * (1 + np.random.rand(*x.shape))).astype(x.dtype),
    ),
    "narrow": lambda self, x: (np.maximum(x, 0)[..., :-2],),
    "rows": lambda self, x: (np.concatenate([x[:1].clip(0), 2 * x[1:].clip(0)]),),
    "shape": lambda self, x: (np.concatenate([np.maximum(x, 0)] * 2),),
}


def in_single_steps(runner, names):
    run = runner.run
    runner.run = lambda inputs: dict(zip(
        runner._graph.outputs,
        in_steps(lambda step: list(run(step).values()), inputs, 1),
    ))
    hidden, nodes = runner.hidden, [each.name for each in runner.nodes()]
    if names == "single":
        runner.hidden = lambda inputs: dict(zip(nodes, map(list, zip(
            in_steps(lambda step: [hidden(step)[each][0] for each in nodes], inputs, 1)
        ))))
    return runner


def wrong(runner, kind):
    # As a fault of fused layers is: each of them alone is right.
    def doubled(values):
        if kind == "fused":
            return np.asarray(2 * values)
        return np.concatenate([values[:1], 2 * values[1:]])

    run, hidden, prefix = runner.run, runner.hidden, runner.prefix
    before = ("conv1", "norm1")
    runner.prefix = lambda node, inputs: [
        each if node in before else doubled(each) for each in prefix(node, inputs)
    ]
    runner.run = lambda inputs: {name: doubled(each) for name, each in run(inputs).items()}
    if kind == "together":
        runner.hidden = lambda inputs: {
            name: [doubled(each[0])] if name == runner.nodes()[-1].name else each
            for name, each in hidden(inputs).items()
        }
    return runner


def load(model, variant):
    if variant in ("steps", "single"):
        return in_single_steps(load_reference(model, ""), variant)
    if variant in ("fused", "together"):
        return wrong(load_reference(model, ""), variant)
    if variant == "epsilon":
        op_batch_normalization.BatchNormalization_14._run = epsilon
    else:
        op_relu.Relu._run = RELUS[variant]
    return load_reference(model, "")
"""


def install_planted(folder: Path) -> None:
    """The backend ``planted``, see :func:`install_backend`."""
    install_backend(folder, "planted", _DESCRIPTION, _RUNNER)


def install_backend(folder: Path, name: str, description: str, runner: str) -> None:
    """Write a distribution, as pip would install it, into a folder of the import path."""
    package = folder / f"{name}_backend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(description, encoding="utf-8")
    (package / "runner.py").write_text(runner, encoding="utf-8")
    metadata = folder / f"{name}_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}-backend\nVersion: 1.0\n", encoding="utf-8"
    )
    (metadata / "entry_points.txt").write_text(
        f"[tapml.backends]\n{name} = {name}_backend\n", encoding="utf-8"
    )
