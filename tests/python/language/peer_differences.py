"""Where the plans of MSCCL++ and of Tutti differ, and why: each is a mistake of the former."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

UNIT = "python/mscclpp/language/tests/unit_tests"
DEFAULT = "python/mscclpp/default_algos"


@dataclass(frozen=True)
class Difference:
    """In the programs that ``label`` matches, operations ``theirs`` stand where Tutti has ``ours``.

    With ``key``, the operations on both sides are the same but for what they have there.
    """

    label: str
    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    why: str
    key: str | None = None

    def covers(self, label: str, theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> bool:
        """Whether this is the difference between these operations of program ``label``."""
        if not re.search(self.label, label):
            return False
        if (_names(theirs), _names(ours)) != (self.theirs, self.ours):
            return False
        return self.key is None or [_without(one, self.key) for one in theirs] == [
            _without(one, self.key) for one in ours
        ]


def _names(operations: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(operation["name"] for operation in operations)


def _without(operation: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in operation.items() if name != key}


OVERWRITING = "it fuses two reductions of which the second overwrites the result of the first into one that adds both"
UNSHIFTED = "its replication leaves the packets that a reduction writes where the first instance writes them"

DIFFERENCES = (
    Difference(rf"{UNIT}/reduce/reduce_fuse_test\.py", ("re",), ("re", "nop", "re"), OVERWRITING),
    Difference(rf"{UNIT}/tbg/tbg_reduce_fuse_test\.py", ("re",), ("re", "nop", "re"), OVERWRITING),
    Difference(rf"{UNIT}/read_reduce/read_reduce_fuse_test\.py", ("rre",), ("rre", "nop", "rre"), OVERWRITING),
    Difference(rf"{UNIT}/reduce_packet/reduce_packets_fuse", ("repkt",), ("repkt", "nop", "repkt"), OVERWRITING),
    Difference(rf"{DEFAULT}/allreduce_.* instances=3", ("recpkt",), ("recpkt",), UNSHIFTED, "dst_buff"),
    Difference(rf"{DEFAULT}/allreduce_.* instances=3", ("recspkt",), ("recspkt",), UNSHIFTED, "dst_buff"),
)


@dataclass(frozen=True)
class Refusal:
    """Programs that ``label`` matches may be refused with ``reason``."""

    label: str
    reason: str
    why: str


REFUSALS = (
    Refusal(
        r"multi_node/send_recv\.py .*--split_mask [13]$",
        "a channel to oneself",
        "with one group only, the next group of a rank is its own",
    ),
)

# Signals without a wait: neither compiles it.
BOTH_REFUSE = (rf"{UNIT}/put/put_with_signal_fuse_test\.py",)


def refusal_of(label: str) -> Refusal | None:
    """Why this program may be refused."""
    return next((one for one in REFUSALS if re.search(one.label, label)), None)
