"""Plans from files, and running them by hand."""

from __future__ import annotations

import os
from typing import Any

from tutti import _core
from tutti.algorithms.algorithm import Algorithm, core_of
from tutti.algorithms.types import DataType, PacketType, ReduceOp
from tutti.plans.files import read_whole

__all__ = ["ExecutionPlan", "Executor"]


class ExecutionPlan:
    """The plan of a file (docs/plan-format.md), proven, as ``rank`` runs it.

    Raises ``ValueError`` naming what is wrong: in the file, by its JSON path; in the plan, as ``tutti plan check`` says
    it; or a rank that the plan has not. ``OSError`` if the file cannot be read.
    """

    def __init__(self, planPath: str | os.PathLike[str], rank: int) -> None:
        try:
            text = read_whole(planPath).decode()
            handle = _core.plan_algorithm(text, os.fspath(planPath))
        except ValueError as error:
            raise ValueError(f"{os.fspath(planPath)}: {error}") from None
        self._use(handle, rank)

    @classmethod
    def from_text(cls, text: str, rank: int, place: str = "a plan", ranks_per_host: int = 0) -> ExecutionPlan:
        """Of the text itself; ``place`` says in `tutti explain` where it is from."""
        plan = cls.__new__(cls)
        plan._use(_core.plan_algorithm(text, place, 0, ranks_per_host), rank)
        return plan

    def _use(self, handle: _core.UserAlgorithm, rank: int) -> None:
        if not 0 <= rank < handle.ranks:
            raise ValueError(f"rank {rank} is none of plan {handle.name!r}, which is for {handle.ranks} ranks")
        self._handle = handle
        self.rank = rank

    @property
    def name(self) -> str:
        """As its program was called."""
        return self._handle.name

    @property
    def collective(self) -> str:
        """What it carries out: ``"allreduce"``, ..."""
        return self._handle.collective_name

    @property
    def min_message_size(self) -> int:
        """The least bytes of one rank's block that it takes."""
        return self._handle.min_bytes

    @property
    def max_message_size(self) -> int:
        """The most."""
        return self._handle.max_bytes


class Executor:
    """Runs plans over a communicator. What a plan needs of it is made at its first call and kept with the group."""

    def __init__(self, comm: Any) -> None:
        """``TypeError`` if ``comm`` is neither a tutti.Communicator nor a tutti.CommGroup."""
        self._core = core_of(comm)
        self._comm = comm

    def execute(
        self,
        rank: int,
        send_buff: Any,
        recv_buff: Any,
        send_buff_size: int | None = None,
        recv_buff_size: int | None = None,
        data_type: DataType | None = None,
        plan: ExecutionPlan | None = None,
        stream: int = 0,
        packet_type: PacketType = PacketType.LL16,
        *,
        op: ReduceOp = ReduceOp.NOP,
    ) -> None:
        """Runs ``plan`` as the next collective; the arguments are those of :meth:`tutti.Algorithm.execute`.

        ``packet_type`` chooses between layouts that only GPUs have.
        """
        if plan is None:
            raise ValueError("no plan was given")
        if rank != self._core.rank or plan.rank != rank:
            raise ValueError(f"this is rank {self._core.rank}; the call is for {rank}, the plan for {plan.rank}")
        algorithm = Algorithm(execution_plan=plan)
        algorithm.execute(
            self._comm, send_buff, recv_buff, send_buff_size, recv_buff_size, data_type, op, stream, executor=self
        )

    def reset(self) -> None:
        """Does nothing: what plans keep belongs to the group and goes with it."""
