"""Views, writes, conversions, protocols and the namespace of tensors."""

import operator
import subprocess
import sys
import threading

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import ruda
from ruda.errors import DTypeError, ShapeError

KEYS = [
    np.s_[1], np.s_[-1], np.s_[:, 2], np.s_[1:, ::2], np.s_[::-1, ::-1], np.s_[..., 0],
    np.s_[None, :, 1], np.s_[1, 2, None], np.s_[:, 3:1], np.s_[5:, :], np.s_[...], np.s_[()],
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_views_read_and_write(key, device, rng):
    a = rng.normal(size=(3, 4)).astype("f4")
    x = ruda.asarray(a, device=device)
    np.testing.assert_array_equal(x[key].numpy(), a[key])
    value = rng.normal(size=a[key].shape).astype("f4")
    a[key] = value
    x[key] = ruda.asarray(value, device=device)
    np.testing.assert_array_equal(x.numpy(), a)
    a[key] = 7
    x[key] = 7
    np.testing.assert_array_equal(x.numpy(), a)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (3, "index 3 is out of bounds for axis 0 with 3 elements"),
        ((0, -5), "index -5 is out of bounds for axis 1 with 4 elements"),
        ((0, 0, 0), "3 indices into a tensor with 2 axes"),
        ("a", "not str"),
        ((..., 0, ...), "at most one"),
    ],
)
def test_wrong_indices(key, text):
    x = ruda.zeros((3, 4))
    with pytest.raises(IndexError, match=text):
        x[key]
    with pytest.raises(IndexError, match=text):
        x[key] = 1


def test_a_write_through_one_view_is_seen_by_all(device):
    x = ruda.zeros((3, 4), device=device)
    row, column, back = x[1], x[:, 2], ruda.flip(x)
    row[2] = 5
    assert column.tolist() == [0, 5, 0] and back[1, 1].item() == 5
    column += 1
    assert x.tolist() == [[0, 0, 1, 0], [0, 0, 6, 0], [0, 0, 1, 0]]


@pytest.mark.parametrize("n", [5, 10_000])
def test_a_copy_of_what_is_not_computed_yet_is_a_copy(n, device):
    x = ruda.exp(ruda.zeros(n, device=device))
    y = ruda.asarray(x, copy=True)
    ruda.realize(x, y)
    y[0] = 7
    assert x[:2].tolist() == [1, 1] and y[:2].tolist() == [7, 1]


def test_values_taken_before_a_write_stay(device):
    x = ruda.asarray([1.0, 2.0], device=device)
    y = x * 2  # not computed yet
    x[0] = 10
    assert y.tolist() == [2, 4] and x.tolist() == [10, 2]
    z = ruda.asarray(x, copy=True)
    x += 1
    assert z.tolist() == [10, 2] and x.tolist() == [11, 3]


def test_a_write_to_one_element_moves_one_element():
    x = ruda.zeros(1000)
    x[0] = 1
    memory = x._storage.node.value
    x[1] = 2
    assert x._storage.node.value is memory


def test_what_numpy_sees_does_not_change():
    x = ruda.asarray([1.0, 2.0])
    seen = np.asarray(x)
    x[0] = 5
    assert seen.tolist() == [1, 2] and x.tolist() == [5, 2]
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 3


def test_shared_numpy_memory():
    a = np.arange(4.0, dtype="f4")
    shared, own = ruda.asarray(a, copy=False), ruda.asarray(a)
    a[0] = 9
    assert shared.tolist()[0] == 9 and own.tolist()[0] == 0
    with pytest.raises(ValueError, match="needs a copy"):
        ruda.asarray(a[::2], copy=False)


