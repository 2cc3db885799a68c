"""MSCCL++'s examples for PyTorch run here with their imports changed and main memory in place of a GPU.

Needs a checkout of microsoft/mscclpp: ``TUTTI_TEST_MSCCLPP=folder pytest ...``.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launching import free_port
from rank_pool import RankPool
from rank_worker import Context

CHECKOUT = os.environ.get("TUTTI_TEST_MSCCLPP")
pytestmark = [
    pytest.mark.tutti_only,
    pytest.mark.skipif(not CHECKOUT, reason="TUTTI_TEST_MSCCLPP names no checkout of microsoft/mscclpp"),
]
World = Callable[..., RankPool]
EXAMPLES = Path(CHECKOUT or ".") / "examples" / "torch-integration"
ALL_GATHER = Path(__file__).resolve().parents[3] / "examples" / "customized_all_gather.cu"

IMPORTS = (
    (r"^import mscclpp$", "import tutti as mscclpp"),
    (r"^import mscclpp\.(\w+)( as \w+)?$", r"import tutti.\1\2; import tutti as mscclpp"),
    (r"^from mscclpp(\.[\w.]+) import", r"from tutti\1 import"),
)
DEVICE = (
    (r"torch\.device\(\"cuda\"(, local)?\)", 'torch.device("cpu")'),
    (r"\"cuda\"", '"cpu"'),
    (r"torch\.cuda\.", "gpu."),
)
# The script's own settings for one machine with 8 GPUs and NCCL.
NCCL = (
    (r"AllReduce\(8,", "AllReduce(world_size,"),
    (r"nranks_per_node=8", "nranks_per_node=world_size"),
    (r"backend=\"nccl\", device_id=.*\)$", 'backend="tutti")'),
)


def stand_ins(size: int) -> dict[str, Any]:
    """What the scripts ask of torch.cuda and of netifaces, which tells which interface has an address."""
    netifaces = types.ModuleType("netifaces")
    vars(netifaces).update(AF_INET=2, interfaces=lambda: ["lo"], ifaddresses=lambda _: {2: [{"addr": "127.0.0.1"}]})
    sys.modules["netifaces"] = netifaces
    gpu = types.SimpleNamespace(
        set_device=lambda _: None,
        current_stream=lambda: None,
        synchronize=lambda: None,
        device_count=lambda: size,
        Stream=object,
    )
    return {"gpu": gpu, "__name__": "example"}


def load(ctx: Context, name: str, folder: Path, changes: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    text = (EXAMPLES / name).read_text()
    for pattern, replacement in (*IMPORTS, *DEVICE, *changes):
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    os.environ.update(RANK=str(ctx.rank), WORLD_SIZE=str(ctx.size), LOCAL_RANK=str(ctx.rank))
    names = {**stand_ins(ctx.size), "__file__": str(folder / name)}
    exec(compile(text, name, "exec"), names)
    return names


def at(port: int) -> None:
    os.environ.update(MSCCLPP_MASTER_ADDR="127.0.0.1", MSCCLPP_MASTER_PORT=str(port))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def customized(ctx: Context, name: str, folder: Path, ports: tuple[int, int]) -> None:
    """The script's class on numbers that tell, and then the script."""
    import torch

    at(ports[0])
    script = load(ctx, name, folder)
    comm = script["init_dist"]()
    for count in (1 << 18, 1 << 20) if "dsl" in name else (3, 1 << 19):
        x = torch.full((count,), ctx.rank + 1.0)
        comm.all_reduce(x)
        assert torch.equal(x, torch.full_like(x, ctx.size * (ctx.size + 1) / 2))
    comm.destroy()
    at(ports[1])
    script["main"]()


def gathering(ctx: Context, folder: Path, port: int) -> None:
    """The script compiles a file beside it, which is for Tutti here."""
    import torch

    at(port)
    script = load(ctx, "customized_allgather.py", folder)
    kept: list[Any] = []
    script["CustomizedComm"].all_gather.__globals__["print"] = lambda *_: None
    own = script["CustomizedComm"].all_gather

    def watched(self: Any, tensor: Any, out: Any, stream: Any = None) -> None:
        mine = tensor.clone()
        own(self, tensor, out, stream)
        kept.append((mine, out))

    script["CustomizedComm"].all_gather = watched
    script["main"]()
    mine, out = kept[0]
    assert torch.equal(out[ctx.rank * mine.numel() :][: mine.numel()], mine)
    assert out.unique().numel() > mine.numel()  # others' numbers too


@pytest.mark.parametrize("name", ["customized_comm_with_dsl.py", "customized_comm_with_default_algo.py"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_customized_comm(fresh_world: World, tmp_path: Path, name: str, ranks: int) -> None:
    fresh_world(ranks, open_group=False).call(customized, name, tmp_path, (free_port(), free_port()))


def test_native_all_gather(fresh_world: World, tmp_path: Path) -> None:
    text = ALL_GATHER.read_text().replace("create_all_gather", "create_allgather_algorithm")
    (tmp_path / "customized_allgather.cu").write_text(text)
    fresh_world(2, open_group=False).call(gathering, tmp_path, free_port())


def through_the_backend(ctx: Context, folder: Path, port: int) -> set[str]:
    import torch.distributed as dist

    import tutti

    at(port)
    script = load(ctx, "dsl_with_nccl_api.py", folder, NCCL)
    ran: set[str] = set()
    barrier = dist.barrier

    def watched() -> None:
        ran.update(row["algorithm"] for row in tutti.get_metrics()["rows"] if row["collective"] == "all_reduce")
        barrier()

    dist.barrier = watched  # type: ignore[assignment]
    try:
        script["main"]()
    finally:
        dist.barrier = barrier
    return ran


def test_dsl_under_torch_distributed(fresh_world: World, tmp_path: Path) -> None:
    for ran in fresh_world(2, open_group=False).call(through_the_backend, tmp_path, free_port()):
        assert ran == {"plan:allreduce_nvls"}
