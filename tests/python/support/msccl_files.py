"""XML algorithms of MSCCL, written by the rules of its file format, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable

StepOf = tuple[str, str, str, int]  # type, source, target ("i0"; "" for none), cnt


class File:
    """An algorithm that grows thread block by thread block."""

    def __init__(self, ranks: int, collective: str, chunks: int, in_place: bool = False, **settings: str) -> None:
        spread_in = collective in ("reduce_scatter", "alltoall")
        spread_out = collective in ("allgather", "alltoall")
        grown = spread_in or spread_out
        self.ranks = ranks
        self.shape = (
            chunks if spread_in or not grown else chunks // ranks,
            chunks if spread_out or not grown else chunks // ranks,
        )
        self.head = {
            "name": f"{collective}_{ranks}",
            "proto": "Simple",
            "nchannels": "1",
            "nchunksperloop": str(chunks),
            "ngpus": str(ranks),
            "coll": collective,
            "inplace": str(int(in_place)),
            "outofplace": str(int(not in_place)),
            "minBytes": "0",
            "maxBytes": "0",
            **settings,
        }
        self.scratch = [0] * ranks
        self.blocks: list[list[str]] = [[] for _ in range(ranks)]

    def block(
        self,
        rank: int,
        send: int,
        receive: int,
        steps: list[StepOf],
        channel: int = 0,
        depends: dict[int, tuple[int, int]] | None = None,
        announces: frozenset[int] = frozenset(),
    ) -> None:
        """A thread block; ``depends`` and ``announces`` are by number of the step."""
        number = len(self.blocks[rank])
        lines = [f'    <tb id="{number}" send="{send}" recv="{receive}" chan="{channel}">']
        for place, (kind, source, target, size) in enumerate(steps):
            on, at = (depends or {}).get(place, (-1, -1))
            sides = [(side, text[:1] or "i", text[1:] or "-1") for side, text in (("src", source), ("dst", target))]
            ranges = " ".join(f'{side}buf="{buffer}" {side}off="{index}"' for side, buffer, index in sides)
            lines.append(
                f'      <step s="{place}" type="{kind}" {ranges} cnt="{size}" depid="{on}" deps="{at}"'
                f' hasdep="{int(place in announces)}"/>'
            )
        self.blocks[rank].append("\n".join([*lines, "    </tb>"]))

    def text(self) -> bytes:
        """The file."""
        lines = ["<algo " + " ".join(f'{name}="{value}"' for name, value in self.head.items()) + ">"]
        for rank, blocks in enumerate(self.blocks):
            chunks = f'i_chunks="{self.shape[0]}" o_chunks="{self.shape[1]}" s_chunks="{self.scratch[rank]}"'
            lines += [f'  <gpu id="{rank}" {chunks}>', *blocks, "  </gpu>"]
        return "\n".join([*lines, "</algo>\n"]).encode()


def ring_all_reduce(ranks: int) -> File:
    """In place, a thread block a rank: rrs on the way to the sum, rrcs at its end, rcs on the way back."""
    file = File(ranks, "allreduce", ranks, in_place=True)
    for rank in range(ranks):
        chunk = [f"i{(rank - step) % ranks}" for step in range(2 * ranks)]
        steps: list[StepOf] = [("s", chunk[0], "", 1)]
        steps += [("rrs", chunk[step], "", 1) for step in range(1, ranks - 1)]
        steps += [("rrcs", chunk[ranks - 1], chunk[ranks - 1], 1)]
        steps += [("rcs", "", chunk[step], 1) for step in range(ranks, 2 * ranks - 2)]
        steps += [("r", "", chunk[2 * ranks - 2], 1)]
        file.block(rank, (rank + 1) % ranks, (rank - 1) % ranks, steps)
    return file


def all_pairs_all_reduce(ranks: int) -> File:
    """Out of place: every rank gathers its chunk of all in scratch, reduces there, and hands the sum to all.

    A thread block for each peer; one more copies and reduces, and waits for the others through dependences.
    """
    file = File(ranks, "allreduce", ranks)
    for rank in range(ranks):
        file.scratch[rank] = ranks - 1
        peers = [peer for peer in range(ranks) if peer != rank]
        last = len(peers)
        for place, peer in enumerate(peers):
            steps: list[StepOf] = [("s", f"i{peer}", "", 1), ("r", "", f"s{place}", 1), ("s", f"o{rank}", "", 1)]
            steps += [("r", "", f"o{peer}", 1)]
            # The sum is over at the last step of the reducing thread block.
            file.block(rank, peer, peer, steps, depends={2: (last, 2 * len(peers))}, announces=frozenset({1}))
        steps = [("cpy", f"i{rank}", f"o{rank}", 1)]
        depends = {}
        for place in range(len(peers)):
            depends[1 + 2 * place] = (place, 1)
            steps += [("nop", "", "", 0), ("re", f"s{place}", f"o{rank}", 1)]
        file.block(rank, -1, -1, steps, depends=depends, announces=frozenset({2 * len(peers)}))
    return file


def ring_all_gather(ranks: int, parts: int = 2) -> File:
    """Out of place, blocks of ``parts`` chunks in steps of that many."""
    file = File(ranks, "allgather", ranks * parts)
    for rank in range(ranks):
        at = [((rank - step) % ranks) * parts for step in range(ranks)]
        steps: list[StepOf] = [("cpy", "i0", f"o{at[0]}", parts), ("s", "i0", "", parts)]
        steps += [("rcs", "", f"o{at[step]}", parts) for step in range(1, ranks - 1)]
        steps += [("r", "", f"o{at[ranks - 1]}", parts)]
        file.block(rank, (rank + 1) % ranks, (rank - 1) % ranks, steps)
    return file


def all_pairs_all_to_all(ranks: int) -> File:
    """Out of place, a thread block for each peer, and one that copies the rank's own block."""
    file = File(ranks, "alltoall", ranks)
    for rank in range(ranks):
        for peer in range(ranks):
            if peer == rank:
                file.block(rank, -1, -1, [("cpy", f"i{rank}", f"o{rank}", 1)])
            else:
                file.block(rank, peer, peer, [("s", f"i{peer}", "", 1), ("r", "", f"o{peer}", 1)], channel=0)
    return file


