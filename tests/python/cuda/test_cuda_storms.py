"""CUDA tensors in a storm: signals, forks and deaths at random moments of calls, messages, graphs, registered memory,
plans and groups, every result checked. TUTTI_TEST_STORM_ROUNDS says how long, --seed which, as for test_storms.py.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from storm_weather import weather

pytestmark = [pytest.mark.tutti_only, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("ranks", [2, 4])
def test_data_stay_right_and_nothing_hangs(ranks: int, seed: int, tmp_path: Path) -> None:
    for output in weather("cuda", (ranks,), seed, tmp_path):
        assert re.search(r"'signals': [1-9]\d*, 'forks': [1-9]", output), output
        if torch.cuda.device_count() >= ranks:  # between ranks of one GPU nothing is gained without copies
            assert re.search(r"without copies: [1-9]", output), output


def test_a_death_is_named_and_the_others_go_on(seed: int, tmp_path: Path) -> None:
    victim = random.Random(f"{seed} victim").randrange(1, 3)  # rank 0 serves the store
    weather("cuda", (3,), seed, tmp_path, victim)
