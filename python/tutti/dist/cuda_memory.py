"""CUDA memory that collectives use without copies: :func:`register_tensors`, :func:`mem_pool`, :func:`empty`.

Registering is collective: all ranks of the group pass tensors of the same sizes in the same order. From then on calls
of 1 MB and more read and write the ranks' tensors in place. That is a promise: a call that gets registered memory on
one rank gets the same tensors, at the same offsets, on all ranks. A group that breaks it fails with an error that says
so.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
from typing import TYPE_CHECKING, Any

from tutti.dist.groups import get_communicator
from tutti.dist.needs_torch import load

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch.distributed import ProcessGroup

    from tutti import _torch

__all__ = [
    "cuda_direct_calls",
    "empty",
    "is_registered",
    "mem_pool",
    "peer_tensors",
    "register_tensors",
    "unregister_tensors",
]


def _backend_of(group: ProcessGroup | None) -> _torch.ProcessGroupTutti:
    import torch

    try:
        return get_communicator(group, "cuda")
    except ValueError:
        if torch.cuda.device_count() > 0:
            raise
        # A group has the devices that are there; the backend says what is missing.
        with contextlib.suppress(ValueError):
            return get_communicator(group)
        raise


def register_tensors(tensors: Iterable[torch.Tensor], group: ProcessGroup | None = None) -> None:
    """Lets collectives of ``group`` (the default group for ``None``) use these CUDA tensors without copies.

    Collective. What counts are the tensors' storages, each once, in order of appearance: views of them need not be
    registered. They are held until :func:`unregister_tensors`, or until the group is destroyed. Any memory of PyTorch's
    will do that can be given to other processes; tensors of :func:`empty` and :func:`mem_pool` always can.

    Raises ``ValueError`` for a tensor that is no dense CUDA tensor or if the ranks' sizes differ, and ``RuntimeError``,
    the same on all ranks, that says which rank's memory cannot be shared and what to do. Nothing is registered then.
    """
    reason = _backend_of(group).register_tensors(list(tensors))
    if reason:
        raise RuntimeError(reason)


def unregister_tensors(tensors: Iterable[torch.Tensor], group: ProcessGroup | None = None) -> None:
    """Undoes :func:`register_tensors` for the storages of these tensors. Collective.

    Waits for the calls under way. Graphs that were captured on the tensors must not be replayed any more.
    ``ValueError`` on all ranks if one of them has not registered such a tensor.
    """
    _backend_of(group).unregister_tensors(list(tensors))


def peer_tensors(tensor: torch.Tensor, group: ProcessGroup | None = None) -> list[torch.Tensor]:
    """The tensors of all ranks, by rank, that lie where ``tensor`` does in a registered storage. Not collective.

    Each has ``tensor``'s shape, dtype and device, and its memory is the rank's own: kernels and copies of this rank
    read and write it over the link between the GPUs. Nothing orders what is written and read there but what the ranks
    agree on, such as a collective before and after. Valid until the storage is unregistered, or the group destroyed.

    Raises ``ValueError`` if ``tensor`` is no dense CUDA tensor, or ``group`` has not registered its storage.
    """
    return _backend_of(group).peer_tensors(tensor)


def is_registered(tensor: torch.Tensor) -> bool:
    """Whether some group of this process has registered the CUDA tensor's storage."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return False
    for group in dist.distributed_c10d._world.pg_map:
        try:
            backend = _backend_of(group)
        except ValueError:
            continue
        if backend.is_registered(tensor):
            return True
    return False


def cuda_direct_calls(group: ProcessGroup | None = None) -> int:
    """How many calls of ``group`` on CUDA tensors this rank has issued that ran without copies, captured ones too."""
    return int(_backend_of(group).cuda_direct_calls)


@functools.cache
def _allocator() -> Any:
    """Tutti's allocator for pools: one a process."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("tutti.mem_pool needs a CUDA device and a PyTorch with CUDA; there is none here")
    library = load().cuda_library()
    return torch.cuda.memory.CUDAPluggableAllocator(library, "tutti_cuda_pool_malloc", "tutti_cuda_pool_free")


@functools.cache
def pool_allocator() -> Any:
    """What ``torch.cuda.MemPool`` takes for :func:`mem_pool`: one a process, never freed. Raises as that does."""
    return _allocator().allocator()


def mem_pool() -> torch.cuda.MemPool:
    """A new ``torch.cuda.MemPool`` of the current device whose memory other processes of this host can map.

    Tensors that are made under ``torch.cuda.use_mem_pool(pool)`` can always be registered; nothing is shared before
    that. Raises ``RuntimeError`` without a CUDA device, ``ValueError`` without libtutti_cuda.so.
    """
    import torch

    return torch.cuda.MemPool(pool_allocator())


@functools.cache
def _own_pool(device: int) -> torch.cuda.MemPool:
    import torch

    atexit.register(_own_pool.cache_clear)  # freed while CUDA still works
    with torch.cuda.device(device):
        return mem_pool()


def pool_memory(nbytes: int, device: int) -> torch.Tensor:
    """``uint8[nbytes]`` on CUDA device ``device``, of this process's own pool. Raises as :func:`mem_pool` does."""
    import torch

    with torch.cuda.use_mem_pool(_own_pool(device), device):
        return torch.empty(nbytes, dtype=torch.uint8, device=device)


def empty(
    sizes: list[int], dtype: torch.dtype | None, device: torch.device, group: ProcessGroup | None
) -> torch.Tensor:
    """The CUDA half of :func:`tutti.empty`: collective, registered where the ranks' GPUs reach each other."""
    import torch

    backend = _backend_of(group)
    _allocator()  # says what is missing, before CUDA is asked for anything
    index = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.use_mem_pool(_own_pool(index), index):
        tensor = torch.empty(sizes, dtype=dtype, device=index)
    backend.register_tensors([tensor])  # where that is impossible, it stays an ordinary tensor: on all ranks
    return tensor
