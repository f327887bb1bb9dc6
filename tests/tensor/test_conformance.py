"""Every function of the array API standard on generated arguments, against its strict namespace.

`CASES` has a row for each name that the strict namespace has; those of the op table are made from
its rows. A row draws arguments and gives a function of a namespace `p` and of what makes arrays of
it. Shapes, dtypes and values must agree: there is no list of failures that are expected. What
NumPy, and so the strict namespace, gets wrong by the standard's own text is not drawn here but
written down in `test_standard`.
"""

import inspect
import os
import re
import warnings

import array_api_strict as strict
import hypothesis
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import strategies as st

import ruda
from ruda.errors import DeviceError
from ruda.tensor.ops import OPS
from tests.tensor.test_ops import lacks

LONG = os.environ.get("RUDA_LONG_TESTS") == "1"
BOOL, INTS = ("bool",), ("int8", "int16", "int32", "int64")
UINTS, FLOATS, COMPLEX = ("uint8", "uint16", "uint32"), ("float32", "float64"), ("complex64",)
REALS = INTS + UINTS + FLOATS
NUMBERS, ANY = REALS + COMPLEX, BOOL + REALS + COMPLEX
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -2.5, 1e30]
NO_FUNCTIONS = {
    "set_array_api_strict_flags", "get_array_api_strict_flags", "reset_array_api_strict_flags",
    "ArrayAPIStrictFlags", "Device",
}  # fmt: skip


# ---- arguments -----------------------------------------------------------------------------------


def shapes(least=0, most=3, smallest=0):
    return hnp.array_shapes(min_dims=least, max_dims=most, min_side=smallest, max_side=4)


@st.composite
def arrays(draw, dtypes, shape=None, plain=False, low=None, high=None):
    """NumPy's arrays: small numbers and what is special; `plain`: small whole numbers alone."""
    kind = np.dtype(draw(st.sampled_from(dtypes)) if isinstance(dtypes, tuple) else dtypes)
    shape = shapes() if shape is None else shape
    size = shape if isinstance(shape, tuple) else draw(shape)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    if kind.kind == "b":
        return rng.random(size) < 0.5
    least = low if low is not None else 0 if kind.kind == "u" else -9
    a = np.asarray(rng.integers(least, 9 if high is None else high, size, endpoint=True))
    if kind.kind in "iu":
        a = a.astype(kind)
        if not plain and low is None:
            ends = np.array([np.iinfo(kind).min, np.iinfo(kind).max], kind)
            a = np.where(rng.random(size) < 0.1, rng.choice(ends, size), a)
        return np.asarray(a, kind)
    if plain:
        return np.asarray(a + (1j * rng.integers(-3, 4, size) if kind.kind == "c" else 0)).astype(
            kind
        )
    a = a + rng.random(size) - 0.5
    if kind.kind == "c":
        return np.asarray(a + 1j * rng.normal(size=size)).astype(kind)
    if low is None:
        a = np.where(rng.random(size) < 0.3, rng.choice(np.array(SPECIAL), size), a)
    return np.asarray(a, kind)


def axis_of(draw, a, none=True):
    choices = list(range(-a.ndim, a.ndim)) + ([None] if none else [])
    return draw(st.sampled_from(choices))


def axes_of(draw, a):
    if a.ndim == 0:
        return None
    return draw(st.one_of(st.none(), hnp.valid_tuple_axes(a.ndim, min_size=1)))


# ---- rows of the op table ------------------------------------------------------------------------


def taken(name, count):
    """The dtypes that the strict namespace takes for a function of `count` arrays."""
    found = []
    for d in ANY:
        given = [strict.ones((1,), dtype=getattr(strict, d)) for _ in range(count)]
        if name == "where":
            given[0] = strict.ones((1,), dtype=strict.bool)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                getattr(strict, name)(*given)
        except TypeError:
            continue
        found.append(d)
    return tuple(found)


def kinds_beside(dtype, dtypes):
    """Those that are promoted with a dtype by the standard: of its kind."""
    kind = np.dtype(dtype).kind
    with_it = {"i": "iu", "u": "iu", "f": "fc", "c": "fc"}.get(kind, kind)
    return tuple(d for d in dtypes if np.dtype(d).kind in with_it)


