"""What an adapter really does: small kernels, run once for each adapter.

WGSL promises less than IEEE 754: quotients 2.5 ulps off, an `fma` that rounds twice, denormals that
count as zeros. Most adapters do better, and which cannot be asked, only tried. So it is with the
hardware's own watch over buffers, without which WebGPU holds each index to its buffer's bounds.
What `traits` finds is kept on disk under the adapter's and the driver's names; where it cannot be
found out, nothing is trusted (`exact` has what takes its place).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from ruda.backends.wgpu import adapter as adapters
from ruda.jit import cache, keys

Array = np.ndarray[Any, Any]
UNKNOWN = {"float32_denormals": "unknown", "exact": "", "watches_buffers": False}
CASES = 4096
GROUP = 64
SINGLE = """
@group(0) @binding(0) var<storage, read> given: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> found: array<u32>;
@compute @workgroup_size(GROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let x = bitcast<f32>(given[id.x].x);
  let y = bitcast<f32>(given[id.x].y);
  let z = bitcast<f32>(given[id.x].z);
  let at = 6u * id.x;
  found[at] = bitcast<u32>(x * y);
  found[at + 1u] = bitcast<u32>(x + z);
  found[at + 2u] = bitcast<u32>(x / y);
  found[at + 3u] = bitcast<u32>(x / 3.7f);
  found[at + 4u] = bitcast<u32>(sqrt(x));
  found[at + 5u] = bitcast<u32>(fma(x, y, z));
}
"""
DOUBLE = """
@group(0) @binding(0) var<storage, read> given: array<u64>;
@group(0) @binding(1) var<storage, read_write> found: array<u64>;
@compute @workgroup_size(GROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let at = 3u * id.x;
  let x = bitcast<f64>(given[at]);
  let y = bitcast<f64>(given[at + 1u]);
  let z = bitcast<f64>(given[at + 2u]);
  found[id.x] = bitcast<u64>(fma(x, y, z));
}
"""

# Reads and writes before, in and behind what is bound of a buffer, and adds there.
OUTSIDE = """
@group(0) @binding(0) var<storage, read> given: array<u32>;
@group(0) @binding(1) var<storage, read_write> found: array<u32>;
@group(0) @binding(2) var<storage, read_write> middle: array<u32>;
@group(0) @binding(3) var<storage, read_write> counts: array<atomic<u32>>;
@compute @workgroup_size(GROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let at = bitcast<i32>(given[id.x]);
  found[id.x] = middle[at];
  middle[at] = 7u;
  atomicAdd(&counts[at], 7u);
}
"""


def traits(adapter: Any) -> Mapping[str, Any]:
    """`float32_denormals`: "keep", or "flush" where they count as zeros, or "unknown"; `exact`: the
    names of those functions of `exact.NATIVE` for which the adapter's own operation is right;
    `watches_buffers`: whether the hardware keeps every access inside what is bound of a buffer."""
    info = adapter.info
    parts = {
        "name": "adapter's arithmetic",
        "adapter": f"{info['vendor']} {info['device']} {info['adapter_type']}",
        "driver": f"{info['backend_type']} {info['description']}",
        "wgpu": str(adapters.runtime().__version__),
        "text": SINGLE + DOUBLE + OUTSIDE,
    }
    key = keys.key_of(parts)
    known = cache.recall(key)
    if known is not None:
        return dict(json.loads(known.payload))
    try:
        found = _probed(adapter)
    except Exception:  # a launch will tell what is wrong with the adapter
        return UNKNOWN
    cache.keep(key, cache.Entry(json.dumps(found).encode(), {}), parts=parts)
    return found


def _probed(adapter: Any) -> dict[str, Any]:
    wanted = [f for f in adapters.FEATURES if f in adapter.features]
    # A device of its own, so that a process that only looks at its devices may fork.
    device = adapter.request_device_sync(required_features=wanted)
    x, y, z = singles()
    given = np.stack([x, y, z, x], 1)
    found = _run(device, SINGLE, given, 6 * CASES, np.float32).reshape(CASES, 6).T
    flushes = not _equal(found[:2], _expected(x, y, z, False)[:2])
    names = ("mul", "add", "div_f32", "div_f32", "sqrt_f32", "fma_f32")
    rows = zip(names, found, _expected(x, y, z, flushes), strict=True)
    right = [(name, _equal([got], [want])) for name, got, want in rows]
    exact = {name for name, _ in right[2:]} - {name for name, good in right if not good}
    if adapters.has_float64(adapter.features):
        a, b, c = doubles()
        got = _run(device, DOUBLE, np.stack([a, b, c], 1), a.size, np.float64)
        if _equal([got], [np.array([_fused(*row) for row in zip(a, b, c, strict=True)])]):
            exact.add("fma_f64")
    return {
        "float32_denormals": "flush" if flushes else "keep",
        "exact": " ".join(sorted(exact)),
        "watches_buffers": _watches(device),
    }


def singles() -> tuple[Array, Array, Array]:
    """Numbers of all sizes and of usual ones, and edges among them."""
    rng = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        bits = rng.integers(0, 2**32, (3, CASES), np.uint64).astype(np.uint32).view(np.float32)
        near = (1 + rng.random((3, CASES))).astype(np.float32)
        info = np.finfo(np.float32)
        edges = np.array(
            [0.0, 1.0, 3.0, np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal, 1e-39],
            np.float32,
        )
        some = rng.choice(np.concatenate([edges, -edges]), (3, CASES))
    pick = rng.integers(0, 4, (3, CASES))
    x, y, z = np.where(pick == 0, some, np.where(pick == 1, bits, near))
    # Products that nearly cancel: where a second rounding shows.
    half = CASES // 2
    with np.errstate(all="ignore"):
        z[:half] = np.where(pick[2, :half] == 2, -(x[:half] * y[:half]), z[:half])
    return x, y, z


def doubles() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(2)
    x, y = 1 + rng.random((2, 256))
    return x, y, np.where(np.arange(256) % 2, -(x * y), rng.random(256))


def _expected(x: Array, y: Array, z: Array, flushes: bool) -> list[Array]:
    """The right answers, where denormals count as zeros if they are to be flushed."""
    change = flushed if flushes else np.asarray
    x, y, z = map(change, (x, y, z))
    with np.errstate(all="ignore"):
        answers = [x * y, x + z, x / y, x / np.float32(3.7), np.sqrt(x), fused(x, y, z)]
    return [change(a) for a in answers]


def flushed(x: Array) -> Array:
    """Denormals of float32 as zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def fused(x: Array, y: Array, z: Array) -> Array:
    """x * y + z of float32, rounded once: in float64, where the product is exact, to odd."""
    with np.errstate(all="ignore"):
        p, c = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
        s = p + c
        v = s - p
        lost = (p - (s - v)) + (c - v)
        bits = s.view(np.int64)
        odd = np.where((lost > 0) == (s > 0), bits + 1, bits - 1).view(np.float64)
        exact = ~np.isfinite(s) | (lost == 0) | (bits & 1 == 1)
        return np.where(exact, s, odd).astype(np.float32)


