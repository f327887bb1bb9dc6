"""A small op's launch in native code is the one that Python would make, also in odd cases.

`fresh` is on where these tests look at it: `test_it_is_used` fails where it silently is not.
"""

import collections
import ctypes
import gc
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import ruda
from ruda.backends import base
from ruda.backends import pool as pools
from ruda.backends.cuda import driver
from ruda.backends.cuda import quick as native
from ruda.backends.cuda.launch import kind_of, layout
from ruda.errors import DeviceError, OutOfMemoryError
from ruda.tensor import execute, plan, quick
from ruda.tensor.primitives import run as primitives
from tests.backends.cuda.fake import Code, array, values

pytest.importorskip("llvmlite.binding")
N = 100


@pytest.fixture(autouse=True)
def letters(fake, monkeypatch):
    """The layout of parameters of each kernel that has native launches, by its handle."""
    quick.install()
    if native.natives() is None:
        pytest.skip("the layout of objects is not known")
    found = {}
    make = native.fresh

    def noted(module, *rest):
        text = layout(module.metadata["parameters"])[0]
        found[module.function] = [c for c in text if c.isalpha() and c != "x"]
        return make(module, *rest)

    monkeypatch.setattr(native, "fresh", noted)
    with ruda.config(device="cuda:0"):
        yield found


def tensors(*numbers, dtype=np.float32, n=N):
    return [ruda.asarray(np.full(n, k, dtype)) for k in numbers]


def by_python(make):
    """A result without native code, of a kind that it is there for."""
    kept = execute._alone[1]
    execute._alone[1] = {k: v and v._replace(fresh=None) for k, v in kept.items()}
    try:
        return make().buffer()
    finally:
        execute._alone[1] = kept


def warm(make, times=2):
    for _ in range(times):
        out = make().buffer()
    return out


def known():
    return [v for v in execute._alone[1].values() if v is not None]


def test_it_is_used(fake):
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    (entry,) = known()
    assert type(entry.fresh).__name__ == "builtin_function_or_method"
    assert type(execute.read).__name__ == "builtin_function_or_method"
    fake.launches.clear()
    called = []
    python = execute.alone
    execute.alone = lambda n: called.append(n) or python(n)
    try:
        out = (a + b).buffer()
    finally:
        execute.alone = python
    assert not called and len(fake.launches) == 1 and out.shape == (N,)


OPS = {
    "a + b": lambda a, b: a + b,
    "b - a": lambda a, b: b - a,
    "a * 1.5": lambda a, b: a * 1.5,
    "1.5 - a": lambda a, b: 1.5 - a,
    "a * 3": lambda a, b: a * 3,
    "-a": lambda a, b: -a,
    "a < b": lambda a, b: a < b,
    "exp(a)": lambda a, b: ruda.exp(a),
    "a * 1e300": lambda a, b: a * 1e300,  # no float32 has that
    "a * nan": lambda a, b: a * float("nan"),
    "a * 2**40 + 1": lambda a, b: a * ((1 << 40) + 1),  # which float32 rounds
    "a * 0.1": lambda a, b: a * 0.1,
    "a * -0.0": lambda a, b: a * -0.0,
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in OPS for dtype in (np.float32, np.float64)]
    + [(name, np.int32) for name in ("a + b", "b - a", "-a", "a < b", "a * 3")],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_it_packs_what_python_packs(fake, letters, name, dtype):
    a, b = tensors(2, 3, dtype=dtype)

    def make():
        return OPS[name](a, b)

    warm(make)
    packed = []

    class Everything(dict):
        def get(self, key, default=None):
            form = letters.get(key)
            return lambda at: packed.append([repr(v) for v in values(at, form)])

    fake.kernels = Everything()
    fake.launches.clear()
    natively = described(make().buffer())
    python = described(by_python(make))  # in the memory that was free last
    assert natively == python
    assert packed[0] == packed[1] and len(packed) == 2
    assert fake.launches[0] == fake.launches[1]


