"""Operators for models that communicate: ``import tutti.ops`` makes them known to PyTorch.

==================================================================================  ==================================
``torch.ops.tutti.all_reduce(x, group)``                                            the sum over all ranks, a new tensor
``torch.ops.tutti.all_reduce_(x, group)``                                           the same, in place
``torch.ops.tutti.all_reduce_add_rms_norm(x, residual, weight, eps, group)``        ``(rms_norm(s) * weight, s)`` of
                                                                                    ``s = all_reduce(x) + residual``
``torch.ops.tutti.all_reduce_add_rms_norm_(x, residual, weight, eps, group)``       the same, in ``x`` and ``residual``
``torch.ops.tutti.all_reduce_add_rms_norm_fp8(x, residual, weight, scale, eps,      the norm as float8_e4m3fn, divided
group)``                                                                            by ``scale``, and ``s``
``torch.ops.tutti.all_reduce_add_rms_norm_fp8_rows(x, residual, weight, eps,        the norm as float8_e4m3fn, the
group)``                                                                            scale of each row, and ``s``
``torch.ops.tutti.all_reduce_quantized(x, group, bits, block)``                     the sum, sent as 8-bit codes
==================================================================================  ==================================

Those that return new tensors have ``.out`` overloads (``out``, ``residual_out``, ``scales_out``).

``group`` is the name of a process group over Tutti (``group.group_name``): a text, so that compiled graphs can hold it.
The operators have fake kernels: ``torch.compile(fullgraph=True)`` keeps them, and moves nothing across them that has to
stay in order, since all ranks must make the same calls. They have no gradients: they are for inference.

On CUDA tensors they run on the current stream and can be captured in a graph. The norms are one call there for
bfloat16, float16 and float32 rows of a multiple of 16 bytes, up to 512 KB; other rows, and CPU tensors, take an
all-reduce and PyTorch's operators. Those in fp8 allocate memory of the size of ``x`` where the residual is in place.
"""

from __future__ import annotations

from typing import Any

from tutti.dist.groups import get_communicator  # first: it says what to do where torch is missing

# isort: split
import torch

from tutti.dist.serving_calls import add_rms_norm_into, quantized_into

__all__ = [
    "all_reduce",
    "all_reduce_add_rms_norm",
    "all_reduce_add_rms_norm_fp8",
    "all_reduce_quantized",
]

_FP8 = torch.float8_e4m3fn
_NORM = "Tensor x, Tensor residual, Tensor weight"

_library = torch.library.Library("tutti", "DEF")
_library.define("all_reduce(Tensor x, str group) -> Tensor", tags=(torch.Tag.needs_fixed_stride_order,))
_library.define("all_reduce.out(Tensor x, str group, *, Tensor(a!) out) -> Tensor(a!)")
_library.define("all_reduce_(Tensor(a!) x, str group) -> Tensor(a!)")
_library.define(f"all_reduce_add_rms_norm({_NORM}, float eps, str group) -> (Tensor, Tensor)")
_library.define(
    f"all_reduce_add_rms_norm.out({_NORM}, float eps, str group, *, Tensor(a!) out, Tensor(b!) residual_out)"
    " -> (Tensor(a!), Tensor(b!))"
)
_library.define(
    "all_reduce_add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps, str group) -> ()"
)
_library.define(f"all_reduce_add_rms_norm_fp8({_NORM}, Tensor scale, float eps, str group) -> (Tensor, Tensor)")
_library.define(
    f"all_reduce_add_rms_norm_fp8.out({_NORM}, Tensor scale, float eps, str group, *, Tensor(a!) out,"
    " Tensor(b!) residual_out) -> (Tensor(a!), Tensor(b!))"
)
_library.define(f"all_reduce_add_rms_norm_fp8_rows({_NORM}, float eps, str group) -> (Tensor, Tensor, Tensor)")
_library.define(
    f"all_reduce_add_rms_norm_fp8_rows.out({_NORM}, float eps, str group, *, Tensor(a!) out, Tensor(b!) scales_out,"
    " Tensor(c!) residual_out) -> (Tensor(a!), Tensor(b!), Tensor(c!))"
)
_library.define("all_reduce_quantized(Tensor x, str group, str bits='fp8', int block=128) -> Tensor")
_library.define(
    "all_reduce_quantized.out(Tensor x, str group, str bits='fp8', int block=128, *, Tensor(a!) out) -> Tensor(a!)"
)


