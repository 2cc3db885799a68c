"""Groups that a program asks for as gloo, served by Tutti: for programs and frameworks that know backends by name.

:func:`pretend` puts a function of ours around the one by which ``torch.distributed`` makes groups. It asks for
``"tutti"`` wherever ``"gloo"`` was asked for, then enters the group under the name that the program gave. Nothing of
this is in place before somebody asks for it, and ``pretend(enabled=False)`` takes it away again.

Thread rule: the program calls it where no other thread makes groups.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Iterator
from typing import Any

from tutti.dist.needs_torch import BACKEND, require_torch

__all__ = ["NAMES", "in_force", "look_for_gloo", "pretend"]

NAMES = ("gloo",)  # nccl and mpi would have torch.distributed look for members that only theirs have

_MARK = "_tutti_pretends"
_LOOK_EVERY_S = 0.5
_WHY = "its group of this name is gloo's: it lacks `tutti run --as gloo`, TUTTI_PRETEND=gloo or tutti.pretend()"
_LOGGER = logging.getLogger("tutti")


def pretend(name: str = "gloo", enabled: bool = True) -> None:
    """Lets Tutti serve the process groups that this process asks for as ``name``, from now on.

    They are entered under that name: ``torch.distributed.get_backend`` returns it, so that programs which choose by
    names go the way they know. It holds for ``"gloo"`` alone, for a part of ``"cpu:gloo,cuda:nccl"``, and where no name
    is given and PyTorch would take gloo. Groups made before stay what they are. ``tutti run --as gloo`` and
    ``TUTTI_PRETEND=gloo`` do the same for whole programs. ``enabled=False`` ends it.

    Raises ``ValueError`` for any other name, ``RuntimeError`` where PyTorch makes its groups in a way not known here,
    ``ImportError`` without torch.
    """
    if name not in NAMES:
        raise ValueError(f"Tutti can pretend to be {' or '.join(NAMES)}, not {name!r}")
    require_torch()
    import torch.distributed.distributed_c10d as c10d

    present = getattr(c10d, "_new_process_group_helper", None)
    original = getattr(present, _MARK, None)
    if not enabled:
        if original is not None:
            c10d._new_process_group_helper = original
        return
    if original is not None:
        return
    if present is None or "backend" not in inspect.signature(present).parameters:
        raise RuntimeError(
            "this version of PyTorch makes process groups in a way that tutti.pretend does not know: "
            'ask for "tutti" by name'
        )
    c10d._new_process_group_helper = _serving(present)


def in_force() -> bool:
    """Whether groups that are asked for under another name are Tutti's."""
    import torch.distributed.distributed_c10d as c10d

    return hasattr(c10d._new_process_group_helper, _MARK)


@contextlib.contextmanager
def look_for_gloo(store: Any, place: str, rank: int, size: int, first: bool) -> Iterator[None]:
    """While the group ``place`` forms: if the next rank makes gloo's group of its name, all who wait for it are told.

    gloo begins with its address, under its rank in the store that the group has here. Keys stay where they are, so one
    may be of an earlier group. It is of this one if it came while this rank looked; or if this rank has asked neither
    gloo nor, before this (``first``), Tutti for a group of the name. Else the rank is missed at the deadline. Each rank
    looks for the next one only: of those that pretend, one is before those that do not.
    """
    if size == 1 or not in_force():
        yield
        return
    from tutti import _core

    there = (rank + 1) % size
    over = threading.Event()

    def has_begun(one: int) -> bool:
        return bool(store.check([f"0/{one}"]))

    def look() -> None:
        with contextlib.suppress(Exception):  # a store that cannot say so, or has gone: the deadline remains
            may_be_old = has_begun(there) and not (first and not has_begun(rank))
            while not may_be_old and not over.wait(_LOOK_EVERY_S):
                if has_begun(there):
                    _core.tell_cannot_join(store, place, there, _WHY)
                    return

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        yield
    finally:
        over.set()
        looker.join()


def _serving(original: Any) -> Any:
    """What makes groups instead of ``original``."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make(*positional: Any, **named: Any) -> Any:
        import torch.distributed.distributed_c10d as c10d

        call = signature.bind(*positional, **named)
        asked = call.arguments["backend"]
        served = _instead_of(str(asked))
        if served is None:
            return original(*positional, **named)
        call.arguments["backend"] = c10d.Backend(served)
        made = original(*call.args, **call.kwargs)
        group, world = made[0], c10d._world
        if group in world.pg_map:  # not on ranks outside of the group
            world.pg_map[group] = (asked, world.pg_map[group][1])
            world.pg_backend_config[group] = str(c10d.BackendConfig(asked))
            _LOGGER.info("group %s, asked for as %s, is made as %s", group.group_name, asked, served)
        return made

    setattr(make, _MARK, original)
    return make


def _instead_of(asked: str) -> str | None:
    """The backends to ask for instead of ``asked``; ``None`` if gloo is not among them."""
    import torch.distributed.distributed_c10d as c10d

    single = ":" not in asked
    devices = c10d.BackendConfig(c10d.Backend(asked)).get_device_backend_map()
    if not set(devices.values()) & set(NAMES):
        return None
    if single:
        return BACKEND
    return ",".join(f"{device}:{BACKEND if name in NAMES else name}" for device, name in devices.items())
