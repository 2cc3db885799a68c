"""A group of ranks as programs for MSCCL++ make it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti import _core
from tutti.communicator import DEFAULT_TIMEOUT, Communicator

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["CommGroup"]


class CommGroup:
    """A group of ranks: a :class:`tutti.Communicator` (``communicator``) and what programs ask of it.

    ``my_rank``, ``nranks``, ``nranks_per_node`` (ranks that share memory with this one), ``nranks_per_ipc_domain`` and
    ``ipc_domain_n_ranks`` (the same here).
    """

    def __init__(
        self,
        mpi_comm: Any = None,
        torch_group: ProcessGroup | None = None,
        interfaceIpPortTrio: str = "",
        rank: int | None = None,
        size: int | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Joins; all ranks do. Where they find each other is said by one of

        - ``interfaceIpPortTrio``, ``"INTERFACE:IP:PORT"`` of rank 0, with ``rank`` and ``size``;
        - ``torch_group``, a torch.distributed group of any backend;
        - ``mpi_comm``, anything with mpi4py's ``Get_rank``, ``Get_size`` and ``bcast``;
        - nothing: the launcher's environment, as :class:`tutti.Communicator` reads it.

        Raises ``ValueError`` for arguments, also for two of these at once; ``TimeoutError`` if a rank does not come,
        ``RuntimeError`` over MPI if rank 0 could not begin.
        """
        if bool(interfaceIpPortTrio) + (mpi_comm is not None) + (torch_group is not None) > 1:
            raise ValueError("ranks find each other by one of interfaceIpPortTrio, mpi_comm and torch_group: pass one")
        if interfaceIpPortTrio:
            self.communicator = _at_address(interfaceIpPortTrio, rank, size, timeout)
        elif mpi_comm is not None:
            self.communicator = _over_mpi(mpi_comm, timeout)
        elif torch_group is not None:
            self.communicator = _over_torch(torch_group, timeout)
        else:
            self.communicator = Communicator(rank=rank, size=size, name="CommGroup", timeout=timeout)
        self.my_rank = self.communicator.rank
        self.nranks = self.communicator.size
        self.nranks_per_node = len(self.communicator.host_ranks)
        self.nranks_per_ipc_domain = self.nranks_per_node
        self.ipc_domain_n_ranks = self.nranks_per_node

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self.communicator.barrier()

    def send(self, tensor: np.ndarray[Any, Any], peer: int, tag: int) -> None:
        """Sends an array to ``peer``; returns when it may be changed."""
        self.communicator.send(tensor, peer, tag)

    def recv(self, tensor: np.ndarray[Any, Any], peer: int, tag: int) -> None:
        """Receives what ``peer`` sends under ``tag`` into an array of the same size."""
        self.communicator.recv(tensor, peer, tag)


def _at_address(trio: str, rank: int | None, size: int | None, timeout: float) -> Communicator:
    if rank is None or size is None or not 0 <= rank < size:
        raise ValueError(f"an address needs a rank below a size, not rank {rank} of {size}")
    rest, _, port = trio.rpartition(":")
    _, _, host = rest.partition(":")
    if host.startswith("[") and host.endswith("]"):  # of an IPv6 address
        host = host[1:-1]
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{trio!r} is not INTERFACE:IP:PORT")
    store = _core.tcp_store(host, int(port), rank == 0, timeout) if size > 1 else None
    return Communicator(store, rank, size, name="CommGroup", timeout=timeout)


def _over_mpi(mpi: Any, timeout: float) -> Communicator:
    rank, size = mpi.Get_rank(), mpi.Get_size()
    if size == 1:
        return Communicator(rank=0, size=1, name="CommGroup", timeout=timeout)
    if rank == 0:
        try:
            store = _core.tcp_store("0.0.0.0", 0, True, timeout)
        except Exception as error:
            # The other ranks wait for an address, and MPI's broadcast has no deadline.
            mpi.bcast(f"{type(error).__name__}: {error}", 0)
            raise
        mpi.bcast(([socket.gethostname(), "127.0.0.1"], store.port), 0)
    else:
        place = mpi.bcast(None, 0)
        if isinstance(place, str):
            raise RuntimeError(f"rank 0 could not begin the group: {place}")
        names, port = place
        here = socket.gethostname() == names[0]  # a name that need not resolve
        store = _core.tcp_store(names[1] if here else names[0], port, False, timeout)
    return Communicator(store, rank, size, name="CommGroup", timeout=timeout)


def _over_torch(group: ProcessGroup, timeout: float) -> Communicator:
    import torch.distributed as dist

    # Counted by the store itself, so that the second group of the same ranks has another name than the first.
    store = dist.distributed_c10d._world.pg_map[group][1]
    number = int(store.add(f"tutti.CommGroup/{group.rank()}", 1))
    return Communicator.from_group(group, name=f"CommGroup/{number}", timeout=timeout)
