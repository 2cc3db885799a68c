"""Rules of the kernels' sources that no compiler checks, and that only a GPU would show."""

from __future__ import annotations

import re
from pathlib import Path

CUDA = Path(__file__).resolve().parents[3] / "src/algorithm/cuda"
KERNEL = re.compile(r"(\w+)\(const __grid_constant__[^{;]*\)\s*\{\n(.*?)\n\}", re.DOTALL)


def kernels() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("kernel_set.cuh", "kernels_copy.cu"):
        found.update(KERNEL.findall((CUDA / name).read_text()))
    return found


def test_kernels_that_come_early_wait_first() -> None:
    """Those over packets are launched while what precedes them ends, so they begin by waiting for that; no other is."""
    early = {name for name in kernels() if name.startswith(("ll_", "ll128_"))}
    assert len(early) >= 7
    for name, body in kernels().items():
        waits = body.split("\n")[0].strip() == "await_preceding();"
        assert waits == (name in early), name


def test_plans_wait_before_they_read_what_changes() -> None:
    text = (CUDA / "plan_call.cuh").read_text()
    body = text[text.index("void run_plan_blocks(") :]
    assert body.index("block.fetch();") < body.index("await_preceding();") < body.index("run_first_plan_block(team")
    assert "prepare" not in body


def test_what_comes_early_lets_the_next_one_come() -> None:
    """Once its peers are known to run the call, and not before."""
    for name in ("ll.cuh", "ll128.cuh", "ll_uniform.cuh", "plan_call.cuh"):
        text = (CUDA / name).read_text()
        assert "check_headers_and_go()" in text, name
        assert "check_headers()" not in text, name
        assert "let_next_come" not in text, name
