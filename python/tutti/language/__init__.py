"""The language in which collectives are written as programs of channels, chunks and thread blocks.

A program for MSCCL++ runs here unchanged when ``mscclpp`` is replaced by ``tutti`` in its imports. Neither torch nor
Tutti's library is needed to write and compile one. ``docs/dsl.md`` describes everything.
"""

from __future__ import annotations

from tutti.language.channel import MemoryChannel, PortChannel, RankGroup, SwitchChannel
from tutti.language.chunks import BaseBuffer, Buffer, Chunk
from tutti.language.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
    SendRecv,
    TestCollective,
)
from tutti.language.errors import Origin, ProgramError
from tutti.language.general import JSON
from tutti.language.loop import LoopIterationContext
from tutti.language.program import CollectiveProgram, MSCCLPPProgram
from tutti.language.rank import Rank, Semaphore
from tutti.language.thread_block_group import ThreadBlockGroup
from tutti.language.utils import AlgoSpec
from tutti.language.vocabulary import BufferType, ChannelType, ReduceOperationType, ReplicationPolicy, SyncType

__all__ = [
    "JSON",
    "AlgoSpec",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "BaseBuffer",
    "Broadcast",
    "Buffer",
    "BufferType",
    "ChannelType",
    "Chunk",
    "Collective",
    "CollectiveProgram",
    "Gather",
    "LoopIterationContext",
    "MSCCLPPProgram",
    "MemoryChannel",
    "Origin",
    "PortChannel",
    "ProgramError",
    "Rank",
    "RankGroup",
    "Reduce",
    "ReduceOperationType",
    "ReduceScatter",
    "ReplicationPolicy",
    "Scatter",
    "Semaphore",
    "SendRecv",
    "SwitchChannel",
    "SyncType",
    "TestCollective",
    "ThreadBlockGroup",
]
