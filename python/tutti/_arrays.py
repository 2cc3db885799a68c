"""Why an array cannot be taken: asked by the core when it could not read it, or may not write it."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["operation", "refusal", "tensor_refusal"]

_UFUNCS = {
    np.add: "sum",
    np.multiply: "product",
    np.minimum: "min",
    np.maximum: "max",
    np.bitwise_and: "band",
    np.bitwise_or: "bor",
    np.bitwise_xor: "bxor",
}


def operation(op: Any) -> str:
    """The name of a reduce operation: as it is written, in any case, or as NumPy's function for two arrays."""
    if isinstance(op, str):
        return op.lower()
    if isinstance(op, np.ufunc) and op in _UFUNCS:
        return _UFUNCS[op]
    known = ", ".join(f"numpy.{ufunc.__name__}" for ufunc in _UFUNCS)
    raise ValueError(
        f"op: {getattr(op, '__name__', repr(op))} is no reduce operation; pass a name such as 'max', or one of {known}"
    )


def tensor_refusal(array: Any, argument: str, written: bool) -> str | None:
    """Why a torch tensor is not what lies in its memory, and what to pass instead; None of all other arrays.

    ``written``: also of one that requires a gradient, for which autograd would have to know of the writing.
    """
    for bit, doing in ("conj", "conjugated"), ("neg", "negated"):
        if getattr(array, f"is_{bit}", bool)():
            return f"the {argument} is a tensor that is {doing} only when it is read: pass it.resolve_{bit}()"
    if written and getattr(array, "requires_grad", False):
        return f"the {argument} is a tensor that requires a gradient: pass it.detach()"
    return None


def refusal(array: Any, argument: str, written: bool) -> str:
    """What is wrong with ``array``, which is to be read or ``written``, and what to pass instead."""
    if isinstance(array, np.ndarray):
        return f"the {argument} is {_refused_ndarray(array, written)}"
    if isinstance(array, list | tuple | range):
        return f"the {argument} is a {type(array).__name__}: pass numpy.array(it)"
    if isinstance(array, int | float | complex | np.generic):
        return f"the {argument} is a scalar ({type(array).__name__}): pass an array of it, numpy.array([it])"
    if (why := tensor_refusal(array, argument, True)) is not None:
        return why
    if hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) != 1:  # kDLCPU
        return f"the {argument} is not in main memory: pass a copy that is, it.cpu()"
    try:
        view = memoryview(array)
    except TypeError:
        view = None
    kind = type(array).__name__
    if written and view is not None and view.readonly:
        return f"the {argument} is read-only ({kind}) and would be written: pass a copy, numpy.array(it)"
    if view is None and not hasattr(array, "__dlpack__"):
        return f"the {argument} is no array ({kind}): pass a NumPy array or what offers DLPack"
    how = "written" if written else "read"
    return f"the {argument} ({kind}) cannot be {how} as an array of numbers: pass numpy.array(it)"


def _refused_ndarray(array: np.ndarray[Any, Any], written: bool) -> str:
    if array.dtype.hasobject:
        return "an array of Python objects: pass it.astype(...) with a type of numbers"
    if array.dtype.names is not None:
        return "a structured array: pass one of its fields, or a view as bytes, it.view(numpy.uint8)"
    if not array.dtype.isnative:
        return f"of the other byte order ({array.dtype.str}): pass it.astype(it.dtype.newbyteorder('='))"
    if array.dtype.kind in "mM":
        return f"an array of {array.dtype}, which are no numbers: pass a view as such, it.view(numpy.int64)"
    if array.dtype.kind not in "biufc":
        return f"an array of {array.dtype}, which are no numbers: pass a view as bytes, it.view(numpy.uint8)"
    if array.dtype.char in "gG":
        narrow = "float64" if array.dtype.kind == "f" else "complex128"
        return f"an array of {array.dtype}, wider than any type of Tutti's: pass it.astype(numpy.{narrow})"
    if written and not array.flags.writeable:
        return "read-only and would be written: pass a copy, it.copy(), or open it for writing"
    return f"an array of {array.dtype} that cannot be taken: pass numpy.ascontiguousarray(it)"