def elementwise(name):
    count = len(OPS[name].parameters)
    dtypes = taken(name, count)

    def case(draw):
        whole, *others = draw(
            hnp.mutually_broadcastable_shapes(num_shapes=count, max_dims=3, max_side=4)
        ).input_shapes
        first = draw(st.sampled_from(dtypes))
        limits = {}
        if name in ("pow", "bitwise_left_shift", "bitwise_right_shift"):
            limits = {"low": 0, "high": 6}
        elif name in ("floor_divide", "remainder"):
            limits = {"low": 1, "high": 9}
        given = [draw(arrays(first, whole, **(limits if name == "pow" else {})))]
        if name in ("floor_divide", "remainder"):  # of infinities: the text's cases, not NumPy's
            given = [draw(arrays(first, whole, plain=True))]
        for shape in others:
            given.append(draw(arrays(kinds_beside(first, dtypes), shape, **limits)))
        if name == "where":
            given[0] = draw(arrays(BOOL, whole))
            given[2] = draw(arrays(kinds_beside(given[1].dtype, ANY), others[1]))
        if name == "clip":
            given = [draw(arrays(first, whole)), np.asarray(-2 if first[0] != "u" else 1, first)]
            given.append(np.asarray(5, first))
        exact = {"i": int, "u": int, "f": float, "b": bool}.get(np.dtype(first).kind)
        number = None
        if count == 2 and exact and draw(st.integers(0, 3)) == 0:
            number = exact(draw(st.sampled_from([1, 2, 3])))
        first_is_number = draw(st.booleans())

        def call(p, new):
            x = [new(a) for a in given]
            if number is not None:
                x = [number, x[1]] if first_is_number else [x[0], number]
            return getattr(p, name)(*x)

        return call

    return case


def reduction(name):
    dtypes = taken(name, 1)
    least = 1 if OPS[name].identity is None else 0

    def case(draw):
        a = draw(arrays(dtypes, shapes(smallest=least), plain=name in ("sum", "prod")))
        axis, keep = axes_of(draw, a), draw(st.booleans())
        return lambda p, new: getattr(p, name)(new(a), axis=axis, keepdims=keep)

    return case


# ---- all other functions -------------------------------------------------------------------------


def of_one(name, dtypes=ANY, shape=None, plain=False, **options):
    """A function of an array; an option is a strategy, or a function of `draw` and the array."""

    def case(draw):
        a = draw(arrays(dtypes, shape, plain=plain))
        given = {k: v(draw, a) if callable(v) else draw(v) for k, v in options.items()}
        return lambda p, new: space(p, name)(new(a), **given)

    return case


def space(p, name):
    for part in name.split("."):
        p = getattr(p, part)
    return p


def made(name, *strategies, dtypes=REALS + COMPLEX, given="required"):
    """A function that makes an array of a dtype."""

    def case(draw):
        arguments = [draw(s) for s in strategies]
        dtype = draw(st.sampled_from(dtypes))

        def call(p, new):
            found = getattr(p, name)(*arguments, dtype=getattr(p, dtype), **new.where)
            return found * 0 if name == "empty" and found.size == 0 else found

        return call

    return case


def like(name, *values):
    def case(draw):
        a = draw(arrays(ANY))
        return lambda p, new: getattr(p, name)(new(a), *values)

    return case


def several(name, least=1, same_shape=True, **options):
    def case(draw):
        shape, count = draw(shapes(least=least)), draw(st.integers(1, 3))
        first = draw(st.sampled_from(ANY))
        given = [draw(arrays(kinds_beside(first, ANY), shape)) for _ in range(count)]
        chosen = {k: v(draw, given[0]) for k, v in options.items()}
        return lambda p, new: getattr(p, name)([new(a) for a in given], **chosen)

    return case


def permuted(draw):
    a = draw(arrays(ANY))
    order = tuple(draw(st.permutations(range(a.ndim))))
    negative = draw(st.booleans())
    axes = tuple(k - a.ndim if negative else k for k in order)
    return lambda p, new: p.permute_dims(new(a), axes)


def moved(draw):
    a = draw(arrays(ANY, shapes(least=1)))
    source, target = axis_of(draw, a, False), axis_of(draw, a, False)
    return lambda p, new: p.moveaxis(new(a), source, target)


