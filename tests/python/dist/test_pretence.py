"""Groups that a program asks for as gloo, and gets from Tutti: by tutti.pretend, by the environment, by `tutti run`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_worker import Context
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

import tutti
from tutti.cli.app import app
from tutti.dist import autoload

pytestmark = pytest.mark.tutti_only
World = Callable[..., RankPool]


def wrapped_by_name(model: nn.Module) -> nn.Module:
    """As some frameworks do: DDP for the backends that they know, and nothing, silently, for others."""
    return DistributedDataParallel(model) if dist.get_backend() in ("nccl", "gloo", "mpi") else model


def ask_for_gloo(ctx: Context, backend: str | None) -> None:
    # What another backend's options are is no matter to gloo.
    dist.init_process_group(
        backend,
        store=ctx.store(f"{ctx.generation}.{backend}"),
        rank=ctx.rank,
        world_size=ctx.size,
        pg_options=object() if backend == "gloo" else None,
    )


def use_groups_named_gloo(ctx: Context, backend: str | None) -> None:
    ctx.close()
    tutti.pretend("gloo")
    tutti.pretend("gloo")  # twice is as once
    ask_for_gloo(ctx, backend)
    said = {"gloo": "gloo", "cpu:gloo": "cpu:gloo", None: "undefined"}[backend]
    assert dist.get_backend() == tutti.group_info().asked_as == said
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert tensor[0] == ctx.size
    assert tutti.get_metrics()["rows"][0]["calls"] == 1
    part = dist.new_group([0])
    if ctx.rank == 0:
        assert dist.get_backend(part) == said
        assert tutti.group_info(part).size == 1
    halves = tutti.split_group([[0], [1]])
    assert halves is not None
    assert dist.get_backend(halves) == "gloo"
    if backend == "gloo":
        dist.monitored_barrier()  # which torch.distributed has for this name alone
        model = wrapped_by_name(nn.Linear(4, 2))
        model(torch.full((3, 4), float(ctx.rank))).sum().backward()
        gradient = next(model.parameters()).grad
        assert gradient is not None
        assert gradient.flatten().tolist() == [1.5] * 8  # the average of 0 and 3
    ctx.close()

    tutti.pretend("gloo", enabled=False)
    ask_for_gloo(ctx, "gloo")
    with pytest.raises(ValueError, match="does not use the backend 'tutti'"):
        tutti.group_info()
    dist.barrier()  # gloo's connections are one rank's before they are the other's
    ctx.close()


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo", None])
def test_groups_asked_for_as_gloo_are_tuttis_and_say_gloo(fresh_world: World, backend: str | None) -> None:
    fresh_world(2).call(use_groups_named_gloo, backend)


def test_other_names_are_refused_and_nothing_is_touched_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="can pretend to be gloo, not 'nccl'"):
        tutti.pretend("nccl")
    assert dist.distributed_c10d._new_process_group_helper.__code__.co_filename == dist.distributed_c10d.__file__
    monkeypatch.setenv("TUTTI_PRETEND", "mpi")
    with pytest.warns(RuntimeWarning, match="TUTTI_PRETEND=mpi has no effect: .* not 'mpi'"):
        autoload._pretend_if_asked()
    monkeypatch.setattr(dist.distributed_c10d, "_new_process_group_helper", lambda other: None)
    with pytest.raises(RuntimeError, match='ask for "tutti" by name'):
        tutti.pretend("gloo")


PROGRAM = """
import os, sys
print(sys.argv[1:], __name__, sys.flags.dont_write_bytecode, os.environ["TUTTI_PRETEND"])
"""


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_program_runs_as_python_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--as", "other", "-h", "-m"]
    said = f"{options} __main__ 1 gloo\n"
    head = ["-B", "-m", "tutti", "run", "--as", "gloo"]
    script = run(*head, str(tmp_path / "program.py"), *options)
    assert script.stdout == said, script.stderr
    module = run(*head, "-m", "program", *options, PYTHONPATH=str(tmp_path))
    assert module.stdout == said, module.stderr
    assert run(*head, str(tmp_path / "missing.py")).returncode != 0


def test_what_cannot_be_pretended_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = CliRunner().invoke(app, ["run", "--as", "mpi", "program.py"])
    assert (other.exit_code, other.output) == (2, "tutti run: --as takes gloo, not mpi\n")
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    unloaded = CliRunner().invoke(app, ["run", "--as", "gloo", "program.py"])
    assert unloaded.exit_code == 2
    assert "unset TORCH_DEVICE_BACKEND_AUTOLOAD" in unloaded.output


FIRST = """
import torch.distributed as dist
dist.init_process_group("gloo")
import tutti
print(tutti.group_info().size, dist.get_backend())
dist.destroy_process_group()
"""


def test_a_program_that_knows_nothing_of_tutti_is_served(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(FIRST)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launch = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    finished = run(
        *("-m", "tutti", "run", "--as", "gloo", str(tmp_path / "first.py")),
        **launch,
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    assert finished.stdout == "1 gloo\n", finished.stderr