@pytest.mark.parametrize("dtype", ["float64", "int32", "float32", "bool", "complex64"])
def test_memory_of_a_device_becomes_a_tensor_where_it_is(dtype, device):
    a = np.arange(6).reshape(2, 3).astype(dtype)
    with ruda.config(device=device):
        x = ruda.to_device(a)
    for memory in (x, x.T, x[:, ::2]):
        found = ruda.asarray(memory)
        wanted = memory.copy_to_host()
        assert found.device == x.device and found.dtype.numpy == a.dtype
        np.testing.assert_array_equal(found.numpy(), wanted)
        found[0, 0] = True
        assert not memory.copy_to_host()[0, 0]  # it was a copy
        there = ruda.asarray(memory, dtype="complex64", device="cpu")
        np.testing.assert_array_equal(there.numpy(), wanted.astype("c8"))
    assert ruda.asarray(x, copy=False).tolist() == a.tolist()
    with pytest.raises(ValueError, match="a copy"):
        ruda.asarray(x.T, copy=False)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, -1), [1, 6], (2, 1, 3)])
def test_reshape(shape, device):
    a = np.arange(6).reshape(3, 2)
    x = ruda.asarray(a, device=device)
    np.testing.assert_array_equal(ruda.reshape(x, shape).numpy(), a.reshape(shape))
    np.testing.assert_array_equal(ruda.reshape(x.T, shape).numpy(), a.T.reshape(shape))
    view = ruda.reshape(x, shape)
    view[...] = 1
    assert ruda.all(x == 1)


def test_shapes_that_do_not_hold_the_elements():
    with pytest.raises(ShapeError, match=r"shape \(6,\) cannot have the shape \(4,\)"):
        ruda.reshape(ruda.zeros(6), 4)
    with pytest.raises(ValueError, match="needs a copy"):
        ruda.reshape(ruda.zeros((2, 3)).T, (6,), copy=False)


def test_boolean_and_integer_arrays_as_indices(rng):
    a = rng.normal(size=(4, 5)).astype("f4")
    x = ruda.asarray(a)
    for key in (a > 0, np.array([2, 0]), ([1, 2], [3, 3]), (slice(None), np.array([0, 4]))):
        np.testing.assert_array_equal(x[key].numpy(), a[key])
    np.testing.assert_array_equal(x[x > 0].numpy(), a[a > 0])
    x[x > 0] = 0
    a[a > 0] = 0
    np.testing.assert_array_equal(x.numpy(), a)


@pytest.mark.parametrize(
    "view",
    [lambda p, m: p.broadcast_to(m[:1, :1], (3, 4)), lambda p, m: m.T, lambda p, m: m[::-1, 1:]],
)
def test_masks_that_are_views(view, device, rng):
    mask = rng.random((3, 4)) < 0.5
    mask[0, 0] = True
    ours, wanted = view(ruda, ruda.asarray(mask, device=device)), view(np, mask)
    for found, expected in zip(ruda.nonzero(ours), np.nonzero(wanted), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)
    x = ruda.zeros(wanted.shape, device=device)
    x[ours] = 1
    np.testing.assert_array_equal(x.numpy(), wanted)


def test_in_place_operators_keep_the_dtype():
    x = ruda.asarray([1, 2], dtype="int32")
    x += 1
    assert x.dtype == ruda.int32 and x.tolist() == [2, 3]
    with pytest.raises(DTypeError, match="float32 does not fit int32"):
        x += 0.5
    with pytest.raises(ShapeError, match="in place"):
        x += ruda.zeros((3, 2), dtype="int32")
    with pytest.raises(DTypeError, match="cannot write float32 into a tensor of int32"):
        x[0] = 1.5


@pytest.mark.parametrize("convert", [bool, int, float, complex, operator.index])
def test_one_element_is_a_python_number(convert):
    assert convert(ruda.asarray(3)) == convert(3)
    with pytest.raises(ShapeError, match="not one number"):
        convert(ruda.asarray([1, 2]))


def test_what_a_float_is_not():
    with pytest.raises(TypeError, match="not an index"):
        operator.index(ruda.asarray(1.0))
    with pytest.raises(TypeError):
        hash(ruda.zeros(1))
    with pytest.raises(TypeError):
        ruda.zeros(2) + "a"


