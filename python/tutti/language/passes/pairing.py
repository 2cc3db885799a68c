"""Checks that every signal has its wait.

A plan has no branches, so counting suffices to find what would hang. Signals in loops are counted apart: a loop repeats
as often as its unit and chunks say, which both sides must agree on.
"""

from __future__ import annotations

from tutti.language.errors import fail
from tutti.language.recorder import Recorder


def check_pairs(recorder: Recorder) -> None:
    """Raises at the first signal or wait whose counterpart does not exist."""
    for message in dict.fromkeys([*recorder.signals, *recorder.waits]):
        signals = recorder.signals.get(message, [])
        waits = recorder.waits.get(message, [])
        if len(signals) == len(waits):
            continue
        place = "" if message.loop is None else f" in loops of {message.loop[1]} chunks by {message.loop[0]} bytes"
        counts = (
            f"rank {message.signaller} signals rank {message.waiter} {len(signals)} times over {message.channel_type} "
            f"channels{place}, but rank {message.waiter} waits for it {len(waits)} times"
        )
        if len(signals) > len(waits):
            unmatched, rank, operation = signals[len(waits)], message.signaller, "signal"
        else:
            unmatched, rank, operation = waits[len(signals)], message.waiter, "wait"
        fail(counts, rank=rank, thread_block=unmatched.block, operation=operation, origin=unmatched.origin)
