"""Losses: functions of predictions and what they should be.

`reduction` says what becomes of the elements' losses: their "mean", their "sum", or "none".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ruda import tensor as t
from ruda.errors import DTypeError, ShapeError
from ruda.nn.functional import log_softmax, softplus
from ruda.tensor import Tensor, graph, memory


def reduced(each: Tensor, reduction: str) -> Tensor:
    match reduction:
        case "mean":
            return t.mean(each)
        case "sum":
            return t.sum(each)
        case "none":
            return each
    raise ValueError(f"reduction={reduction!r}: mean, sum or none")


# ---- classes -------------------------------------------------------------------------------------


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    weight: Any = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean of -log softmax(logits)[label].

    logits        (..., classes), floats
    labels        (...), integers in 0..classes-1, or (..., classes): a share for each class
    weight        (classes,): how much a class counts; the mean is weighted
    ignore_index  a label that counts nothing

    >>> import ruda
    >>> logits = ruda.asarray([[2.0, 0.0], [0.0, 0.0]])
    >>> ruda.nn.cross_entropy(logits, ruda.asarray([0, 1]))
    Tensor(0.4100376..., dtype=float32, device='cpu')
    """
    if labels.dtype.is_inexact and labels.shape == logits.shape:
        target = labels * (1.0 - label_smoothing) + label_smoothing / logits.shape[-1]
        each = -log_softmax(logits) * target
        loss = t.sum(each if weight is None else each * weight, axis=-1)
        return reduced(loss, reduction)
    return nll_loss(
        log_softmax(logits), labels, weight=weight, label_smoothing=label_smoothing,
        ignore_index=ignore_index, reduction=reduction,
    )  # fmt: skip


