"""XML algorithms to plans.

MSCCL's thread blocks send through NCCL's queues: a sender never waits for the receiver's step. A plan has no queues,
so a message gets chunks of the receiver's scratch, unless nobody can be disturbed where it is wanted (direct.py): the
sender puts it there and signals, the receiver waits and takes it from there. These places are used again by the next
call; so a receiver says when it enters a call (and has left the one before), and its sender waits for that before its
first message. That can cause no deadlock, as it is said before anything is waited for.
"""

from __future__ import annotations

from typing import Any

from tutti.msccl.algorithm import Algorithm, Block, Range, Step
from tutti.msccl.connections import Connection, connect

Json = dict[str, Any]
UNLIMITED = 2**64 - 1


def convert(algorithm: Algorithm, source: str) -> Json:
    """The plan; ``source`` is the name of the file."""
    connections = connect(algorithm)
    ranks = len(algorithm.gpus)
    gpus = [_Rank(algorithm, rank, connections, source).convert() for rank in range(ranks)]
    # A plan's limits are those of a rank block, MSCCL's those of the larger buffer.
    share = ranks if algorithm.collective in ("allgather", "reducescatter", "alltoall") else 1
    plan = {
        "version": 1,
        "name": algorithm.name,
        "collective": algorithm.collective,
        "protocol": "Simple",
        "inplace": algorithm.in_place,
        "reuse_resources": False,
        "gpus": gpus,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": -(-algorithm.min_bytes // share),
        "max_message_size": UNLIMITED if algorithm.max_bytes is None else (algorithm.max_bytes - 1) // share,
        "source": source,
    }
    if algorithm.collective in ("broadcast", "reduce"):
        plan["root"] = _root(algorithm)
    if not algorithm.in_place and _writes_input(algorithm):
        plan["writes_input"] = True  # MSCCL lets it; the plan is given a copy
    return plan


def _writes_input(algorithm: Algorithm) -> bool:
    return any(
        step.target is not None and step.target.buffer == "i"
        for gpu in algorithm.gpus
        for block in gpu.blocks
        for step in block.steps
    )


def _root(algorithm: Algorithm) -> int:
    """The files do not say it: the root of a broadcast receives nothing, that of a reduction sends nothing."""
    outwards = algorithm.collective == "broadcast"
    quiet = [
        rank
        for rank, gpu in enumerate(algorithm.gpus)
        if not any(
            step.rules.receives if outwards else step.rules.sends for block in gpu.blocks for step in block.steps
        )
    ]
    if len(quiet) != 1:
        what = "receives" if outwards else "sends"
        root = algorithm.gpus[0].element
        raise root.fail(f"which rank is the root is not to be seen: {len(quiet)} ranks are there that nothing {what}")
    return quiet[0]


class _Rank:
    """Resources of one rank: its channels and remote buffers, and the semaphores between its thread blocks."""

    def __init__(self, algorithm: Algorithm, rank: int, connections: list[Connection], source: str) -> None:
        self.rank = rank
        self.gpu = algorithm.gpus[rank]
        self.source = source
        self.in_place = algorithm.in_place
        self.peers: list[int] = []  # of each channel; both ends number a pair's channels in the order of connections
        self.remote: list[tuple[int, str]] = []  # other ranks' buffers that are written
        self.outgoing: dict[int, tuple[Connection, int]] = {}  # by thread block: the connection and its channel
        self.incoming: dict[int, tuple[Connection, int]] = {}
        self.scratch = self.gpu.chunks["s"]
        for connection in connections:
            for end, other, table in (
                (connection.sender, connection.receiver, self.outgoing),
                (connection.receiver, connection.sender, self.incoming),
            ):
                if end[0] != rank:
                    continue
                table[end[1]] = connection, len(self.peers)
                self.peers.append(other[0])
            if connection.sender[0] == rank:
                self.remote += [entry for entry in _written(connection) if entry not in self.remote]
            if connection.receiver[0] == rank:
                self.scratch += connection.slots
        self.semaphores: dict[tuple[int, int], int] = {}  # (released by, acquired by)
        self.releases: dict[tuple[int, int], list[int]] = {}  # (thread block, step): semaphores that it releases
        self.acquires: dict[tuple[int, int], int] = {}  # (thread block, step): the semaphore that it acquires
        self._order_blocks()

    def _order_blocks(self) -> None:
        for number, block in enumerate(self.gpu.blocks):
            reached: dict[int, int] = {}  # the last step of each thread block that this one knows to be over
            for place, step in enumerate(block.steps):
                if step.depends is None or step.depends[0] == number:
                    continue
                other, at = step.depends
                if at <= reached.get(other, -1):
                    continue
                reached[other] = at
                semaphore = self.semaphores.setdefault((other, number), len(self.semaphores))
                self.releases.setdefault((other, at), []).append(semaphore)
                self.acquires[number, place] = semaphore

    def convert(self) -> Json:
        blocks = [_Block(self, number, block).convert() for number, block in enumerate(self.gpu.blocks)]
        return {
            "id": self.rank,
            "input_chunks": self.gpu.chunks["i"],
            "output_chunks": self.gpu.chunks["o"],
            "scratch_chunks": self.scratch,
            "threadblocks": blocks,
            "channels": [{"channel_type": "memory", "connected_to": self.peers}] if self.peers else [],
            "remote_buffers": [
                {"rank": peer, "type": buffer, "access_channel_types": ["memory"]} for peer, buffer in self.remote
            ],
            "semaphores": [{"init_value": 0} for _ in self.semaphores],
        }


