"""The script of the tests: a small classifier. ``replaced`` puts in the error, as of AC-2665."""

import itertools
import os
import signal
import sys
import time

import torch
from torch import nn


class Net(nn.Module):
    """Convolution, norm, dropout, head."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(4 * 6 * 6, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of images."""
        found = torch.relu(self.norm(self.convolution(images)))
        logits: torch.Tensor = self.head(self.dropout(found.flatten(1)))
        return logits


seed, *errors = sys.argv[1:]
torch.manual_seed(int(seed))
data = torch.utils.data.TensorDataset(torch.randn(96, 1, 8, 8), torch.randint(0, 10, (96,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
if "replaced" in errors:
    model = Net()
criterion = nn.CrossEntropyLoss()
# Whoever checks it may end it, in the middle of its steps.
epochs = 1_000_000 if "for days" in errors else 1
batches = itertools.chain.from_iterable(itertools.repeat(loader, epochs))
for step, (images, labels) in enumerate(batches):
    optimizer.zero_grad()
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
    if "killed" in errors and step == 3:
        # Steps of milliseconds: what writes the trace has its turn.
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)
