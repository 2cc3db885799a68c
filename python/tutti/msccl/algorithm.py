"""An XML algorithm, checked element by element: what a rank's thread blocks do, and what they depend on."""

from __future__ import annotations

from dataclasses import dataclass

from tutti.msccl.document import Element

MOST_RANKS = 4096
MOST_BLOCKS = 4096
MOST_CHUNKS = 1 << 20
BUFFERS = ("i", "o", "s")

# Collectives by their name in the XML, as plans call them, with the rank blocks (input, output) of n ranks as 1 or n.
COLLECTIVES = {
    "allreduce": ("allreduce", False, False),
    "allgather": ("allgather", False, True),
    "reduce_scatter": ("reducescatter", True, False),
    "reducescatter": ("reducescatter", True, False),  # as msccl-tools spells it
    "alltoall": ("alltoall", True, True),
    "broadcast": ("broadcast", False, False),
    "reduce": ("reduce", False, False),
    "sendrecv": ("sendrecv", False, False),
    "custom": ("custom", False, False),
}


@dataclass(frozen=True)
class Rules:
    """What a type of step does; of its two ranges those that it reads or writes on its own rank."""

    receives: bool = False
    sends: bool = False
    source: bool = False
    target: bool = False
    reduces: bool = False


STEPS = {
    "s": Rules(sends=True, source=True),
    "r": Rules(receives=True, target=True),
    "rcs": Rules(receives=True, sends=True, target=True),
    "rrc": Rules(receives=True, source=True, target=True, reduces=True),
    "rrs": Rules(receives=True, sends=True, source=True, reduces=True),
    "rrcs": Rules(receives=True, sends=True, source=True, target=True, reduces=True),
    "cpy": Rules(source=True, target=True),
    "re": Rules(source=True, target=True, reduces=True),
    "nop": Rules(),
}


@dataclass(frozen=True)
class Range:
    """Chunks of a buffer of the rank: ``buffer`` is "i", "o" or "s"."""

    buffer: str
    index: int
    size: int


@dataclass(frozen=True)
class Step:
    """One step; ``depends`` is a thread block of this rank and the step of it that must be over, or None."""

    element: Element
    number: int
    kind: str
    source: Range | None
    target: Range | None
    size: int
    depends: tuple[int, int] | None
    announces: bool

    @property
    def rules(self) -> Rules:
        """What a step of this type does."""
        return STEPS[self.kind]


@dataclass(frozen=True)
class Block:
    """A thread block: -1 stands for no peer."""

    element: Element
    send: int
    receive: int
    channel: int
    steps: list[Step]


@dataclass(frozen=True)
class Gpu:
    """A rank: chunks by buffer, thread blocks by id."""

    element: Element
    chunks: dict[str, int]
    blocks: list[Block]


@dataclass(frozen=True)
class Algorithm:
    """A whole file. ``min_bytes`` and ``max_bytes`` (None: no limit) are of the larger buffer, the latter exclusive."""

    name: str
    collective: str
    protocol: str
    in_place: bool
    min_bytes: int
    max_bytes: int | None
    gpus: list[Gpu]


def read_algorithm(root: Element) -> Algorithm:
    """Checks a document. XmlError names line and element of the first fault."""
    if root.tag != "algo":
        raise root.fail("an algorithm file begins with <algo>")
    root.allow_only(
        {
            *("name", "proto", "nchannels", "nchunksperloop", "ngpus", "coll", "inplace", "outofplace"),
            *("minBytes", "maxBytes", "nthreads", "redop"),
        },
        {"gpu"},
    )
    ranks = root.integer("ngpus", 1, MOST_RANKS)
    in_place = root.integer("inplace", 0, 1) == 1
    if len(root.children) != ranks:
        raise root.fail(f"{ranks} ranks are announced, {len(root.children)} <gpu> are here", "ngpus")
    chunks = root.integer("nchunksperloop", 1, MOST_CHUNKS)
    spelt = root.choice("coll", tuple(COLLECTIVES))
    name, spread_input, spread_output = COLLECTIVES[spelt]
    least = root.integer("minBytes", 0, 10**15, 0)
    most = root.integer("maxBytes", -1, 10**15, 0)
    if 0 < most <= least:
        raise root.fail(f"{most} leaves no size from {least} bytes up", "maxBytes")
    grown = spread_input or spread_output
    if grown and chunks % ranks:
        raise root.fail(f"{chunks} chunks are no multiple of {ranks} ranks", "nchunksperloop")
    blocks = chunks // ranks if grown else chunks
    shape = {"i": chunks if spread_input else blocks, "o": chunks if spread_output else blocks}
    by_id: dict[int, Gpu] = {}
    for element in root.children:
        rank = element.integer("id", 0, ranks - 1)
        if rank in by_id:
            raise element.fail(f"rank {rank} is there twice", "id")
        by_id[rank] = _read_gpu(element, rank, ranks, shape, free=spelt == "custom", in_place=in_place)
    return Algorithm(
        name=root.text("name"),
        collective=name,
        protocol=root.choice("proto", ("Simple", "LL", "LL128")),
        in_place=in_place,
        min_bytes=least,
        max_bytes=most if most > 0 else None,
        gpus=[by_id[rank] for rank in range(ranks)],
    )


