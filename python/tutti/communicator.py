"""A group of ranks without torch: collectives on NumPy arrays and whatever else offers its memory by DLPack.

The communicator of :mod:`torch.distributed`'s backend is the same one underneath; here it stands by itself::

    comm = tutti.Communicator()  # as torchrun, mpirun or SLURM started this process
    total = numpy.empty_like(part)
    comm.all_reduce(part, total)
"""

from __future__ import annotations

import hashlib
import itertools
import json
from operator import index
from typing import TYPE_CHECKING, Any

from tutti import _core, _devices, _formed, _want
from tutti._arrays import operation
from tutti._torchrun import agents_store

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from tutti._metrics import Metrics

__all__ = ["Communicator", "make_id"]

DEFAULT_TIMEOUT = 1800.0  # seconds


class Communicator:
    """A group of ranks and the collectives among them.

    Arrays are C-contiguous: NumPy arrays, torch tensors, anything with ``__dlpack__``; in main memory or, all of a
    call, on one NVIDIA GPU (``__cuda_array_interface__`` will do there). What is written is writeable. Element types
    are bool, the integers, float16 to float64, bfloat16 and complex, in the machine's byte order. ``op`` is one of
    ``sum avg product min max band bor bxor``, in any case, or NumPy's function such as ``numpy.maximum``. A ``timeout``
    is in seconds; 0 means the communicator's own. Several threads may use one communicator; all ranks make the same
    collective calls in the same order.

    A call on a GPU returns when it is done. With a ``stream`` (a ``cudaStream_t``, or a stream of torch or CuPy) it is
    enqueued there and returns at once: its arrays stay until the stream has passed it, and it may be captured into a
    graph. The first collective on GPUs is made by all ranks together, the first message between two ranks by both.

    Raises ``ValueError`` and ``NotImplementedError`` for arguments, ``TypeError`` for what is no integer of the right
    range where one is asked for (a root, peer, tag, color or key), before anything is sent and with nothing lost;
    ``TimeoutError`` when a rank does not come in time, ``RuntimeError`` when one has died or called something else:
    after these the communicator is of no more use.
    """

    def __init__(
        self,
        store: Any = None,
        rank: int | None = None,
        size: int | None = None,
        *,
        name: str = "tutti",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Joins the group ``name``; all its ranks do. ``name`` is used once in a store.

        Without ``rank`` and ``size`` they are those that the launcher gave to this process. ``store`` is where the
        ranks find each other: another communicator's ``store``, torch's, or any object with ``set``, ``get``, ``add``
        and ``wait`` like torch's; without it the one that torchrun serves, else rank 0 serves one at
        ``TUTTI_MASTER_ADDR`` and ``TUTTI_MASTER_PORT`` (or ``MASTER_ADDR`` and ``MASTER_PORT``).
        """
        if (rank is None) != (size is None):
            raise ValueError("rank and size are given together, or neither")
        if rank is None or size is None:
            launch = _core.launch_info()
            rank, size = launch.rank, launch.size
        # Before anybody is looked for; with a store create_communicator() tells the others.
        if store is None and not timeout > 0:
            raise ValueError(f"the timeout of a group must be more than 0 seconds, not {timeout}")
        if store is None and not 0 <= index(rank) < index(size):
            raise ValueError(f"rank {rank} of {size}: a rank lies between 0 and the world size less one")
        if store is None and size == 1:  # it needs nobody
            store = _core.memory_store()
        if store is None:
            store = agents_store(timeout) or _core.environment_store(rank, size, timeout)
        with _want.told(store, name, rank):
            core = _core.create_communicator(store, rank, size, name, timeout)
        self._take(core, store, name)

    def _take(self, core: _core.Communicator, store: Any, place: str) -> None:
        self.store: Any = store
        self._place = place  # what this group calls itself in the store
        self._shrinks = itertools.count(1)
        self._closed = False
        self._core = core
        self._devices = _core.device_communicator(core)
        _formed.give(core.size, self._set_algorithms)

    @classmethod
    def _of(cls, core: _core.Communicator, store: Any, place: str) -> Communicator:
        made = cls.__new__(cls)
        made._take(core, store, place)
        return made

    @classmethod
    def from_id(
        cls, id: bytes, rank: int, size: int, *, name: str = "tutti", timeout: float = DEFAULT_TIMEOUT
    ) -> Communicator:
        """A communicator of the ranks that were given the same ``id``, a new one of :func:`tutti.make_id`."""
        return cls._of(_core.join_group(id, rank, size, name, timeout), None, name)

    @classmethod
    def from_group(cls, group: ProcessGroup | None = None, *, name: str = "tutti", timeout: float = 0) -> Communicator:
        """A communicator of the ranks of a torch.distributed group, whatever its backend."""
        import torch.distributed as dist

        parent = dist.distributed_c10d._get_default_group() if group is None else group
        store = dist.PrefixStore(f"tutti.Communicator/{name}", dist.distributed_c10d._world.pg_map[parent][1])
        return cls(store, parent.rank(), parent.size(), name=name, timeout=timeout or DEFAULT_TIMEOUT)

    @property
    def rank(self) -> int:
        """This process's place in the group, from 0."""
        return self._core.rank

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return self._core.size

    @property
    def host_ranks(self) -> list[int]:
        """The ranks that share memory with this one, itself included."""
        return self._core.host_ranks

    def all_reduce(
        self, input: Any, output: Any = None, op: Any = "sum", *, timeout: float = 0, stream: Any = None
    ) -> Any:
        """Reduces the arrays of all ranks, elementwise, for all ranks. In place without ``output``."""
        return self._run("all_reduce", input, input if output is None else output, op, timeout=timeout, stream=stream)

    def reduce(
        self, input: Any, output: Any = None, root: int = 0, op: Any = "sum", *, timeout: float = 0, stream: Any = None
    ) -> Any:
        """Reduces the arrays of all ranks at ``root``; only there ``output`` is written. In place without it."""
        return self._run("reduce", input, input if output is None else output, op, root, timeout, stream)

    def broadcast(self, array: Any, root: int = 0, *, timeout: float = 0, stream: Any = None) -> Any:
        """Gives the array of ``root`` to all."""
        return self._run("broadcast", array, array, root=root, timeout=timeout, stream=stream)

    def all_gather(self, input: Any, output: Any, *, timeout: float = 0, stream: Any = None) -> Any:
        """Writes the arrays of all ranks into ``output``, one after the other, on all ranks."""
        return self._run("all_gather", input, output, timeout=timeout, stream=stream)

    def gather(self, input: Any, output: Any = None, root: int = 0, *, timeout: float = 0, stream: Any = None) -> Any:
        """Like :meth:`all_gather`, but only ``root`` has an ``output``."""
        return self._run("gather", input, output, root=root, timeout=timeout, stream=stream)

    def scatter(self, input: Any, output: Any, root: int = 0, *, timeout: float = 0, stream: Any = None) -> Any:
        """Gives block r of the ``input`` of ``root``, which the others leave out (``None``), to rank r."""
        return self._run("scatter", input, output, root=root, timeout=timeout, stream=stream)

    def reduce_scatter(
        self, input: Any, output: Any, op: Any = "sum", *, timeout: float = 0, stream: Any = None
    ) -> Any:
        """Reduces the arrays of all ranks; rank r gets block r of the result."""
        return self._run("reduce_scatter", input, output, op, timeout=timeout, stream=stream)

    def all_to_all(self, input: Any, output: Any, *, timeout: float = 0, stream: Any = None) -> Any:
        """Gives block s of the ``input`` of rank r to rank s, as block r of its ``output``."""
        return self._run("all_to_all", input, output, timeout=timeout, stream=stream)

    def barrier(self, *, timeout: float = 0) -> None:
        """Returns when all ranks have called it."""
        self._run("barrier", None, None, timeout=timeout)

    def send(self, array: Any, peer: int, tag: int = 0, *, timeout: float = 0, stream: Any = None) -> None:
        """Sends to ``peer``; returns when the array may be changed. Matched by peer, tag and order."""
        core = self._open()
        if stream is not None or _devices.lies_on_device(array):
            _devices.send(self._devices, array, peer, tag, timeout, stream)
        else:
            core.send(array, peer, tag, timeout)

    def recv(self, array: Any, peer: int = -1, tag: int = 0, *, timeout: float = 0, stream: Any = None) -> int:
        """Receives from ``peer``, or from whoever sends first (-1, in main memory only); returns the sender."""
        core = self._open()
        if stream is not None or _devices.lies_on_device(array):
            return _devices.recv(self._devices, array, peer, tag, timeout, stream)
        return core.recv(array, peer, tag, timeout)

    def split(self, color: int | None, key: int = 0, *, name: str | None = None) -> Communicator | None:
        """Collective: the ranks with the same ``color`` make a group, in the order of ``key``, then of rank.

        ``None`` for a rank whose color is ``None``. What they need to find each other goes through this group.
        """
        if color is not None and color < 0:
            raise ValueError(f"a color is 0 or more, or None for no group, not {color}")
        core = self._open()
        part = _core.split_group(core, -1 if color is None else color, key, name or f"{core.name} with color {color}")
        # By the group's own count, which is that of all ranks: one that was refused the call has not made it.
        place = f"{self._place}/part {core.splits} of color {color}"
        return None if part is None else self._of(part, self.store, place)

    def shrink(self, id: bytes | None = None, *, timeout: float = 10) -> tuple[Communicator, list[int]]:
        """A working group of the ranks that are still there, after a failure; all of them call it.

        Returns the new group and the ranks that its members had in this one, which is aborted. Ranks that do not answer
        within ``timeout`` are left out; the others form a group, each step within as long again (at least 5 s; by an
        ``id`` its first call, too), or raise. They meet in the store of this group, if what serves it is still there;
        or by a new ``id`` of :func:`tutti.make_id`, which one of them has made and carried to the others. Who waits for
        that calls :meth:`abort` first: then those hear of the failure that wait for this rank in a call.
        """
        core = self._open()
        if not timeout >= 0:
            raise ValueError(f"a timeout is a number of seconds, not negative, as {timeout} is")
        if id is None and self.store is None:
            raise ValueError(
                "this group was made without a store: shrink(id=...), an id that tutti.make_id() gave to one"
            )
        try:
            if id is not None:
                smaller, members = _core.shrink_group(core, id, timeout)
                place = f"{self._place}/survivors by {hashlib.sha256(id).hexdigest()[:16]}"
            else:
                # Counted only here, where nothing is refused any more: ranks that count apart do not meet.
                place = f"{self._place}/survivors {next(self._shrinks)}"
                smaller, members = _core.shrink_group(core, self.store, place, timeout)
        except ValueError:  # refused: the group goes on
            raise
        except BaseException:
            self._devices.abort("the group is being shrunk")
            raise
        self._devices.abort("the group is being shrunk")
        return self._of(smaller, self.store, place), members

    def metrics(self) -> Metrics:
        """What this rank has done in the group, in main memory and on its GPU: counts are exact, times in nanoseconds
        (docs/backend.md).
        """
        return self._devices.metrics(self._core)

    def reset_metrics(self) -> None:
        """Sets :meth:`metrics` to zero."""
        self._core.reset_metrics()
        self._devices.reset_metrics()

    def flight_record(self, device: str | None = None) -> dict[str, Any]:
        """The last calls, oldest first, in the schema of PyTorch's flight recorder, as :func:`tutti.flight_record` has
        them: those in main memory (``"cpu"``), on the GPU (``"cuda"``), or all.
        """
        record: dict[str, Any] = json.loads(self._devices.flight_record(self._core, device or ""))
        return record

    def abort(self, reason: str = "aborted by the caller") -> None:
        """Makes every waiting and later call raise, on this rank and by it on the others."""
        self._core.abort(reason)
        self._devices.abort(reason)

    def close(self) -> None:
        """Leaves the group in good order, on GPUs too. Later calls raise; another ``close()`` does nothing."""
        self._closed = True
        self._devices.shutdown()
        self._core.shutdown()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(
        self,
        collective: str,
        input: Any,
        output: Any,
        op: Any = "sum",
        root: int = -1,
        timeout: float = 0,
        stream: Any = None,
    ) -> Any:
        core = self._open()
        name = operation(op)
        ends = (input,) if input is output else (input, output)
        if stream is not None or any(map(_devices.lies_on_device, ends)):
            _devices.run(self._devices, self.size, collective, input, output, name, root, timeout, stream)
        else:
            core.run(collective, input, output, name, root, timeout)
        return output

    def _set_algorithms(self, handles: list[_core.UserAlgorithm], choose: Any) -> None:
        _core.set_algorithms(self._core, handles, choose)
        self._devices.set_algorithms(handles, choose)

    def _open(self) -> _core.Communicator:
        if self._closed:
            raise RuntimeError(f"communicator '{self._core.name}' has been closed on this rank: make another")
        return self._core


def make_id(address: str = "") -> bytes:
    """The id of one group, 128 bytes: for :meth:`Communicator.from_id`.

    One process makes it, whatever starts the ranks carries it to them. It holds an address and a secret: who knows it
    can join, so keep it as you would a key. ``address`` is a name or number of this machine that all ranks reach;
    without it the one of ``TUTTI_SOCKET_IFNAME``, or on the way to ``MASTER_ADDR``, or of the first interface that
    leads outside. This process lives until the group has formed.
    """
    return _core.make_id(address)