def described(out):
    """All that an array is made of."""
    storage = out.storage
    (seen,) = storage.arrays
    return [
        seen() is out, out.pointer, out.shape, out.dtype, out.strides, out.offset, out._backend,
        out.__ruda_device__, out.__ruda_array_type__, kind_of(out), storage.device, storage.nbytes,
        storage.on_host, storage.readonly, storage.address, storage.owner.size,
        storage.owner.queues, storage.owner.address,
    ]  # fmt: skip


def test_many_kinds_in_turn(fake, letters):
    """Kinds that push each other out of what is kept of the last ones."""
    sources = [tensors(2, 3, n=n) for n in range(20, 60)]
    ops = [lambda a, b: a + b, lambda a, b: a * b, lambda a, b: -a, lambda a, b: a - 1.0]
    made = [(op, *s) for s in sources for op in ops]
    for op, a, b in made * 2:
        op(a, b).buffer()
    python = execute.alone
    execute.alone = lambda n: pytest.fail("by Python")
    try:
        for op, a, b in made:
            fake.launches.clear()
            out = op(a, b).buffer()
            assert out.shape == a.shape and len(fake.launches) == 1
            assert fake.launches[0]["code"] and out.dtype == np.float32
    finally:
        execute.alone = python


def test_buffers_of_views_and_of_traced_functions(fake):
    """What `Tensor.buffer` leaves to Python: views, and what a trace takes down."""
    assert type(ruda.Tensor.buffer).__name__ == "method_descriptor"
    assert "memory" in ruda.Tensor.buffer.__doc__
    a, b = tensors(2, 3)
    whole = warm(lambda: a + b)
    part = (a + b)[10:20].buffer()
    assert part.shape == (10,) and whole.shape == (N,)
    assert a[::2].buffer().strides == (8,)

    @ruda.compile
    def several(x, y):
        z = x + y
        return z * ruda.sum(z)

    for _ in range(3):
        assert several(a, b).buffer().shape == (N,)


def computing(fake, letters):
    """Make the fake driver add."""

    class Everything(dict):
        def get(self, key, default=None):
            def action(at):
                out, n, x, y, *_ = values(at, letters[key])
                sources = [array(v, np.float32, n) for v in (x, y)]
                array(out, np.float32, n)[:] = sources[0] + sources[1]

            return action

    fake.kernels = Everything()


