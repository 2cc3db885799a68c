"""Python's signal handlers run while a program is proven or tried, and what they raise ends that."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import tutti
from tutti.language import (
    AlgoSpec,
    AllReduce,
    Buffer,
    CollectiveProgram,
    LoopIterationContext,
    Rank,
    TestCollective,
)
from tutti.language.builtins import ring_all_reduce

CHUNKS = 64


class Enough(Exception):
    pass


def long_proof(spec: AlgoSpec) -> CollectiveProgram:
    """Copies to and from anywhere, at every length of a loop's chunks: a proof that ends by the limit of its steps."""
    at = random.Random(1)
    with CollectiveProgram.from_spec(spec) as program:
        given, result, scratch = Rank(0).get_input_buffer(), Rank(0).get_output_buffer(), Buffer(0, CHUNKS)
        with LoopIterationContext(unit=2**16, num_chunks=CHUNKS):
            for step in range(1000):
                length = at.randint(1, CHUNKS // 2)
                source, target = (at.randint(0, CHUNKS - length) for _ in range(2))
                to, of = (result, given if step % 3 else scratch) if step % 2 else (scratch, given)
                Rank(0).copy(to[target : target + length], of[source : source + length], tb=0)
    return program


def spec_of(name: str, collective: Any) -> AlgoSpec:
    return AlgoSpec(name=name, collective=collective, world_size=collective.num_ranks)


def heard_thrice(call: Callable[[], Any], within: str, first: Callable[[], Any]) -> None:
    """A handler is run again and again while the library carries out what function ``within`` has asked for: when it
    has returned, the handler would run once.
    """
    heard = 0

    def handler(_: int, frame: FrameType | None) -> None:
        nonlocal heard
        if frame is None or frame.f_code.co_name != within:
            return
        heard += 1
        if heard == 1:
            first()
        if heard == 3:
            raise Enough

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        with pytest.raises(Enough):
            call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("call", "within"),
    [
        (lambda spec: long_proof(spec).check(), "check"),
        (lambda spec: tutti.compile(long_proof, spec, 0), "from_text"),
        (lambda spec: long_proof(spec).run("32MB"), "run"),
    ],
    ids=["check", "compile", "run"],
)
def test_a_handler_that_raises_ends_it(call: Callable[[AlgoSpec], Any], within: str) -> None:
    """Also where the handler that was first has had a program of its own proven meanwhile."""
    small = spec_of("small", AllReduce(2, 1))
    spec = spec_of(f"long_{within}", TestCollective(1, CHUNKS, CHUNKS))
    heard_thrice(lambda: call(spec), within, lambda: tutti.compile(ring_all_reduce, small, 0))
    assert tutti.compile(ring_all_reduce, spec_of("after", AllReduce(2, 1)), 0).name == "after"
