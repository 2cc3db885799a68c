"""A program: what the ranks of one collective do, written within ``with CollectiveProgram(...):``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any

from tutti.language.channel import MemoryChannel, PortChannel, SwitchChannel
from tutti.language.checks import bounded, flag, text, whole
from tutti.language.chunks import BaseBuffer
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
from tutti.language.context import enter, get_program, leave
from tutti.language.errors import fail
from tutti.language.limits import MOST_ALIGNMENT, MOST_CHUNKS, MOST_MESSAGE, MOST_OPERANDS, MOST_THREADS
from tutti.language.operations import Joining, Operation, Transfer
from tutti.language.passes import Settings, compile_record
from tutti.language.passes.emit import plan_of
from tutti.language.rank import Buffer, Rank, Semaphore
from tutti.language.recorder import Recorder
from tutti.language.thread_block_group import ThreadBlockGroup
from tutti.language.utils import AlgoSpec
from tutti.language.vocabulary import (
    BufferType,
    ChannelType,
    Instruction,
    ReduceOperationType,
    ReplicationPolicy,
    SyncType,
)

if TYPE_CHECKING:
    from tutti.language.passes.draft import RankDraft

__all__ = [
    "AlgoSpec",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "BaseBuffer",
    "Broadcast",
    "Buffer",
    "BufferType",
    "ChannelType",
    "Collective",
    "CollectiveProgram",
    "Gather",
    "MSCCLPPProgram",
    "MemoryChannel",
    "PortChannel",
    "Rank",
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
    "get_program",
]

_PROTOCOLS = ("Simple", "LL")
_PACKETS = {name for name in Instruction if "packet" in name.name}


def _wrong_word(operation: Operation) -> str | None:
    if isinstance(operation, Joining) and not isinstance(operation.sync, SyncType):
        return f"data_sync is a SyncType, not {operation.sync!r}"
    if isinstance(operation, Transfer) and not isinstance(operation.reduce_op, ReduceOperationType | None):
        return f"reduce_op is a ReduceOperationType, not {operation.reduce_op!r}"
    if isinstance(operation, Transfer) and len(operation.sources) > MOST_OPERANDS:
        return f"{len(operation.sources)} sources; an operation has at most {MOST_OPERANDS}"
    return None


def _refused_in_loop(operation: Transfer, chunks: int) -> str | None:
    if operation.name in _PACKETS:
        return "packets in a loop: their flags belong to a call, not to an iteration"
    if operation.share is not None:
        return "a group of thread blocks in a loop: its parts would be parts of a unit, which may be empty"
    size = operation.sources[0].size
    if size > chunks:
        return f"an operand of {size} chunks in a loop over {chunks}: its end would be lost"
    return None


def _flag(value: bool, what: str) -> bool:
    return flag(value, what, operation="CollectiveProgram")


def _number(value: int, what: str, least: int | None = None, most: int = 0) -> int:
    if least is None:
        return whole(value, what, operation="CollectiveProgram")
    return bounded(value, least, most, what, operation="CollectiveProgram")


def _check_collective(collective: Collective) -> None:
    if not isinstance(collective, Collective):
        fail(f"the collective is a Collective, not {collective!r}", operation="CollectiveProgram")
    kind = type(collective).__name__
    text(collective.name, "the name of a collective", operation=kind)
    flag(collective.inplace, "inplace", operation=kind)
    if collective.root is not None:
        bounded(collective.root, 0, collective.num_ranks - 1, "the root", operation=kind)


class CollectiveProgram:
    """The program of one collective, and the settings of its plan.

    ``instances`` copies of the program share the work as ``replication_policy`` says. ``instr_fusion`` merges
    operations of a thread block where the result is the same, ``auto_sync`` joins its lanes where operations depend on
    each other. The rest goes into the plan as it is.
    """

    def __init__(
        self,
        name: str,
        collective: Collective,
        num_ranks: int,
        instances: int = 1,
        protocol: str = "Simple",
        instr_fusion: bool = True,
        auto_sync: bool = True,
        replication_policy: ReplicationPolicy = ReplicationPolicy.interleaved,
        reuse_resources: bool = False,
        num_threads_per_block: int = 1024,
        use_double_scratch_buffer: bool = False,
        buffer_alignment: int = 16,
        min_message_size: int = 0,
        max_message_size: int = 2**64 - 1,
    ) -> None:
        if protocol not in _PROTOCOLS:
            fail(f"the protocol is one of {', '.join(_PROTOCOLS)}, not {protocol!r}", operation="CollectiveProgram")
        _check_collective(collective)
        num_ranks, instances = _number(num_ranks, "num_ranks"), _number(instances, "instances")
        if instances < 1:
            fail(f"a program has at least one instance, not {instances}", operation="CollectiveProgram")
        if not isinstance(replication_policy, ReplicationPolicy):
            reason = f"replication_policy is a ReplicationPolicy, not {replication_policy!r}"
            fail(reason, operation="CollectiveProgram")
        if num_ranks != collective.num_ranks:
            reason = f"{num_ranks} ranks, but the collective is made for {collective.num_ranks}"
            fail(reason, operation="CollectiveProgram")
        self.name = text(name, "the name", operation="CollectiveProgram")
        self.collective = collective
        self.num_ranks = num_ranks
        self.instances = instances
        self.protocol = protocol
        self.instr_fusion = _flag(instr_fusion, "instr_fusion")
        self.auto_sync = _flag(auto_sync, "auto_sync")
        self.replication_policy = replication_policy
        self.reuse_resources = _flag(reuse_resources, "reuse_resources")
        self.num_threads_per_block = _number(num_threads_per_block, "num_threads_per_block", 1, MOST_THREADS)
        self.use_double_scratch_buffer = _flag(use_double_scratch_buffer, "use_double_scratch_buffer")
        self.buffer_alignment = _number(buffer_alignment, "buffer_alignment", 1, MOST_ALIGNMENT)
        self.min_message_size = _number(min_message_size, "min_message_size", 0, MOST_MESSAGE)
        self.max_message_size = _number(max_message_size, "max_message_size", self.min_message_size, MOST_MESSAGE)
        self.buffers: list[dict[BufferType, BaseBuffer]] = collective.init_buffers()
        for rank, buffers in enumerate(self.buffers):
            for kind, buffer in buffers.items():
                what = f"the number of chunks of the {kind.name} buffer"
                bounded(buffer.size, 0, MOST_CHUNKS, what, rank=rank, operation="CollectiveProgram")
        self.recorder = Recorder(num_ranks)
        self._tokens: list[Token[CollectiveProgram | None]] = []

    @classmethod
    def from_spec(cls, spec: AlgoSpec) -> CollectiveProgram:
        """The program that ``spec`` asks for, still empty."""
        return cls(
            spec.name,
            spec.collective,
            spec.world_size,
            instances=spec.instances,
            protocol=spec.protocol,
            instr_fusion=spec.instr_fusion,
            auto_sync=spec.auto_sync,
            replication_policy=spec.replication_policy,
            reuse_resources=spec.reuse_resources,
            num_threads_per_block=spec.num_threads_per_block,
            use_double_scratch_buffer=spec.use_double_scratch_buffer,
            buffer_alignment=spec.buffer_alignment,
            min_message_size=spec.min_message_size,
            max_message_size=spec.max_message_size,
        )

    def __enter__(self) -> CollectiveProgram:
        self._tokens.append(enter(self))
        return self

    def __exit__(self, *error: object) -> None:
        leave(self._tokens.pop())

    def record(self, rank: int, block: int, operation: Operation) -> None:
        """Appends an operation to what a thread block does; the objects of the language call this."""
        if get_program() is not self:
            reason = f"it uses a rank or channel of program '{self.name}', which is not the one being written"
            fail(reason, rank=rank, thread_block=block, operation=operation.name.name)
        wrong = _wrong_word(operation)
        if wrong is not None:
            fail(wrong, rank=rank, thread_block=block, operation=operation.name.name)
        if self.recorder.loop is not None and isinstance(operation, Transfer):
            refused = _refused_in_loop(operation, self.recorder.loop.chunks)
            if refused is not None:
                fail(refused, rank=rank, thread_block=block, operation=operation.name.name)
        self.recorder.add(rank, block, operation)

    def buffer_size(self, rank: int, buffer: BufferType) -> int:
        """How many chunks a buffer of a rank has; of scratch, how many have been taken so far."""
        if buffer == BufferType.scratch:
            return self.recorder.resources[rank].scratch
        return len(self.buffers[rank][buffer])

    def post_process_operations(self) -> tuple[RankDraft, ...]:
        """The compiled program. It changes nothing, so it may be called as often as one likes."""
        self.collective.check(self)
        sizes = [(len(buffers[BufferType.input]), len(buffers[BufferType.output])) for buffers in self.buffers]
        settings = Settings(
            fuse=self.instr_fusion,
            join_dependent=self.auto_sync,
            instances=self.instances,
            policy=self.replication_policy,
            inplace=self.collective.inplace,
        )
        return compile_record(self.recorder, sizes, settings)

    def to_dict(self, *, origin: bool = True) -> dict[str, Any]:
        """The plan; ``origin`` says whether its operations name the lines they come from."""
        root = {} if self.collective.root is None else {"root": self.collective.root}
        return {
            "version": 1,
            "name": self.name,
            "collective": self.collective.name,
            **root,
            "protocol": self.protocol,
            "inplace": self.collective.inplace,
            "reuse_resources": self.reuse_resources,
            "gpus": [plan_of(draft, origin=origin) for draft in self.post_process_operations()],
            "num_threads_per_block": self.num_threads_per_block,
            "use_double_scratch_buffer": self.use_double_scratch_buffer,
            "buffer_alignment": self.buffer_alignment,
            "min_message_size": self.min_message_size,
            "max_message_size": self.max_message_size,
        }

    def to_json(self, indent: int | None = 2, *, origin: bool = True, **kwargs: Any) -> str:
        """The plan as text; ``kwargs`` are those of :func:`json.dumps`. Each call gives the same text."""
        return json.dumps(self.to_dict(origin=origin), indent=indent, **kwargs)

    def to_template(
        self,
        dims: Sequence[int] | None = None,
        *,
        input_blocks: int = 1,
        output_blocks: int = 1,
        indent: int | None = 2,
    ) -> str:
        """The plan as a template, which holds rank 0 and how the other ranks follow (docs/plan-format.md).

        ``dims`` says how ranks are numbered: ``(8,)`` a ring, ``(2, 2, 2)`` a cube, ``(8, 512)`` hosts of 8; the
        blocks, into how many parts that move with the ranks a buffer is cut. Without ``dims`` a symmetry is looked for.
        Every operation of every rank is compared; raises ValueError that names the first rank and operation that
        differ.
        This needs the library, unlike the rest of the language.
        """
        from tutti import _core

        sizes = None if dims is None else list(dims)
        text = self.to_json(indent=None)
        return _core.fold_plan(text, sizes, input_blocks, output_blocks, -1 if indent is None else indent)

    def check(self, *, strict: bool = False) -> dict[str, Any]:
        """The verifier's verdict on the plan, with the keys of ``tutti plan check --json``.

        ``outcome`` is "proven", "proven after repair" or "rejected", ``fault`` None or what is wrong, ``repairs`` what
        is needed; ``strict`` refuses plans that need any. Needs the library, as the two methods after this one.
        """
        from tutti import _core

        return _core.check_plan(self.to_json(indent=None), strict)

    def simulate(self, topology: str | dict[str, Any], size: int | str) -> dict[str, Any]:
        """How long the plan takes with rank blocks of ``size``, with the keys of ``tutti plan simulate --json``.

        ``topology`` is the name of one that comes with Tutti (``tutti.topology``), or one as a dictionary.
        """
        from tutti import _core
        from tutti._units import parse_bytes
        from tutti.topology import PRESETS

        if isinstance(topology, str):
            if topology not in PRESETS:
                raise ValueError(f'"{topology}" is none of {", ".join(PRESETS)}')
            topology = PRESETS[topology](self.num_ranks)
        block = parse_bytes(size) if isinstance(size, str) else size
        return _core.simulate_plan(self.to_json(indent=None), json.dumps(topology), block)

    def run(
        self, size: int | str = "64KB", *, dtype: str = "f32", op: str = "sum", seed: int | None = None
    ) -> dict[str, Any]:
        """Runs all ranks in this process on rank blocks of ``size``, in a random order if there is a ``seed``.

        ``fault`` is None if all is right, else what is wrong; ``checked`` says whether the collective has a result to
        compare with; ``nanoseconds`` how long the call took.
        """
        from tutti import _core
        from tutti._units import parse_bytes

        if seed is not None:
            seed = whole(seed, "a seed", operation="run")
        if seed is not None and not 0 <= seed < 2**64:
            raise ValueError(f"a seed is a number from 0 to 2**64 - 1, not {seed}")
        block = parse_bytes(size) if isinstance(size, str) else size
        return _core.run_plan(self.to_json(indent=None), block, dtype, op, seed=seed)


MSCCLPPProgram = CollectiveProgram  # the older name
