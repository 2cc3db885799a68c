"""Which messages need no slot: the sender may put them where the receiver wants them.

That is right if nothing on the receiver's rank touches the place in this call before the message has been received:
then every other step that does comes after the receiving one, by the order of its thread block and by dependences.
Steps of the call before are over when the receiver says that it has entered this one.
"""

from __future__ import annotations

from tutti.msccl.algorithm import Algorithm, Gpu, Range, Step

Place = tuple[int, int]  # thread block, step
Chunk = tuple[str, int]  # buffer and index, one name for each place in memory


def direct_targets(algorithm: Algorithm, rank: int) -> set[Place]:
    """The receiving steps of a rank (``r`` and ``rcs``) whose message may go straight to its target."""
    gpu = algorithm.gpus[rank]
    known = _order(gpu)
    touching: dict[Chunk, list[Place]] = {}
    for block, entry in enumerate(gpu.blocks):
        for place, step in enumerate(entry.steps):
            for chunk in _chunks(algorithm, rank, step):
                touching.setdefault(chunk, []).append((block, place))
    out = set()
    for block, entry in enumerate(gpu.blocks):
        for place, step in enumerate(entry.steps):
            if not step.rules.receives or step.rules.reduces:
                continue
            here = (block, place)
            others = {other for chunk in _chunks(algorithm, rank, step) for other in touching[chunk]} - {here}
            if all(known.get(other, {}).get(block, -1) >= place for other in others):
                out.add(here)
    return out


def _chunks(algorithm: Algorithm, rank: int, step: Step) -> list[Chunk]:
    return [
        _where(algorithm, rank, entry.buffer, index)
        for entry in (step.source, step.target)
        if isinstance(entry, Range)
        for index in range(entry.index, entry.index + entry.size)
    ]


def _where(algorithm: Algorithm, rank: int, buffer: str, index: int) -> Chunk:
    """In place one buffer is the other, or the rank's block of it."""
    if not algorithm.in_place or buffer == "s":
        return buffer, index
    chunks = algorithm.gpus[rank].chunks
    if chunks["o"] > chunks["i"]:
        return "o", index + (rank * chunks["i"] if buffer == "i" else 0)
    return "i", index + (rank * chunks["o"] if buffer == "o" and chunks["i"] > chunks["o"] else 0)


def _order(gpu: Gpu) -> dict[Place, dict[int, int]]:
    """Of every step, the last step of each thread block that comes before it. Steps of a circle are left out."""
    known: dict[Place, dict[int, int]] = {}
    at = [0] * len(gpu.blocks)
    moved = True
    while moved:
        moved = False
        for block, entry in enumerate(gpu.blocks):
            while at[block] < len(entry.steps):
                place = (block, at[block])
                depends = entry.steps[at[block]].depends
                if depends is not None and depends not in known:
                    break
                own = dict(known.get((block, at[block] - 1), {}))
                own[block] = at[block] - 1
                for other, step in (known[depends] | {depends[0]: depends[1]}).items() if depends else ():
                    own[other] = max(own.get(other, -1), step)
                known[place] = own
                at[block] += 1
                moved = True
    return known
