"""Runs of storm_rank.py, as long as TUTTI_TEST_STORM_ROUNDS says."""

from __future__ import annotations

import os
from pathlib import Path

from launching import SUPPORT, free_port, launch
from two_levels import two_level

from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import ring_all_reduce

RANK = SUPPORT / "storm_rank.py"
GIVEN = os.environ.get("TUTTI_TEST_STORM_ROUNDS", "")
ROUNDS = GIVEN or "30"
COUNTED = ("arrays", "torch")  # the faces that tell by which algorithm calls ran
FEW = {"models": "4"}  # of other faces 8
ALLOCATED = {"TUTTI_SHARED_ALLOCATOR": "1", "TUTTI_SHARED_THRESHOLD": "1"}


def weather(
    face: str,
    groups: tuple[int, ...],
    seed: int,
    folder: Path,
    victim: int = -1,
    settings: dict[str, str] | None = None,
) -> list[str]:
    """By a plan where one takes the call: a ring on one host, one of two levels on two. Half of them on mapped memory,
    where peers read and write.
    """
    # By the seed of ordinary runs where ranks share a host; one that is alone there maps nothing.
    mapped = face in ("arrays", "torch", "c", "models") and (seed + sum(groups) + (victim >= 0) * len(groups)) % 2 == 1
    size, hosts = sum(groups), [host for host, ranks in enumerate(groups) for _ in range(ranks)]
    plans = folder / "plans"
    plans.mkdir()
    if len(groups) == 1:
        ring = ring_all_reduce(AlgoSpec("ring", AllReduce(size, 1, True), min_message_size=4096))
        (plans / "allreduce.json").write_text(ring.to_json())
    else:
        two_level(plans, "allreduce", groups, True)
    return launch(
        size,
        *(face, ROUNDS if face in COUNTED else GIVEN or FEW.get(face, "8")),
        dies=victim,
        script=RANK,
        within=150,  # a call that hangs has raised before that, and said what it waits for
        meet={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
        env_of=lambda rank: {
            **{name: value for name, value in os.environ.items() if name.startswith("TUTTI_TORCHCOMMS_")},
            "TUTTI_HOST_ID": f"host{hosts[rank]}",
            "TUTTI_PLAN_PATH": str(plans),
            "TUTTI_CACHE_DIR": "none",
            "STORM_SEED": str(seed),
            "STORM_VICTIM": str(victim),
            "STORM_GROUPS": ",".join(map(str, groups)),
            "STORM_MAPPED": "yes" if mapped else "no",
            **(ALLOCATED if mapped and face in ("torch", "models") else {}),
            "STORM_ALONE": "yes" if victim >= 0 and len(groups) > 1 and groups[hosts[victim]] == 1 else "no",
            "STORM_FOLDER": str(folder),
            **(settings or {}),
        },
    )
