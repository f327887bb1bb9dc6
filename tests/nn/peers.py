"""What PyTorch computes too: one row a layer or function, with arrays to run it on.

Where PyTorch is installed the two are compared element by element. Everywhere our results are held
against digests of PyTorch's, which `python -m tests.nn.peers` writes into `peers.json`.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np

import ruda
from ruda import nn

VALUES = Path(__file__).with_name("peers.json")


class Case:
    """`ours` and `theirs` on the same float64 arrays; both give a tensor."""

    def __init__(self, name, ours, theirs, *shapes, low=-2.0, high=2.0):
        self.name, self.ours, self.theirs = name, ours, theirs
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.arrays = [rng.random(s) * (high - low) + low for s in shapes]

    def weights(self, shape):
        return np.random.default_rng(len(shape)).random(shape) - 0.5

    def run_ours(self):
        xs = [ruda.asarray(a).requires_grad_() for a in self.arrays]
        out = self.ours(*xs)
        ruda.sum(out * ruda.asarray(self.weights(out.shape))).backward()
        return [out.numpy(), *(np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in xs)]

    def run_theirs(self):
        import torch

        xs = [torch.tensor(a, requires_grad=True) for a in self.arrays]
        out = self.theirs(torch, *xs)
        (out * torch.tensor(self.weights(tuple(out.shape)))).sum().backward()
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in xs]
        return [out.detach().numpy(), *(g.numpy() for g in grads)]

    def digest(self, results):
        """For each result two sums in which every element counts otherwise."""
        out = []
        for r in results:
            w = np.random.default_rng(7).random(r.shape)
            out += [float((r * w).sum()), float((r * r * (1 - w)).sum())]
        return out


def f(name):
    """A function of torch.nn.functional."""
    return lambda torch, *a, **k: getattr(torch.nn.functional, name)(*a, **k)


def named(name, **options):
    return lambda torch, *a: getattr(torch.nn.functional, name)(*a, **options)


X = (3, 4, 5)
CASES = [
    Case("relu", nn.relu, f("relu"), X),
    Case("relu6", lambda x: nn.relu6(x * 4), lambda torch, x: torch.nn.functional.relu6(x * 4), X),
    Case("leaky_relu", lambda x: nn.leaky_relu(x, 0.2), named("leaky_relu", negative_slope=0.2), X),
    Case("prelu", nn.prelu, f("prelu"), X, (4,)),
    Case(
        "threshold",
        lambda x: nn.threshold(x, 0.3, 7.0),
        named("threshold", threshold=0.3, value=7.0),
        X,
    ),
    Case("hardtanh", nn.hardtanh, f("hardtanh"), X),
    Case("elu", lambda x: nn.elu(x, 1.5), named("elu", alpha=1.5), X),
    Case("celu", lambda x: nn.celu(x, 1.5), named("celu", alpha=1.5), X),
    Case("selu", nn.selu, f("selu"), X),
    Case("gelu", nn.gelu, f("gelu"), X),
    Case("gelu_tanh", lambda x: nn.gelu(x, "tanh"), named("gelu", approximate="tanh"), X),
    Case("silu", nn.silu, f("silu"), X),
    Case("mish", nn.mish, f("mish"), X),
    Case("softplus", lambda x: nn.softplus(x, 2.0), named("softplus", beta=2.0), X),
    Case("log_sigmoid", nn.log_sigmoid, f("logsigmoid"), X),
    Case("softsign", nn.softsign, f("softsign"), X),
    Case("tanhshrink", nn.tanhshrink, f("tanhshrink"), X),
    # PyTorch's own derivatives of these two are rounded to float32.
    Case(
        "hard_sigmoid",
        lambda x: nn.hard_sigmoid(x * 2),
        lambda torch, x: (x / 3 + 0.5).clamp(0, 1),
        X,
    ),
    Case(
        "hard_swish",
        lambda x: nn.hard_swish(x * 2),
        lambda torch, x: torch.nn.functional.hardswish(x * 2),
        X,
    ),
    Case("hard_shrink", nn.hard_shrink, f("hardshrink"), X),
    Case("soft_shrink", nn.soft_shrink, f("softshrink"), X),
    Case("glu", lambda x: nn.glu(x, 1), named("glu", dim=1), X),
    Case("softmax", lambda x: nn.softmax(x, 1), named("softmax", dim=1), X),
    Case("softmin", lambda x: nn.softmin(x, 1), named("softmin", dim=1), X),
    Case("log_softmax", lambda x: nn.log_softmax(x, 1), named("log_softmax", dim=1), X),
    Case(
        "pixel_shuffle",
        lambda x: nn.pixel_shuffle(x, 2),
        named("pixel_shuffle", upscale_factor=2),
        (2, 8, 3, 2),
    ),
    Case(
        "pixel_unshuffle",
        lambda x: nn.pixel_unshuffle(x, 2),
        named("pixel_unshuffle", downscale_factor=2),
        (2, 2, 4, 6),
    ),
    Case("cosine_similarity", nn.cosine_similarity, named("cosine_similarity", dim=-1), X, X),
    Case("pairwise_distance", nn.pairwise_distance, f("pairwise_distance"), (3, 4), (3, 4)),
]
for mode, theirs in (("nearest", "nearest"), ("linear", "bilinear"), ("cubic", "bicubic")):
    for corners in (False, True)[: 1 + (mode != "nearest")]:
        for size in ((7, 3), (2, 9)):
            more = {} if mode == "nearest" else {"align_corners": corners}
            CASES.append(
                Case(
                    f"interpolate {mode} {corners} {size}",
                    lambda x, mode=mode, size=size, c=corners: nn.interpolate(x, size, mode, c),
                    named("interpolate", size=size, mode=theirs, **more),
                    (2, 2, 4, 5),
                )
            )

# ---- convolutions and pooling --------------------------------------------------------------------

SIZES = {1: (9,), 2: (7, 6), 3: (5, 4, 6)}
for axes, options in (
    (1, {}), (1, {"stride": 2, "padding": 2, "dilation": 2}), (2, {"padding": 1}),
    (2, {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 2), "groups": 2}),
    (2, {"groups": 4}), (3, {"stride": 2, "padding": 1}), (3, {"groups": 2, "dilation": (2, 1, 2)}),
    (2, {"padding": "same", "dilation": 2}),
):  # fmt: skip
    g = options.get("groups", 1)
    CASES.append(
        Case(
            f"conv{axes} {options}",
            lambda x, w, b, o=options: nn.conv(x, w, b, **o),
            named(f"conv{axes}d", **options),
            (2, 4, *SIZES[axes]),
            (8, 4 // g, *(2, 3, 2)[:axes]),
            (8,),
        )
    )
    if options.get("padding") == "same":
        continue
    CASES.append(
        Case(
            f"conv_transpose{axes} {options}",
            lambda x, w, b, o=options: nn.conv_transpose(x, w, b, **o),
            named(f"conv_transpose{axes}d", **options),
            (2, 4, *SIZES[axes]),
            (4, 8 // g, *(2, 3, 2)[:axes]),
            (8,),
        )
    )
CASES.append(
    Case(
        "conv_transpose2 output_padding",
        lambda x, w: nn.conv_transpose(x, w, stride=3, output_padding=(2, 1)),
        named("conv_transpose2d", stride=3, output_padding=(2, 1)),
        (1, 2, 3, 2),
        (2, 3, 2, 2),
    )
)
for axes, args in (
    (1, (2,)), (2, (2,)), (3, (2,)), (2, (3, 1, 1)), (2, (3, 2, 1, 1, True)), (1, (2, 1, 0, 3)),
    (2, (2, 3, 1, 1, True)),
):  # fmt: skip
    CASES.append(
        Case(
            f"max_pool{axes} {args}",
            lambda x, a=args: nn.max_pool(x, *a),
            lambda torch, x, a=args, axes=axes: getattr(torch.nn.functional, f"max_pool{axes}d")(
                x, *a
            ),
            (2, 3, *SIZES[axes]),
        )
    )
for axes, args in (
    (1, (2,)), (2, (2,)), (3, (2,)), (2, (3, 1, 1)), (2, (3, 2, 1, True, False)),
    (2, (3, 2, 1, True, True)), (2, (2, 3, 1, True, True)),
):  # fmt: skip
    CASES.append(
        Case(
            f"avg_pool{axes} {args}",
            lambda x, a=args: nn.avg_pool(x, *a),
            lambda torch, x, a=args, axes=axes: getattr(torch.nn.functional, f"avg_pool{axes}d")(
                x, *a
            ),
            (2, 3, *SIZES[axes]),
        )
    )
for axes, size in ((1, 4), (2, (3, 2)), (2, 1), (3, (2, 3, 3))):
    for kind in ("avg", "max"):
        CASES.append(
            Case(
                f"adaptive_{kind}_pool{axes} {size}",
                lambda x, s=size, kind=kind: getattr(nn, f"adaptive_{kind}_pool")(x, s),
                named(f"adaptive_{kind}_pool{axes}d", output_size=size),
                (2, 3, *SIZES[axes]),
            )
        )
for mode, theirs in (("edge", "replicate"), ("reflect", "reflect"), ("wrap", "circular")):
    CASES.append(
        Case(
            f"pad {mode}",
            lambda x, mode=mode: nn.pad(x, [(1, 2), (0, 3)], mode=mode),
            named("pad", pad=(0, 3, 1, 2), mode=theirs),
            (2, 3, 4, 5),
        )
    )

# ---- losses --------------------------------------------------------------------------------------

LABELS = np.array([0, 3, 2, 3, 1, 0])
SIGNS = np.array([1, -1, 1, 1, -1, -1])
PAIRS = [
    ("mse_loss", {}, {}), ("l1_loss", {}, {}), ("huber_loss", {"delta": 0.7}, {}),
    ("smooth_l1_loss", {"beta": 0.5}, {}),
]  # fmt: skip
for name, options, _ in PAIRS:
    for reduction in ("mean", "sum", "none"):
        o = {**options, "reduction": reduction}
        CASES.append(
            Case(
                f"{name} {reduction}",
                lambda x, y, n=name, o=o: getattr(nn, n)(x, y, **o),
                named(name, **o),
                X,
                X,
            )
        )
for k, options in enumerate((
    {}, {"reduction": "none"}, {"label_smoothing": 0.1}, {"ignore_index": 3, "reduction": "sum"},
    {"ignore_index": 0, "label_smoothing": 0.2},
)):  # fmt: skip
    for weighted in (False, True):

        def ours(x, w, o=options, weighted=weighted):
            return nn.cross_entropy(x, ruda.asarray(LABELS), weight=w if weighted else None, **o)

        def theirs(torch, x, w, o=options, weighted=weighted):
            w = w.detach() if weighted else None
            return torch.nn.functional.cross_entropy(x, torch.tensor(LABELS), weight=w, **o)

        CASES.append(
            Case(
                f"cross_entropy {k} {weighted}",
                lambda x, w, ours=ours: ours(x, w.detach()),
                theirs,
                (6, 4),
                (4,),
                low=0.1,
            )
        )


def loss(name, ours, theirs, *shapes, **ranges):
    CASES.append(
        Case(
            name, ours, lambda torch, *a: theirs(torch, torch.nn.functional, *a), *shapes, **ranges
        )
    )


def signs(torch):
    return torch.tensor(SIGNS, dtype=torch.float64)


S = ruda.asarray(SIGNS.astype("f8"))
loss(
    "cross_entropy shares",
    lambda x, y: nn.cross_entropy(x, y, label_smoothing=0.1),
    lambda torch, F, x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    (6, 4),
    (6, 4),
    low=0.1,
)
loss(
    "binary_cross_entropy",
    nn.binary_cross_entropy,
    lambda torch, F, x, y: F.binary_cross_entropy_with_logits(x, y),
    X,
    X,
    low=0.0,
    high=1.0,
)
loss(
    "binary_cross_entropy pos_weight",
    lambda x, y, w: nn.binary_cross_entropy(x, y, pos_weight=w.detach()),
    lambda torch, F, x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w.detach()),
    X,
    X,
    (5,),
    low=0.1,
    high=1.0,
)
loss(
    "multi_margin_loss",
    lambda x: nn.multi_margin_loss(x, ruda.asarray(LABELS)),
    lambda torch, F, x: F.multi_margin_loss(x, torch.tensor(LABELS)),
    (6, 4),
)
loss(
    "kl_div", nn.kl_div, lambda torch, F, x, y: F.kl_div(x, y, reduction="batchmean"), X, X, low=0.1
)
loss(
    "kl_div log",
    lambda x, y: nn.kl_div(x, y, "sum", True),
    lambda torch, F, x, y: F.kl_div(x, y, reduction="sum", log_target=True),
    X,
    X,
)
loss(
    "poisson_nll_loss",
    lambda x: nn.poisson_nll_loss(x, ruda.asarray(np.arange(60).reshape(X) % 5.0), full=True),
    lambda torch, F, x: F.poisson_nll_loss(
        x, torch.arange(60, dtype=torch.float64).reshape(X) % 5, full=True
    ),
    X,
)
loss(
    "poisson_nll_loss plain",
    lambda x: nn.poisson_nll_loss(x, ruda.ones(X, dtype="float64"), log_input=False),
    lambda torch, F, x: F.poisson_nll_loss(x, torch.ones(X, dtype=torch.float64), log_input=False),
    X,
    low=0.1,
)
loss(
    "gaussian_nll_loss",
    lambda x, y, v: nn.gaussian_nll_loss(x, y, v, full=True),
    lambda torch, F, x, y, v: F.gaussian_nll_loss(x, y, v, full=True),
    X,
    X,
    X,
    low=0.1,
)
loss(
    "cosine_embedding_loss",
    lambda x, y: nn.cosine_embedding_loss(x, y, S, 0.1),
    lambda torch, F, x, y: F.cosine_embedding_loss(x, y, signs(torch), 0.1),
    (6, 4),
    (6, 4),
)
loss(
    "triplet_margin_loss",
    lambda a, p, n: nn.triplet_margin_loss(a, p, n, swap=True),
    lambda torch, F, a, p, n: F.triplet_margin_loss(a, p, n, swap=True),
    (6, 4),
    (6, 4),
    (6, 4),
)
loss(
    "margin_ranking_loss",
    lambda x, y: nn.margin_ranking_loss(x, y, S, 0.2),
    lambda torch, F, x, y: F.margin_ranking_loss(x, y, signs(torch), 0.2),
    (6,),
    (6,),
)
loss(
    "hinge_embedding_loss",
    lambda x: nn.hinge_embedding_loss(x, S),
    lambda torch, F, x: F.hinge_embedding_loss(x, signs(torch)),
    (6,),
)
CTC = {
    "labels": np.array([[1, 2, 2], [3, 3, 1], [2, 4, 1]]),
    "inputs": [7, 8, 5],
    "outputs": [3, 2, 3],
}
for reduction in ("mean", "sum", "none"):
    loss(
        f"ctc_loss {reduction}",
        lambda x, r=reduction: nn.ctc_loss(
            nn.log_softmax(x), CTC["labels"], CTC["inputs"], CTC["outputs"], reduction=r
        ),
        lambda torch, F, x, r=reduction: F.ctc_loss(
            F.log_softmax(x, -1),
            torch.tensor(CTC["labels"]),
            torch.tensor(CTC["inputs"]),
            torch.tensor(CTC["outputs"]),
            reduction=r,
        ),
        (8, 3, 5),
    )


# ---- layers with parameters ----------------------------------------------------------------------


def layer(name, ours, theirs, *shapes, call=None, train=True):
    """A layer of both, with the same parameters by name: their gradients are compared too."""

    model = ours()
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    state = {k: rng.random(v.shape) - 0.3 for k, v in model.state_dict().items()}
    keys = list(model.named_parameters())
    count = len(shapes)

    def run_ours(*xs):
        model = ours()
        for full, holder, key, _ in list(model.named_tensors()):
            given = xs[count + keys.index(full)] if full in keys else ruda.asarray(state[full])
            put(holder, key, given)
        model.train(train)
        return model(*xs[:count]) if call is None else call(model, *xs[:count])

    def run_theirs(torch, *xs):
        peer = theirs(torch.nn).double()
        peer.train(train)
        given = {
            k: xs[count + keys.index(k)] if k in keys else torch.tensor(v) for k, v in state.items()
        }
        if call is None:
            return torch.func.functional_call(peer, given, xs[:count])
        return call(lambda *a: torch.func.functional_call(peer, given, a), *xs[:count])

    case = Case(name, run_ours, run_theirs, *shapes)
    case.arrays += [state[k] for k in keys]
    CASES.append(case)


def put(holder, key, value):
    if isinstance(holder, nn.Module):
        setattr(holder, key, value)
    else:
        holder[key] = value


layer("Linear", lambda: nn.Linear(4, 3), lambda t: t.Linear(4, 3), (5, 4))
layer("BatchNorm training", lambda: nn.BatchNorm(4), lambda t: t.BatchNorm2d(4), (3, 4, 2, 3))
layer("BatchNorm use", lambda: nn.BatchNorm(4), lambda t: t.BatchNorm1d(4), (3, 4, 2), train=False)
layer("GroupNorm", lambda: nn.GroupNorm(2, 4), lambda t: t.GroupNorm(2, 4), (3, 4, 2, 3))
layer(
    "InstanceNorm",
    lambda: nn.InstanceNorm(4, affine=True),
    lambda t: t.InstanceNorm2d(4, affine=True),
    (3, 4, 2, 3),
)
layer("LayerNorm", lambda: nn.LayerNorm((4, 5)), lambda t: t.LayerNorm((4, 5)), X)
layer("RMSNorm", lambda: nn.RMSNorm(5), lambda t: t.RMSNorm(5, eps=1e-6), X)
layer(
    "LocalResponseNorm",
    lambda: nn.LocalResponseNorm(3, 0.5),
    lambda t: t.LocalResponseNorm(3, 0.5),
    (2, 5, 3, 2),
)
for kind in ("RNN", "GRU", "LSTM"):
    for both in (False, True):
        layer(
            f"{kind} {both}",
            lambda k=kind, b=both: getattr(nn, k)(3, 4, 2, bidirectional=b),
            lambda t, k=kind, b=both: getattr(t, k)(3, 4, 2, batch_first=True, bidirectional=b),
            (2, 5, 3),
            call=lambda m, x: m(x)[0],
        )
layer(
    "MultiHeadAttention",
    lambda: nn.MultiHeadAttention(6, 2),
    lambda t: t.MultiheadAttention(6, 2, batch_first=True),
    (2, 4, 6),
    (2, 3, 6),
    (2, 3, 6),
    call=lambda m, q, k, v: m(q, k, v) if isinstance(m, nn.Module) else m(q, k, v)[0],
)
for before in (False, True):
    layer(
        f"TransformerEncoderLayer {before}",
        lambda b=before: nn.TransformerEncoderLayer(6, 2, 8, 0.0, before=b),
        lambda t, b=before: t.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True, norm_first=b),
        (2, 4, 6),
    )
    layer(
        f"TransformerDecoderLayer {before}",
        lambda b=before: nn.TransformerDecoderLayer(6, 2, 8, 0.0, before=b),
        lambda t, b=before: t.TransformerDecoderLayer(6, 2, 8, 0.0, batch_first=True, norm_first=b),
        (2, 4, 6),
        (2, 3, 6),
    )


def main():
    import torch

    values = {c.name: c.digest(c.run_theirs()) for c in CASES}
    VALUES.write_text(
        json.dumps({"from": f"torch {torch.__version__}", "values": values}, indent=0)
    )


if __name__ == "__main__":
    main()
