"""Which send meets which receive, and where the message goes.

A connection leads from a thread block of one rank to one of another: the sender's ``send`` names the receiver's rank,
the receiver's ``recv`` the sender's, and ``chan`` is the same. It is a queue, so the k-th send meets the k-th receive.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from tutti.msccl.algorithm import Algorithm, Block, Range, Step
from tutti.msccl.direct import Place, direct_targets


@dataclass
class Connection:
    """The two ends, and where each message goes: to the target of its receive, or to chunks of its own in scratch."""

    sender: tuple[int, int]  # rank, thread block
    receiver: tuple[int, int]
    receives: list[Step]
    direct: list[bool]
    ends: list[int]  # of each message's slot, in chunks from the first
    first_slot: int = 0  # chunk of the receiver's scratch

    @property
    def slots(self) -> int:
        """Chunks of the receiver's scratch that the messages of a call take."""
        return self.ends[-1]

    def place(self, message: int) -> Range:
        """Where on the receiver's rank a message lies once it has come."""
        step = self.receives[message]
        if self.direct[message] and step.target is not None:
            return step.target
        return Range("s", self.first_slot + (self.ends[message - 1] if message else 0), step.size)


Key = tuple[int, int, int]  # from rank, to rank, channel


def connect(algorithm: Algorithm) -> list[Connection]:
    """All connections that carry something, in the order of their ranks and channel."""
    sends = _ends(algorithm, sends=True)
    receives = _ends(algorithm, sends=False)
    direct = [direct_targets(algorithm, rank) for rank in range(len(algorithm.gpus))]
    connections = []
    for key in sorted(sends.keys() | receives.keys()):
        source, target, channel = key
        if key not in receives:
            raise sends[key][1][0].element.fail(
                f"rank {target} has no thread block that receives from rank {source} on channel {channel}"
            )
        if key not in sends:
            raise receives[key][1][0].element.fail(
                f"rank {source} has no thread block that sends to rank {target} on channel {channel}"
            )
        connections.append(_match(key, sends[key], receives[key], direct[target]))
    next_slot = [gpu.chunks["s"] for gpu in algorithm.gpus]
    for connection in connections:
        connection.first_slot = next_slot[connection.receiver[0]]
        next_slot[connection.receiver[0]] += connection.slots
    return connections


def _match(key: Key, send: tuple[int, list[Step]], receive: tuple[int, list[Step]], direct: set[Place]) -> Connection:
    source, target, channel = key
    sent, received = send[1], receive[1]
    if len(sent) != len(received):
        longer = sent if len(sent) > len(received) else received
        raise longer[min(len(sent), len(received))].element.fail(
            f"rank {source} sends {len(sent)} times to rank {target} on channel {channel}, "
            f"which receives {len(received)} times"
        )
    for one, other in zip(sent, received, strict=True):
        if one.size != other.size:
            raise other.element.fail(
                f"{other.size} chunks are received, but rank {source} sends {one.size} (line {one.element.line})", "cnt"
            )
    straight = [(receive[0], step.number) in direct for step in received]
    ends = accumulate(0 if alone else step.size for step, alone in zip(received, straight, strict=True))
    return Connection((source, send[0]), (target, receive[0]), received, straight, list(ends))


def _ends(algorithm: Algorithm, sends: bool) -> dict[Key, tuple[int, list[Step]]]:
    ends: dict[Key, tuple[int, list[Step]]] = {}
    for rank, gpu in enumerate(algorithm.gpus):
        for number, block in enumerate(gpu.blocks):
            steps = [step for step in block.steps if (step.rules.sends if sends else step.rules.receives)]
            if not steps:
                continue
            key = _key(rank, block, sends)
            if key in ends:
                raise block.element.fail(
                    f"thread block {ends[key][0]} of this rank {'sends to' if sends else 'receives from'} "
                    f"the same rank on the same channel {block.channel}",
                    "chan",
                )
            ends[key] = number, steps
    return ends


def _key(rank: int, block: Block, sends: bool) -> Key:
    return (rank, block.send, block.channel) if sends else (block.receive, rank, block.channel)
