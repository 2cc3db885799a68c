"""Random programs of calls over random subgroups give what a simulation of them gives."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from conformance import COLLECTIVES, MODES, NOT_IN_GLOO, REDUCING, Case
from hypothesis import given, note, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from layouts import LAYOUTS
from oracle import ALL, REDUCED, ops_of
from programs import Collective, Join, Message, Step, run_program
from rank_pool import RankError, RankPool

World = Callable[..., RankPool]

SIZE = 4
GROUPS = [(0, 1, 2, 3), (0, 1), (2, 3), (1, 2), (0, 3), (0, 2, 3), (1, 2, 3), (0, 1, 2), (2,)]
GLOO_DTYPES = [torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64]
SHRINK_S = 30
COUNTS = [0, 1, 5, 12, 1000, 4099, 70001]


@st.composite
def collectives(draw: st.DrawFn, backend: str) -> Collective:
    name = draw(st.sampled_from([c for c in COLLECTIVES if backend == "tutti" or c not in NOT_IN_GLOO]))
    full = REDUCED if name in REDUCING else ALL
    dtype = draw(st.sampled_from(full if backend == "tutti" else GLOO_DTYPES))
    ops = ops_of(dtype) if backend == "tutti" else ["SUM", "PRODUCT"]
    op = draw(st.sampled_from(ops)) if name in REDUCING else "SUM"
    members = draw(st.sampled_from(GROUPS))
    case = Case(
        name,
        dtype,
        op,
        draw(st.sampled_from(COUNTS)),
        draw(st.sampled_from(LAYOUTS)) if backend == "tutti" else "contiguous",
        # The ring of messages has no asynchronous form of one work; both ends are drawn as messages too.
        draw(st.sampled_from(MODES)) == "async" and name != "send_recv",
        draw(st.integers(0, len(members) - 1)),
        True,
        draw(st.integers(0, 1 << 20)),
    )
    return Collective(members, case)


@st.composite
def messages(draw: st.DrawFn, backend: str) -> Message:
    source = draw(st.integers(0, SIZE - 1))
    anonymous = draw(st.booleans())
    # gloo has no empty receive from any source
    counts = COUNTS if backend == "tutti" else COUNTS[1:]
    return Message(
        source,
        (source + draw(st.integers(1, SIZE - 1))) % SIZE,
        draw(st.sampled_from([torch.float32, torch.uint8, torch.int64])),
        draw(st.sampled_from(counts)),
        100 + source if anonymous else draw(st.integers(0, 2)),
        draw(st.booleans()),
        draw(st.booleans()),
        anonymous,
        draw(st.integers(0, 1 << 20)),
    )


def programs(backend: str) -> st.SearchStrategy[list[Step]]:
    step = st.one_of(collectives(backend), collectives(backend), messages(backend), st.builds(Join, st.booleans()))
    return st.lists(step, min_size=1, max_size=14)


def test_random_programs(fresh_world: World, backend: str, seed: int) -> None:
    """A failing program is shrunk for a while, so the report shows the shortest one found, with the seed."""
    pools: list[RankPool] = []
    failing: list[list[Step]] = []
    deadlines: list[float] = []

    def check(program: list[Step]) -> None:
        note(f"--seed {seed}")
        if deadlines and time.monotonic() > deadlines[0] and program not in failing:
            return  # enough shrunk
        if not pools or not pools[-1].alive:
            pools.append(fresh_world(SIZE, group_timeout_s=5))
        try:
            answers = pools[-1].call(run_program, program, timeout_s=15)
            problems = [f"rank {rank}: {problem}" for rank, found in enumerate(answers) for problem in found]
            if problems:
                pools[-1].kill()
                raise RankError("\n".join(problems))
        except RankError:
            failing.append(program)
            deadlines.append(time.monotonic() + SHRINK_S)
            raise

    limited = settings(max_examples=200 if backend == "tutti" else 60)(given(programs(backend))(check))
    hypothesis_seed(seed)(limited)()