def _read_gpu(element: Element, rank: int, ranks: int, shape: dict[str, int], free: bool, in_place: bool) -> Gpu:
    element.allow_only({"id", "i_chunks", "o_chunks", "s_chunks"}, {"tb"})
    chunks = {buffer: element.integer(f"{buffer}_chunks", 0, MOST_CHUNKS) for buffer in BUFFERS}
    for buffer, wanted in shape.items():
        given = chunks[buffer]
        if free or given == wanted:
            continue
        # Files leave out a buffer that no step names; the other one of an algorithm in place may be counted either way.
        if given != 0 and not in_place:
            raise element.fail(f"{given}; this collective has {wanted} here", f"{buffer}_chunks")
        chunks[buffer] = wanted
    by_id: dict[int, Block] = {}
    for child in element.children:
        number = child.integer("id", 0, MOST_BLOCKS - 1)
        if number in by_id:
            raise child.fail(f"thread block {number} is there twice", "id")
        by_id[number] = _read_block(child, rank, ranks, chunks)
    for number in range(len(by_id)):
        if number not in by_id:
            raise element.fail(f"thread block {number} is missing: ids go from 0 without a gap")
    gpu = Gpu(element, chunks, [by_id[number] for number in range(len(by_id))])
    _check_dependences(gpu)
    return gpu


def _read_block(element: Element, rank: int, ranks: int, chunks: dict[str, int]) -> Block:
    element.allow_only({"id", "send", "recv", "chan"}, {"step"})
    peers = []
    for name in ("send", "recv"):
        peer = element.integer(name, -1, ranks - 1)
        if peer == rank:
            raise element.fail("a rank's peer is another rank", name)
        peers.append(peer)
    steps = []
    for place, child in enumerate(element.children):
        if child.integer("s", 0, 1 << 20) != place:
            raise child.fail(f"steps are numbered in order: this is number {place}", "s")
        steps.append(_read_step(child, place, chunks))
        for peer, name, needed in zip(
            peers, ("send", "recv"), (steps[-1].rules.sends, steps[-1].rules.receives), strict=True
        ):
            if needed and peer < 0:
                raise child.fail(f'"{steps[-1].kind}" in a thread block whose "{name}" names no rank', "type")
    return Block(element, peers[0], peers[1], element.integer("chan", 0, 1 << 16), steps)


def _read_step(element: Element, number: int, chunks: dict[str, int]) -> Step:
    element.allow_only(
        {"s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"},
        set(),
    )
    kind = element.choice("type", tuple(STEPS))
    rules = STEPS[kind]
    size = element.integer("cnt", 0 if kind == "nop" else 1, MOST_CHUNKS, 0 if kind == "nop" else None)
    block = element.integer("depid", -1, MOST_BLOCKS - 1, -1)
    step = element.integer("deps", -1, 1 << 20, -1)
    return Step(
        element,
        number,
        kind,
        _read_range(element, "src", size, chunks) if rules.source else None,
        _read_range(element, "dst", size, chunks) if rules.target else None,
        size,
        (block, step) if block >= 0 else None,
        element.integer("hasdep", 0, 1, 0) == 1,
    )


def _read_range(element: Element, side: str, size: int, chunks: dict[str, int]) -> Range:
    buffer = element.choice(f"{side}buf", BUFFERS)
    index = element.integer(f"{side}off", 0, MOST_CHUNKS)
    if index + size > chunks[buffer]:
        raise element.fail(
            f'chunks {index} to {index + size - 1} of buffer "{buffer}", which has {chunks[buffer]}', f"{side}off"
        )
    return Range(buffer, index, size)


def _check_dependences(gpu: Gpu) -> None:
    for number, block in enumerate(gpu.blocks):
        for place, step in enumerate(block.steps):
            if step.depends is None:
                continue
            other, at = step.depends
            if other >= len(gpu.blocks):
                raise step.element.fail(f"there is no thread block {other} on this rank", "depid")
            if not 0 <= at < len(gpu.blocks[other].steps):
                raise step.element.fail(f"thread block {other} has no step {at}", "deps")
            if other == number and at >= place:
                raise step.element.fail("a step cannot wait for itself or for what comes after it", "deps")
            if other != number and not gpu.blocks[other].steps[at].announces:
                line = gpu.blocks[other].steps[at].element.line
                raise step.element.fail(
                    f"step {at} of thread block {other} (line {line}) does not say when it is over: its hasdep is 0",
                    "deps",
                )