def test_threads_have_memory_and_parameters_of_their_own(fake, letters):
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    computing(fake, letters)
    wrong, settings = [], ruda.settings.settings.local.get()

    def work(number):
        ruda.settings.settings.local.set(settings)
        own = ruda.asarray(np.full(N, number, np.float32))
        before = own
        for k in range(1, 200):
            after = before + a
            if not np.all(array(after.buffer().pointer, np.float32, N) == number + 2 * k):
                wrong.append(number)
            before = after

    threads = [threading.Thread(target=work, args=(1000 * k,)) for k in range(6)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    counts = driver.gpu("cuda:0").pool.statistics()
    del threads
    gc.collect()
    assert counts["in_use"] % 512 == 0 and counts["cached"] >= 0


def line_with(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return 1 + next(k for k, line in enumerate(lines) if line.endswith(text))


def test_a_refused_launch_raises_at_once_and_keeps_nothing(fake):
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    gpu = driver.gpu("cuda:0")
    held = gpu.pool.in_use
    fake.codes["cuLaunchKernel"] = [Code.CUDA_ERROR_INVALID_VALUE]
    with pytest.raises(DeviceError, match=r"INVALID_VALUE.*at the launch of `") as error:
        (a + b).buffer()  # refused
    where = f"launched at {__file__}, line {line_with('# refused')}"
    assert any(where in note for note in error.value.__notes__)
    del error
    assert gpu.pool.in_use == held
    assert (a + b).buffer().shape == (N,)  # and the lock is free


def test_a_late_error_names_the_user_s_line(fake):
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    driver.gpu("cuda:0").recent.clear()
    (a + b).buffer()  # late
    fake.codes["cuCtxSynchronize"] = [Code.CUDA_ERROR_ILLEGAL_ADDRESS]
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS") as error:
        ruda.synchronize()
    (note, *_) = error.value.__notes__
    assert f"launched at {__file__}, line {line_with('# late')}" in note


def test_the_user_s_line_is_found_behind_what_reads(fake):
    """Also where functions of this package stand between."""
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    gpu = driver.gpu("cuda:0")
    gpu.recent.clear()
    np.asarray(a + b)  # by NumPy
    ((_, code, _),) = gpu.recent
    assert code.co_filename == __file__


@pytest.mark.parametrize("natively", [True, False])
def test_the_user_s_line_is_noted_for_chains_and_primitives(fake, natively):
    """Launches of plans come from deep inside of this package."""

    @ruda.jit
    def double(x, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = 2 * x[i]

    a, b = tensors(2, 3)
    warm(lambda: a + b)
    gpu = driver.gpu("cuda:0")
    assert "note" in vars(gpu)
    if not natively:
        del gpu.note

    def chain():
        ((a + b) * a - b).buffer()  # a chain

    def total():
        ruda.sum(a * b).buffer()  # a sum

    def primitive():
        primitives.launch("double", "cuda:0", double, 1, 128, a.buffer(), b.buffer())  # a launch

    for run, comment in ((chain, "# a chain"), (total, "# a sum"), (primitive, "# a launch")):
        for _ in range(3):
            run()
        gpu.recent.clear()
        run()
        places = {base.Asked(*row).place for row in gpu.recent}
        assert places == {f"{__file__}, line {line_with(comment)}"}


@pytest.mark.parametrize("code", [Code.CUDA_ERROR_INVALID_CONTEXT, Code.CUDA_ERROR_INVALID_HANDLE])
def test_a_new_thread_gets_the_context(fake, code):
    """Also one that has another GPU's."""
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    fake.codes["cuLaunchKernel"] = [code]
    fake.calls.clear()
    out = (a + b).buffer()
    assert fake.calls == ["cuLaunchKernel", "cuCtxSetCurrent", "cuLaunchKernel"]
    assert len(fake.launches) > 0 and out.shape == (N,)


def test_a_lost_device_says_so(fake):
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    fake.broken = True
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        (a + b).buffer()
    with pytest.raises(DeviceError, match="is lost"):
        (a + b).buffer()


def test_freed_memory_is_refused(fake):
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    b.buffer().free()
    fake.launches.clear()
    with pytest.raises(DeviceError, match="freed"):
        (a + b).buffer()
    assert not fake.launches


def test_a_result_can_be_freed(fake):
    a, b = tensors(2, 3)
    out = warm(lambda: a + b)
    held = driver.gpu("cuda:0").pool.in_use
    view = out[10:]
    out.free()
    assert driver.gpu("cuda:0").pool.in_use == held - 512
    for freed in (out, view):
        with pytest.raises(DeviceError, match="freed"):
            freed.copy_to_host()


def test_profiles_see_it(fake):
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    with ruda.profile() as p:
        (a + b).buffer()
        (a + b).buffer()
    assert [row.calls for row in p.rows()] == [2]


def test_memory_of_another_stream_is_not_taken_too_early(fake):
    """A block that a stream still uses waits; natively as in Python."""
    a, b = tensors(2, 3)
    out = warm(lambda: a + b)
    gpu = driver.gpu("cuda:0")
    gpu.note_use(out.storage.owner, 7)
    address = out.pointer
    del out
    assert [w[0] for w in gpu.pool.waiting] == [address]
    fake.codes["cuEventQuery"] = [Code.CUDA_ERROR_NOT_READY]
    free = (a + b).buffer()
    assert free.pointer != address
    late = (a + b).buffer()  # by now the stream is done
    assert late.pointer == address and not gpu.pool.waiting


def test_counts_are_those_of_python(fake):
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    pool = driver.gpu("cuda:0").pool

    def counted(make):
        before = pool.statistics()
        outs = [make() for _ in range(3)]
        del outs[0]
        outs += [make(), make()]
        middle = pool.statistics()
        outs.clear()
        after = pool.statistics()
        return [{k: s[k] - before[k] for k in s} for s in (middle, after)]

    counted(lambda: (a + b).buffer())
    natively = counted(lambda: (a + b).buffer())
    python = counted(lambda: by_python(lambda: a + b))
    assert natively == python and natively[0]["reused"] == 5 and natively[0]["in_use"] == 4 * 512


def test_running_out_of_memory(fake):
    a, b = tensors(2, 3, n=5000)
    warm(lambda: a + b)
    fake.memory = fake.used
    held = [(a + b).buffer()]
    with pytest.raises(OutOfMemoryError, match="has no memory left: 20,000 bytes"):
        for _ in range(3):
            held.append((a + b).buffer())
    held.clear()
    assert (a + b).buffer().shape == (5000,)


def test_a_limit_of_memory_holds(fake):
    a, b = tensors(2, 3, n=5000)
    warm(lambda: a + b)
    with ruda.config(memory_limit=driver.gpu("cuda:0").pool.in_use + 25_000):
        warm(lambda: a + b)
        held = [(a + b).buffer()]
        with pytest.raises(OutOfMemoryError, match="memory_limit"):
            for _ in range(5):
                held.append((a + b).buffer())


def test_each_gpu_launches_its_own(fake):
    fake.devices = 2
    driver.gpus.cache_clear()
    outs = []
    for name in ("cuda:0", "cuda:1"):
        a, b = (ruda.asarray(np.ones(N, np.float32), device=name) for _ in "12")
        outs.append(warm(lambda a=a, b=b: a + b))
        assert outs[-1].device == name and outs[-1].__ruda_device__ == name
        gpu = driver.gpu(name)
        assert outs[-1].storage.owner.pool is gpu.pool and len(gpu.recent) > 0
    assert len(known()) == 2
    with pytest.raises(DeviceError, match="cuda:0 and cuda:1"):
        ruda.asarray(np.ones(N, np.float32), device="cuda:0") + a


def test_settings_are_looked_at(fake):
    """Another setting, another kernel: nothing of before is launched."""
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    codes = []
    for options in ({}, {"fusion": "0"}, {"deterministic": True}):
        with ruda.config(**options):
            fake.launches.clear()
            warm(lambda: a * b)
            codes.append((len(fake.launches), len(known())))
    assert codes[0][1] >= 1 and codes[1] == (2, 0) and codes[2] == (2, 1)


@pytest.mark.parametrize(("own", "flag"), [("", 1), ("0", 1), ("1", 2)])
def test_the_default_stream_is_that_of_cuda_bindings(fake, monkeypatch, own, flag):
    monkeypatch.setenv("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", own)
    native.address_of_launch.cache_clear()
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    assert fake.flags == flag


def test_a_driver_that_does_not_tell_leaves_it_to_python(fake, monkeypatch):
    monkeypatch.setattr(native, "address_of_launch", lambda driver: 0)
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    assert [v.fresh for v in known()] == [None]
    assert (a + b).buffer().shape == (N,)


def test_nothing_leaks(fake):
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    counted = [None, 0, (), ruda.float32, a.shape, driver.gpu("cuda:0").pool, native, a.buffer()]
    gc.collect()

    def counts():
        fake.launches.clear()
        gc.collect()
        objects = collections.Counter(type(o).__name__ for o in gc.get_objects())
        few = {k: objects[k] for k in ("DeviceArray", "Storage", "Block", "Node", "tuple", "frame")}
        return few, [sys.getrefcount(v) for v in counted]

    for _ in range(100):
        (a + b).buffer()
    objects, references = counts()
    for _ in range(5000):
        (a + b).buffer()
    more, others = counts()
    assert all(abs(more[k] - objects[k]) < 20 for k in objects), (objects, more)
    grown = [q - p for p, q in zip(references, others, strict=True)]
    assert max(map(abs, grown)) < 100, grown


def test_a_result_dies_with_its_last_reference(fake):
    a, b = tensors(2, 3)
    out = warm(lambda: a + b)
    seen, block = weakref.ref(out), weakref.ref(out.storage.owner)
    part = out[5:]
    del out
    assert seen() is None and block() is not None
    del part
    assert block() is None


def test_results_go_on_in_kernels_and_views(fake):
    """What it returns is as good as any device array."""

    @ruda.jit
    def double(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i] = 2 * x[i]

    a, b = tensors(2, 3)
    out = warm(lambda: a + b)
    for _ in range(3):
        double[1, 32](out)
        double[1, 32](out[1:])
    assert out.copy_to_host().shape == (N,)
    copy = ruda.asarray(out)
    assert copy.shape == (N,)


def test_a_block_that_was_never_made_dies_in_peace():
    block = object.__new__(pools.Block)
    del block
    gc.collect()


def test_two_threads_may_load_it_at_once(fake):
    """What native code leaves to Python stays Python's."""
    pythons = native.GIVE_BACK, quick.BUFFER, quick.READ, quick.ARRAY
    assert {type(f).__name__ for f in pythons} == {"function"}
    native.natives.__wrapped__()  # once more, as if another thread was there first
    quick._install.__wrapped__()
    block = pools.Pool("far:0", lambda nbytes: 1, keep=1).allocate(600)
    pool = block.pool
    del block  # by Python, as the pool keeps little
    assert pool.statistics()["in_use"] == 0
    a, b = tensors(2, 3)
    assert (a + b)[3:].buffer().shape == np.asarray((a + b)[3:], dtype=np.float64).shape
    assert warm(lambda: a + b, 3).shape == (N,)


def test_python_loads_it_after_many_ops(fake, monkeypatch):
    """Where cubins came from the disk nothing has loaded LLVM: native code comes when it pays."""
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    asked = []
    monkeypatch.setattr(plan, "install", lambda load=False: asked.append(load))
    execute._alone[2] = execute.OFTEN - 2
    for _ in range(4):
        by_python(lambda: a + b)
    assert asked == [True]


def test_a_finalizer_may_read_while_an_op_is_looked_up(fake):
    """Python 3.11 runs the collector where the key is made: what is kept is replaced twice."""
    a, b = tensors(2, 3)
    warm(lambda: a + b)
    kept = execute._alone[1]

    class Reads:
        def __init__(self, tensor):
            self.itself, self.tensor = self, tensor

        def __del__(self):
            read.append(self.tensor.buffer())

    for _ in range(20):
        execute._alone[1] = kept
        warm(lambda: a + b)  # is the kept one
        (entry,) = known()
        execute._alone[1] = {k: v and v._replace() for k, v in kept.items()}
        (other,) = known()
        x, y, read = a + b, a + b, []
        before = sys.getrefcount(entry), sys.getrefcount(other)
        gc.collect()
        gc.disable()
        try:
            Reads(y)
            spare = [(k, k, k) for k in range(3000)]  # so that the key's memory is new
            gc.enable()
            x.buffer()
        finally:
            gc.enable()
            del spare
        gc.collect()
        assert read
        assert (sys.getrefcount(entry), sys.getrefcount(other)) == (before[0] - 1, before[1] + 1)
    execute._alone[1] = kept


@pytest.mark.parametrize("many", [1, 1 << 20])  # calls that fail from there on
def test_no_block_is_lost_without_memory_of_the_host(fake, monkeypatch, many):
    capi = pytest.importorskip("_testcapi")
    succeeds = ctypes.cast(ctypes.CDLL(None).isatty, ctypes.c_void_p).value  # not in Python
    monkeypatch.setattr(native, "address_of_launch", lambda driver: succeeds)
    (a,) = tensors(2)
    pool = driver.gpus()[0].pool
    pool.requests = pool.reused = pool.peak = 1 << 40  # whose successors need memory
    failed = 0
    gc.disable()
    try:
        for k in range(1, 40):
            warm(lambda: -a)
            x, kept = -a, {*pool.free[512]}
            try:
                capi.set_nomemory(k, k + many)
                x.buffer()
            except MemoryError:
                failed += 1
            finally:
                capi.remove_mem_hooks()
            del x
            free = pool.free[512]
            assert kept <= {*free} and len({*free}) == len(free)
            assert all(type(n) is int for n in pool.statistics().values())
    finally:
        gc.enable()
    assert failed
