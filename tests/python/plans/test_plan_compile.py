"""`tutti plan compile`: source without a compiler, a cubin where there is one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from direct_plan import direct_all_reduce
from typer.testing import CliRunner

from tutti import _core
from tutti.cli import doctor_gpu
from tutti.cli.app import app
from tutti.plans import nvrtc
from tutti.plans.nvrtc import resources

pytestmark = pytest.mark.tutti_only

LOG = """ptxas info    : Compiling entry function 'tutti_plan' for 'sm_90'
ptxas         .     16 bytes stack frame, 24 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 96 registers, used 2 barriers
ptxas info    : Function properties for another
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(direct_all_reduce(2, False)))
    return str(file)


def compiled(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", "compile", *words])
    return result.exit_code, result.output


def test_the_source_needs_no_compiler(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTTI_NVRTC", "/no/such/file")
    status, source = compiled(plan, "--emit-cuda", "--size", "1000", "--rank", "1")
    assert status == 0
    name = json.loads(Path(plan).read_text())["name"]
    assert source.startswith(f'// Plan "{name}", rank 1 of 2: ')
    assert 'extern "C" __global__' in source
    assert (status, source) == compiled(plan, "--emit-cuda", "--size", "1000", "--rank", "1")
    assert compiled(plan, "--emit-cuda", "--size", "1000", "--rank", "1", "--dtype", "bf16")[1] != source


def test_large_plans_are_for_clusters_where_there_are_any(plan: str) -> None:
    def team(size: str, architecture: str) -> str:
        status, source = compiled(plan, "--emit-cuda", "--size", size, "--architecture", architecture)
        assert status == 0
        return source.split("cuda::PlanTeam<")[1].split(">")[0]

    assert team("1KB", "sm_90") == "1"
    assert team("4MB", "sm_90") == team("4MB", "sm_100") == "8"
    assert team("4MB", "sm_80") == "1"


def test_without_a_compiler_it_says_what_to_install(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTTI_NVRTC", "/no/such/file")
    status, text = compiled(plan)
    assert status == 1
    assert "install PyPI's nvidia-cuda-nvrtc" in text
    assert "/no/such/file" in text
    finding = doctor_gpu._compiler()
    assert (finding.found, finding.remedy) == ("NVRTC is not installed", "pip install nvidia-cuda-nvrtc")


def test_what_cannot_be_compiled_is_refused(plan: str) -> None:
    status, text = compiled(plan, "--emit-cuda", "--rank", "2")
    assert (status, "the plan has 2 ranks" in text) == (2, True)
    status, text = compiled(plan, "--emit-cuda", "--op", "max")
    assert (status, "the plan" in text) == (1, True)


def test_a_cubin_and_its_registers(plan: str, tmp_path: Path) -> None:
    try:
        _core.nvrtc_info(nvrtc.find())
    except NotImplementedError as error:
        assert not os.environ.get("TUTTI_NVRTC"), error
        pytest.skip(str(error))
    target = tmp_path / "plan.cubin"
    status, text = compiled(plan, "--output", str(target))
    assert status == 0, text
    assert target.read_bytes().startswith(b"\x7fELF")
    assert " registers, spills " in text


def test_resources_are_those_of_the_kernel() -> None:
    assert resources(LOG) == "96 registers, spills 24 bytes and loads 28 back"
    assert resources("") == ""