def test_numpy_functions_on_tensors():
    x = ruda.asarray([1.0, 4.0])
    assert isinstance(np.sqrt(x), ruda.Tensor) and np.sqrt(x).tolist() == [1, 2]
    assert (np.ones(2, "f4") + x).tolist() == [2, 5]
    assert (np.float32(2) * x).tolist() == [2, 8]
    for call, says in (
        (
            lambda: np.spacing(x),
            r"`np\.spacing` of ruda tensors: ruda has no function of that name",
        ),
        (lambda: np.add.reduce(x), r"`np\.add\.reduce` of ruda tensors: ruda has no function"),
        (lambda: np.add(x, 1, out=np.ones(2)), r"`np\.add` of .* with out: use ruda\.add, or `np"),
        (lambda: np.add.at(x, [0], 1), r"`np\.add\.at`"),
        (lambda: np.divmod(x, 2), r"`np\.divmod`"),
    ):
        with pytest.raises(TypeError, match=says):
            call()


def test_numpys_arrays_beside_tensors_are_where_those_are(device):
    x = ruda.asarray(np.array([[1.0, 4.0], [2.0, 3.0]], "f4"), device=device)
    a = np.array([[1, 2], [5, 3]], "f4")
    for found, wanted in (
        (a + x, a + x.numpy()),
        (np.maximum(x, a), np.maximum(x.numpy(), a)),
        (a > x, a > x.numpy()),
        (np.matmul(a, x), a @ x.numpy()),
        (a @ x, a @ x.numpy()),
        (x @ a, x.numpy() @ a),
        (np.vecdot(x, a), np.vecdot(x.numpy(), a)),
    ):
        assert isinstance(found, ruda.Tensor) and found.device == x.device
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_elements_are_found(device):
    x = ruda.asarray(np.array([[1, 2], [3, 4]], "i4"), device=device)
    assert 4 in x and 2.0 in x and 5 not in x and np.int32(1) in x


def test_a_shape_may_be_an_array_of_numpys():
    assert (
        ruda.zeros(np.array([2, 3])).shape == (2, 3) == ruda.ones(6).reshape(np.array([2, 3])).shape
    )
    assert ruda.zeros(np.int32(4)).shape == (4,)


def test_empty_lists_are_indices(device):
    x = ruda.asarray(np.arange(6, dtype="f4").reshape(2, 3), device=device)
    assert x[[]].shape == (0, 3) and x[:, []].shape == (2, 0) and x[[], 1].shape == (0,)
    x[[]] = 7
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(IndexError, match="integer"):
        x[np.array([])]


