"""Signals, forks, want of descriptors and deaths at once, at random moments of calls, messages, plans and groups.

TUTTI_TEST_STORM_ROUNDS says how long (default 30 rounds of one to seven calls), --seed which. Where it is given, storms
through the faces of C and of TorchComms are as long, and of as many kinds; else they are a few.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from storm_weather import COUNTED, GIVEN, weather
from torchcomms_interface import NEEDS_TORCHCOMMS

from tutti.cli import nccl

pytestmark = pytest.mark.tutti_only


def each(*groups: tuple[int, ...], few: tuple[int, ...]) -> pytest.MarkDecorator:
    """Faces with ranks by host; `few` are those of the C face and of models in an ordinary run."""
    thin = [(face, ranks) for face in ("c", "models") for ranks in (groups if GIVEN else [few])]
    cases = [(face, ranks) for face in COUNTED for ranks in groups] + thin
    of_torch = [(face, ranks) for face in ("comms", "storeless") for ranks in groups if GIVEN]
    comms = [pytest.param(*case, marks=NEEDS_TORCHCOMMS) for case in of_torch]
    return pytest.mark.parametrize(("face", "groups"), [*cases, *comms], ids=str)


@each((2,), (3,), (1, 1), (2, 1), few=(2, 1))
def test_data_stay_right_and_nothing_hangs(face: str, groups: tuple[int, ...], seed: int, tmp_path: Path) -> None:
    for output in weather(face, groups, seed, tmp_path):
        disturbed = re.search(r"'signals': (\d+), 'forks': (\d+), 'dry spells': (\d+), 'looks': (\d+)", output)
        assert disturbed and all(int(count) > 0 for count in disturbed.groups()), output
        assert "plan:" in output or face not in COUNTED, output


@each((3,), (2, 1), few=(3,))
def test_a_death_is_named_and_the_others_go_on(face: str, groups: tuple[int, ...], seed: int, tmp_path: Path) -> None:
    # With torch rank 0 serves the store, without which nothing goes on, unless the ranks meet anew.
    victim = random.Random(f"{seed} victim").randrange(int(face not in ("arrays", "c", "storeless")), sum(groups))
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
