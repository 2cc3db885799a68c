"""Entry point of ``torchcomms.backends``: makes ``torchcomms.new_comm("tutti", device)`` work by itself.

TorchComms asks for the attribute ``backend`` of this module when a communicator of that name is made for the first
time. That says where the library of the backend is, after checking that the library is there and was built for the
torchcomms that asks. The library calls :func:`make_group` for each communicator, part of a split and reconfiguration.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tutti.dist.meeting import meet
from tutti.dist.needs_torch import load

if TYPE_CHECKING:
    import torch.distributed as dist

LIBRARY_VARIABLE = "TORCHCOMMS_BACKEND_LIB_PATH_TUTTI"
_HOW_TO_BUILD = (
    "pip install --no-build-isolation -Ccmake.define.TUTTI_TORCHCOMMS_INCLUDE=<checkout of torchcomms> "
    "<checkout of Tutti>"
)

_job_lock = threading.Lock()
_job_stores: dict[tuple[str, ...], dist.Store] = {}  # guarded by _job_lock


def library() -> Path:
    """The backend's library. ``ImportError``, saying what to do, if it was not built, or for another torchcomms."""
    from tutti import _core

    load()  # refuses another torch
    folder = Path(_core.__file__).parent
    found = sorted(folder.glob("_comms_tutti.*so"))
    if not found:
        raise ImportError(
            f"this tutti was built without its backend for torchcomms: no _comms_tutti.*.so is in {folder}. "
            f"Build it with the headers of the torchcomms that is installed: {_HOW_TO_BUILD}"
        )
    recorded = folder / "torchcomms_version.txt"
    built = recorded.read_text().strip() if recorded.exists() else ""
    try:
        present = importlib.metadata.version("torchcomms")
    except importlib.metadata.PackageNotFoundError:
        present = built  # run from a build folder: only the ABI, which torchcomms compares, is known
    if built and present.split("+")[0] != built:
        raise ImportError(
            f"this tutti's backend was built for torchcomms {built}, and here is torchcomms {present}: {_HOW_TO_BUILD}"
        )
    return found[0]


@contextlib.contextmanager
def _one_meeting(timeout: timedelta) -> Iterator[timedelta]:
    """One at a time: they are all at one port. Gives what is left of the time."""
    until = time.monotonic() + timeout.total_seconds()
    if not _job_lock.acquire(timeout=timeout.total_seconds()):
        raise RuntimeError(f"other communicators of this process have been made for {timeout.total_seconds():g} s")
    try:
        yield timedelta(seconds=max(until - time.monotonic(), 0.001))
    finally:
        _job_lock.release()


def _job_store(rank: int, size: int, timeout: timedelta) -> dist.Store:
    """The store of communicators that were given none: one in a process."""
    key = (os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", ""), str(rank), str(size))
    with _one_meeting(timeout) as left:
        if key not in _job_stores:
            _job_stores[key] = meet(rank, size, left, "tutti/torchcomms/port", once=False)
        return _job_stores[key]


def _options(hints: dict[str, str], refused: str) -> Any:
    """What the hints that settle how a group is made say (src/torchcomms/hints.cc), unless they are refused."""
    if not refused:
        algorithm, max_blocks = hints.get("tutti.algorithm", ""), int(hints.get("tutti.max_blocks", "0"))
        return load().Options(algorithm=algorithm, max_blocks=max_blocks)
    options = load().Options()
    options._refused = refused
    return options


def make_group(
    store: dist.Store | None,
    rank: int,
    size: int,
    key: str,
    timeout: timedelta,
    hints: dict[str, str],
    anew: bool,
    parent: Any = None,
    ranks: Sequence[int] = (),
    refused: str = "",
) -> tuple[Any, dist.Store]:
    """The group behind a communicator and its store: ``store`` or the job's; ``key`` names it there. Collective.

    ``anew``: the ranks may be others than those that have met before, so they meet again for a store of their own.
    ``parent``: the group whose ``ranks`` they are, over which they meet. The store is not asked then, not even where
    the parent has failed, which is raised: some of its ranks may have heard of that by other calls, and do not come.
    ``refused``: why this rank cannot take part, which all ranks are told and raise.
    """
    from tutti.dist import backend

    options = _options(hints, refused)
    if store is not None:
        chosen = store
    elif anew:
        with _one_meeting(timeout) as left:
            chosen = meet(rank, size, left, f"tutti/torchcomms/{key}/port", once=True)
    else:
        chosen = _job_store(rank, size, timeout)
    group = SimpleNamespace(
        store=chosen if parent is None else None,
        group_rank=rank,
        group_size=size,
        timeout=timeout,
        group_id="torchcomms:" + quote(key, safe=":"),
        global_ranks_in_group=list(range(size)) if parent is None else list(ranks),
    )
    own_store = anew and store is None
    try:
        made = backend.create_backend(group, options, parent)
    except Exception as error:
        if own_store:  # the others read there why it has not formed
            try:
                _outlast(chosen, rank, size, timeout, f"tutti/torchcomms/{key}/formed")
            except Exception:  # what the store has said names nobody
                raise RuntimeError(f"rank 0, which served the ranks' store, died or has left: {error}") from None
        raise
    if own_store:
        _outlast(chosen, rank, size, timeout, f"tutti/torchcomms/{key}/formed")
    return made, chosen


def _outlast(store: dist.Store, rank: int, size: int, timeout: timedelta, text: str) -> None:
    """Keeps rank 0, in whose process the store is, until all ranks have formed their group over it or given up, or some
    seconds.

    Else it could abort its communicator and exit while another rank still reads what it needs. They are counted under
    the name ``text``.
    """
    store.add(text, 1)
    until = time.monotonic() + min(timeout.total_seconds(), 5.0)
    while rank == 0 and store.add(text, 0) < size and time.monotonic() < until:
        time.sleep(0.001)


def __getattr__(name: str) -> Any:
    if name != "backend":  # of the entry point
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if LIBRARY_VARIABLE not in os.environ:  # set by somebody who has it in another place
        os.environ[LIBRARY_VARIABLE] = str(library())
    return os.environ[LIBRARY_VARIABLE]
