"""Train the zoo's digits-cnn on scikit-learn's digits, and write its folder.

    pip install scikit-learn
    python scripts/train_digits.py            tapml/models/zoo/digits-cnn

1,797 images of 8 x 8 pixels; the last 360 are held out. The seed is fixed, the work is seconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tapml.models.digits_cnn import DigitsCnn

FOLDER = Path(__file__).resolve().parent.parent / "tapml/models/zoo/digits-cnn"
HELD_OUT, BATCH, EPOCHS, SAMPLES = 360, 8, 40, 4
CONFIG = {
    "architectures": ["DigitsCnn"],
    "side": 8,
    "channels": [8, 16],
    "classes": 10,
    "labels": [str(digit) for digit in range(10)],
}


def main() -> None:
    """Train, print the accuracy, write the folder."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    model = DigitsCnn(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images) - HELD_OUT).split(64):  # type: ignore[no-untyped-call]
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = model(images[-HELD_OUT:]).argmax(dim=1) == labels[-HELD_OUT:]
    print(f"{right.float().mean():.1%} of {HELD_OUT} held-out images are right")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    save_file(dict(model.state_dict()), FOLDER / "model.safetensors", metadata={"format": "pt"})
    chosen = images[-SAMPLES * BATCH :].reshape(SAMPLES, BATCH, 1, 8, 8).contiguous()
    right_ones = labels[-SAMPLES * BATCH :].reshape(SAMPLES, BATCH).to(torch.int32).contiguous()
    save_file({"x": chosen, "y": right_ones}, FOLDER / "samples.safetensors")


if __name__ == "__main__":
    main()
