"""The passes of each target, in the order in which `lower` applies them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ruda.errors import UnsupportedError
from ruda.jit import ir, trace
from ruda.jit.ir import Function
from ruda.jit.passes.barriers import split_barriers
from ruda.jit.passes.blocks import loop_over_blocks, loop_over_groups
from ruda.jit.passes.coarsen import coarsen
from ruda.jit.passes.conditions import join_conditions
from ruda.jit.passes.flatten import flatten, is_flat
from ruda.jit.passes.groups import group_blocks
from ruda.jit.passes.guards import hoist_guards
from ruda.jit.passes.indices import expand, simplify
from ruda.jit.passes.jumps import structure_jumps
from ruda.jit.passes.names import Names
from ruda.jit.passes.once import compute_once
from ruda.jit.passes.phases import count_in_words, has_phases, split_phases
from ruda.jit.passes.polls import poll_loops
from ruda.jit.passes.predicate import predicate
from ruda.jit.passes.prefetch import prefetch_rounds
from ruda.jit.passes.rows import in_line, one_row_at_a_time
from ruda.jit.passes.strides import share_rounds
from ruda.jit.passes.uniformity import check_barriers
from ruda.jit.passes.unswitch import ask_once
from ruda.jit.passes.wraps import remove_wraps

Pass = Callable[[Function], Function]


def spread(function: Function) -> Function:
    """Loops over the grid for flat kernels, over blocks and threads for the others."""
    if has_phases(function):
        return split_phases(function, in_blocks)
    if is_flat(function):
        return flatten(structure_jumps(function))
    return in_blocks(function)


def in_blocks(function: Function) -> Function:
    """Loops over blocks and threads."""
    function = expand(structure_jumps(function))
    grouped = group_blocks(function)
    if grouped is None:
        return loop_over_blocks(split_barriers(share_rounds(function)))
    width = Names(function).index("blocks")
    return loop_over_groups(split_barriers(grouped, width), width)


def spread_plainly(function: Function) -> Function:
    """The same loops without what helps a CPU's caches and registers."""
    function = structure_jumps(function)
    if is_flat(function):
        return flatten(function)
    row = one_row_at_a_time(in_line(expand(function)))
    row = share_rounds(compute_once(ask_once(row)), several=False)
    split = replace(split_barriers(row, jams=False), block=function.block)
    return loop_over_blocks(split)


def meet(function: Function) -> Function:
    """Barriers in uniform control flow; a kernel without barriers may keep its jumps."""
    if not ir.has_barrier(function.body):
        return function
    return predicate(structure_jumps(function))


def meet_in_phases(function: Function) -> Function:
    """The same, with a launch for each part between barriers of the grid."""
    if has_phases(function):
        return count_in_words(split_phases(function, meet))
    return meet(function)


def accept_barriers(function: Function) -> Function:
    """The function as it is; an error if a barrier is provably not reached by every thread."""
    if ir.has_barrier(function.body):
        check_barriers(function)
    return function


def part_where_threads_leave(function: Function) -> Function:
    """Launches between barriers of the grid, if threads may return: they would be waited for."""
    leaving = next((s for s in ir.statements(function.body) if isinstance(s, ir.Return)), None)
    if leaving is None or not has_phases(function):
        return function
    try:
        return split_phases(function, lambda f: f)
    except UnsupportedError as error:
        raise UnsupportedError(
            "a thread that returns here is not there at the barrier of the grid",
            leaving.place,
            hint="put the work under a condition, and let every thread reach `grid.sync()`; "
            f"launches in place of the barrier are not possible either: {error.msg}",
        ) from None


PIPELINE: dict[str, tuple[Pass, ...]] = {
    "cpu": (
        simplify, join_conditions, remove_wraps, spread, hoist_guards, prefetch_rounds, poll_loops,
    ),
    "wgpu": (simplify, join_conditions, remove_wraps, meet_in_phases),
    "cuda": (
        simplify, join_conditions, remove_wraps, accept_barriers, coarsen, part_where_threads_leave,
    ),
    "ascend": (simplify, join_conditions, remove_wraps, meet),
    "ascend-910b": (simplify, join_conditions, remove_wraps, spread_plainly, hoist_guards),
}  # fmt: skip


def lower(function: Function, target: str) -> Function:
    """Apply a target's passes in order."""
    trace.show(5, f"IR of {function.name} from the frontend", function.__str__)
    for one in PIPELINE[target]:
        function = one(function)
        trace.show(5, f"IR of {function.name} after {one.__name__}", function.__str__)
    return function