def squeezed(draw):
    a = draw(arrays(ANY))
    b = np.expand_dims(a, 0)
    return lambda p, new: p.squeeze(new(b), axis=0)


def reshaped(draw):
    a = draw(arrays(ANY))
    shape = draw(st.sampled_from([(-1,), (a.size,), (1, *a.shape), (*a.shape[::-1],)]))
    shape = (a.size,) if a.size == 0 else shape
    return lambda p, new: p.reshape(new(a), shape)


def broadcast(draw):
    a = draw(arrays(ANY))
    shape = draw(st.sampled_from([(), (2,), (3, 1)])) + a.shape
    return lambda p, new: p.broadcast_to(new(a), shape)


def together(draw):
    found = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4))
    given = [draw(arrays(ANY, s)) for s in found.input_shapes]
    return lambda p, new: p.broadcast_arrays(*(new(a) for a in given))


def only_shapes(draw):
    found = draw(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=4))
    return lambda p, new: p.broadcast_shapes(*found.input_shapes)


def rolled(draw):
    a = draw(arrays(ANY))
    axis = axis_of(draw, a)
    shift = draw(st.integers(-5, 5))
    return lambda p, new: p.roll(new(a), shift, axis=axis)


def repeated(draw):
    a = draw(arrays(ANY, shapes(least=1)))
    axis = axis_of(draw, a)
    n = a.size if axis is None else a.shape[axis]
    counts = draw(st.one_of(st.integers(0, 3), arrays(("int64",), (n,), low=0, high=3)))
    one = isinstance(counts, int)
    return lambda p, new: p.repeat(new(a), counts if one else new(counts), axis=axis)


def tiled(draw):
    a = draw(arrays(ANY))
    times = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    return lambda p, new: p.tile(new(a), times)


def indices(draw, n, shape):
    return draw(arrays(("int32", "int64"), shape, low=-n, high=n - 1))


def took(draw):
    a = draw(arrays(ANY, shapes(least=1, smallest=1)))
    axis = axis_of(draw, a, False)
    where = indices(draw, a.shape[axis], (draw(st.integers(0, 5)),))
    return lambda p, new: p.take(new(a), new(where), axis=axis)


def took_along(draw):
    a = draw(arrays(ANY, shapes(least=1, smallest=1)))
    axis = axis_of(draw, a, False)
    shape = list(a.shape)
    shape[axis] = draw(st.integers(1, 5))
    where = indices(draw, a.shape[axis], tuple(shape))
    return lambda p, new: p.take_along_axis(new(a), new(where), axis=axis)


def searched(draw):
    dtype = draw(st.sampled_from(("int32", "float32", "uint8")))
    x = np.sort(draw(arrays(dtype, shapes(least=1, most=1), plain=True)))
    y, side = draw(arrays(dtype, shapes(), plain=True)), draw(st.sampled_from(["left", "right"]))
    return lambda p, new: p.searchsorted(new(x), new(y), side=side)


def among(draw):
    dtype = draw(st.sampled_from(("int32", "int8", "float32", "bool")))
    x, y = (draw(arrays(dtype, plain=True)) for _ in range(2))
    invert = draw(st.booleans())
    return lambda p, new: (  # the strict namespace forgets `invert`, and takes integers alone
        strict.asarray(np.isin(x, y, invert=invert)) if p is strict
        else p.isin(new(x), new(y), invert=invert)
    )  # fmt: skip


def grid(draw):
    dtype = draw(st.sampled_from(NUMBERS))
    given = [draw(arrays(dtype, (n,))) for n in draw(st.lists(st.integers(0, 3), max_size=3))]
    indexing = draw(st.sampled_from(["xy", "ij"]))
    return lambda p, new: p.meshgrid(*(new(a) for a in given), indexing=indexing)


def counted(draw):
    start, stop = draw(st.integers(-5, 5)), draw(st.integers(-9, 9))
    step = draw(st.sampled_from([1, 2, -1, -3]))
    dtype = draw(st.sampled_from(("int32", "int64", "float32", "float64")))
    return lambda p, new: p.arange(start, stop, step, dtype=getattr(p, dtype), **new.where)


def spaced(draw):
    start, stop = draw(st.integers(-5, 5)), draw(st.integers(-9, 9))
    num, endpoint = draw(st.integers(0, 6)), draw(st.booleans())
    return lambda p, new: p.linspace(
        start, stop, num, dtype=p.float32, endpoint=endpoint, **new.where
    )