def test_dlpack_both_ways():
    x = ruda.asarray([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(np.from_dlpack(x), x.numpy())
    a = np.arange(12.0).reshape(3, 4)
    for view in (
        a,
        a.T,
        a[::-1, 1:],
        a[1],
        a[:0],
        a[..., None],
        a[::2, ::-2],
        np.broadcast_to(a, a.shape),
    ):
        for module in (ruda, x.__array_namespace__()):
            found = module.from_dlpack(view)
            assert isinstance(found, ruda.Tensor) and found.shape == view.shape
            np.testing.assert_array_equal(found.numpy(), view)
            np.testing.assert_array_equal(
                (found * 2 + ruda.sum(found)).numpy(), view * 2 + view.sum()
            )
            assert not view.size or np.shares_memory(np.asarray(found), a)
        assert not np.shares_memory(np.asarray(ruda.from_dlpack(view, copy=True)), a)


def test_memory_that_dlpack_shares_is_not_written():
    a = np.arange(4.0)
    x = ruda.from_dlpack(a)
    x[1] = 7
    x += 1
    assert a.tolist() == [0, 1, 2, 3] and x.tolist() == [1, 8, 3, 4]
    x = ruda.asarray([1.0, 2.0])
    seen = np.from_dlpack(x)
    x[0] = 5
    assert seen.tolist() == [1, 2] and x.tolist() == [5, 2]
    locked = np.arange(3.0)
    locked.flags.writeable = False
    x = ruda.from_dlpack(locked)
    x[...] = 1
    assert x.tolist() == [1, 1, 1] and locked.tolist() == [0, 1, 2]
    y = ruda.asarray([1.0, 2.0])
    same = ruda.from_dlpack(y)
    assert same is not y and same.tolist() == [1, 2]


def test_dlpack_says_what_it_does_not_share(device):
    a = np.arange(4, dtype=np.float32)
    found = ruda.from_dlpack(a, device=device)
    assert found.device == ruda.asarray(a, device=device).device and found.tolist() == [0, 1, 2, 3]
    if device not in ("cpu", "sim"):
        with pytest.raises(ValueError, match="by a copy"):
            ruda.from_dlpack(a, device=device, copy=False)
        with pytest.raises(ValueError, match="only by a copy"):
            ruda.from_dlpack(ruda.asarray(a), device=device, copy=False)
    with pytest.raises(TypeError, match="neither __dlpack__ nor an array interface"):
        ruda.from_dlpack([1.0])
    odd = np.zeros(3, [("a", "i1"), ("b", "f4")])["b"]  # 5 bytes from one to the next
    assert ruda.from_dlpack(odd).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="by a copy"):
        ruda.from_dlpack(odd, copy=False)

    class OnMetal:
        def __dlpack__(self, **options):
            raise AssertionError("not asked")

        def __dlpack_device__(self):
            return 8, 0

    with pytest.raises(BufferError, match="an array on Metal cannot be used where it is"):
        ruda.from_dlpack(OnMetal())
    half = ruda.ones(3, dtype=ruda.bfloat16)
    again = ruda.from_dlpack(half)
    assert again.dtype is ruda.bfloat16 and again.tolist() == [1, 1, 1]
    assert ruda.tensor.creation.interop.take(half.__dlpack__()).tolist() == [1, 1, 1]


def test_tensors_of_a_gpu_are_exported_where_they_are(device):
    x = ruda.asarray([1.0, 2.0], device=device)
    if device.startswith("wgpu"):
        with pytest.raises(BufferError, match="copy_to_host"):
            x.__dlpack__()
        return
    assert x.__dlpack_device__() == ((2, 0) if device.startswith("cuda") else (1, 0))
    if not device.startswith("ascend"):
        again = ruda.from_dlpack(x[::-1])
        assert again.device == x.device and again.tolist() == [2, 1]


@pytest.mark.parametrize("target", ["sim", "wgpu"])
def test_to_device_and_back(target):
    pytest.importorskip("wgpu") if target == "wgpu" else None
    x = ruda.asarray([1.0, 2.0, 3.0])[::-1]
    there = x.to_device(target)
    assert there.device.partition(":")[0] == target and there.tolist() == [3, 2, 1]
    assert (there * 2).to_device("cpu").device == "cpu"


def test_kernels_take_tensors(device):
    @ruda.jit
    def double(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i] = 2 * x[i]

    x = ruda.asarray([1.0, 2.0, 3.0], device=device)
    before = x + 0
    double[1, 32](x)
    assert x.tolist() == [2, 4, 6] and before.tolist() == [1, 2, 3]
    double[1, 32](x[1:])
    assert (x + 1).tolist() == [3, 9, 13]


def test_ops_inside_kernels(device):
    @ruda.jit
    def run(x, out):
        i = ruda.grid(1)
        if i < x.size:
            out[i] = ruda.where(x[i] > 1, ruda.square(x[i]), ruda.clip(x[i], 0.25, 2)) + ruda.exp(
                ruda.sign(x[i])
            )

    a = np.array([-1, 0, 0.5, 3], "f4")
    out = ruda.zeros(4, device=device)
    run[1, 32](ruda.asarray(a, device=device), out)
    wanted = np.where(a > 1, a * a, np.clip(a, 0.25, 2)) + np.exp(np.sign(a))
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-6)


AXES = [
    lambda p, x: p.flip(x), lambda p, x: p.flip(x, axis=1), lambda p, x: p.roll(x, 2, axis=1),
    lambda p, x: p.roll(x, -1), lambda p, x: p.moveaxis(x, 0, 2),
    lambda p, x: p.concat([x, x], axis=1), lambda p, x: p.stack([x, x], axis=-1),
    lambda p, x: p.expand_dims(x, axis=-1), lambda p, x: p.squeeze(x[:1], axis=0),
    lambda p, x: p.permute_dims(x, (2, 0, 1)), lambda p, x: p.unstack(x)[1],
    lambda p, x: p.tril(x), lambda p, x: p.triu(x, k=1), lambda p, x: p.concat([x, x], axis=None),
    lambda p, x: p.broadcast_to(x[0], (5, 3, 4)), lambda p, x: p.mean(x, axis=1),
    lambda p, x: p.std(x, axis=(0, 2), keepdims=True), lambda p, x: p.var(x, correction=1),
    lambda p, x: p.count_nonzero(x > 0, axis=0), lambda p, x: p.matrix_transpose(x),
]  # fmt: skip


