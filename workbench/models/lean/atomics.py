"""What the compiled pass needs beyond plain numba: counters that threads share, and giving the processor away."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

__all__ = ["address", "entry", "exact", "fetch_add", "intrinsics", "jit", "load", "meaning", "pause"]

OPTIONS: dict[str, Any] = {
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},
    "error_model": "numpy",
    "_nrt": False,  # nothing is allocated, so no references need to be counted
}
Function = TypeVar("Function", bound=Callable[..., Any])


def jit(function: Function, **options: Any) -> Function:
    """Compile at first call from other compiled code. Sums may be reordered; NaN and infinity keep their meaning."""
    # No wrappers for Python and C, which would take longer to compile than the function itself.
    compiled: Function = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **{**OPTIONS, **options})(function)
    return compiled


def exact(function: Function) -> Function:
    """The same, but no operation may change places: for code whose point is the order of its roundings."""
    return jit(function, fastmath={"contract"})


def entry(function: Function) -> Function:
    """The same for a function that Python calls; it lets go of the GIL meanwhile."""
    compiled: Function = njit(nogil=True, no_cfunc_wrapper=True, **OPTIONS)(function)
    return compiled


def intrinsics(generator: Callable[..., Any]) -> Callable[..., Any]:
    """A function of compiled code for which ``generator`` writes the instructions."""
    made: Callable[..., Any] = intrinsic(generator)
    return made


def meaning(function: Callable[..., Any]) -> Callable[[Function], Function]:
    """What ``function`` means in compiled code: the one below is given its arguments' types and gives its source."""

    def add(chooser: Function) -> Function:
        overload(function, jit_options=OPTIONS, strict=False)(chooser)
        return chooser

    return add


@intrinsics
def fetch_add(_typing: Any, counters: Any, index: Any, value: Any) -> Any:
    """Add to ``counters[index]`` (int64) in one indivisible step; what it was before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = address(context, builder, signature.args[0], arguments)
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(counters, types.int64, types.int64), generate


@intrinsics
def load(_typing: Any, counters: Any, index: Any) -> Any:
    """``counters[index]`` as other threads left it, and all that they wrote before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = address(context, builder, signature.args[0], arguments)
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(counters, types.int64), generate


@intrinsics
def pause(_typing: Any) -> Any:
    """Let another process have this core for a moment, where the system offers that (POSIX ``sched_yield``)."""

    def generate(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        if os.name == "posix":
            integer = ir.IntType(32)
            yielding = cgutils.get_or_insert_function(builder.module, ir.FunctionType(integer, []), "sched_yield")
            builder.call(yielding, [])
        return cgutils.true_bit

    return types.boolean(), generate


def address(context: Any, builder: Any, kind: Any, arguments: Any) -> Any:
    array = context.make_array(kind)(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])
