"""The Tutti backends behind the process groups of ``torch.distributed``.

Importing this file where the part of the package for torch is missing is an ImportError that says what to do; whatever
works on process groups imports it before torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tutti.dist.needs_torch import BACKEND, load, require_torch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tutti import _torch

__all__ = ["get_communicator"]

require_torch()


def get_communicator(group: ProcessGroup | None = None, device: str = "cpu") -> _torch.ProcessGroupTutti:
    """The Tutti backend of ``group`` (the default group for ``None``) for tensors on ``device``.

    ``ValueError`` if it has none, or is what ``new_group`` returns to ranks that are not in the group; ``TypeError`` if
    it is no process group.
    """
    import torch
    import torch.distributed as dist

    module = load()
    asked: Any = dist.distributed_c10d._get_default_group() if group is None else group
    if asked is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not in the group")
    if not isinstance(asked, dist.ProcessGroup):
        raise TypeError(f"a process group is wanted, not {asked!r}")
    try:
        backend: Any = asked._get_backend(torch.device(device))
    except RuntimeError:
        backend = None
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking wrapper around every backend.
    backend = getattr(backend, "wrapped_pg", backend)
    if not isinstance(backend, module.ProcessGroupTutti):
        raise ValueError(f"the process group does not use the backend {BACKEND!r} for {device.upper()} tensors")
    found: _torch.ProcessGroupTutti = backend
    return found