def converted(draw):
    a = draw(arrays(BOOL + REALS, plain=True, low=0))
    dtype = draw(st.sampled_from(ANY))
    if draw(st.integers(0, 4)) == 0:
        a, dtype = draw(arrays(COMPLEX, plain=True)), draw(st.sampled_from(BOOL + COMPLEX))
    return lambda p, new: (  # the strict namespace has no bools of complex numbers
        p.asarray(a.astype(bool)) if p is strict and a.dtype.kind == "c" and dtype == "bool"
        else p.astype(new(a), getattr(p, dtype))
    )  # fmt: skip


def product(name):
    def case(draw):
        dtype = draw(st.sampled_from(("int32", "float32", "int64", "complex64")))
        n, k, m = (draw(st.integers(1, 4)) for _ in range(3))
        left, right = draw(st.sampled_from([((n, k), (k, m)), ((k,), (k, m)), ((2, n, k), (k,))]))
        if name.endswith("vecdot"):
            left, right = (n, k), (m, 1, k)
        if name.endswith("tensordot"):
            left, right = (n, k), (k, m)
        if name.endswith("outer"):
            left, right = (n,), (m,)
        if name.endswith("cross"):
            left, right = (n, 3), (n, 3)
        x, y = draw(arrays(dtype, left, plain=True)), draw(arrays(dtype, right, plain=True))
        options = {"axes": draw(st.sampled_from([0, 1]))} if name.endswith("tensordot") else {}
        return lambda p, new: space(p, name)(new(x), new(y), **options)

    return case


def matrices(draw, square=True):
    """Well-conditioned, so that results may be compared."""
    n = draw(st.integers(1, 4))
    a = draw(arrays("float32", (draw(st.integers(1, 2)), n, n if square else n + 1), plain=True))
    return a + 30 * np.eye(*a.shape[-2:], dtype="f4")


def symmetric(draw):
    a = matrices(draw)
    return a + np.swapaxes(a, -1, -2)


def factors(name, of=matrices, pick=lambda p, found: found, **options):
    def case(draw):
        a = of(draw)
        given = {k: draw(v) for k, v in options.items()}
        return lambda p, new: pick(p, space(p, name)(new(a), **given))

    return case


def solved(draw):
    a = matrices(draw)
    b = draw(arrays("float32", (*a.shape[:-1], 2), plain=True))
    return lambda p, new: p.linalg.solve(new(a), new(b))


def power(draw):
    a, n = matrices(draw), draw(st.integers(-2, 3))
    return lambda p, new: p.linalg.matrix_power(new(a), n)


def transform(name):
    real = name in ("rfft", "rfftn", "ihfft")

    def case(draw):
        a = draw(
            arrays("float32" if real else "complex64", shapes(least=1, smallest=2), plain=True)
        )
        options = {}
        if name not in ("fftshift", "ifftshift"):
            options["norm"] = draw(st.sampled_from(["backward", "ortho", "forward"]))
        if not name.endswith(("n", "shift")):
            options["axis"] = axis_of(draw, a, False)
            options["n"] = draw(st.sampled_from([None, 2, 5]))
        return lambda p, new: getattr(p.fft, name)(new(a), **options)

    return case


def frequencies(name):
    def case(draw):
        n, d = draw(st.integers(1, 9)), draw(st.sampled_from([1.0, 0.5]))
        return lambda p, new: getattr(p.fft, name)(n, d=d, dtype=p.float32, **new.where)

    return case


def of_dtypes(name):
    def case(draw):
        first, second = draw(st.sampled_from(ANY)), draw(st.sampled_from(ANY))
        second = draw(st.sampled_from(kinds_beside(first, ANY)))
        kind = draw(st.sampled_from(["bool", "integral", "real floating", "numeric"]))

        def call(p, new):
            one, two = getattr(p, first), getattr(p, second)
            match name:
                case "can_cast":
                    return p.can_cast(one, two)
                case "isdtype":
                    return p.isdtype(one, kind), p.isdtype(one, (two, kind))
                case "result_type":
                    return new(np.zeros(1, str(p.result_type(one, two)).rpartition(".")[2]))
            info = getattr(p, name)(p.float32 if name == "finfo" else p.int16)
            if name == "finfo":
                return tuple(float(getattr(info, k)) for k in ("eps", "max", "min")), info.bits
            return info.max, info.min, info.bits

        return call

    return case


