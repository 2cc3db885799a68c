"""The runs that end ``tutti plan check --run``: what is proven is tried at the sizes where plans change course."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tutti._units import format_bytes

MOST_RANKS = 32
MOST_BYTES = 32 << 20  # of all ranks together
SEEDS = (1, 2)
ALIGNMENT = 16  # bytes of a chunk


def _units(plan: dict[str, Any]) -> Iterator[int]:
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            for operation in block["ops"]:
                if "iter_context" in operation:
                    yield operation["iter_context"]["unit_size"]


def block_sizes(plan: dict[str, Any]) -> list[int]:
    """Sizes of a rank's block: an element, chunks that are full and that are not, and around the units of its loops."""
    ranks = len(plan["gpus"])
    counts = [gpu[f"{side}_chunks"] for gpu in plan["gpus"] for side in ("input", "output")]
    chunks = min((count for count in counts if count > 0), default=1)
    if plan["collective"] == "alltoall":
        chunks = max(1, chunks // ranks)
    lengths = {ALIGNMENT, 5 * ALIGNMENT}
    for unit in set(_units(plan)):
        lengths |= {unit - ALIGNMENT, unit, unit + ALIGNMENT, unit + unit // 32 * ALIGNMENT, 2 * unit + ALIGNMENT}
    sizes = {4} | {length * chunks - less for length in lengths if length > 0 for less in (0, 4)}
    low, high = plan.get("min_message_size", 0), plan.get("max_message_size", 2**64 - 1)
    return sorted(size for size in sizes if low <= size <= high and size * ranks * ranks <= MOST_BYTES)


def try_plan(text: str) -> dict[str, Any]:
    """Runs a plan at each of these sizes, in two random orders: ``sizes`` and ``seeds`` that were run, and ``fault``.

    ``fault`` is None or says at which size and in which order it was wrong; ``not_run`` is None, or why none was run.
    """
    from tutti import _core

    plan = json.loads(_core.write_out_plan(text))
    done: dict[str, Any] = {"sizes": [], "seeds": list(SEEDS), "fault": None, "not_run": None}
    if len(plan["gpus"]) > MOST_RANKS:
        done["not_run"] = f"{len(plan['gpus'])} ranks, and at most {MOST_RANKS} are tried"
        return done
    op = _core.plan_info(text)["reduce"] or "sum"
    for size in block_sizes(plan):
        try:
            for seed in SEEDS:
                report = _core.run_plan(text, size, "i32", "sum" if op == "any" else op, seed=seed)
                if report["fault"] is not None:
                    done["fault"] = f"{format_bytes(size)} a rank, order {seed}: {report['fault']}"
                    return done
        except (ValueError, NotImplementedError) as error:
            done["not_run"] = str(error)
            continue
        done["sizes"].append(size)
    if done["sizes"]:
        done["not_run"] = None
    elif done["not_run"] is None:
        done["not_run"] = "no size is small enough"
    return done


def line_of(runs: dict[str, Any]) -> str:
    """The runs in a sentence."""
    if runs["fault"] is not None:
        return f"runs: wrong: {runs['fault']}"
    if runs["not_run"] is not None:
        return f"runs: none: {runs['not_run']}"
    sizes = runs["sizes"]
    span = f"{len(sizes)} sizes from {format_bytes(sizes[0])} to {format_bytes(sizes[-1])} a rank"
    return f"runs: right at {span}, in {len(runs['seeds'])} random orders each"
