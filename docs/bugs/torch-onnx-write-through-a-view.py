"""PyTorch's ONNX exporter of traces loses what is written through a view, without an error.

PyTorch 2.13, `torch.onnx.export(..., dynamo=False)`: `y[:, 1:].add_(x)` is kept, and
`y.view(-1).mul_(2)` is not. Found by tapml compare. Needs torch, onnx and onnxruntime.
"""

import io
import warnings

import torch


class Shifted(torch.nn.Module):
    """Twice the columns, one to the right."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, columns] to the same."""
        y = torch.zeros_like(x)
        y[:, 1:].add_(x[:, :-1])
        y.view(-1).mul_(2)
        return y


x = torch.arange(1.0, 7.0).reshape(2, 3)
file = io.BytesIO()
warnings.simplefilter("ignore")
torch.onnx.export(Shifted(), (x,), file, dynamo=False, input_names=["x"])
print("PyTorch:     ", Shifted()(x).tolist())

import onnxruntime  # noqa: E402

session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
given = {each.name: x.numpy() for each in session.get_inputs()}
print("ONNX Runtime:", session.run(None, given)[0].tolist())