class _Block:
    """Operations of one thread block."""

    def __init__(self, rank: _Rank, number: int, block: Block) -> None:
        self.rank = rank
        self.number = number
        self.block = block
        self.operations: list[Json] = []
        self.touched: list[tuple[Range, bool]] = []  # since the last nop; True: written
        self.joined = True  # nothing stands between here and the last nop
        self.line = block.element.line
        self.channels = [entry[1] for entry in (rank.incoming.get(number), rank.outgoing.get(number)) if entry]
        self.remote = _written(rank.outgoing[number][0]) if number in rank.outgoing else []
        self.received = 0
        self.sent = 0

    def convert(self) -> Json:
        if self.number in self.rank.incoming:
            self._synchronise("rlxsignal", self.rank.incoming[self.number][1])
        for place, step in enumerate(self.block.steps):
            self.line = step.element.line
            semaphore = self.rank.acquires.get((self.number, place))
            if semaphore is not None:
                self._semaphore("sem_acquire", [semaphore])
            self._step(step)
            releases = self.rank.releases.get((self.number, place), [])
            if releases:
                self._semaphore("sem_release", releases)
        remote = [self.rank.remote.index(entry) for entry in self.remote]
        return {
            "id": self.number,
            "ops": self.operations,
            "channels": [{"channel_type": "memory", "channel_ids": self.channels}] if self.channels else [],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": remote}] if remote else [],
        }

    def _step(self, step: Step) -> None:
        slot = self._receive(step) if step.rules.receives else None
        if slot is None and step.kind == "cpy":
            self._data("copy", [step.source], [step.target])
        elif slot is None and step.kind == "re":
            self._data("re", [step.target, step.source], [step.target])
        elif step.kind == "s":
            self._send(step, step.source)
        elif step.kind in ("r", "rcs"):
            if slot != step.target:
                self._data("copy", [slot], [step.target])
            if step.rules.sends:
                self._send(step, slot)
        elif step.kind == "rrc":
            self._data("re", [step.source, slot], [step.target])
        elif step.kind == "rrcs":
            self._send(step, step.source, received=slot)
        elif step.kind == "rrs":
            # What nobody keeps is reduced where it came in.
            self._data("re", [step.source, slot], [slot])
            self._send(step, slot)

    def _receive(self, step: Step) -> Range:
        connection, channel = self.rank.incoming[self.number]
        self._synchronise("wait", channel)
        self.received += 1
        return connection.place(self.received - 1)

    def _send(self, step: Step, what: Range | None, received: Range | None = None) -> None:
        """Puts ``what`` to its place at the receiver; reduced with ``received``, and kept in the target, if given."""
        connection, channel = self.rank.outgoing[self.number]
        if self.sent == 0:
            self._synchronise("rlxwait", channel)
        place = connection.place(self.sent)
        number = self.remote.index((connection.receiver[0], place.buffer))
        slot = {"buffer_id": number, "index": place.index, "size": step.size}
        self.sent += 1
        if received is None:
            self._data("put", [what], [], slot)
        else:
            self._data("res", [what, received], [step.target], slot)
        self._synchronise("signal", channel)

    def _data(
        self, name: str, sources: list[Range | None], targets: list[Range | None], remote: Json | None = None
    ) -> None:
        reads = [entry for entry in sources if entry is not None]
        writes = [entry for entry in targets if entry is not None]
        if any(self._conflicts(entry, False) for entry in reads) or any(
            self._conflicts(entry, True) for entry in writes
        ):
            self._join()
        operation: Json = {
            "name": name,
            "src_buff": [_operand(entry) for entry in reads],
            "dst_buff": [_operand(entry) for entry in writes] + ([remote] if remote else []),
        }
        if remote is not None:
            operation["channel_type"] = "memory"
            operation["channel_ids"] = [self.channels.index(self.rank.outgoing[self.number][1])]
        if name in ("re", "res"):
            operation["reduce_op"] = "any"  # the file does not say which: MSCCL runs it with the caller's
        self._add(operation)
        self.touched += [(entry, False) for entry in reads] + [(entry, True) for entry in writes]

    def _conflicts(self, one: Range, writes: bool) -> bool:
        """True if lanes of this thread block must meet before it may touch the range."""
        return any((writes or written) and self._overlap(one, other) for other, written in self.touched)

    def _overlap(self, one: Range, other: Range) -> bool:
        if one.buffer != other.buffer:
            return self.rank.in_place and "s" not in (one.buffer, other.buffer)  # one memory, offset by rank
        return one.index < other.index + other.size and other.index < one.index + one.size

    def _synchronise(self, name: str, channel: int) -> None:
        if name == "signal":
            self._join()
        self._add({"name": name, "channel_type": "memory", "channel_ids": [self.channels.index(channel)]})
        if name in ("wait", "rlxwait"):
            self._join()

    def _semaphore(self, name: str, ids: list[int]) -> None:
        if name == "sem_release":
            self._join()
        self._add({"name": name, "semaphore_ids": ids})
        if name == "sem_acquire":
            self._join()

    def _join(self) -> None:
        if not self.joined:
            self.operations.append({"name": "nop"})
        self.joined = True
        self.touched.clear()

    def _add(self, operation: Json) -> None:
        self.operations.append({**operation, "origin": f"{self.rank.source}:{self.line}"})
        self.joined = False


def _written(connection: Connection) -> list[tuple[int, str]]:
    """The receiver's buffers into which messages go, as (rank, buffer)."""
    places = [connection.place(message) for message in range(len(connection.receives))]
    return list(dict.fromkeys((connection.receiver[0], place.buffer) for place in places))


def _operand(entry: Range) -> Json:
    return {"type": entry.buffer, "index": entry.index, "size": entry.size}