@pytest.mark.parametrize("function", AXES)
def test_axes_and_statistics_match_numpy(function, device, rng):
    a = rng.normal(size=(2, 3, 4)).astype("f4")
    found = function(ruda, ruda.asarray(a, device=device))
    wanted = function(np, a)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert found.shape == wanted.shape


@pytest.mark.parametrize(
    ("made", "dtype", "values"),
    [
        (lambda: ruda.zeros((2, 1)), "float32", [[0], [0]]),
        (lambda: ruda.ones(2, dtype="int8"), "int8", [1, 1]),
        (lambda: ruda.full(2, 7), "int64", [7, 7]),
        (lambda: ruda.full([1], True), "bool", [True]),
        (lambda: ruda.full((), ruda.asarray(2.5)), "float32", 2.5),
        (lambda: ruda.arange(3), "int64", [0, 1, 2]),
        (lambda: ruda.arange(1, 2, 0.5), "float32", [1, 1.5]),
        (lambda: ruda.linspace(0, 1, 3), "float32", [0, 0.5, 1]),
        (lambda: ruda.eye(2, k=1), "float32", [[0, 1], [0, 0]]),
        (lambda: ruda.asarray([1, 2.5]), "float32", [1, 2.5]),
        (lambda: ruda.asarray([True, False]), "bool", [True, False]),
        (lambda: ruda.asarray(1 + 2j), "complex64", 1 + 2j),
        (lambda: ruda.asarray(np.float64(1)), "float64", 1.0),
        (lambda: ruda.zeros_like(ruda.ones(1, dtype="uint8")), "uint8", [0]),
        (lambda: ruda.meshgrid(ruda.arange(2), ruda.arange(3))[1], "int64",
         [[0, 0], [1, 1], [2, 2]]),
    ],
)  # fmt: skip
def test_creation(made, dtype, values):
    found = made()
    assert found.dtype == ruda.dtypes.as_dtype(dtype) and found.tolist() == values


def test_lists_that_are_no_tensor():
    with pytest.raises(ShapeError, match="equal lengths"):
        ruda.asarray([[1, 2], [3]])
    with pytest.raises(DTypeError, match="str does not become"):
        ruda.asarray("abc")


def test_conversions(rng):
    x = ruda.asarray([1.7, -2.5, float("nan"), 3e10])
    assert ruda.astype(x, "int32").tolist() == [1, -2, 0, 2147483647]
    assert ruda.astype(ruda.asarray([300, -1]), "uint8").tolist() == [44, 255]
    with pytest.raises(DTypeError, match=r"take `ruda\.real`"):
        ruda.astype(ruda.asarray(1j), "float32")


def test_the_namespace():
    x = ruda.zeros(1)
    assert x.__array_namespace__() is ruda
    with pytest.raises(ValueError, match="1999"):
        x.__array_namespace__(api_version="1999.1")
    info = ruda.__array_namespace_info__()
    assert "cpu" in info.devices() and info.default_device() == "cpu"
    assert info.default_dtypes()["real floating"] == ruda.float32
    assert set(info.dtypes(kind="integral")) >= {"int8", "uint64"}
    assert ruda.result_type(ruda.int8, ruda.float32, 1.0) == ruda.float32
    assert ruda.can_cast(ruda.int8, ruda.int16) and not ruda.can_cast(ruda.int16, ruda.int8)
    assert ruda.isdtype(ruda.int8, "signed integer") and not ruda.isdtype(ruda.int8, "bool")
    assert ruda.finfo(ruda.float32).eps == np.finfo("f4").eps
    assert ruda.iinfo(ruda.uint8).max == 255