def ring_reduce_scatter(ranks: int) -> File:
    """Out of place: rrs all the way, rrc into the output at the end."""
    file = File(ranks, "reduce_scatter", ranks)
    for rank in range(ranks):
        chunk = [f"i{(rank - 1 - step) % ranks}" for step in range(ranks)]
        steps: list[StepOf] = [("s", chunk[0], "", 1)]
        steps += [("rrs", chunk[step], "", 1) for step in range(1, ranks - 1)]
        steps += [("rrc", chunk[ranks - 1], "o0", 1)]
        file.block(rank, (rank + 1) % ranks, (rank - 1) % ranks, steps)
    return file


def chain_broadcast(ranks: int, root: int) -> File:
    """From the root along the ranks, on channel 3."""
    file = File(ranks, "broadcast", 2)
    for place in range(ranks):
        rank = (root + place) % ranks
        send = (rank + 1) % ranks if place < ranks - 1 else -1
        receive = (rank - 1) % ranks if place else -1
        if place == 0:
            steps: list[StepOf] = [("s", "i0", "", 2), ("cpy", "i0", "o0", 2)]
        else:
            steps = [("rcs" if send >= 0 else "r", "", "o0", 2)]
        file.block(rank, send, receive, steps, channel=3)
    return file


FILES: dict[str, Callable[[int], File]] = {
    "ring all-reduce": ring_all_reduce,
    "all-pairs all-reduce": all_pairs_all_reduce,
    "ring all-gather": ring_all_gather,
    "all-pairs all-to-all": all_pairs_all_to_all,
    "ring reduce-scatter": ring_reduce_scatter,
    "chain broadcast": lambda ranks: chain_broadcast(ranks, ranks // 2),
}
