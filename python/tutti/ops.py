"""Operators for models that communicate: ``import tutti.ops`` makes them known to PyTorch.

===========================================================================  =========================================
``torch.ops.tutti.all_reduce(x, group)``                                     the sum over all ranks, in a new tensor
``torch.ops.tutti.all_reduce.out(x, group, *, out)``                         the same, into ``out``
``torch.ops.tutti.all_reduce_(x, group)``                                    the same, in place
``torch.ops.tutti.all_reduce_add_rms_norm(x, residual, weight, eps, group)`` ``(rms_norm(s) * weight, s)`` of
                                                                             ``s = all_reduce(x) + residual``
===========================================================================  =========================================

``group`` is the name of a process group over Tutti (``group.group_name``): a text, so that compiled graphs can hold it.
The operators have fake kernels: ``torch.compile(fullgraph=True)`` keeps them, and moves nothing across them that has to
stay in order, since all ranks must make the same calls. They have no gradients: they are for inference.

On CUDA tensors they run on the current stream and can be captured in a graph.
"""

from __future__ import annotations

from typing import Any

import torch

from tutti import _backend

__all__ = ["all_reduce", "all_reduce_add_rms_norm"]

_library = torch.library.Library("tutti", "DEF")
_library.define("all_reduce(Tensor x, str group) -> Tensor", tags=(torch.Tag.needs_fixed_stride_order,))
_library.define("all_reduce.out(Tensor x, str group, *, Tensor(a!) out) -> Tensor(a!)")
_library.define("all_reduce_(Tensor(a!) x, str group) -> Tensor(a!)")
_library.define(
    "all_reduce_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, str group) -> (Tensor, Tensor)"
)


def _communicator(group: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _backend.get_communicator(_resolve_process_group(group))  # type: ignore[arg-type]


def _all_reduce(x: torch.Tensor, group: str) -> torch.Tensor:
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    _communicator(group).all_reduce_into(output, x)
    return output


def _all_reduce_out(x: torch.Tensor, group: str, *, out: torch.Tensor) -> torch.Tensor:
    _communicator(group).all_reduce_into(out, x)
    return out


def _all_reduce_in_place(x: torch.Tensor, group: str) -> torch.Tensor:
    _communicator(group).allreduce([x]).wait()
    return x


def _all_reduce_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    if residual.shape != x.shape or weight.shape != x.shape[-1:]:
        raise ValueError(
            f"all_reduce_add_rms_norm: x {tuple(x.shape)} needs a residual of its shape, which is "
            f"{tuple(residual.shape)}, and a weight of its last dimension, which is {tuple(weight.shape)}"
        )
    total = _all_reduce(x, group).add_(residual)
    return torch.nn.functional.rms_norm(total, weight.shape, weight, eps), total


def _fake(x: torch.Tensor, group: str) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_out(x: torch.Tensor, group: str, *, out: torch.Tensor) -> torch.Tensor:
    return out


def _fake_in_place(x: torch.Tensor, group: str) -> torch.Tensor:
    return x


def _fake_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake(x, group), _fake(x, group)


for _name, _function, _shape in (
    ("all_reduce", _all_reduce, _fake),
    ("all_reduce.out", _all_reduce_out, _fake_out),
    ("all_reduce_", _all_reduce_in_place, _fake_in_place),
    ("all_reduce_add_rms_norm", _all_reduce_add_rms_norm, _fake_norm),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"tutti::{_name}", _shape, lib=_library)


def _name_of(group: Any) -> str:
    """The name of a process group; of the default one for ``None``."""
    from torch.distributed.distributed_c10d import _get_default_group

    return str((_get_default_group() if group is None else group).group_name)


def all_reduce(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """The sum of ``x`` over the ranks of a process group (the default one for ``None``), in a new tensor."""
    return torch.ops.tutti.all_reduce(x, _name_of(group))  # type: ignore[no-any-return]


def all_reduce_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, group: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What follows a row-parallel layer: ``s = all_reduce(x) + residual``; returns ``(rms_norm(s) * weight, s)``.

    ``x`` and ``residual`` have the shape (…, hidden), ``weight`` the shape (hidden,), all of one dtype.
    """
    return torch.ops.tutti.all_reduce_add_rms_norm(  # type: ignore[no-any-return]
        x, residual, weight, eps, _name_of(group)
    )
