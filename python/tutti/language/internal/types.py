"""The words of the language, by the module that older programs import them from."""

from __future__ import annotations

from tutti.language.chunks import Chunk
from tutti.language.passes.draft import RemoteBuffer
from tutti.language.switch_channel import RankGroup
from tutti.language.vocabulary import (
    BufferType,
    ChannelType,
    Instruction,
    ReduceOperationType,
    ReplicationPolicy,
    SyncType,
)

__all__ = [
    "BufferType",
    "ChannelType",
    "Chunk",
    "Instruction",
    "RankGroup",
    "ReduceOperationType",
    "RemoteBuffer",
    "ReplicationPolicy",
    "SyncType",
]
