"""Layers on every device, at their edges, and their derivatives of second order."""

import numpy as np
import pytest
import scipy.signal

import ruda
from ruda import nn
from ruda.errors import DTypeError, ShapeError


def test_convolutions_on_every_device(device, rng):
    x, w = rng.normal(size=(2, 2, 5, 4)).astype("f4"), rng.normal(size=(3, 2, 2, 2)).astype("f4")
    wanted = np.array([
        [sum(scipy.signal.correlate(x[n, c].astype("f8"), w[o, c], "valid") for c in range(2))
         for o in range(3)] for n in range(2)
    ])  # fmt: skip
    a, b = (ruda.asarray(v, device=device).requires_grad_() for v in (x, w))
    out = nn.conv(a, b)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-5, atol=1e-5)
    ruda.sum(out * out).backward()
    twice = 2 * wanted
    full = np.array([
        [sum(scipy.signal.convolve(twice[n, o], w[o, c].astype("f8"), "full") for o in range(3))
         for c in range(2)] for n in range(2)
    ])  # fmt: skip
    np.testing.assert_allclose(a.grad.numpy(), full, rtol=1e-4, atol=1e-4)
    assert b.grad.shape == w.shape
    # Its transpose: <conv(x), y> is <x, conv_transpose(y)>.
    y = rng.normal(size=wanted.shape).astype("f4")
    back = nn.conv_transpose(ruda.asarray(y, device=device), b).numpy().astype("f8")
    assert abs((wanted * y).sum() - (x * back).sum()) < 1e-4 * abs(wanted * y).sum()


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_pooling_on_every_device(device, rng, stride):
    x = rng.permutation(2 * 3 * 6 * 5).reshape(2, 3, 6, 5).astype("f4")
    a = ruda.asarray(x, device=device).requires_grad_()
    out = nn.max_pool(a, 2, stride)
    view = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))[:, :, ::stride, ::stride]
    np.testing.assert_array_equal(out.numpy(), view.max((-2, -1)))
    mean = nn.avg_pool(a.detach(), 2, stride).numpy()
    np.testing.assert_allclose(mean, view.mean((-2, -1)), rtol=1e-5)
    g = rng.integers(1, 5, out.shape).astype("f4")
    ruda.sum(out * ruda.asarray(g, device=device)).backward()
    wanted = np.zeros(x.shape, "f4")
    for where in np.ndindex(*out.shape):
        wanted.ravel()[np.flatnonzero(x.ravel() == out.numpy()[where])] += g[where]
    np.testing.assert_array_equal(a.grad.numpy(), wanted)


def test_pooling_of_equal_elements_nan_and_minus_infinity():
    x = ruda.asarray([[[1.0, 1.0, np.nan, 0.0, -np.inf, -np.inf]]]).requires_grad_()
    out = nn.max_pool(x, 2)
    np.testing.assert_array_equal(out.numpy(), [[[1, np.nan, -np.inf]]])
    ruda.sum(out * ruda.asarray([1.0, 2.0, 3.0])).backward()
    assert x.grad.tolist() == [[[1, 0, 2, 0, 3, 0]]]
    alone = nn.max_pool(x, 1, 2)
    alone.detach()[...] = 0  # of its own memory
    assert x.tolist()[0][0][0] == 1


SECOND = [
    lambda x, w: nn.conv(x, w, stride=2, padding=1, groups=2),
    lambda x, w: nn.conv_transpose(x[:, :, :2, :2], w, stride=2, groups=2),
    lambda x, w: nn.max_pool(x, 2) * w[0, 0, 0, 0],
    lambda x, w: nn.max_pool(x, 3, 1, 1) * w[0, 0, 0, 0],
    lambda x, w: nn.avg_pool(x, 2, 1) * x[:, :, 1:, 1:],
    lambda x, w: nn.BatchNorm(2, affine=False)(x),
    lambda x, w: nn.pad(x, [(1, 0), (2, 1)], mode="reflect") * w[0, 0, 0, 0],
]


@pytest.mark.parametrize("function", SECOND, ids=range(len(SECOND)))
def test_second_derivatives(function, rng):
    x, w = rng.normal(size=(2, 2, 4, 3)), rng.normal(size=(2, 1, 2, 2))
    v = ruda.asarray(rng.normal(size=x.shape))

    def slope(x, w):
        g = ruda.grad(lambda x: ruda.sum(function(ruda.sin(x), w) ** 2))(x)
        return g * v

    ruda.gradcheck(slope, x, w, rtol=1e-3)


