"""The caching allocator: sizes, reuse, caps, what waits for a device, and running out."""

import gc
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda
from ruda.backends.pool import SMALLEST, Pool, bucket
from ruda.errors import DeviceError, OutOfMemoryError
from tests.conftest import DEVICES


class Memory:
    """A device that has `size` bytes, and remembers what it was asked."""

    def __init__(self, size=1 << 20):
        self.size, self.held, self.next = size, {}, 1
        self.requests = 0

    def request(self, nbytes):
        self.requests += 1
        if sum(self.held.values()) + nbytes > self.size:
            return None
        self.next += 1
        self.held[self.next] = nbytes
        return self.next

    def release(self, address):
        del self.held[address]  # KeyError: freed twice

    def pool(self, **options):
        return Pool("far:0", self.request, self.release, **options)


@given(st.integers(0, 1 << 45))
def test_buckets_hold_what_was_asked_for_and_little_more(nbytes):
    size = bucket(nbytes)
    assert size >= max(nbytes, SMALLEST) and bucket(size) == size
    assert size <= max(SMALLEST, nbytes + nbytes // 8 + 1)


def test_blocks_are_used_again():
    memory = Memory()
    pool = memory.pool()
    first = pool.allocate(1000)
    address = first.address
    del first
    assert pool.statistics()["cached"] == 1024
    assert pool.allocate(1024).address == address
    assert memory.requests == 1 and pool.statistics()["reused"] == 1


def test_statistics():
    pool = Memory().pool()
    a, b = pool.allocate(600), pool.allocate(5000)
    assert pool.statistics() == {
        "in_use": 640 + 5120, "cached": 0, "peak": 5760, "requests": 2, "reused": 0
    }  # fmt: skip
    del a
    assert pool.statistics()["in_use"] == 5120 and pool.statistics()["cached"] == 640
    del b
    pool.empty()
    assert pool.statistics() == {
        "in_use": 0, "cached": 0, "peak": 5760, "requests": 2, "reused": 0
    }  # fmt: skip


def test_running_out_reclaims_and_tries_once_more():
    memory = Memory(10 * 1024)
    waits = []
    pool = memory.pool(wait=lambda: waits.append(None), free_memory=lambda: 1234)
    kept = pool.allocate(4096)
    del kept
    other = pool.allocate(8192)  # does not fit beside what is kept
    assert waits == [None] and list(memory.held.values()) == [8192]
    requests = memory.requests
    with pytest.raises(OutOfMemoryError) as error:
        pool.allocate(4000)
    assert str(error.value) == (
        "far:0 has no memory left: 4,000 bytes asked for, 8,192 held by arrays, 1,234 free"
    )
    assert memory.requests == requests + 2
    del other
    assert pool.allocate(4000).size == 4096  # nothing was lost


def test_running_out_collects_cycles():
    pool = Memory(8192).pool()

    class Node:
        pass

    gc.disable()
    try:
        node = Node()
        node.me, node.block = node, pool.allocate(8192)
        del node
        assert pool.allocate(8192).size == 8192
    finally:
        gc.enable()


def test_a_limit_counts_what_is_kept():
    memory = Memory()
    pool = memory.pool(limit=lambda: 2048)
    a = pool.allocate(1024)
    del a
    b = pool.allocate(2048)  # what was kept goes first
    assert list(memory.held.values()) == [2048]
    with pytest.raises(OutOfMemoryError, match=r"2,048 held by arrays, at most 2,048 \(memory_lim"):
        pool.allocate(1)
    del b


def test_no_more_is_kept_than_allowed():
    memory = Memory()
    pool = memory.pool(keep=2048)
    blocks = [pool.allocate(1024) for _ in range(4)]
    blocks.clear()
    assert pool.statistics()["cached"] == 2048 and len(memory.held) == 2


def test_blocks_that_die_while_one_is_taken_back_are_kept():
    memory = Memory()
    pool = memory.pool()
    blocks = [pool.allocate(512) for _ in range(2)]
    first, second = (b.address for b in blocks)

    class Sizes(dict):
        def __contains__(self, size):  # where the list is made, the collector may run
            there = super().__contains__(size)
            if blocks:
                blocks.pop()
            return there

    pool.free = Sizes()
    blocks.pop(0)
    assert sorted(pool.free[512]) == [first, second]
    assert pool.cached == 1024


def test_blocks_of_other_queues_wait_until_those_are_past():
    memory = Memory()
    past = set()
    pool = memory.pool(mark=lambda queue: queue, is_past=past.__contains__)
    block = pool.allocate(1024)
    block.used_in("a")
    block.used_in("b")
    address = block.address
    del block
    assert pool.allocate(1024).address != address
    past.add("a")
    taken = [pool.allocate(1024)]
    assert taken[0].address != address
    past.add("b")
    taken += [pool.allocate(1024) for _ in range(2)]
    assert address in [t.address for t in taken]


def test_threads_never_share_a_block():
    pool = Memory(1 << 30).pool()
    lock, live, doubled = threading.Lock(), set(), []

    def work():
        for k in range(300):
            block = pool.allocate(512 * (1 + k % 3))
            with lock:
                if block.address in live:
                    doubled.append(block.address)
                live.add(block.address)
            with lock:
                live.discard(block.address)
            del block

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not doubled
    assert pool.statistics()["in_use"] == 0


# ---- on devices


@ruda.jit
def double(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] *= 2


def test_memory_of_a_device_is_used_again(device):
    with ruda.config(device=device):
        ruda.empty_cache()
        before = ruda.memory_statistics()
        d = ruda.to_device(np.zeros(3000, np.float32))
        d.free()
        e = ruda.to_device(np.ones(3000, np.float32))
        after = ruda.memory_statistics()
        assert after["reused"] == before["reused"] + 1
        assert after["in_use"] == before["in_use"] + bucket(12000)
        double.forall(e.size)(e)
        assert (e.copy_to_host() == 2).all()
        del e
        ruda.empty_cache()
        assert ruda.memory_statistics()["cached"] == 0


def test_the_limit_of_memory_is_kept(device):
    with ruda.config(device=device):
        ruda.empty_cache()
        held = ruda.memory_statistics()["in_use"]
        with ruda.config(memory_limit=held + (1 << 20)):
            d = ruda.device_array(1 << 19, np.uint8)
            with pytest.raises(OutOfMemoryError, match=r"1,000,000 bytes asked for.*memory_limit"):
                ruda.device_array(1_000_000, np.uint8)
            d.free()
            assert ruda.device_array(1_000_000, np.uint8).size == 1_000_000


USES = {
    "copy_to_host": lambda d: d.copy_to_host(),
    "copy_to_device": lambda d: d.copy_to_device(np.zeros(4, np.float32)),
    "index": lambda d: d[0],
    "slice": lambda d: d[1:],
    "write": lambda d: d.__setitem__(0, 1),
    "reshape": lambda d: d.reshape(2, 2),
    "size": lambda d: d.size,
    "NumPy": np.asarray,
    "launch": lambda d: double[1, 32](d),
    "copy": lambda d: d.copy(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_use_after_free(device, use):
    with ruda.config(device=device):
        d = ruda.to_device(np.ones(4, np.float32))
        view, whole = d[1:], d.reshape(2, 2)
        double[1, 32](d)  # launchers know the array
        d.free()
        with pytest.raises(DeviceError, match="was freed"):
            use(d)
        for other in (view, whole):
            with pytest.raises(DeviceError, match="was freed"):
                other.copy_to_host()
            with pytest.raises(DeviceError, match="was freed"):
                double[1, 32](other)
        assert "freed" in repr(d) and d.shape == (4,)


def test_double_free(device):
    with ruda.config(device=device):
        d = ruda.to_device(np.ones(4, np.float32))
        part = d[2:]
        part.free()
        with pytest.raises(DeviceError, match="freed already"):
            d.free()


def test_freeing_behind_a_launch_waits_for_it(device):
    """The memory is written by the launch before another array's copy gets there."""
    with ruda.config(device=device):
        for k in range(20):
            d = ruda.to_device(np.full(5000, k, np.float32))
            double.forall(d.size)(d)
            d.free()
            e = ruda.to_device(np.full(5000, -1, np.float32))
            assert (e.copy_to_host() == -1).all()


def test_what_others_see_of_a_freed_array_stays():
    d = ruda.to_device(np.arange(4, dtype=np.float32))
    seen = np.asarray(d)
    d.free()
    others = [ruda.to_device(np.full(4, 9, np.float32)) for _ in range(4)]
    assert seen.tolist() == [0, 1, 2, 3] and len(others) == 4


@pytest.mark.skipif("wgpu" not in DEVICES, reason="RUDA_TEST_DEVICES does not name wgpu")
def test_a_buffer_larger_than_the_adapter_has():
    with ruda.config(device="wgpu"), pytest.raises(OutOfMemoryError, match=r"may have \("):
        ruda.device_array(1 << 45, np.uint8)
