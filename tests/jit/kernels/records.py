"""Structured arrays: fields by name, aligned or packed, nested, as arguments."""

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Out
from tests.jit.data import integers

PARTICLE = np.dtype([("position", np.float32, 3), ("mass", np.float64), ("kind", np.int8)])
ALIGNED = np.dtype([("kind", np.int8), ("mass", np.float64), ("count", np.int32)], align=True)
PACKED = np.dtype([("kind", np.int8), ("mass", np.float64), ("count", np.int16)])
NESTED = np.dtype([("key", np.int32), ("limits", [("low", np.float32), ("high", np.float32)])])


def random_records(rng, n, dtype):
    records = np.zeros(n, dtype)
    fill(rng, n, records)
    return records


def fill(rng, n, records):
    for name in records.dtype.names:
        column = records[name]
        if column.dtype.names:
            fill(rng, n, column)
        elif column.dtype.kind == "f":
            column[...] = rng.integers(-99, 99, column.shape)
        else:
            column[...] = rng.integers(-9, 9, column.shape)


@ruda.jit
def read_fields(records, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = records[i].mass * 2 + records[i]["kind"] + records[i].count


@ruda.jit
def write_fields(records):
    i = ruda.grid(1)
    if i < records.size:
        records[i].mass = records[i].mass + i
        records[i]["kind"] = 5
        records[i].count += 1


def written(records):
    records["mass"] += np.arange(records.size)
    records["kind"] = 5
    records["count"] += 1
    return records


@ruda.jit
def field_arrays(records, out):
    i = ruda.grid(1)
    if i < out.size:
        p = records[i].position
        out[i] = p[0] * p[0] + p[1] * p[1] + p[2] * records[i].position[2] + p.size


@ruda.jit
def write_field_arrays(records):
    i = ruda.grid(1)
    if i < records.size:
        for axis in range(3):
            records[i].position[axis] *= 2
        records[i].position[-1] = i


def field_arrays_written(records):
    records["position"] *= 2
    records["position"][:, -1] = np.arange(records.size)
    return records


@ruda.jit
def field_arrays_at_constant_indices(records, out):
    i = ruda.grid(1)
    if i < out.size:
        for axis in ruda.unroll(range(3)):
            records[i].position[axis] *= 2
        records[i].position[-1] = i
        p = records[i].position
        out[i] = p[0] + p[1]


@ruda.jit
def nested_records(records, out):
    i = ruda.grid(1)
    if i < out.size:
        limits = records[i].limits
        limits.high = limits.low + records[i].key
        out[i] = records[i].limits.high


def nested(records):
    high = records["limits"]["low"] + records["key"].astype(np.float32)
    records["limits"]["high"] = high
    return records, high


@ruda.jit
def record_argument(settings, x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] * settings.count + settings["mass"]


@ruda.jit
def mass_of(record):
    return record.mass + record.kind


@ruda.jit
def record_to_a_function(records, out):
    i = ruda.grid(1)
    if i < out.size:
        record = records[i]
        out[i] = mass_of(record)


@ruda.jit
def copy_records(source, target):
    i = ruda.grid(1)
    if i < source.size:
        target[i] = source[source.size - 1 - i]


@ruda.jit
def records_in_shared_memory(records, out):
    tile = ruda.shared.array(64, PACKED)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t].mass = records[i].mass
    tile[t].kind = records[i].kind
    ruda.syncthreads()
    out[i] = tile[63 - t].mass + tile[63 - t].kind


LAYOUTS = [("aligned", ALIGNED), ("packed", PACKED)]

CASES = [
    *(
        Case(
            read_fields,
            lambda rng, n, d=d: (random_records(rng, n, d), Out(n, np.float64)),
            lambda r: r["mass"] * 2 + r["kind"] + r["count"],
            name=f"read_fields_{name}",
        )
        for name, d in LAYOUTS
    ),
    *(
        Case(
            write_fields,
            lambda rng, n, d=d: (InOut(random_records(rng, n, d)),),
            written,
            name=f"write_fields_{name}",
        )
        for name, d in LAYOUTS
    ),
    Case(
        field_arrays_at_constant_indices,
        lambda rng, n: (InOut(random_records(rng, n, PARTICLE)), Out(n)),
        lambda r: (field_arrays_written(r), r["position"][:, 0] + r["position"][:, 1]),
    ),
    Case(
        nested_records,
        lambda rng, n: (InOut(random_records(rng, n, NESTED)), Out(n)),
        nested,
    ),
    Case(
        record_argument,
        lambda rng, n: (
            random_records(rng, 1, ALIGNED)[0],
            integers(rng, n, least=-99, most=99),
            Out(n, np.float64),
        ),
        lambda settings, x: x * settings["count"] + settings["mass"],
    ),
    Case(
        record_to_a_function,
        lambda rng, n: (random_records(rng, n, PARTICLE), Out(n, np.float64)),
        lambda r: r["mass"] + r["kind"],
    ),
    Case(
        copy_records,
        lambda rng, n: (random_records(rng, n, PACKED), Out(n, PACKED)),
        lambda r: r[::-1],
    ),
    Case(
        records_in_shared_memory,
        lambda rng, n: (random_records(rng, 64 * n, PACKED), Out(64 * n, np.float64)),
        lambda r: (r["mass"] + r["kind"]).reshape(-1, 64)[:, ::-1].ravel(),
        grid=lambda n: n,
        sizes=(1, 3),
        small=1,
    ),
]

PENDING = [
    Case(
        field_arrays,
        lambda rng, n: (random_records(rng, n, PARTICLE), Out(n)),
        lambda r: (r["position"] ** 2).sum(axis=1) + np.float32(3),
    ),
    Case(
        write_field_arrays,
        lambda rng, n: (InOut(random_records(rng, n, PARTICLE)),),
        field_arrays_written,
    ),
]
