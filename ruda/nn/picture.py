"""A picture of a training run: its curves, and digits that the network got wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEIGHT, EDGE = 640, 240, 40
INK = {"loss": (200, 60, 40), "test_accuracy": (30, 110, 60), "test_loss": (40, 80, 180)}


def draw(
    path: Path, rows: Sequence[dict[str, Any]], wrong: Sequence[tuple[Any, int, int]] = ()
) -> None:
    """Write a PNG of what `metrics.jsonl` holds; `wrong`: (image of 0..1, label, answer)."""
    from PIL import Image, ImageDraw

    names = [n for n in INK if rows and n in rows[0]]
    digits = 130 if wrong else 0
    sheet = Image.new("RGB", (WIDTH, HEIGHT * max(1, len(names)) + digits), "white")
    pen = ImageDraw.Draw(sheet)
    for k, name in enumerate(names):
        curve(pen, k * HEIGHT, name, [(r["step"], r[name]) for r in rows])
    for k, (image, label, answer) in enumerate(wrong[:10]):
        pixels = Image.fromarray((255 - np.asarray(image) * 255).astype(np.uint8))
        left, top = 10 + k * 63, HEIGHT * len(names) + 35
        sheet.paste(pixels.resize((56, 56)), (left, top))
        pen.text((left, top + 60), f"{label}, not {answer}", fill="black")
    if wrong:
        pen.text((10, HEIGHT * len(names) + 10), "digits it got wrong", fill="black")
    sheet.save(path)


def curve(pen: Any, top: int, name: str, points: Sequence[tuple[float, float]]) -> None:
    """One curve over the steps, with its least and greatest value."""
    xs, ys = np.array(points, float).T
    low, high = float(ys.min()), float(ys.max())
    across = (xs - xs[0]) / (np.ptp(xs) or 1) * (WIDTH - 2 * EDGE) + EDGE
    down = top + HEIGHT - EDGE - (ys - low) / ((high - low) or 1) * (HEIGHT - 2 * EDGE)
    box = (EDGE, top + EDGE, WIDTH - EDGE, top + HEIGHT - EDGE)
    pen.rectangle(box, outline=(200, 200, 200))
    at = list(zip(across.tolist(), down.tolist(), strict=True))
    if len(at) > 1:
        pen.line(at, fill=INK[name], width=2)
    for x, y in at:
        pen.ellipse((x - 2, y - 2, x + 2, y + 2), fill=INK[name])
    pen.text((EDGE, top + 10), f"{name}: {ys[-1]:.4f} after step {int(xs[-1])}", fill="black")
    pen.text((4, top + EDGE - 6), f"{high:.3g}", fill="black")
    pen.text((4, top + HEIGHT - EDGE - 6), f"{low:.3g}", fill="black")
