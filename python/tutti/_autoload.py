"""Entry point of ``torch.backends``: makes ``init_process_group("tutti")`` work without ``import tutti``.

PyTorch calls :func:`register` at the end of ``import torch``. An exception here would break that import, and
anything slow would slow it down: so nothing but ``torch.distributed`` is imported, and nothing is ever raised.
The backend's library is loaded when the first group is created.
"""

from __future__ import annotations

from typing import Any

BACKEND = "tutti"
DEVICES = ("cpu", "cuda")


def _create(options: Any, backend_options: Any) -> Any:
    """Creates the backend of one group; called by ``torch.distributed`` on every rank of it."""
    from tutti import _backend

    return _backend.create_backend(options, backend_options)


def register() -> None:
    """Makes ``"tutti"`` known to ``torch.distributed``; does nothing where that is missing or already done."""
    try:
        import torch.distributed as dist

        if not dist.is_available() or BACKEND.upper() in dist.Backend._plugins:
            return
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(DEVICES))
    except Exception:
        # The user's init_process_group will say that the backend is unknown.
        return
