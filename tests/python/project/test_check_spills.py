"""What CUDA kernels spill is compared with a table: scripts/check_spills.py, on logs as ptxas writes them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "check_spills.py"
pytestmark = pytest.mark.tutti_only


def log_of(stores: int) -> str:
    """A kernel that spills, one that does not, and a function that is called."""
    name = "_ZN5tutti4cuda15messages_kernelINS0_11MessageArgsILi64EEEEEvNS0_11DeviceWorldET_"
    return f"""ptxas info    : Compiling entry function '{name}' for 'sm_90'
ptxas info    : Function properties for {name}
    64 bytes stack frame, {stores} bytes spill stores, 100 bytes spill loads
ptxas info    : Function properties for _ZN5tutti6device6detail21load_at_any_alignmentEPKSt4bytem
    0 bytes stack frame, 999 bytes spill stores, 999 bytes spill loads
ptxas info    : Compiling entry function '_ZN5tutti4cuda4meetEv' for 'sm_90'
ptxas info    : Function properties for _ZN5tutti4cuda4meetEv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""


@pytest.mark.parametrize(
    ("version", "table", "stores", "code", "said"),
    [
        ("13.0", "messages_kernel<MessageArgs<64>> 66 100", 66, 0, "2 kernels spill no more"),
        ("13.0", "messages_kernel<MessageArgs<64>> 66 100", 200, 1, "messages_kernel<MessageArgs<64>> spills 200"),
        ("13.0", "", 66, 1, "messages_kernel<MessageArgs<64>> spills 66"),
        ("13.0", "messages_kernel<MessageArgs<64>> 66 100\ngone 8 8", 66, 1, "gone is not in the log"),
        ("12.8", "", 66, 0, "nothing is compared"),
    ],
)
def test_spills_are_compared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    version: str,
    table: str,
    stores: int,
    code: int,
    said: str,
) -> None:
    spec = importlib.util.spec_from_file_location("check_spills", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    log, allowed = tmp_path / "log", tmp_path / "spills.txt"
    log.write_text(log_of(stores))
    allowed.write_text(f"nvcc 13.0\n{table}".rstrip() + "\n")
    monkeypatch.setattr(script, "TABLE", allowed)
    monkeypatch.setattr(script, "version_of_nvcc", lambda: version)
    monkeypatch.setattr(sys, "argv", ["check_spills.py", str(log)])
    assert script.main() == code
    assert said in capsys.readouterr().out
