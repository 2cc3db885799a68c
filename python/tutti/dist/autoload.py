"""Entry point of ``torch.backends``: makes ``init_process_group("tutti")`` work without ``import tutti``.

PyTorch calls :func:`register` at the end of ``import torch``. An exception here would break that import, and
anything slow would slow it down: so nothing but ``torch.distributed`` is imported, and nothing is ever raised.
The backend's library is loaded when the first group is created.
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Sequence
from typing import Any

from tutti.dist.needs_torch import BACKEND

DEVICES = ("cpu", "cuda")


class _PresentDevices(Sequence[str]):
    """The devices whose tensors a group takes, of those that this machine has when somebody asks.

    ``torch.distributed`` registers a group for each of them, and libraries put their buffers there. Looking for GPUs is
    too slow for ``import torch``, and the process may still choose among them: so it is not done at registration.
    """

    @staticmethod
    def _present() -> tuple[str, ...]:
        import torch

        return DEVICES if torch.cuda.device_count() > 0 else DEVICES[:1]

    def __len__(self) -> int:
        return len(self._present())

    def __getitem__(self, index: Any) -> Any:
        return self._present()[index]


def _create(options: Any, backend_options: Any) -> Any:
    """Creates the backend of one group; called by ``torch.distributed`` on every rank of it."""
    from tutti.dist import backend

    # The ranks of a group are those of the default group; none: it is the one that is being made.
    parent = backend.backend_of() if options.global_ranks_in_group else None
    return backend.create_backend(options, backend_options, parent)


def register() -> None:
    """Makes ``"tutti"`` known to ``torch.distributed``; does nothing where that is missing or already done."""
    try:
        import torch.distributed as dist

        if not dist.is_available() or BACKEND.upper() in dist.Backend._plugins:
            return
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(DEVICES))
        capability: dict[str, Any] = dist.Backend.backend_capability
        capability[BACKEND] = _PresentDevices()
        _pretend_if_asked()
    except Exception:
        # The user's init_process_group will say that the backend is unknown.
        return


def torch_registers() -> bool:
    """Whether ``import torch`` calls :func:`register` in processes of this environment."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return False
    try:
        points = importlib.metadata.distribution("tutti-comms").entry_points
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(point.group == "torch.backends" for point in points)


def _pretend_if_asked() -> None:
    """Does what ``TUTTI_PRETEND`` asks for; where that is impossible, says so and goes on without."""
    name = os.environ.get("TUTTI_PRETEND")
    if not name:
        return
    from tutti.dist import pretence

    try:
        pretence.pretend(name)
    except (ImportError, ValueError, RuntimeError) as error:
        warnings.warn(f"TUTTI_PRETEND={name} has no effect: {error}", RuntimeWarning, stacklevel=2)