def exchanged(draw):
    a = draw(arrays(REALS))
    copy = draw(st.sampled_from([None, True]))
    return lambda p, new: p.from_dlpack(a, copy=copy, **new.where)


def inspected(draw):
    def call(p, new):
        found = p.__array_namespace_info__()
        return sorted(found.capabilities()), isinstance(found.devices(), tuple)

    return call


def unique(name):
    def case(draw):
        a = draw(arrays(("int32", "float32", "bool"), plain=True))

        def call(p, new):
            found = getattr(p, name)(new(a))
            if name == "unique_all":  # any of the equal ones may be the first
                found = found.values, p.take(p.reshape(new(a), (-1,)), found.indices), *found[2:]
            return tuple(found) if isinstance(found, tuple) else found

        return call

    return case


new_axis = {"axis": lambda draw, a: draw(st.integers(-a.ndim - 1, a.ndim))}
whole_axis = {"axis": lambda draw, a: axis_of(draw, a)}
one_axis = {"axis": lambda draw, a: axis_of(draw, a, False)}
statistics = {"axis": axes_of, "keepdims": st.booleans()}
SOME = shapes(smallest=1)
LINES = shapes(least=1)
CASES = {
    "asarray": like("asarray"), "empty_like": lambda draw: (
        lambda p, new: p.zeros_like(p.empty_like(new(np.ones((2, 3), "f4"))))),
    "from_dlpack": exchanged, "zeros_like": like("zeros_like"), "ones_like": like("ones_like"),
    "full_like": like("full_like", 1), "zeros": made("zeros", shapes()),
    "ones": made("ones", shapes()), "full": made("full", shapes(), st.integers(0, 7)),
    "empty": made("empty", st.sampled_from([(0,), (3, 0), (0, 2)])),
    "eye": made("eye", st.integers(0, 4), st.one_of(st.none(), st.integers(0, 4))),
    "arange": counted, "linspace": spaced, "meshgrid": grid,
    "tril": of_one("tril", shape=shapes(least=2), k=st.integers(-2, 2)),
    "triu": of_one("triu", shape=shapes(least=2), k=st.integers(-2, 2)),
    "astype": converted, "broadcast_arrays": together, "broadcast_shapes": only_shapes,
    "broadcast_to": broadcast, "take": took, "take_along_axis": took_along,
    **{n: of_dtypes(n) for n in ("can_cast", "finfo", "iinfo", "isdtype", "result_type")},
    "__array_namespace_info__": inspected,
    **{n: product(n) for n in ("matmul", "tensordot", "vecdot", "linalg.matmul", "linalg.outer",
                               "linalg.tensordot", "linalg.vecdot", "linalg.cross")},
    "matrix_transpose": of_one("matrix_transpose", shape=shapes(least=2)),
    "linalg.matrix_transpose": of_one("linalg.matrix_transpose", shape=shapes(least=2)),
    "concat": several("concat", axis=lambda draw, a: axis_of(draw, a)),
    "stack": several("stack", least=0, **new_axis),
    "expand_dims": of_one("expand_dims", **new_axis),
    "flip": of_one("flip", axis=axes_of), "unstack": of_one("unstack", shape=LINES, **one_axis),
    "moveaxis": moved, "permute_dims": permuted, "squeeze": squeezed, "reshape": reshaped,
    "roll": rolled, "repeat": repeated, "tile": tiled, "searchsorted": searched, "isin": among,
    **{n: of_one(n, REALS, SOME, keepdims=st.booleans(), **whole_axis)
       for n in ("argmax", "argmin")},
    "nonzero": of_one("nonzero", shape=LINES),
    "count_nonzero": of_one("count_nonzero", **statistics),
    **{n: unique(n) for n in ("unique_all", "unique_counts", "unique_inverse", "unique_values")},
    **{n: of_one(n, REALS, LINES, plain=True, descending=st.booleans(), **one_axis)
       for n in ("sort", "argsort")},
    **{n: of_one(n, NUMBERS, shapes(least=1, smallest=1), plain=True, **one_axis,
                 include_initial=st.booleans()) for n in ("cumulative_sum", "cumulative_prod")},
    "diff": of_one("diff", NUMBERS, shapes(least=1, smallest=2), plain=True, n=st.integers(0, 1),
                   **one_axis),
    "mean": of_one("mean", FLOATS + COMPLEX, SOME, plain=True, **statistics),
    **{n: of_one(n, FLOATS, SOME, plain=True, **statistics) for n in ("std", "var")},
    "linalg.cholesky": factors("linalg.cholesky", symmetric, upper=st.booleans()),
    "linalg.det": factors("linalg.det"), "linalg.inv": factors("linalg.inv"),
    "linalg.eigh": factors("linalg.eigh", symmetric, lambda p, f: f.eigenvalues),
    "linalg.eigvalsh": factors("linalg.eigvalsh", symmetric),
    "linalg.diagonal": of_one("linalg.diagonal", shape=shapes(least=2), offset=st.integers(-2, 2)),
    "linalg.trace": of_one("linalg.trace", NUMBERS, shapes(2, 3), True, offset=st.integers(-2, 2)),
    "linalg.matrix_norm": factors("linalg.matrix_norm", keepdims=st.booleans(),
                                  ord=st.sampled_from([1, -1, 2, np.inf, "fro", "nuc"])),
    "linalg.matrix_power": power, "linalg.matrix_rank": factors("linalg.matrix_rank"),
    "linalg.pinv": factors("linalg.pinv"), "linalg.solve": solved,
    "linalg.qr": factors("linalg.qr", pick=lambda p, f: p.abs(f.R)),
    "linalg.slogdet": factors("linalg.slogdet", pick=lambda p, f: (f.sign, f.logabsdet)),
    "linalg.svd": factors("linalg.svd", pick=lambda p, f: f.S),
    "linalg.svdvals": factors("linalg.svdvals"),
    "linalg.vector_norm": of_one("linalg.vector_norm", FLOATS, SOME, True, **statistics,
                                 ord=st.sampled_from([0, 1, 2, 3, np.inf, -np.inf])),
    **{f"fft.{n}": transform(n) for n in ("fft", "ifft", "fftn", "ifftn", "rfft", "irfft", "rfftn",
                                          "irfftn", "hfft", "ihfft", "fftshift", "ifftshift")},
    **{f"fft.{n}": frequencies(n) for n in ("fftfreq", "rfftfreq")},
}  # fmt: skip
MAKERS = {"elementwise": elementwise, "reduce": reduction}
NAMES = [
    *(n for n in strict.__all__ if callable(getattr(strict, n))),
    *(f"linalg.{n}" for n in strict.linalg.__all__), *(f"fft.{n}" for n in strict.fft.__all__),
]  # fmt: skip
NAMES = [n for n in NAMES if not isinstance(space(strict, n), type) and n not in NO_FUNCTIONS]
CASES |= {n: MAKERS[OPS[n].kind](n) for n in NAMES if n in OPS}