def nll_loss(
    log_probabilities: Tensor,
    labels: Tensor,
    *,
    weight: Any = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean of -log_probabilities[label]; the arguments are those of `cross_entropy`."""
    x = log_probabilities
    if not labels.dtype.is_integer:
        raise DTypeError(f"labels are integers, not {labels.dtype}")
    if x.shape[:-1] != labels.shape:
        raise ShapeError(f"logits of shape {x.shape} and labels of {labels.shape}")
    classes = x.shape[-1]
    check_labels(labels, classes, ignore_index)
    numbers = t.arange(classes, dtype=labels.dtype, device=labels.device)
    chosen = t.equal(t.expand_dims(labels, -1), numbers)
    share = t.astype(chosen, x.dtype)
    # What is not chosen is taken out, not multiplied by 0: it may be infinite.
    each = t.where(chosen, -x, 0.0) * (1.0 - label_smoothing)
    if label_smoothing:
        each = each - x * (label_smoothing / classes)
    if weight is not None:
        each, share = each * weight, share * weight
    loss, count = t.sum(each, axis=-1), t.sum(share, axis=-1)
    if ignore_index is not None:
        kept = labels != ignore_index
        loss, count = t.where(kept, loss, 0.0), t.where(kept, count, 0.0)
    if reduction == "mean":
        return t.sum(loss) / t.sum(count)
    return reduced(loss, reduction)


def check_labels(labels: Tensor, classes: int, ignored: int | None) -> None:
    """A label that is no class is an error where the host sees the labels."""
    if memory.on_host(labels.device):
        look_at_labels(labels, classes, ignored)


@graph.step
def look_at_labels(labels: Tensor, classes: int, ignored: int | None) -> None:
    values = labels.buffer()
    wrong = values[((values < 0) | (values >= classes))]
    wrong = wrong if ignored is None else wrong[wrong != ignored]
    if wrong.size:
        raise ValueError(f"label {int(wrong[0])} of {classes} classes (0 to {classes - 1})")


def binary_cross_entropy(
    logits: Tensor, y: Tensor, *, pos_weight: Any = None, reduction: str = "mean"
) -> Tensor:
    """The mean of -log of the probability of y (0 to 1), from logits, without overflow.

    pos_weight  how much the share of y counts, against that of 1 - y
    """
    if pos_weight is None:
        return reduced(softplus(logits) - logits * y, reduction)
    positive = y * pos_weight
    return reduced((positive + (1.0 - y)) * softplus(-logits) + (1.0 - y) * logits, reduction)


def multi_margin_loss(
    scores: Tensor, labels: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """The mean of how much other classes come within `margin` of the label's score."""
    classes = scores.shape[-1]
    check_labels(labels, classes, None)
    numbers = t.arange(classes, dtype=labels.dtype, device=labels.device)
    chosen = t.equal(t.expand_dims(labels, -1), numbers)
    own = t.sum(t.where(chosen, scores, 0.0), axis=-1, keepdims=True)
    over = _hinge(margin - own + scores)
    return reduced(t.sum(t.where(chosen, 0.0, over), axis=-1) / float(classes), reduction)


# ---- numbers -------------------------------------------------------------------------------------


def _away(x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape:
        raise ShapeError(f"a loss of shapes {x.shape} and {y.shape}: make them equal")
    return x - y


def mse_loss(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """The mean of (x - y)**2."""
    return reduced(t.square(_away(x, y)), reduction)


def l1_loss(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """The mean of |x - y|."""
    return reduced(t.abs(_away(x, y)), reduction)


def lp_loss(x: Tensor, y: Tensor, p: float = 2.0, reduction: str = "mean") -> Tensor:
    """The mean of |x - y|**p, p at least 1."""
    if p < 1:
        raise ValueError(f"p is at least 1, not {p}")
    return reduced(t.abs(_away(x, y)) ** p, reduction)


def huber_loss(x: Tensor, y: Tensor, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """The mean of (x - y)**2 / 2 near 0, and of a line beyond delta."""
    away = t.abs(_away(x, y))
    line = delta * (away - 0.5 * delta)
    return reduced(t.where(away <= delta, away * away * 0.5, line), reduction)


def smooth_l1_loss(x: Tensor, y: Tensor, beta: float = 1.0, reduction: str = "mean") -> Tensor:
    """`huber_loss` divided by its delta, beta: |x - y| beyond it."""
    if beta == 0:
        return l1_loss(x, y, reduction)
    return huber_loss(x, y, beta, reduction) / beta


def kl_div(log_p: Tensor, q: Tensor, reduction: str = "batchmean", log_target: bool = False) -> Any:
    """q * (log q - log p): from logarithms of p; `log_target` if q is given as logarithms too.

    "batchmean" is the sum divided by the length of the first axis, as the formula says.
    """
    if log_target:
        each = t.exp(q) * (q - log_p)
    else:
        positive = q > 0
        log_q = t.log(t.where(positive, q, 1.0))
        each = t.where(positive, q * (log_q - log_p), 0.0)
    if reduction == "batchmean":
        return t.sum(each) / float(log_p.shape[0])
    return reduced(each, reduction)


def poisson_nll_loss(
    x: Tensor, y: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-log of the chance of a count y: its expectation is e**x, or x if not `log_input`.

    full  with Stirling's approximation of log(y!) for y above 1
    """
    each = t.exp(x) - y * x if log_input else x - y * t.log(x + eps)
    if full:
        safe = t.where(y > 1, y, 1.0)
        stirling = safe * t.log(safe) - safe + 0.5 * t.log(2 * math.pi * safe)
        each = each + t.where(y > 1, stirling, 0.0)
    return reduced(each, reduction)


def gaussian_nll_loss(
    x: Tensor, y: Tensor, variance: Tensor, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-log of the density of y, normal about x; variances below eps count as it."""
    held = t.where(variance < eps, eps, variance)
    each = 0.5 * (t.log(held) + t.square(x - y) / held)
    return reduced(each + 0.5 * math.log(2 * math.pi) if full else each, reduction)


# ---- distances -----------------------------------------------------------------------------------


def _hinge(x: Tensor) -> Tensor:
    return t.where(x <= 0, 0.0, x)


def cosine_similarity(x: Tensor, y: Tensor, axis: int = -1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis."""
    size = t.sum(x * x, axis=axis) * t.sum(y * y, axis=axis)
    least = eps * eps
    return t.sum(x * y, axis=axis) / t.sqrt(t.where(size < least, least, size))


def pairwise_distance(x: Tensor, y: Tensor, p: float = 2.0, eps: float = 1e-6) -> Tensor:
    """The p-norm of x - y + eps along the last axis."""
    away = t.abs(x - y + eps)
    if p == 2:
        return t.sqrt(t.sum(away * away, axis=-1))
    return t.sum(away**p, axis=-1) ** (1 / p)


def cosine_embedding_loss(
    x: Tensor, y: Tensor, sign: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """1 - cosine where sign is 1; where it is -1, what the cosine is above the margin."""
    cosine = cosine_similarity(x, y)
    return reduced(t.where(sign > 0, 1.0 - cosine, _hinge(cosine - margin)), reduction)


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-6, swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """How much nearer than by `margin` the positive should be than the negative is.

    swap  the negative's distance is the lesser one from anchor and positive
    """
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = t.minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(_hinge(near - far + margin), reduction)


def margin_ranking_loss(
    x: Tensor, y: Tensor, sign: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """What is missing for x to be above y by `margin`, where sign is 1; below where it is -1."""
    return reduced(_hinge((y - x) * sign + margin), reduction)


def hinge_embedding_loss(
    x: Tensor, sign: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """A distance x where sign is 1; where it is -1, what it is below the margin."""
    return reduced(t.where(sign > 0, x, _hinge(margin - x)), reduction)


# ---- sequences -----------------------------------------------------------------------------------

NEVER = -1e30  # the logarithm of 0, finite: differences of it are 0, not NaN


def ctc_loss(
    log_probabilities: Tensor,
    labels: Tensor,
    input_lengths: Any,
    label_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-log of the chance of all alignments of label sequences (Graves et al., 2006).

    log_probabilities  (time, batch, classes), logarithms
    labels             (batch, longest), integers; what lies behind a sequence's length is not read
    input_lengths, label_lengths  (batch,), integers
    reduction          "mean" divides each by its label's length first, as PyTorch does
    zero_infinity      0 instead of infinity where a label does not fit
    """
    x = log_probabilities
    numbers = np.asarray(labels)
    inputs, outputs = np.asarray(input_lengths), np.asarray(label_lengths)
    if x.ndim != 3 or numbers.ndim != 2 or numbers.shape[0] != x.shape[1]:
        raise ShapeError(
            f"`ctc_loss` takes (time, batch, classes) and (batch, longest), not shapes {x.shape} "
            f"and {numbers.shape}"
        )
    time, batch, classes = x.shape
    if inputs.shape != (batch,) or outputs.shape != (batch,):
        raise ShapeError(f"lengths of shapes {inputs.shape} and {outputs.shape} for {batch}")
    if inputs.max(initial=0) > time or outputs.max(initial=0) > numbers.shape[1]:
        raise ValueError("a length is greater than the axis that it is of")
    read = np.arange(numbers.shape[1]) < outputs[:, None]
    wrong = numbers[read & ((numbers < 0) | (numbers >= classes) | (numbers == blank))]
    if wrong.size:
        raise ValueError(f"label {int(wrong[0])} of {classes} classes with blank {blank}")
    # Blanks between the labels, before and behind.
    states = 2 * numbers.shape[1] + 1
    extended = np.full((batch, states), blank)
    extended[:, 1::2] = np.where(read, numbers, blank)
    skips = np.zeros((batch, states), bool)  # whether a state follows the one before the last
    skips[:, 2:] = (extended[:, 2:] != blank) & (extended[:, 2:] != extended[:, :-2])
    chosen = np.zeros((batch, classes, states))
    chosen[np.arange(batch)[:, None], extended, np.arange(states)] = 1
    # The chances of states' labels: a product with 0 and 1, on any device. -inf would be NaN there.
    held = t.where(x < NEVER, NEVER, x)
    rows = t.permute_dims(held, (1, 0, 2)) @ t.asarray(chosen, dtype=x.dtype, device=x.device)
    may_skip = t.asarray(skips, device=x.device)
    first = np.full((batch, states), False)
    first[:, :2] = True
    alpha = t.where(t.asarray(first, device=x.device), rows[:, 0], NEVER)
    edge = t.full((batch, 2), NEVER, dtype=x.dtype, device=x.device)
    for k in range(1, time):
        moved = t.concat([edge, alpha], axis=1)
        one, two = moved[:, 1:-1], t.where(may_skip, moved[:, :-2], NEVER)
        new = t.logaddexp(t.logaddexp(alpha, one), two) + rows[:, k]
        new = t.where(new < NEVER, NEVER, new)
        alive = t.asarray(k < inputs, device=x.device)
        alpha = t.where(t.expand_dims(alive, 1), new, alpha)
    ends = np.zeros((batch, states), bool)
    ends[np.arange(batch), 2 * outputs] = True
    ends[np.arange(batch), np.maximum(2 * outputs - 1, 0)] = True
    final = t.where(t.asarray(ends, device=x.device), alpha, NEVER)
    high = t.max(final, axis=1, keepdims=True).detach()
    loss = -(t.log(t.sum(t.exp(final - high), axis=1)) + high[:, 0])
    never = loss > -0.5 * NEVER
    loss = t.where(never, 0.0 if zero_infinity else math.inf, loss)
    if reduction == "mean":
        counts = t.asarray(np.maximum(outputs, 1), dtype=x.dtype, device=x.device)
        return t.mean(loss / counts)
    return reduced(loss, reduction)