def test_batch_norm_keeps_what_it_saw(rng):
    x = rng.normal(size=(8, 3, 4)).astype("f4") * 2 + 1
    layer = nn.BatchNorm(3, momentum=0.5)
    out = layer(ruda.asarray(x)).numpy()
    assert abs(out.mean((0, 2))).max() < 1e-6 and abs(out.std((0, 2)) - 1).max() < 1e-4
    np.testing.assert_allclose(layer.running_mean.numpy(), x.mean((0, 2)) / 2, rtol=1e-5)
    wanted = (x.var((0, 2), ddof=1) + 1) / 2
    np.testing.assert_allclose(layer.running_var.numpy(), wanted, rtol=1e-5)
    assert set(layer.state_dict()) == {"weight", "bias", "running_mean", "running_var"}
    before = layer.state_dict()
    layer.eval()(ruda.asarray(x))
    np.testing.assert_array_equal(layer.running_mean.numpy(), before["running_mean"])
    with pytest.raises(ShapeError, match="two values a channel"):
        layer.train()(ruda.zeros((1, 3)))


def test_embeddings(device, rng):
    layer = nn.Embedding(5, 3, padding=2, rng=rng).to(device)
    table = layer.weight.numpy()
    x = ruda.asarray(np.array([[1, 2, 1], [4, 0, 1]], "i4"), device=device)
    out = layer(x)
    np.testing.assert_array_equal(out.numpy(), table[x.numpy()])
    ruda.sum(out * 2).backward()
    np.testing.assert_array_equal(layer.weight.grad.numpy()[:, 0], [2, 6, 0, 0, 2])
    assert layer(x[:0]).shape == (0, 3, 3)
    with pytest.raises(DTypeError, match="an embedding is of integers"):
        layer(ruda.zeros(2, device=device))


def test_an_index_that_is_no_row():
    with pytest.raises(IndexError, match="index 5 into an embedding of 5 rows"):
        nn.Embedding(5, 3)(ruda.asarray([0, 5]))
    with pytest.raises(ValueError, match="label 3 of 3 classes"):
        nn.cross_entropy(ruda.zeros((2, 3)), ruda.asarray([0, 3]))


def test_attention_looks_where_it_may(device, rng):
    q, k, v = (rng.normal(size=(2, 3, 4)).astype("f4") for _ in range(3))
    a = [ruda.asarray(x, device=device) for x in (q, k, v)]
    mask = nn.causal_mask(3, device)
    out = nn.attention(*a, mask).numpy()
    for b in range(2):
        for i in range(3):
            s = q[b, i].astype("f8") @ k[b, : i + 1].T / 2
            e = np.exp(s - s.max())
            np.testing.assert_allclose(out[b, i], e / e.sum() @ v[b, : i + 1], rtol=1e-5, atol=1e-6)
    nowhere = nn.attention(*a, ruda.zeros((3, 3), dtype="bool", device=device)).numpy()
    assert not nowhere.any()  # zeros, and no NaN


def test_a_padded_sequence_is_the_shorter_one(rng):
    layer = nn.TransformerEncoder(2, 4, 2, inner=8, dropout=0.0, rng=rng)
    x = ruda.asarray(rng.normal(size=(1, 5, 4)).astype("f4"))
    out = layer(x, mask=nn.padding_mask([3], 5)).numpy()[:, :3]
    np.testing.assert_allclose(out, layer(x[:, :3]).numpy(), rtol=1e-5, atol=1e-6)


def test_rotary_products_depend_on_the_distance_alone(rng):
    turn = nn.RotaryEncoding(6)
    q, k = (ruda.asarray(rng.normal(size=(1, 6))) for _ in range(2))
    scores = [float(ruda.sum(turn(q, m) * turn(k, n))) for m, n in ((5, 2), (13, 10), (3, 0))]
    np.testing.assert_allclose(scores, scores[0], rtol=1e-12)
    assert abs(float(ruda.sum(turn(q, 9) ** 2)) - float(ruda.sum(q**2))) < 1e-12


def test_sinusoids_by_their_formula():
    x = nn.PositionalEncoding(6, 10)(ruda.zeros((2, 4, 6))).numpy()
    for p in range(4):
        for i in range(3):
            angle = p / 10_000 ** (2 * i / 6)
            assert abs(x[1, p, 2 * i] - np.sin(angle)) < 1e-6
            assert abs(x[0, p, 2 * i + 1] - np.cos(angle)) < 1e-6


