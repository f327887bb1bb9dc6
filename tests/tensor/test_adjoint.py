"""Derivatives of kernels: adjoints against finite differences, and on every device."""

import linecache
import math

import numpy as np
import pytest

import ruda
from ruda.errors import GradientError, KernelTypeError
from ruda.tensor import adjoint

jit = ruda.jit(differentiable=True)

# ---- kernels: each writes `out` from x and y of a few elements -----------------------------------


@jit
def elementwise(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        a = math.sin(x[i]) * y[i]
        b = math.exp(a) + x[i] ** 2
        out[i] = b / (1.0 + a * a)


@jit
def early_return(x, y, out):
    i = ruda.grid(1)
    if i >= out.size:
        return
    if x[i] < 0:
        out[i] = y[i] * y[i]
        return
    out[i] = math.sqrt(x[i]) * y[i]


@jit
def guarded(x, y, out):
    """The arm that is not taken has an infinite derivative."""
    i = ruda.grid(1)
    if i < out.size:
        r = x[i] - x[i]  # zero
        out[i] = (math.sqrt(r) if r > 0 else y[i]) + (x[i] if x[i] > y[i] else 2 * y[i])


@jit
def stencil(x, y, out):
    i = ruda.grid(1)
    if 0 < i < x.size - 1:
        out[i] = (x[i - 1] - 2 * x[i] + x[i + 1]) * y[i]


@jit
def total(x, y, out):
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.add(out, 0, x[i] * y[i])
        ruda.atomic.sub(out, 1, x[i] * x[i])


@jit
def sums_of_a_loop(x, y, out):
    """A loop of any length, since sums need no values of their rounds."""
    i = ruda.grid(1)
    if i < out.size:
        s = 0.0
        for k in range(y.size):
            if k == i:
                continue
            s += x[k] * y[k] * x[i]
        out[i] = s


@jit
def powers(x, y, out):
    """Each round needs the value of the one before."""
    i = ruda.grid(1)
    if i < out.size:
        v = x[i]
        for k in range(4):
            v = v * y[i] + math.sin(v) * k
        out[i] = v


@jit
def nested_backwards(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        v = y[i]
        for j in range(2, -1, -1):
            w = 1.0
            for k in range(1, 6, 2):
                w = w * (v + k * x[j])
            v = v + w * 0.01
        out[i] = v


@jit
def until(x, y, out):
    """A `break`, whose condition depends on what the rounds computed."""
    i = ruda.grid(1)
    if i < out.size:
        v = y[i] * y[i] + 0.1
        for _ in range(10):
            v = v * 1.5
            if v > 4:
                break
            v = v + x[i] * x[i]
        out[i] = v


@jit
def local_arrays(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        a = ruda.local.array(3, x.dtype)
        for k in range(3):
            a[k] = x[k] * y[i]
        for k in range(1, 3):
            a[k] = a[k] * a[k - 1]
            a[0] += a[k]
        out[i] = a[0] + a[2] * a[1]


@ruda.jit(device=True)
def smooth(a, b):
    t = a * b
    if t < 0:
        return t * t
    return math.tanh(t)


@jit
def with_functions(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = smooth(x[i], y[i]) + smooth(y[i], x[i] + 1)


@jit
def accumulating(x, y, out):
    """What was there before goes on into the result."""
    i = ruda.grid(1)
    if i < out.size:
        out[i] = out[i] * x[i] + y[i]


@jit
def twice(x, y, out):
    """The second store is the one that counts."""
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] * 100
        out[i] = x[i] * y[i]


@jit
def every_other(x, y, out):
    i = ruda.grid(1)
    if 2 * i < out.size:
        out[2 * i] = x[i] * y[i]


@jit
def strided_over_the_grid(x, y, out):
    pace = ruda.gridsize(1)
    for i in range(ruda.grid(1), out.size, pace):
        v = math.sin(x[i]) * y[i]
        for k in range(out.size - 1, i, 6 - pace):
            v += x[k] * y[k]
        out[i] = v


@jit
def reassigned(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        v = x[i]
        u = v * v
        v = u * y[i]
        u = v * u + v
        j = i
        w = x[j] * u
        j = out.size - 1 - i
        out[j] = w * y[j]


@jit
def integers(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        n = int(x[i] * 10) % 3
        out[i] = y[i] * n + float(i) * x[i] + ruda.float32(0.5)


KERNELS = (
    elementwise, early_return, guarded, stencil, total, sums_of_a_loop, powers, nested_backwards,
    until, local_arrays, with_functions, accumulating, twice, every_other, reassigned, integers,
    strided_over_the_grid,
)  # fmt: skip


def points(rng, n=5):
    return rng.uniform(0.2, 1.5, n) * np.where(rng.random(n) < 0.3, -1, 1), rng.uniform(0.3, 1.2, n)


def through(kernel):
    """The kernel as a function of tensors, with ops before and after it."""

    def call(x, y):
        out = ruda.sin(x + y)  # elements that the kernel leaves alone depend on both, too
        kernel[2, 4](x * 1.0, y, out)
        return out * out + x

    return call


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_adjoints_are_the_derivatives(kernel, rng):
    ruda.gradcheck(through(kernel), *points(rng))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_adjoints_on_every_device(kernel, rng, device):
    x, y = points(rng)

    def gradients(place, kind):
        a, b = (ruda.asarray(v, dtype=kind, device=place) for v in (x, y))
        loss = lambda a, b: ruda.sum(through(kernel)(a, b))  # noqa: E731
        return [g.numpy() for g in ruda.grad(loss, argnums=(0, 1))(a, b)]

    for found, wanted in zip(
        gradients(device, "float32"), gradients("cpu", "float64"), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


@jit
def image(x, y, out):
    """Two axes, a window whose weights are an array."""
    i, j = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        s = x.dtype.type(0)
        for a in range(y.shape[0]):
            for b in range(y.shape[1]):
                s += x[i + a, j + b] * y[a, b]
        out[i, j] = max(s, 0.1 * s)


def test_a_convolution_of_images(rng, device):
    def convolved(x, y):
        out = ruda.zeros((5, 4), dtype=x.dtype, device=x.device)
        image[(2, 2), (4, 4)](x, y, out)
        return out

    x, y = rng.normal(size=(7, 6)), rng.normal(size=(3, 3))
    ruda.gradcheck(convolved, x, y)
    a = ruda.asarray(x, dtype="float32", device=device).requires_grad_()
    b = ruda.asarray(y, dtype="float32", device=device).requires_grad_()
    ruda.sum(convolved(a, b) ** 2).backward()  # the tape
    wanted = ruda.grad(lambda b: ruda.sum(convolved(ruda.asarray(x), b) ** 2))(ruda.asarray(y))
    np.testing.assert_allclose(b.grad.numpy(), wanted.numpy(), rtol=1e-3, atol=1e-3)


OPERATIONS = (
    "ruda.rsqrt(x)", "ruda.fma(x, x, 2.0)", "ruda.sinpi(x)", "ruda.cospi(x)", "math.degrees(x)",
    "math.radians(x)", "math.fmod(x * 3, x + 0.1)", "(x * 3) % (x + 0.1)", "ruda.fmin(x, 0.5)",
    "max(x, 0.5)", "abs(-x)", "x**2.5", "x**x", "2.0**x", "math.erf(x)", "math.atan2(x, x + 1)",
    "math.hypot(x, 2.0)", "math.floor(x * 3) * x", "math.log1p(x)", "ruda.sigmoid(x)", "x**3",
    "ruda.float64(ruda.float32(1) * 2) * x", "x if x > 0.9 and x < 1.2 else x * x",
    "math.copysign(x, -1.0)", "1 / x", "-x",
)  # fmt: skip


@pytest.mark.parametrize("text", OPERATIONS)
def test_operations(text, rng):
    lines = [
        "def kernel(a, out):", "    i = ruda.grid(1)", "    if i < out.size:", "        x = a[i]",
        f"        out[i] = {text}",
    ]  # fmt: skip
    name = f"<{text}>"
    linecache.cache[name] = (0, None, [f"{line}\n" for line in lines], name)
    space = {"ruda": ruda, "math": math}
    exec(compile("\n".join(lines), name, "exec"), space)
    kernel = jit(space["kernel"])

    def call(x):
        out = ruda.zeros_like(x)
        kernel.forall(out.size)(x, out)
        return out

    ruda.gradcheck(call, rng.uniform(0.6, 1.4, 5))


# ---- what is refused -----------------------------------------------------------------------------


def gradient_of(kernel, *more):
    def loss(x):
        out = ruda.zeros_like(x)
        kernel[1, 8](x, out, *more)
        return ruda.sum(out)

    return ruda.grad(loss)(ruda.ones(4))


@jit
def waits(x, out):
    i = ruda.threadIdx.x
    ruda.syncthreads()
    out[i % 4] = x[i % 4]


@jit
def shares(x, out):
    s = ruda.shared.array(4, ruda.float32)
    s[ruda.threadIdx.x % 4] = x[0]
    out[0] = s[0]


@jit
def goes_on(x, out):
    v = x[0]
    while v < 5:
        v = v * 2
    out[0] = v


@jit
def of_any_length(x, out):
    v = x[0]
    for _ in range(x.size):
        v = v * v
    out[0] = v


@jit
def reads_again(x, out):
    i = ruda.grid(1)
    if i < 4:
        out[i] = x[i]
        out[i] = out[i] * out[i]


@jit
def greatest(x, out):
    i = ruda.grid(1)
    if i < 4:
        ruda.atomic.max(out, 0, x[i])


@jit
def counts(x, out):
    i = ruda.grid(1)
    if i < 4:
        out[i] = ruda.atomic.add(out, 3, x[i])


@jit
def long_loop(x, out):
    v = x[0]
    for _ in range(10000):
        v = v * v
    out[0] = v


REFUSED = [
    (waits, "barriers", "syncthreads"), (shares, "shared memory", "shared.array"),
    (goes_on, "a `while` loop", "while"),
    (of_any_length, "an unknown number of rounds that needs `v`", "for _"),
    (reads_again, "`out` read after it was written", "out[i] * out[i]"),
    (greatest, "an atomic `max`", "atomic.max"), (counts, "old value of an atomic", "atomic.add"),
    (long_loop, "40000 bytes", "for _"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "says", "line"), REFUSED, ids=lambda v: getattr(v, "__name__", "")
)
def test_what_has_no_adjoint_is_refused_at_its_line(kernel, says, line):
    with pytest.raises(KernelTypeError, match=says) as caught:
        gradient_of(kernel)
    assert line in caught.value.text


def test_arguments_that_are_refused():
    x = ruda.ones(5).requires_grad_()
    out = ruda.zeros(5)
    with pytest.raises(GradientError, match="writes `out`, which is where derivatives are taken"):
        elementwise[1, 8](out, out + 1, x)
    with pytest.raises(GradientError, match="is a view"):
        elementwise[1, 8](x, out + 1, ruda.zeros(6)[1:])
    z = x * 1.0
    with pytest.raises(GradientError, match="is another argument too"):
        elementwise[1, 8](z, out + 1, z)


def test_a_kernel_without_derivatives_names_the_option_that_gives_them():
    @ruda.jit
    def plain(x, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = 2 * x[i]

    def of(x):
        out = ruda.zeros(3)
        plain[1, 32](x, out)
        return ruda.sum(out)

    with pytest.raises(GradientError, match=r"write `@ruda.jit\(differentiable=True\)`, or use"):
        ruda.grad(of)(ruda.ones(3))


def test_second_derivatives_are_refused():
    def loss(x):
        out = ruda.zeros_like(x)
        elementwise[1, 8](x, x * 2, out)
        return ruda.sum(out)

    slope = ruda.grad(loss)
    assert slope(ruda.ones(3)).shape == (3,)
    with pytest.raises(GradientError, match="first derivatives only"):
        ruda.grad(lambda x: ruda.sum(slope(x) ** 2))(ruda.ones(3))


def test_a_value_written_after_the_launch_is_noticed():
    x = ruda.ones(3).requires_grad_()
    y = x * 2
    out = ruda.zeros(3)
    elementwise[1, 8](y, x * 1.0, out)
    y += 1
    with pytest.raises(GradientError, match="written in place"):
        ruda.sum(out).backward()


def test_without_derivatives_nothing_is_kept():
    x, out = ruda.ones(5), ruda.zeros(5)
    elementwise[1, 8](x, x, out)
    assert not out.requires_grad
    with ruda.no_grad():
        elementwise[1, 8](ruda.ones(5).requires_grad_(), x, out)
    assert not out.requires_grad


def test_a_loop_of_sums_keeps_nothing():
    """The way back of a sum does not ask for its values, whatever its length."""
    types = sums_of_a_loop.argument_types([np.ones(3, "f4")] * 3)
    function, _ = sums_of_a_loop.translate(types)
    made = adjoint.adjoint(function, ("x", "y", "out"))
    assert made.arrays == ()
