"""The words of the language and of the plan: kinds of buffers, channels, operations and their joints."""

from __future__ import annotations

from enum import Enum, Flag


class _Word(Enum):
    def __str__(self) -> str:
        return str(self.value)


class SyncType(Flag):
    """On which sides of an operation the lanes of its thread block are joined."""

    none = 0
    before = 1
    after = 2
    both = 3

    def __str__(self) -> str:
        return str(self.name)


class ReduceOperationType(_Word):
    """How elements are combined. A plan of ``sum`` also serves averages, one of ``any`` all reductions."""

    sum = "sum"
    product = "product"
    min = "min"
    max = "max"
    band = "band"
    bor = "bor"
    bxor = "bxor"
    any = "any"


class BufferType(_Word):
    """The three memories of a rank."""

    input = "i"
    output = "o"
    scratch = "s"


class ChannelType(_Word):
    """How two ranks reach each other's memory."""

    port = "port"
    memory = "memory"
    switch = "switch"
    none = "none"


class ReplicationPolicy(_Word):
    """What the instances of a program do with its chunks.

    ``interleaved``: every chunk is divided, each instance has a part of it as a chunk of its own. ``none``: the chunks
    stay as they are and the instances of a thread block work on them together.
    """

    interleaved = "interleaved"
    none = "none"


class Instruction(_Word):
    """The operations of a plan, by the names that they have in it."""

    nop = "nop"
    barrier = "barrier"
    signal = "signal"
    wait = "wait"
    relaxed_signal = "rlxsignal"
    relaxed_wait = "rlxwait"
    flush = "flush"
    sem_acquire = "sem_acquire"
    sem_release = "sem_release"
    copy = "copy"
    copy_packet = "cpkt"
    unpack_packet = "upkt"
    get = "get"
    put = "put"
    put_packet = "ppkt"
    read_put_packet = "rppkt"
    put_with_signal = "pws"
    put_with_signal_and_flush = "pwsf"
    reduce = "re"
    reduce_packet = "repkt"
    reduce_copy_packet = "recpkt"
    reduce_send = "res"
    reduce_send_packet = "respkt"
    reduce_copy_send_packet = "recspkt"
    read_reduce = "rre"
    read_reduce_send = "rres"
    group_store = "gstore"
    group_store_packet = "gstorepkt"
    group_load_reduce = "glre"
    group_load_reduce_store = "glres"
    pipeline = "pipeline"


ENTRY_BY_ENTRY = {
    Instruction.get,
    Instruction.put,
    Instruction.put_packet,
    Instruction.put_with_signal,
    Instruction.put_with_signal_and_flush,
}
"""They move their lists entry by entry."""