def _communicator(group: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return get_communicator(_resolve_process_group(group))  # type: ignore[arg-type]


def _new(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _new_scales(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


def _all_reduce(x: torch.Tensor, group: str) -> torch.Tensor:
    return _all_reduce_out(x, group, out=_new(x))


def _all_reduce_out(x: torch.Tensor, group: str, *, out: torch.Tensor) -> torch.Tensor:
    _communicator(group).all_reduce_into(out, x)
    return out


def _all_reduce_in_place(x: torch.Tensor, group: str) -> torch.Tensor:
    _communicator(group).allreduce([x]).wait()
    return x


def _norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _norm_out(x, residual, weight, eps, group, out=_new(x), residual_out=_new(x))


def _norm_out(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: str,
    *,
    out: torch.Tensor,
    residual_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    add_rms_norm_into(_communicator(group), x, residual, weight, eps, out, residual_out)
    return out, residual_out


def _norm_in_place(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group: str) -> None:
    add_rms_norm_into(_communicator(group), x, residual, weight, eps, x, residual)


def _norm_fp8(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, eps: float, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _norm_fp8_out(x, residual, weight, scale, eps, group, out=_new(x, _FP8), residual_out=_new(x))


def _norm_fp8_out(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
    group: str,
    *,
    out: torch.Tensor,
    residual_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    add_rms_norm_into(_communicator(group), x, residual, weight, eps, out, residual_out, scale=scale)
    return out, residual_out


def _norm_fp8_rows(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _norm_fp8_rows_out(
        x, residual, weight, eps, group, out=_new(x, _FP8), scales_out=_new_scales(x), residual_out=_new(x)
    )


def _norm_fp8_rows_out(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: str,
    *,
    out: torch.Tensor,
    scales_out: torch.Tensor,
    residual_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    add_rms_norm_into(_communicator(group), x, residual, weight, eps, out, residual_out, scales_out=scales_out)
    return out, scales_out, residual_out


def _quantized(x: torch.Tensor, group: str, bits: str = "fp8", block: int = 128) -> torch.Tensor:
    return _quantized_out(x, group, bits, block, out=_new(x))


def _quantized_out(
    x: torch.Tensor, group: str, bits: str = "fp8", block: int = 128, *, out: torch.Tensor
) -> torch.Tensor:
    quantized_into(_communicator(group), out, x, bits, block)
    return out


# Fake kernels: the shapes of what the real ones return.
def _fake_out(*_: Any, out: torch.Tensor, **__: Any) -> torch.Tensor:
    return out


for _name, _function, _shape in (
    ("all_reduce", _all_reduce, lambda x, *_: _new(x)),
    ("all_reduce.out", _all_reduce_out, _fake_out),
    ("all_reduce_", _all_reduce_in_place, lambda x, *_: x),
    ("all_reduce_add_rms_norm", _norm, lambda x, *_: (_new(x), _new(x))),
    ("all_reduce_add_rms_norm.out", _norm_out, lambda *_, out, residual_out: (out, residual_out)),
    ("all_reduce_add_rms_norm_", _norm_in_place, lambda *_: None),
    ("all_reduce_add_rms_norm_fp8", _norm_fp8, lambda x, *_: (_new(x, _FP8), _new(x))),
    ("all_reduce_add_rms_norm_fp8.out", _norm_fp8_out, lambda *_, out, residual_out: (out, residual_out)),
    (
        "all_reduce_add_rms_norm_fp8_rows",
        _norm_fp8_rows,
        lambda x, *_: (_new(x, _FP8), _new_scales(x), _new(x)),
    ),
    (
        "all_reduce_add_rms_norm_fp8_rows.out",
        _norm_fp8_rows_out,
        lambda *_, out, scales_out, residual_out: (out, scales_out, residual_out),
    ),
    ("all_reduce_quantized", _quantized, lambda x, *_, **__: _new(x)),
    ("all_reduce_quantized.out", _quantized_out, _fake_out),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"tutti::{_name}", _shape, lib=_library)


def _name_of(group: Any) -> str:
    """The name of a process group, which may be given instead; of the default one for ``None``."""
    if isinstance(group, str):
        return str(group)
    from torch.distributed.distributed_c10d import _get_default_group

    return str((_get_default_group() if group is None else group).group_name)


def all_reduce(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """The sum of ``x`` over the ranks of a process group (the default one for ``None``), in a new tensor."""
    return torch.ops.tutti.all_reduce(x, _name_of(group))  # type: ignore[no-any-return]


def all_reduce_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, group: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What follows a row-parallel layer: ``s = all_reduce(x) + residual``; returns ``(rms_norm(s) * weight, s)``.

    ``x`` and ``residual`` have the shape (…, hidden), ``weight`` the shape (hidden,), all of one dtype. The norm is
    computed in float32 and rounded to that dtype before it is multiplied, as engines do. ``ValueError`` for shapes,
    ``TypeError`` for dtypes that do not fit together.
    """
    return torch.ops.tutti.all_reduce_add_rms_norm(  # type: ignore[no-any-return]
        x, residual, weight, eps, _name_of(group)
    )


def all_reduce_add_rms_norm_fp8(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
    eps: float = 1e-6,
    group: Any = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same with a norm in float8_e4m3fn; returns ``(codes, scale, s)``: the norm is about ``codes * scale``.

    ``scale`` is one float32 value on the device. Without it each row's largest magnitude becomes the largest code, and
    the scales have the shape (…, 1). What does not fit is saturated.
    """
    if scale is None:
        return torch.ops.tutti.all_reduce_add_rms_norm_fp8_rows(  # type: ignore[no-any-return]
            x, residual, weight, eps, _name_of(group)
        )
    codes, s = torch.ops.tutti.all_reduce_add_rms_norm_fp8(x, residual, weight, scale, eps, _name_of(group))
    return codes, scale, s


def all_reduce_quantized(x: torch.Tensor, group: Any = None, bits: str = "fp8", block: int = 128) -> torch.Tensor:
    """The sum of ``x`` over the ranks, nearly: each ``block`` elements are sent as 8-bit codes and one scale.

    ``bits`` is ``"fp8"`` (e4m3fn) or ``"int8"``, ``block`` 32, 64, 128, 256 or 512; ``x`` is bfloat16, float16 or
    float32. All ranks get the same bits. If A is the sum over all ranks of the largest magnitude in an element's block,
    the error is at most 2.04 A / 28 for fp8 and 2.01 A / 254 for int8, and rounding to the dtype. A block in which any
    rank has an infinity or a NaN becomes NaN as a whole.
    """
    return torch.ops.tutti.all_reduce_quantized(x, _name_of(group), bits, block)  # type: ignore[no-any-return]