def _fused(x: float, y: float, z: float) -> float:
    return float(Fraction(x) * Fraction(y) + Fraction(z))


def _equal(found: Iterable[Array], wanted: Iterable[Array]) -> bool:
    """Whether the bits are equal; NaNs are alike."""
    return all(
        np.all((a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")) | (np.isnan(a) & np.isnan(b)))
        for a, b in zip(found, wanted, strict=True)
    )


def _watches(device: Any) -> bool:
    """Whether a shader without checks neither reads nor writes outside what is bound of a buffer.

    Nothing is tried that is outside the buffer itself: there a device without a watch would fault.
    """
    from ruda.backends.wgpu.native import Native

    native, usage = Native(device), adapters.runtime().BufferUsage
    if not native.makes_shaders:
        return False
    part = 256  # bytes, of which four are a buffer; the second is bound
    words, uses = part // 4, usage.STORAGE | usage.COPY_SRC
    at = np.arange(-words, 3 * words, dtype=np.int32)
    given = device.create_buffer_with_data(data=at, usage=uses)
    found = device.create_buffer(size=at.nbytes, usage=uses)
    wholes = [device.create_buffer_with_data(data=np.full_like(at, 5), usage=uses) for _ in "ab"]
    shader = native.shader(OUTSIDE.replace("GROUP", str(GROUP)), False)
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": shader, "entry_point": "main"}
    )
    bound = [{"buffer": given}, {"buffer": found}]
    bound += [{"buffer": b, "offset": part, "size": part} for b in wholes]
    _dispatch(device, pipeline, bound, at.size // GROUP)
    inside = (at >= 0) & (at < words)
    wanted = [np.where(inside, x, y) for x, y in ((5, 0), (7, 5), (12, 5))]
    read = device.queue.read_buffer
    return all(
        np.array_equal(np.frombuffer(read(b), np.uint32), x)
        for b, x in zip((found, *wholes), wanted, strict=True)
    )


def _run(device: Any, text: str, given: Array, count: int, dtype: Any) -> Array:
    """What a kernel of one thread a row makes of its input."""
    usage = adapters.runtime().BufferUsage
    size = count * np.dtype(dtype).itemsize
    source = device.create_buffer_with_data(data=np.ascontiguousarray(given), usage=usage.STORAGE)
    result = device.create_buffer(size=size, usage=usage.STORAGE | usage.COPY_SRC)
    module = device.create_shader_module(code=text.replace("GROUP", str(GROUP)))
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    _dispatch(device, pipeline, [{"buffer": source}, {"buffer": result}], len(given) // GROUP)
    return np.frombuffer(device.queue.read_buffer(result), dtype)


def _dispatch(device: Any, pipeline: Any, bound: Iterable[Any], groups: int) -> None:
    entries = [{"binding": k, "resource": b} for k, b in enumerate(bound)]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(groups)
    compute.end()
    device.queue.submit([encoder.finish()])
