"""Branches, loops and the ways out of them."""

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Out
from tests.jit.data import integers, normal, uniform


@ruda.jit
def if_elif_else(x, out):
    i = ruda.grid(1)
    if i < out.size:
        if x[i] < -1:
            out[i] = -1
        elif x[i] < 0:
            out[i] = 0
        elif x[i] < 1:
            out[i] = 1
        else:
            out[i] = 2


@ruda.jit
def early_return(x, out):
    i = ruda.grid(1)
    if i >= out.size:
        return
    if x[i] < 0:
        out[i] = -x[i]
        return
    out[i] = 2 * x[i]


@ruda.jit
def ternary(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] if x[i] > 0 else (-x[i] if x[i] < -1 else 0.5)


@ruda.jit
def chained_comparison(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = -1 < x[i] <= 1 < 2 != 3


@ruda.jit
def short_circuit_guards_a_load(x, out):
    i = ruda.grid(1)
    if i < out.size and x[i] > 0:
        out[i] = 1
    if not (i >= out.size or x[i] > 0):
        out[i] = 2


@ruda.jit
def truth_of_numbers(x, k, out):
    i = ruda.grid(1)
    if i < out.size:
        count = 0
        if x[i]:
            count += 1
        if k[i]:
            count += 2
        if not k[i]:
            count += 4
        out[i] = count


@ruda.jit
def nested_loops(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = 0
        for a in range(x[i]):
            for b in range(a, 7):
                total += a * b + i
        out[i] = total


def nested_sum(x):
    return [sum(a * b + i for a in range(v) for b in range(a, 7)) for i, v in enumerate(x.tolist())]


@ruda.jit
def loops_of_one_name(x, out):
    """What the inner loop left is read in the outer one."""
    i = ruda.grid(1)
    if i < out.size:
        total = 0
        for k in range(x[i]):
            for k in range(x[i] + 1, x[i] + 3):
                total += k
            total += 100 * k
        for k in range(3):
            total += 7 * k
        out[i] = total


def of_one_name(x):
    return [7 * 3 + v * (2 * v + 3 + 100 * (v + 2)) for v in x.tolist()]


@ruda.jit
def ranges(starts, stops, out):
    i = ruda.grid(1)
    if i < starts.size:
        for k in range(stops[i]):
            out[0, i] += k + 1
        for k in range(starts[i], stops[i]):
            out[1, i] += k
        for k in range(starts[i], stops[i], 3):
            out[2, i] += k
        for k in range(stops[i], starts[i], -2):
            out[3, i] += k


def range_sums(starts, stops, out):
    pairs = list(zip(starts.tolist(), stops.tolist(), strict=True))
    out[0] = [sum(k + 1 for k in range(b)) for a, b in pairs]
    out[1] = [sum(range(a, b)) for a, b in pairs]
    out[2] = [sum(range(a, b, 3)) for a, b in pairs]
    out[3] = [sum(range(b, a, -2)) for a, b in pairs]
    return out


@ruda.jit
def break_and_else(x, out):
    i = ruda.grid(1)
    if i < out.size:
        for k in range(2, 40):
            if x[i] % k == 0:
                out[i] = k
                break
        else:
            out[i] = -1


def smallest_divisor(x):
    return [next((k for k in range(2, 40) if v % k == 0), -1) for v in x.tolist()]


@ruda.jit
def continue_skips(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = 0
        for k in range(10):
            if (x[i] >> k) & 1 == 0:
                continue
            total += k
        out[i] = total


@ruda.jit
def while_collatz(x, out):
    i = ruda.grid(1)
    if i < out.size:
        value = x[i]
        steps = 0
        while value > 1:
            if value % 2 == 0:
                value = value // 2
            else:
                value = 3 * value + 1
            steps += 1
        out[i] = steps


def collatz(value):
    steps = 0
    while value > 1:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    return steps


@ruda.jit
def while_true_with_break(x, out):
    i = ruda.grid(1)
    if i < out.size:
        a = x[i]
        b = ruda.int32(36)
        while True:
            if b == 0:
                break
            a, b = b, a % b
        out[i] = a


@ruda.jit
def while_else(x, out):
    i = ruda.grid(1)
    if i < out.size:
        k = 0
        while k < 5:
            if x[i] == k:
                out[i] = 100 + k
                break
            k += 1
        else:
            out[i] = k


@ruda.jit
def break_out_of_the_inner_loop(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = 0
        for a in range(6):
            for b in range(6):
                if a * b > x[i]:
                    break
                if b == 4:
                    continue
                total += 10 * a + b
            else:
                total += 1000
        out[i] = total


def broken(limit):
    total = 0
    for a in range(6):
        for b in range(6):
            if a * b > limit:
                break
            if b == 4:
                continue
            total += 10 * a + b
        else:
            total += 1000
    return total


@ruda.jit
def return_from_a_loop(x, out):
    i = ruda.grid(1)
    if i >= out.size:
        return
    out[i] = -1
    for k in range(20):
        if k * k >= x[i]:
            out[i] = k
            return
    out[i] = 99


@ruda.jit
def the_loop_variable_outlives_the_loop(x, out):
    i = ruda.grid(1)
    if i < out.size:
        k = 7
        for k in range(x[i]):  # noqa: B007
            pass
        out[i] = k


@ruda.jit
def changing_the_loop_variable_does_not_change_the_loop(out):
    i = ruda.grid(1)
    if i < out.size:
        total = 0
        for k in range(5):
            k = k * 2
            total += k
        out[i] = total


@ruda.jit
def the_stop_is_computed_once(out):
    i = ruda.grid(1)
    if i < out.size:
        n = 4
        count = 0
        for _ in range(n):
            n = n + 3
            count += 1
        out[i] = count * 100 + n


@ruda.jit
def swap(x, y):
    i = ruda.grid(1)
    if i < x.size:
        x[i], y[i] = y[i], x[i]


@ruda.jit
def fibonacci(n, out):
    i = ruda.grid(1)
    if i < out.size:
        a, b = 0, 1
        for _ in range(n[i]):
            a, b = b, a + b
        out[i] = a


@ruda.jit
def assignment_expression(x, out):
    i = ruda.grid(1)
    if i < out.size:
        k = x[i]
        count = 0
        while (k := k // 2) > 0:
            count += 1
        out[i] = count


@ruda.jit
def enumerate_and_zip(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        total = ruda.float64(0)
        for k, value in enumerate(x[i]):
            total += k * value
        for a, b in zip(x[i], y[i]):  # noqa: B905
            total += a * b
        out[i] = total


@ruda.jit
def newton_until_converged(x, out):
    i = ruda.grid(1)
    if i < out.size:
        guess = x[i]
        for _ in range(100):
            better = 0.5 * (guess + x[i] / guess)
            if abs(better - guess) <= 1e-15 * better:
                guess = better
                break
            guess = better
        out[i] = guess


@ruda.jit
def variables_defined_in_both_arms(x, out):
    i = ruda.grid(1)
    if i < out.size:
        if x[i] > 0:
            scale = 2.0
            shift = x[i]
        else:
            scale = -3.0
            shift = ruda.float32(1)
        out[i] = scale * x[i] + shift


@ruda.jit
def pass_and_empty_bodies(x, out):
    i = ruda.grid(1)
    if i < out.size:
        for _ in range(3):
            pass
        if x[i] > 0:
            pass
        else:
            out[i] = 1
            return
        out[i] = 2


@ruda.jit
def a_variable_widens_to_what_reaches_it(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        value = x[i]
        if i % 2:
            value = y[i]
        out[i] = value


@ruda.jit
def accumulator_takes_its_operands_dtype(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = 0
        for k in range(x.shape[1]):
            total += x[i, k]
        out[i] = total


SMALL = (0, 1, 7, 256)

CASES = [
    Case(
        if_elif_else,
        lambda rng, n: (normal(rng, n), Out(n, np.int32)),
        lambda x: np.where(x < -1, -1, np.where(x < 0, 0, np.where(x < 1, 1, 2))),
    ),
    Case(
        early_return,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: np.where(x < 0, -x, 2 * x),
    ),
    Case(
        ternary,
        lambda rng, n: (normal(rng, n), Out(n)),
        lambda x: np.where(x > 0, x, np.where(x < -1, -x, np.float32(0.5))),
    ),
    Case(
        chained_comparison,
        lambda rng, n: (normal(rng, n), Out(n, bool)),
        lambda x: (x > -1) & (x <= 1),
    ),
    Case(
        short_circuit_guards_a_load,
        lambda rng, n: (normal(rng, n), Out(n, np.uint8)),
        lambda x: np.where(x > 0, 1, 2),
    ),
    Case(
        truth_of_numbers,
        lambda rng, n: (
            rng.choice(np.float32([0, -0.0, 1, np.nan]), n),
            integers(rng, n, least=-1, most=1),
            Out(n, np.int32),
        ),
        lambda x, k: (x != 0) * 1 + (k != 0) * 2 + (k == 0) * 4,
    ),
    Case(
        nested_loops,
        lambda rng, n: (integers(rng, n, least=0, most=9), Out(n, np.int64)),
        nested_sum,
        sizes=SMALL,
    ),
    Case(
        loops_of_one_name,
        lambda rng, n: (integers(rng, n, least=0, most=9), Out(n, np.int64)),
        of_one_name,
        sizes=SMALL,
    ),
    Case(
        ranges,
        lambda rng, n: (
            integers(rng, n, least=-9, most=9),
            integers(rng, n, least=-9, most=9),
            InOut(np.zeros((4, n), np.int32)),
        ),
        range_sums,
        sizes=SMALL,
    ),
    Case(
        break_and_else,
        lambda rng, n: (integers(rng, n, least=2, most=2000), Out(n, np.int32)),
        smallest_divisor,
        sizes=SMALL,
    ),
    Case(
        continue_skips,
        lambda rng, n: (integers(rng, n, least=0, most=1023), Out(n, np.int32)),
        lambda x: sum(((x >> k) & 1) * k for k in range(10)),
        sizes=SMALL,
    ),
    Case(
        while_collatz,
        lambda rng, n: (integers(rng, n, least=0, most=300), Out(n, np.int32)),
        lambda x: [collatz(v) for v in x.tolist()],
        sizes=(0, 1, 7, 100),
    ),
    Case(
        while_true_with_break,
        lambda rng, n: (integers(rng, n, least=1, most=10000), Out(n, np.int32)),
        lambda x: np.gcd(x, 36),
        sizes=SMALL,
    ),
    Case(
        while_else,
        lambda rng, n: (integers(rng, n, least=-2, most=8), Out(n, np.int32)),
        lambda x: np.where((x >= 0) & (x < 5), 100 + x, 5),
        sizes=SMALL,
    ),
    Case(
        break_out_of_the_inner_loop,
        lambda rng, n: (integers(rng, n, least=-1, most=30), Out(n, np.int32)),
        lambda x: [broken(v) for v in x.tolist()],
        sizes=SMALL,
    ),
    Case(
        return_from_a_loop,
        lambda rng, n: (integers(rng, n, least=0, most=500), Out(n, np.int32)),
        lambda x: np.where(x <= 361, np.ceil(np.sqrt(x)), 99),
        sizes=SMALL,
    ),
    Case(
        the_loop_variable_outlives_the_loop,
        lambda rng, n: (integers(rng, n, least=0, most=4), Out(n, np.int32)),
        lambda x: np.where(x == 0, 7, x - 1),
        sizes=SMALL,
    ),
    Case(
        changing_the_loop_variable_does_not_change_the_loop,
        lambda rng, n: (Out(n, np.int32),),
        lambda: 20,
        sizes=SMALL,
    ),
    Case(
        the_stop_is_computed_once,
        lambda rng, n: (Out(n, np.int32),),
        lambda: 416,
        sizes=SMALL,
    ),
    Case(
        swap,
        lambda rng, n: (InOut(normal(rng, n)), InOut(normal(rng, n))),
        lambda x, y: (y, x),
    ),
    Case(
        fibonacci,
        lambda rng, n: (integers(rng, n, least=0, most=90), Out(n, np.int64)),
        lambda n: [_fibonacci(v) for v in n.tolist()],
        sizes=SMALL,
    ),
    Case(
        assignment_expression,
        lambda rng, n: (integers(rng, n, least=1, most=100000), Out(n, np.int32)),
        lambda x: [int(v).bit_length() - 1 for v in x],
        sizes=SMALL,
    ),
    Case(
        enumerate_and_zip,
        lambda rng, n: (
            integers(rng, n, 5, least=-99, most=99),
            integers(rng, n, 5, least=-99, most=99),
            Out(n, np.float64),
        ),
        lambda x, y: (x * np.arange(5)).sum(axis=1) + (x * y).sum(axis=1),
        sizes=SMALL,
    ),
    Case(
        newton_until_converged,
        lambda rng, n: (uniform(rng, 0.1, 100, n, dtype=np.float64), Out(n, np.float64)),
        np.sqrt,
        ulps=8,
        sizes=SMALL,
    ),
    Case(
        variables_defined_in_both_arms,
        lambda rng, n: (
            (integers(rng, n, least=-99, most=99) / 8).astype(np.float32),
            Out(n),
        ),
        lambda x: np.where(x > 0, 3 * x, -3 * x + 1),
    ),
    Case(
        pass_and_empty_bodies,
        lambda rng, n: (normal(rng, n), Out(n, np.int8)),
        lambda x: np.where(x > 0, 2, 1),
    ),
    Case(
        a_variable_widens_to_what_reaches_it,
        lambda rng, n: (
            integers(rng, n, dtype=np.int8),
            integers(rng, n, dtype=np.int64),
            Out(n, np.int64),
        ),
        lambda x, y: np.where(np.arange(x.size) % 2, y, x),
    ),
    Case(
        accumulator_takes_its_operands_dtype,
        lambda rng, n: (normal(rng, n, 6, dtype=np.float64), Out(n, np.float64)),
        lambda x: [_running(row) for row in x],
        sizes=SMALL,
    ),
    Case(
        accumulator_takes_its_operands_dtype,
        lambda rng, n: (integers(rng, n, 6, dtype=np.int8), Out(n, np.int64)),
        lambda x: x.sum(axis=1, dtype=np.int64),
        sizes=SMALL,
        name="accumulator_of_int8_is_int32",
    ),
]


def _running(row):
    total = 0.0
    for value in row:
        total += value
    return total


def _fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
