"""A small transformer learns to write as a text does: what `ruda train text` does, in short.

The argument is a UTF-8 file; without one it reads the reference that Python's `help` shows.
"""

import sys

import numpy as np

import ruda
from ruda import nn

LENGTH, SIZE = 64, 64
text = ruda.data.text(sys.argv[1] if len(sys.argv) > 1 else None)
rng = np.random.default_rng(0)


class Writer(nn.Module):
    def __init__(self):
        self.table = nn.Embedding(len(text.characters), SIZE, rng=rng)
        self.positions = nn.PositionalEncoding(SIZE)
        self.body = nn.TransformerEncoder(2, SIZE, 4, inner=256, dropout=0.0, before=True, rng=rng)
        self.last = nn.Linear(SIZE, len(text.characters), rng=rng)

    def forward(self, x):
        seen = nn.causal_mask(x.shape[1])
        return self.last(self.body(self.positions(self.table(x)), mask=seen))


model, steps = Writer(), 300
optimiser = nn.AdamW(model.parameters(), lr=nn.schedules.cosine(3e-3, steps))
for k, (x, y) in enumerate(ruda.data.passages(text.train, LENGTH, 32, steps, rng)):
    loss = nn.cross_entropy(model(x), y)
    loss.backward()
    nn.clip_grad_norm(optimiser.parameters, 1.0)
    optimiser.step()
    optimiser.zero_grad()
    if k % 50 == 49:
        print(f"step {k + 1}: loss {float(loss):.3f}")

numbers = list(text.test[:LENGTH])
with ruda.no_grad():
    for _ in range(200):
        scores = model(ruda.asarray(np.array([numbers[-LENGTH:]])))[0, -1]
        chances = nn.softmax(scores / 0.8).numpy().astype("f8")
        numbers.append(rng.choice(len(chances), p=chances / chances.sum()))
print(text.decode(numbers[LENGTH:]))
