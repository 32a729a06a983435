"""TVM's importer of PyTorch programs reads before a tensor for a select from the end.

apache-tvm 0.27.0.post1: `x[:, -1]` becomes `take` in the mode "fast", which does not look at the
sign of a place. What comes is whatever lies there, often other values in every run. Found by tapml
compare on an LSTM whose last state goes through a linear layer. Needs apache-tvm and torch.
"""

import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program


class Last(torch.nn.Module):
    """The last of three rows; the addition gives them a place of TVM's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1, 3, 2] to [1, 2]."""
        return (x + 1)[:, -1]


x = torch.arange(6.0).reshape(1, 3, 2)
program = torch.export.export(Last(), (x,))
print("PyTorch:", Last()(x).tolist())
machine = relax.VirtualMachine(
    tvm.compile(from_exported_program(program), target="llvm"), tvm.cpu()
)
found = machine["main"](tvm.runtime.tensor(x.numpy()))
print("TVM:", (found if hasattr(found, "numpy") else found[0]).numpy().tolist())
