"""The channels of the language, and the words that their methods take."""

from __future__ import annotations

from tutti.language.chunks import Chunk
from tutti.language.context import get_program
from tutti.language.pair_channels import MemoryChannel, PortChannel
from tutti.language.switch_channel import RankGroup, SwitchChannel, SwitchChannelRankView
from tutti.language.thread_block_group import ThreadBlockGroup
from tutti.language.vocabulary import BufferType, ChannelType, ReduceOperationType, SyncType

__all__ = [
    "BufferType",
    "ChannelType",
    "Chunk",
    "MemoryChannel",
    "PortChannel",
    "RankGroup",
    "ReduceOperationType",
    "SwitchChannel",
    "SwitchChannelRankView",
    "SyncType",
    "ThreadBlockGroup",
    "get_program",
]