def test_numpy_computes_what_is_not_a_row_yet(rng):
    a = rng.normal(size=(4, 4)).astype("f4")
    x = ruda.asarray(a)
    np.testing.assert_allclose((x @ x).numpy(), a @ a, rtol=1e-5)
    np.testing.assert_array_equal(ruda.sort(x, axis=0, descending=True).numpy(), -np.sort(-a, 0))
    assert ruda.unique_values(ruda.asarray([2, 1, 2])).tolist() == [1, 2]
    assert ruda.argmax(x).item() == a.argmax()


def test_importing_ruda_does_not_import_tensors():
    script = "import sys, ruda; assert 'ruda.tensor' not in sys.modules; ruda.zeros(1)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_kernels_are_compiled_in_the_background(rng):
    from ruda.tensor import execute

    a = rng.normal(size=10_000).astype("f4")
    x = ruda.asarray(a)
    before = len(execute._compiled)
    for _ in range(3):
        found = (ruda.sin(x) * 3 + 0.125).numpy()
        execute.wait()
    assert len(execute._compiled) == before + 1
    np.testing.assert_allclose(found, np.sin(a) * 3 + 0.125, rtol=1e-5, atol=1e-6)


def test_threads_share_tensors(rng):
    a = rng.normal(size=5000).astype("f4")
    x = ruda.asarray(a)
    shared = ruda.exp(x) * 2
    found = []

    def work(k):
        found.append(np.abs((shared + k).numpy() - (np.exp(a) * 2 + k)).max())

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 8 and max(found) < 1e-3


# ---- random programs -----------------------------------------------------------------------------

UNARY = ["negative", "abs", "square", "sin", "floor", "sign"]
BINARY = ["add", "subtract", "multiply", "maximum", "minimum"]


@hypothesis.given(st.data())
def test_random_programs_match_numpy(device, data):
    """Ops, views and writes on a few tensors that share memory, fused and unfused."""
    a = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=(3, 4)).astype("f4")
    numpys, tensors = [a.copy()], [ruda.asarray(a, device=device)]
    fusion = data.draw(st.sampled_from(["0", "1", "verify"]))
    with ruda.config(fusion=fusion):
        for _ in range(data.draw(st.integers(1, 8))):
            k = data.draw(st.integers(0, len(tensors) - 1))
            step = data.draw(st.sampled_from(["unary", "binary", "view", "write", "add", "sum"]))
            x, y = tensors[k], numpys[k]
            match step:
                case "unary":
                    name = data.draw(st.sampled_from(UNARY))
                    tensors.append(getattr(ruda, name)(x))
                    numpys.append(np.asarray(getattr(np, name)(y)))
                case "binary":
                    name = data.draw(st.sampled_from(BINARY))
                    j = data.draw(st.integers(0, len(tensors) - 1))
                    try:
                        wanted = getattr(np, name)(y, numpys[j])
                    except ValueError:
                        continue
                    tensors.append(getattr(ruda, name)(x, tensors[j]))
                    numpys.append(np.asarray(wanted))
                case "view" if y.ndim:
                    key = data.draw(st.sampled_from([0, -1, slice(None, None, -1), slice(1, 3)]))
                    if isinstance(key, int) and not len(y):
                        continue
                    tensors.append(x[key])
                    numpys.append(y[key, ...])  # a view also of one element
                case "write":
                    x[...] = 0.5
                    y[...] = 0.5
                case "add":
                    x += 1
                    y += 1
                case "sum" if y.ndim:
                    tensors.append(ruda.sum(x, axis=0))
                    numpys.append(np.asarray(y.sum(0)))
        for x, y in zip(tensors, numpys, strict=True):
            np.testing.assert_allclose(x.numpy(), y, rtol=1e-4, atol=1e-4)


def test_numbers_of_16_bits_are_shown_as_floats():
    for dtype in ("float16", "bfloat16"):
        shown = repr(ruda.asarray([1.0, 2.5, np.nan], dtype=dtype))
        assert shown == f"Tensor([1. , 2.5, nan], dtype={dtype}, device='cpu')"
