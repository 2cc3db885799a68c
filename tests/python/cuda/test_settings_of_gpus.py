"""Each setting of groups on GPUs, different on one rank: right results, or an error on all ranks that names the setting
and both values. Without a GPU above a plug-in whose device memory is the host's; then with real ones, which two ranks
may share.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from launching import SUPPORT, launch

from tutti import _core
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import BUILTINS

RANK = SUPPORT / "settings_rank.py"
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
on_gpus = pytest.mark.skipif(GPUS == 0, reason="there is no GPU")
RING = "a plan of two ranks"  # stands for its file
Said = tuple[str, ...]
# What rank 1 has, what rank 0 has (empty: unset), and of what all ranks are told the parts; nothing: results are right.
SETTINGS: list[tuple[str, str, str, Said]] = [
    ("TUTTI_CUDA_TRANSPORT", "host", "", ("TUTTI_CUDA_TRANSPORT is unset on rank 0 and host on rank 1",)),
    ("TUTTI_CUDA_TRANSPORT", "host", "peer", ("TUTTI_CUDA_TRANSPORT is peer on rank 0 and host on rank 1",)),
    ("TUTTI_CUDA_ALGORITHM", "ll_one_shot", "", ("TUTTI_CUDA_ALGORITHM is unset on rank 0 and ll_one_shot on rank 1",)),
    (
        "TUTTI_CUDA_ALGORITHM",
        "ll_one_shot@2",
        "ll_two_shot@2",
        ("TUTTI_CUDA_ALGORITHM is ll_two_shot@2 on rank 0 and ll_one_shot@2 on rank 1",),
    ),
    ("TUTTI_CUDA_MAX_BLOCKS", "3", "", ()),
    ("TUTTI_CUDA_MAX_BLOCKS", "1", "64", ()),
    ("TUTTI_CUDA_COMPILE", "off", "wait", ()),
    ("TUTTI_CUDA_COMPILE", "wait", "on", ()),
    ("TUTTI_NVRTC", "/no/such/file", "", ()),
    ("TUTTI_CUDA_WATCHDOG", "end", "none", ()),
    ("TUTTI_PLAN_PATH", RING, "", ("TUTTI_PLAN_PATH is unset on rank 0 and ", " (with the plans ", " on rank 1")),
    ("TUTTI_NCCL_LIB_PATH", "/no/such/file", "", ()),
    ("TUTTI_CACHE_DIR", "none", "", ()),
    ("TUTTI_FLIGHT_RECORDER_ENTRIES", "0", "", ()),
    ("TUTTI_LOG_LEVEL", "error", "warning", ()),
]
# Those that name a plug-in or are not looked at by groups on GPUs, which the group in main memory compares before.
OF_THE_HOST = {
    "TUTTI_ALGORITHM", "TUTTI_ARENA_BYTES", "TUTTI_CROSS_MEMORY", "TUTTI_HEARTBEAT_MS", "TUTTI_HOST_ID", "TUTTI_SECRET",
    "TUTTI_SHARED_ALLOCATOR", "TUTTI_SHARED_THRESHOLD", "TUTTI_SOCKET_IFNAME", "TUTTI_SPINS", "TUTTI_STAGE_BYTES",
}  # fmt: skip
ELSEWHERE = {"TUTTI_PLUGIN_PATH", "TUTTI_TUNING_PATH"}  # below, and in test_tune_gpu.py
Places = Callable[..., list[str]]


@pytest.fixture(params=["host", pytest.param("cuda", marks=on_gpus)])
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    """Runs a task of settings_rank.py on two ranks, with what each has in its environment."""
    on_host = request.param == "host"
    common = {"TUTTI_PLUGIN_PATH": request.getfixturevalue("plugin")} if on_host else {"SETTINGS_ON": "cuda"}

    def run(task: str, *own: dict[str, str]) -> list[str]:
        assert len(own) == 2
        folder = {"TUTTI_CACHE_DIR": str(tmp_path / "cache")}
        outputs = launch(2, task, script=RANK, env_of=lambda rank: {**common, **folder, **own[rank]})
        return [output.partition("refused:")[2].partition("\n")[0] for output in outputs]

    return run


def ring(tmp_path: Path) -> str:
    file = tmp_path / "ring.json"
    file.write_text(BUILTINS["allreduce", "ring"](AlgoSpec(name="ring", collective=AllReduce(2, 1))).to_json())
    return str(file)


def test_every_variable_is_tried() -> None:
    tried = {name for name, *_ in SETTINGS}
    assert tried | OF_THE_HOST | ELSEWHERE == {row.name for row in _core.config()}


@pytest.mark.parametrize(("name", "value", "others", "said"), SETTINGS)
def test_one_rank_has_another(ranks: Places, tmp_path: Path, name: str, value: str, others: str, said: Said) -> None:
    own = {name: ring(tmp_path) if value == RING else value}
    outputs = ranks("calls", {name: others} if others else {}, own)
    for output in outputs:
        assert bool(output) == bool(said), outputs
        assert all(part in output for part in said), outputs


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize(
    ("name", "value"), [("TUTTI_CUDA_COMPILE", "off"), ("TUTTI_NVRTC", "/no/such/file"), ("TUTTI_CACHE_DIR", "none")]
)
def test_plans_of_both_ranks_compiled_on_one(ranks: Places, tmp_path: Path, name: str, value: str, odd: int) -> None:
    """What was compiled of a plan does the same on the wire as what interprets it."""
    both = {"TUTTI_PLAN_PATH": ring(tmp_path), "TUTTI_CUDA_COMPILE": "wait"}
    own = [{**both, **({name: value} if rank == odd else {})} for rank in range(2)]
    assert ranks("calls", *own) == [""] * 2


@pytest.mark.parametrize("odd", [0, 1])
def test_an_algorithm_given_to_one_rank_is_named(ranks: Places, odd: int) -> None:
    given = {"GIVEN_ON": str(odd)}
    name = "the algorithms given (AlgorithmCollectionBuilder)"
    for output in ranks("given", given, given):
        assert f"{name} is " in output and "none on rank" in output and f" on rank {odd}" in output, output
        assert "my_ring" in output, output


@pytest.mark.parametrize("odd", [0, 1])
def test_a_function_that_chooses_on_one_rank_is_named(ranks: Places, odd: int) -> None:
    given = {"GIVEN_ON": "0,1", "CHOOSES_ON": str(odd)}
    for output in ranks("given", given, given):
        assert "my_ring, by a function" in output and "my_ring (" in output and f" on rank {odd}" in output, output


def test_algorithms_of_all_ranks_run(ranks: Places) -> None:
    assert ranks("given", {"GIVEN_ON": "0,1"}, {"GIVEN_ON": "0,1"}) == [""] * 2


@pytest.mark.parametrize("odd", [0, 1])
def test_a_rank_without_the_plug_in_is_named(ranks: Places, tmp_path: Path, odd: int) -> None:
    own: list[dict[str, str]] = [{}, {}]
    broken = tmp_path / "plugin"
    broken.mkdir()
    (broken / "libtutti_cuda.so").write_text(json.dumps("no library"))
    own[odd] = {"TUTTI_PLUGIN_PATH": str(broken)}
    outputs = ranks("calls", *own)
    assert "libtutti_cuda" in outputs[0] and "libtutti_cuda" in outputs[1], outputs
    assert f"rank {odd}" in outputs[1 - odd], outputs