def test_initialisers_have_their_variances(rng):
    shape = (60, 50, 3)
    for found, variance in (
        (nn.init.xavier_uniform(shape, rng), 2 / (110 * 3)),
        (nn.init.xavier_normal(shape, rng), 2 / (110 * 3)),
        (nn.init.kaiming_uniform(shape, rng), 2 / 150),
        (nn.init.kaiming_normal(shape, rng), 2 / 150),
        (nn.init.kaiming_normal(shape, rng, "tanh", fan_out=True), 25 / 9 / 180),
    ):  # fmt: skip
        assert found.dtype == np.float32 and abs(found.var() / variance - 1) < 0.05
    assert abs(nn.init.truncated_normal((10_000,), rng)).max() <= 2
    q = nn.init.orthogonal((4, 3, 5), rng).reshape(4, 15)
    np.testing.assert_allclose(q @ q.T, np.eye(4), atol=1e-6)


def test_random_layers_follow_the_seed():
    net = nn.Sequential(nn.Dropout(0.5), nn.GaussianNoise(1.0))
    x = ruda.ones(50)
    a, b, c = (net.seed(s)(x).numpy() for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


def test_activations_keep_nan_and_infinite_slopes_out():
    x = ruda.asarray([np.nan])
    for f in (nn.relu, nn.relu6, nn.hardtanh, nn.elu, nn.celu, nn.threshold, nn.hard_shrink,
              nn.soft_shrink, nn.thresholded_relu, nn.gelu, nn.silu, nn.softplus):  # fmt: skip
        args = (0.1, 0.0) if f is nn.threshold else ()
        assert np.isnan(f(x, *args).item()), f
    for f in (nn.elu, nn.celu, nn.selu):
        g = ruda.grad(lambda x, f=f: ruda.sum(f(x)))(ruda.asarray([1e4, -1e4]))
        assert np.isfinite(g.numpy()).all()


def test_ctc_of_labels_that_do_not_fit():
    x = nn.log_softmax(ruda.zeros((2, 1, 3))).requires_grad_()
    assert nn.ctc_loss(x, [[1, 1]], [2], [2], reduction="none").tolist() == [np.inf]
    loss = nn.ctc_loss(x, [[1, 1]], [2], [2], zero_infinity=True)
    loss.backward()
    assert loss.item() == 0 and not x.grad.numpy().any()
    with pytest.raises(ValueError, match="label 0 of 3 classes with blank 0"):
        nn.ctc_loss(x, [[0, 1]], [2], [2])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: nn.conv(x, ruda.zeros((4, 3, 2, 2))), "of 2 channels with a weight"),
        (lambda x: nn.conv(x, ruda.zeros((4, 2, 9, 2))), "does not fit into"),
        (lambda x: nn.conv(x, ruda.zeros((4, 2, 2))), "a weight of as many axes"),
        (lambda x: nn.conv(x, ruda.zeros((4, 2, 2, 2)), stride=0), "`stride` is 0"),
        (lambda x: nn.conv(x, ruda.zeros((4, 2, 2, 2)), stride=2, padding="same"), "of stride 1"),
        (lambda x: nn.max_pool(x, 2, padding=2), "more than half of a window"),
        (lambda x: nn.max_pool(x, 9), "does not fit into"),
        (lambda x: nn.avg_pool(x, (2, 2, 2)), "takes 5 axes"),
        (lambda x: nn.pad(x, [(3, 0)], mode="reflect"), "`reflect` padding of"),
        (lambda x: nn.BatchNorm(3)(x), r"takes \(batch, 3, ...\)"),
        (lambda x: nn.GroupNorm(2, 3), "3 channels in 2 groups"),
        (lambda x: nn.LayerNorm(7)(x), "LayerNorm over"),
        (lambda x: nn.GRU(3, 4)(x), "GRU takes"),
        (lambda x: nn.MultiHeadAttention(4, 3), "size of 4 in 3 heads"),
        (lambda x: nn.glu(x), "no two halves"),
        (lambda x: nn.mse_loss(x, x[0]), "a loss of shapes"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(call, text):
    with pytest.raises(ShapeError, match=text):
        call(ruda.zeros((1, 2, 3, 3)))
