"""The sweep over collectives, types, operations, sizes and layouts, as every rank runs it.

A case is a small value that all ranks derive alike, so a sweep is one call of the pool. Each rank checks its own
outputs against the oracle and returns checksums of those that must be bitwise equal everywhere.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from layouts import LAYOUTS, Placed, on_device, place
from oracle import (
    ALL,
    REDUCED,
    difference,
    inputs,
    ops_of,
    reduce_op,
    reduced,
    same_bits,
)
from rank_pool import RankPool
from rank_worker import Context

MODES = ["sync", "async"]
SMALL_BYTES = [48, 4096, 8192]
LARGE_BYTES = [65536, (1 << 20) + 4]
MAX_REPORTED = 12


@dataclass(frozen=True)
class Case:
    """One call: `count` elements a rank's block."""

    collective: str
    dtype: torch.dtype
    op: str
    count: int
    layout: str
    asynchronous: bool
    root: int
    exact: bool
    seed: int

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        mode = "async" if self.asynchronous else "sync"
        values = "exact" if self.exact else "random"
        return (
            f"{self.collective} {kind}[{self.count}] {self.op} {self.layout} {mode} root {self.root} "
            f"{values} seed {self.seed}"
        )


def counts_of(dtype: torch.dtype, index: int, plain: bool) -> list[int]:
    """Element counts around the boundaries of slots and stages."""
    size = dtype.itemsize
    counts = {0, 1, 3, 17, 1000}
    for boundary in SMALL_BYTES:
        counts |= {boundary // size - 1, boundary // size, boundary // size + 1}
    if plain:
        counts.add(LARGE_BYTES[0] // size + index % 3 - 1)
        if dtype in (torch.uint8, torch.bfloat16, torch.float32):
            counts.add(LARGE_BYTES[1] // size)
    return sorted(counts)


def cases(collective: str, size: int, backend: str, seed: int, every: int) -> Iterator[Case]:
    """Every type, operation and count; layout, mode, root and kind of values rotate at random. One case in `every`."""
    chooser = random.Random(f"{collective} {size} {seed}")
    number = 0
    reduces = collective in REDUCING
    for dtype in dtypes_of(collective, backend):
        for index, op in enumerate(ops_of(dtype) if reduces else ["SUM"]):
            for count in counts_of(dtype, index, op == "SUM"):
                case = Case(
                    collective,
                    dtype,
                    op,
                    count,
                    chooser.choice(LAYOUTS),
                    chooser.random() < 0.5,
                    chooser.randrange(size),
                    chooser.random() < 0.5,
                    chooser.randrange(1 << 30),
                )
                if not allowed(case, backend):
                    continue
                if number % every == 0:
                    yield case
                number += 1


# A case's code yields where its calls have been made and may still run; it goes on, and compares, after they are done.
Steps = Generator[None, None, None]


class Run:
    """One case on one rank of a group: inputs of all ranks, and how outputs are compared."""

    def __init__(
        self, case: Case, rank: int, members: list[int], group: Any = None, roundings: int = 1, repeats: int = 1
    ) -> None:
        self.case = case
        self.rank = rank  # within the group
        self.members = members  # global ranks
        self.size = len(members)
        self.root = members[case.root]
        self.roundings = roundings
        self.repeats = repeats
        self.group = group
        self.chooser = random.Random(case.seed)
        self.works: list[Any] = []
        self.problems: list[str] = []
        self.shared: list[torch.Tensor] = []  # outputs that have the same bits on all ranks
        self.steps = COLLECTIVES[case.collective](self)

    def start(self) -> None:
        """Makes the first calls."""
        next(self.steps, None)

    def finish(self) -> str | None:
        """Waits for what runs, makes the calls that are left, and says what is wrong."""
        while True:
            for work in self.works:
                work.wait()
            self.works = []
            try:
                next(self.steps)
            except StopIteration:
                return "; ".join(self.problems) or None

    def values(self, count: int, salt: int = 0, rows: int | None = None) -> torch.Tensor:
        """Row r: the block of rank r."""
        rows = self.size if rows is None else rows
        return inputs(self.case.dtype, self.case.op, rows, count, self.case.exact, self.case.seed + salt)

    def place(self, values: torch.Tensor) -> Placed:
        return place(values, self.case.layout)

    def blank(self, count: int) -> Placed:
        """An output, filled with what no result is."""
        if self.case.dtype == torch.bool:
            return place(torch.ones(count, dtype=torch.bool), self.case.layout)
        filling = torch.full((count * self.case.dtype.itemsize,), 0x3C, dtype=torch.uint8)
        return place(filling.view(self.case.dtype), self.case.layout)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        work = function(*arguments, group=self.group, async_op=self.case.asynchronous, **options)
        self.works = [work] if self.case.asynchronous else []

    def moved(self, what: str, got: Placed, want: torch.Tensor) -> None:
        if not same_bits(got.read(), want):
            bad = (got.read().view(torch.uint8) != want.contiguous().view(torch.uint8)).nonzero().flatten().tolist()
            self.problems.append(f"{what}: {len(bad)} bytes differ, first {bad[:1]}")
        self.intact(what, got)

    def reduced(self, what: str, got: Placed, values: torch.Tensor) -> None:
        want = reduced(values, self.case.op)
        problem = difference(got.read(), want, values, self.case.op, self.case.exact, self.roundings)
        if problem:
            self.problems.append(f"{what}: {problem}")
        self.intact(what, got)

    def intact(self, what: str, placed: Placed) -> None:
        if not placed.intact():
            self.problems.append(f"{what}: memory beside the tensor was written")


def run_all_reduce(run: Run) -> Steps:
    values = run.values(run.case.count)
    results = []
    for _ in range(run.repeats):
        placed = run.place(values[run.rank])
        run.call(dist.all_reduce, placed.tensor, op=reduce_op(run.case.op))
        yield
        run.reduced("output", placed, values)
        results.append(placed.read())
    if not all(same_bits(results[0], result) for result in results):
        run.problems.append("the same call twice gave different bits")
    run.shared = results[:1]


def run_reduce(run: Run) -> Steps:
    values = run.values(run.case.count)
    placed = run.place(values[run.rank])
    run.call(dist.reduce, placed.tensor, dst=run.root, op=reduce_op(run.case.op))
    yield
    if run.rank == run.case.root:
        run.reduced("output", placed, values)
    else:
        run.intact("input", placed)


def run_broadcast(run: Run) -> Steps:
    values = run.values(run.case.count)
    placed = run.place(values[run.rank])
    run.call(dist.broadcast, placed.tensor, src=run.root)
    yield
    run.moved("tensor", placed, values[run.case.root])


def run_all_gather(run: Run) -> Steps:
    values = run.values(run.case.count)
    source = run.place(values[run.rank])
    outputs = [run.blank(run.case.count) for _ in range(run.size)]
    run.call(dist.all_gather, [output.tensor for output in outputs], source.tensor)
    yield
    for rank, output in enumerate(outputs):
        run.moved(f"output {rank}", output, values[rank])
    run.moved("input", source, values[run.rank])


def _uneven(run: Run, salt: int) -> list[int]:
    """A count for each rank, some of them zero."""
    chooser = random.Random(run.case.seed + salt)
    return [chooser.choice([0, 1, run.case.count, run.case.count // 2 + 1]) for _ in range(run.size)]


def run_all_gather_uneven(run: Run) -> Steps:
    counts = _uneven(run, 0)
    values = [run.values(count, rank, rows=1)[0] for rank, count in enumerate(counts)]
    source = run.place(values[run.rank])
    outputs = [run.blank(count) for count in counts]
    run.call(dist.all_gather, [output.tensor for output in outputs], source.tensor)
    yield
    for rank, output in enumerate(outputs):
        run.moved(f"output {rank}", output, values[rank])


def run_all_gather_into_tensor(run: Run) -> Steps:
    count = run.case.count
    values = run.values(count)
    output = run.blank(count * run.size)
    if run.chooser.random() < 0.5 and output.tensor.is_contiguous() and output.tensor.dim() == 1:
        own = output.tensor[run.rank * count : (run.rank + 1) * count]  # in place: the input is its own block
        if output.memory is None:
            own.copy_(values[run.rank])
            run.call(dist.all_gather_into_tensor, output.tensor, own)
            yield
            run.moved("output in place", output, values.reshape(-1))
            return
    source = place(values[run.rank], "contiguous")
    run.call(dist.all_gather_into_tensor, output.tensor, source.tensor)
    yield
    run.moved("output", output, values.reshape(-1))


def run_gather(run: Run) -> Steps:
    values = run.values(run.case.count)
    source = run.place(values[run.rank])
    is_root = run.rank == run.case.root
    outputs = [run.blank(run.case.count) for _ in range(run.size)] if is_root else []
    run.call(dist.gather, source.tensor, [output.tensor for output in outputs] if is_root else None, dst=run.root)
    yield
    for rank, output in enumerate(outputs):
        run.moved(f"output {rank}", output, values[rank])
    run.moved("input", source, values[run.rank])


def run_scatter(run: Run) -> Steps:
    values = run.values(run.case.count)
    output = run.blank(run.case.count)
    is_root = run.rank == run.case.root
    blocks = [run.place(values[rank]) for rank in range(run.size)] if is_root else []
    run.call(dist.scatter, output.tensor, [block.tensor for block in blocks] if is_root else None, src=run.root)
    yield
    run.moved("output", output, values[run.rank])
    for rank, block in enumerate(blocks):
        run.moved(f"input {rank}", block, values[rank])


def _block_values(run: Run) -> list[torch.Tensor]:
    """Element [k][r]: what rank r contributes to block k."""
    return [run.values(run.case.count, salt) for salt in range(run.size)]


def run_reduce_scatter(run: Run) -> Steps:
    values = _block_values(run)
    blocks = [run.place(values[k][run.rank]) for k in range(run.size)]
    output = run.blank(run.case.count)
    run.call(dist.reduce_scatter, output.tensor, [block.tensor for block in blocks], op=reduce_op(run.case.op))
    yield
    run.reduced("output", output, values[run.rank])
    for k, block in enumerate(blocks):
        run.moved(f"input {k}", block, values[k][run.rank])


def run_reduce_scatter_tensor(run: Run) -> Steps:
    count = run.case.count
    values = _block_values(run)
    source = torch.cat([values[k][run.rank] for k in range(run.size)])
    if run.chooser.random() < 0.5:
        whole = on_device(source)
        own = Placed(whole[run.rank * count : (run.rank + 1) * count], [])  # in place
        run.call(dist.reduce_scatter_tensor, own.tensor, whole, op=reduce_op(run.case.op))
        yield
        run.reduced("output in place", own, values[run.rank])
        return
    placed = run.place(source)
    if placed.tensor.dim() != 1:
        placed = place(source, "contiguous")
    output = place(torch.ones(count, dtype=torch.float32).to(run.case.dtype), "offset")
    run.call(dist.reduce_scatter_tensor, output.tensor, placed.tensor, op=reduce_op(run.case.op))
    yield
    run.reduced("output", output, values[run.rank])
    run.moved("input", placed, source)


def _traffic(run: Run, uneven: bool) -> tuple[list[list[int]], Callable[[int, int], torch.Tensor]]:
    """counts[from][to], and the values that go from one rank to another."""
    chooser = random.Random(run.case.seed)
    count = run.case.count
    choices = [0, 1, count, count // 2 + 1] if uneven else [count]
    counts = [[chooser.choice(choices) for _ in range(run.size)] for _ in range(run.size)]

    def values(source: int, target: int) -> torch.Tensor:
        return run.values(counts[source][target], source * run.size + target, rows=1)[0]

    return counts, values


def run_all_to_all(run: Run) -> Steps:
    counts, values = _traffic(run, run.chooser.random() < 0.5)
    blocks = [run.place(values(run.rank, peer)) for peer in range(run.size)]
    outputs = [run.blank(counts[peer][run.rank]) for peer in range(run.size)]
    run.call(dist.all_to_all, [output.tensor for output in outputs], [block.tensor for block in blocks])
    yield
    for peer, output in enumerate(outputs):
        run.moved(f"output {peer}", output, values(peer, run.rank))


def run_all_to_all_single(run: Run) -> Steps:
    uneven = run.chooser.random() < 0.5
    counts, values = _traffic(run, uneven)
    mine, theirs = counts[run.rank], [row[run.rank] for row in counts]
    layout = run.case.layout if run.case.layout != "transposed" else "contiguous"
    source = place(torch.cat([values(run.rank, peer) for peer in range(run.size)]), layout)
    output = place(torch.zeros(sum(theirs), dtype=torch.float32).to(run.case.dtype), layout)
    splits = [theirs, mine] if uneven else [None, None]
    run.call(dist.all_to_all_single, output.tensor, source.tensor, *splits)
    yield
    run.moved("output", output, torch.cat([values(peer, run.rank) for peer in range(run.size)]))


def run_send_recv(run: Run) -> Steps:
    """Round the ring: everyone sends to the next and receives from the one before."""
    values = run.values(run.case.count)
    source, output = run.place(values[run.rank]), run.blank(run.case.count)
    left, right = run.members[run.rank - 1], run.members[(run.rank + 1) % run.size]
    if run.size == 1:
        return
    if run.case.asynchronous:
        run.works = [
            dist.isend(source.tensor, right, group=run.group, tag=run.case.count),
            dist.irecv(output.tensor, left, group=run.group, tag=run.case.count),
        ]
        yield
    elif run.rank % 2:
        dist.recv(output.tensor, left, group=run.group)
        dist.send(source.tensor, right, group=run.group)
    else:
        work = dist.isend(source.tensor, right, group=run.group)
        dist.recv(output.tensor, left, group=run.group)
        work.wait()
    run.moved("received", output, values[run.rank - 1])
    run.moved("sent", source, values[run.rank])


REDUCING = {
    "all_reduce": run_all_reduce,
    "reduce": run_reduce,
    "reduce_scatter": run_reduce_scatter,
    "reduce_scatter_tensor": run_reduce_scatter_tensor,
}
MOVING = {
    "broadcast": run_broadcast,
    "all_gather": run_all_gather,
    "all_gather_uneven": run_all_gather_uneven,
    "all_gather_into_tensor": run_all_gather_into_tensor,
    "gather": run_gather,
    "scatter": run_scatter,
    "all_to_all": run_all_to_all,
    "all_to_all_single": run_all_to_all_single,
    "send_recv": run_send_recv,
}
COLLECTIVES: dict[str, Callable[[Run], Steps]] = {**REDUCING, **MOVING}
NOT_IN_GLOO = ["all_gather_uneven", "all_to_all"]


def dtypes_of(collective: str, backend: str) -> list[torch.dtype]:
    """All that the type's nature allows; of gloo, which serves to validate the tests, what it has."""
    if backend == "gloo":
        return [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64]
    return REDUCED if collective in REDUCING else ALL


def allowed(case: Case, backend: str) -> bool:
    if case.collective == "all_reduce" and case.op == "PRODUCT" and case.dtype.is_complex:
        return False  # torch itself refuses it, for all_reduce alone
    if backend != "gloo":
        return True
    if case.op in ("PREMUL_SUM", "AVG"):
        return False
    if case.collective in NOT_IN_GLOO:
        return False
    if case.op in ("MIN", "MAX") and case.exact and case.dtype.is_floating_point:
        return False  # NaN
    return case.layout in ("contiguous", "offset")


def sweep(
    ctx: Context, collectives: list[str], seed: int, every: int, roundings: int
) -> tuple[int, list[str], list[int]]:
    """All cases of some collectives: how many, what went wrong, checksums of what all ranks must share."""
    problems: list[str] = []
    sums: list[int] = []
    number = 0
    for collective in collectives:
        for case in cases(collective, ctx.size, ctx.backend, seed, every):
            number += 1
            try:
                run = Run(case, ctx.rank, list(range(ctx.size)), None, roundings, repeats=2)
                run.start()
                problem = run.finish()
            except Exception as error:
                # The group may be lost now: later cases would only repeat it.
                problems.append(f"{case}: {type(error).__name__}: {error}")
                return number, problems, sums
            if problem and len(problems) < MAX_REPORTED:
                problems.append(f"{case}: {problem}")
            sums.append(sum(zlib.crc32(memoryview(t.view(torch.uint8).numpy())) for t in run.shared))
    return number, problems, sums


def run_sweep(pool: RankPool, collective: str, seed: int, every: int, roundings: int = 1) -> None:
    answers = pool.call(sweep, [collective], seed, every, roundings, timeout_s=120)
    problems = [f"rank {rank}: {problem}" for rank, (_, found, _) in enumerate(answers) for problem in found]
    if problems:
        pool.kill()
    assert not problems, "\n".join(problems)
    assert answers[0][0] > 0
    first = answers[0][2]
    for rank, (_, _, sums) in enumerate(answers):
        differ = [number for number, pair in enumerate(zip(first, sums, strict=True)) if pair[0] != pair[1]]
        assert not differ, f"ranks 0 and {rank} have different bits in cases {differ[:10]}"