# ---- the comparison ------------------------------------------------------------------------------


class New:
    """Makes arrays of one namespace; `where` are the keywords that say so."""

    def __init__(self, p, device):
        self.p, self.where = p, {} if device is None else {"device": device}

    def __call__(self, a):
        return self.p.asarray(a, **self.where)


def is_same_dtype(found, wanted, device):
    """A device without 64-bit integers has sums and indices of 32 bits."""
    narrow = {"int64": "int32", "uint64": "uint32"}
    return found == wanted or (
        str(found) == narrow.get(str(wanted)) and lacks(device, ruda.dtypes.as_dtype(wanted))
    )


def compare(found, wanted, device):
    if isinstance(wanted, tuple | list) or not hasattr(wanted, "__array_namespace__"):
        if isinstance(wanted, tuple) and wanted and hasattr(wanted[0], "__array_namespace__"):
            assert isinstance(found, tuple) and len(found) == len(wanted)
            for mine, theirs in zip(found, wanted, strict=True):
                compare(mine, theirs, device)
            return
        assert found == wanted
        return
    assert isinstance(found, ruda.Tensor) and found.__array_namespace__() is ruda
    ours, theirs = found.numpy(), np.asarray(wanted)
    assert ours.shape == theirs.shape
    assert is_same_dtype(ours.dtype, theirs.dtype, device), f"{ours.dtype}, not {theirs.dtype}"
    if theirs.dtype.kind not in "fc":
        np.testing.assert_array_equal(ours, theirs)
        return
    digits = 2e-4 if theirs.dtype.name in ("float32", "complex64") else 1e-9
    np.testing.assert_allclose(ours, theirs, rtol=digits, atol=digits)


