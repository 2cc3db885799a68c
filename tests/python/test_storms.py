"""Signals, forks, want of descriptors and deaths at once, at random moments of calls, messages, plans and groups.

TUTTI_TEST_STORM_ROUNDS says how long (default 30 rounds of one to seven calls), --seed which. Where it is given, storms
through the faces of C and of TorchComms are as long, and of as many kinds; else they are a few.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest
from test_communicator import free_port, launch
from test_plan_hosts import two_level
from torchcomms_interface import NEEDS_TORCHCOMMS

from tutti.cli import nccl
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import ring_all_reduce

RANK = Path(__file__).with_name("storm_rank.py")
GIVEN = os.environ.get("TUTTI_TEST_STORM_ROUNDS", "")
ROUNDS = GIVEN or "30"
COUNTED = ("arrays", "torch")  # the faces that tell by which algorithm calls ran
FEW = "8"

pytestmark = pytest.mark.tutti_only


def each(*groups: tuple[int, ...], few: tuple[int, ...]) -> pytest.MarkDecorator:
    """Faces with ranks by host; `few` are those of the C face in an ordinary run."""
    thin = [("c", ranks) for ranks in (groups if GIVEN else [few])]
    cases = [(face, ranks) for face in COUNTED for ranks in groups] + thin
    comms = [pytest.param("comms", ranks, marks=NEEDS_TORCHCOMMS) for ranks in groups if GIVEN]
    return pytest.mark.parametrize(("face", "groups"), [*cases, *comms], ids=str)


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
    mapped = face in ("arrays", "torch", "c") and (seed + sum(groups) + (victim >= 0) * len(groups)) % 2 == 1
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
        *(face, ROUNDS if face in COUNTED else GIVEN or FEW),
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
            **({"TUTTI_SHARED_ALLOCATOR": "1", "TUTTI_SHARED_THRESHOLD": "1"} if mapped and face == "torch" else {}),
            "STORM_ALONE": "yes" if victim >= 0 and len(groups) > 1 and groups[hosts[victim]] == 1 else "no",
            "STORM_FOLDER": str(folder),
            **(settings or {}),
        },
    )


@each((2,), (3,), (1, 1), (2, 1), few=(2, 1))
def test_data_stay_right_and_nothing_hangs(face: str, groups: tuple[int, ...], seed: int, tmp_path: Path) -> None:
    for output in weather(face, groups, seed, tmp_path):
        disturbed = re.search(r"'signals': (\d+), 'forks': (\d+), 'dry spells': (\d+), 'looks': (\d+)", output)
        assert disturbed and all(int(count) > 0 for count in disturbed.groups()), output
        assert "plan:" in output or face not in COUNTED, output


@each((3,), (2, 1), few=(3,))
def test_a_death_is_named_and_the_others_go_on(face: str, groups: tuple[int, ...], seed: int, tmp_path: Path) -> None:
    # With torch rank 0 serves the store, without which nothing goes on.
    victim = random.Random(f"{seed} victim").randrange(int(face in ("torch", "comms")), sum(groups))
    weather(face, groups, seed, tmp_path, victim)


@pytest.mark.parametrize("size", [2, 3])
def test_nothing_fails_under_the_name_of_nccl(size: int, seed: int, tmp_path: Path, plugin: str, stand_in: str) -> None:
    """Signals and want of descriptors leave communicators to NCCL, on all ranks alike, and no call fails."""
    settings = {
        "LD_PRELOAD": str(nccl.library()),
        "TUTTI_NCCL": "1",
        "TUTTI_NCCL_LIB_PATH": stand_in,
        "TUTTI_PLUGIN_PATH": plugin,
        "TUTTI_NCCL_PATIENCE_MS": "2000",
        "TUTTI_PLAN_PATH": "",  # a ring is for ranks that share memory, as the processes of the plug-in may not
    }
    outputs = weather("nccl", (size,), seed, tmp_path, settings=settings)
    assert all(re.search(r"calls by Tutti [1-9]", output) for output in outputs), outputs