def test_every_function_of_the_standard_has_a_case():
    assert set(NAMES) == set(CASES)


@pytest.mark.parametrize("name", NAMES)
def test_generated_arguments_give_what_the_standard_says(name, device):
    if device.startswith(("wgpu", "ascend-twin")) and not LONG:
        pytest.skip("a minute of compilers: in the long tests; below all rows in a few kernels")

    @hypothesis.settings(max_examples=300 if LONG else 3)
    @hypothesis.given(st.data())
    def run(data):
        call = CASES[name](data.draw)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            wanted = call(strict, New(strict, None))
            try:
                found = call(ruda, New(ruda, device))
                compare(found, wanted, device)
            except DeviceError as error:  # said by name, and true
                dtype = next((d for d in ANY if d in str(error)), None)
                found = re.match(r"`([\w., ]+)`", str(error))
                parts = found[1].split(", ") if found else []  # such as the inverse in a power
                if dtype and not lacks(device, ruda.dtypes.as_dtype(dtype)):
                    assert parts and not any(ruda.supports(p, dtype, device) for p in parts), error
                assert dtype or not ruda.supports(parts[0], "float32", device), error

    run()


ROWS = [n for n in NAMES if n in OPS]
EACH = ("float32", "int32", "bool", "complex64")
KIND = {n: next(d for d in EACH if d in taken(n, len(OPS[n].parameters))) for n in ROWS}
SMALL = ("pow", "floor_divide", "remainder", "bitwise_left_shift", "bitwise_right_shift")


@pytest.mark.parametrize("kind", EACH)
def test_all_rows_of_the_table_in_a_few_kernels(kind, device, rng):
    """Every elementwise function and reduction at one dtype: recorded together, computed together,
    as a kernel each would cost a compiler of a minute."""
    names = [n for n in ROWS if KIND[n] == kind]
    size = (4, 35)
    plain = rng.integers(-9, 10, size).astype(kind)
    x, y = ((rng.normal(size=size) * 3).astype(kind) for _ in range(2))
    if kind == "float32":
        x, y = (np.where(rng.random(size) < 0.2, rng.choice(SPECIAL, size), a).astype(kind)
                for a in (x, y))  # fmt: skip
    least = rng.integers(1, 7, size).astype(kind)

    def call(name, p, new):
        match name:
            case "where":
                return p.where(new(x > 0), new(x), new(y))
            case "clip":
                return p.clip(new(x), -2, 5)
            case "sum" | "prod":
                return getattr(p, name)(new(plain / 4 if kind == "float32" else plain), axis=1)
            case _ if OPS[name].kind == "reduce":
                return getattr(p, name)(new(x), axis=1)
        given = (plain, least) if name in SMALL else (x, y)
        return getattr(p, name)(*(new(a) for a in given[: len(OPS[name].parameters)]))

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        wanted = {n: call(n, strict, New(strict, None)) for n in names}
        held = New(ruda, device)
        known = {}  # a tensor for an array, so that what reads it is one kernel

        def new(a):
            return known.setdefault(a.tobytes() + bytes(a.dtype.char, "ascii"), held(a))

        found = {n: call(n, ruda, new) for n in names}
        ruda.realize(*found.values())
        for n in names:
            try:
                compare(found[n], wanted[n], device)
            except AssertionError as error:
                raise AssertionError(f"{n} on {device}: {error}") from None


def test_functions_have_the_standards_signatures():
    for name in NAMES:
        ours, theirs = space(ruda, name), space(strict, name)
        known = inspect.signature(ours).parameters
        for k, p in enumerate(inspect.signature(theirs).parameters.values()):
            if p.kind is p.POSITIONAL_ONLY:
                assert list(known.values())[k].kind is p.kind, name
            elif p.kind is not p.VAR_POSITIONAL:
                assert p.name in known, f"{name} has no {p.name}"
