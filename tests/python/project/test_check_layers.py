"""scripts/check_layers.py: what it refuses."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.tutti_only
SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec = importlib.util.spec_from_file_location("check_layers", SCRIPTS / "check_layers.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPTS))
    return module


@pytest.mark.parametrize(
    ("path", "include", "wrong"),
    [
        ("src/channel/port.cc", '"channel/cuda/scratch.h"', "is for the cuda folders"),
        ("src/aten/tensors.cc", '"channel/cuda/scratch.h"', "is for the cuda folders"),
        ("src/channel/port.cc", '"tutti/cuda/communicator.h"', "is for the cuda folders"),
        ("include/tutti/work.h", '"tutti/cuda/report.h"', "is for the cuda folders"),
        ("include/tutti/work.h", '"tutti/device/device.cuh"', "is for the cuda folders"),
        ("include/tutti/work.h", '"tutti/plugin/kernel.cuh"', "is for the cuda folders"),
        ("include/tutti/plugin/kernel.cuh", '"tutti/device/memory.cuh"', ""),
        ("include/tutti/plugin/algorithm.h", '"tutti/device/memory.cuh"', "is for the cuda folders"),
        ("include/tutti/work.h", '"channel/port.h"', "a public header includes the internal"),
        ("src/base/clock.h", '"device/device.h"', "is not below it"),
        ("src/base/clock.h", "<torch/torch.h>", "may include torch/torch.h"),
        ("src/nccl/calls.cc", '"interpreter/without_python.h"', "may include interpreter/without_python.h"),
        ("src/torch/work.cc", '"interpreter/without_python.h"', ""),
        ("src/aten/cuda_side.h", '"tutti/cuda/communicator.h"', ""),
        ("src/torch/work.cc", '"aten/errors.h"', ""),
        ("src/torchcomms/event.cc", '"aten/signals.h"', ""),
        ("src/aten/tensors.cc", '"torch/work.h"', "is not below it"),
        ("src/torchcomms/work.cc", '"torch/work.h"', "is not below it"),
        ("src/nccl/calls.cc", '"aten/tensors.h"', "is not below it"),
        ("src/communicator/check.cc", '"aten/tensors.h"', "is not below it"),
        ("src/channel/cuda/scratch.cc", '"tutti/cuda/communicator.h"', ""),
        ("src/channel/cuda/scratch.cc", '"device/cuda/driver.h"', ""),
        ("include/tutti/cuda/report.h", '"tutti/cuda/communicator.h"', ""),
        ("src/tools/explain.cc", '"python/signals.h"', "is not below it"),
        ("src/c/group.cc", '"nccl/settings.h"', "is not below it"),
        ("tests/cpp/nccl/served_test.cc", '"nccl/functions.h"', ""),
        ("tests/cpp/communicator/churn_test.cc", '"torch/work.h"', "is for src/torch and its tests"),
        ("bench/core.cc", '"nccl/functions.h"', "is for src/nccl and its tests"),
        ("tests/cpp/torchcomms/module.cc", "<torch/csrc/utils/pybind.h>", ""),
    ],
)
def test_includes(checks: ModuleType, path: str, include: str, wrong: str) -> None:
    found = checks.check_includes(Path(path), f"#pragma once\n#include {include}\n")
    assert len(found) == bool(wrong)
    assert wrong in "".join(found)


@pytest.mark.parametrize(
    ("path", "code", "wrong"),
    [
        ("include/tutti/cuda/report.h", "CudaReport cuda_report();", []),
        ("include/tutti/device/wait.cuh", "__device__ bool wait();", []),
        ("include/tutti/plugin/kernel.cuh", "static __device__ bool run();", []),
        ("include/tutti/cuda_report.h", "int x;", ["include/tutti/cuda_report.h"]),
        ("include/tutti/device.cuh", "", ["include/tutti/device.cuh"]),
        ("include/tutti/work.h", "class CudaWork {};", ["CudaWork"]),
        ("include/tutti/work.h", "int cuda_capture_of(cudaStream_t stream);", ["cudaStream_t", "cuda_capture_of"]),
        ("include/tutti/plugin/algorithm.h", "inline constexpr int kCudaPorts = 1;", ["kCudaPorts"]),
        ("include/tutti/config.h", "std::string cuda_algorithm;  // of CudaCommunicator", []),
        ("src/device/device.h", "CudaReport report();", []),
    ],
)
def test_public_headers_of_cuda(checks: ModuleType, path: str, code: str, wrong: list[str]) -> None:
    found = checks.check_public_cuda(Path(path), code)
    assert len(found) == len(wrong)
    for line, name in zip(found, wrong, strict=True):
        assert f": {name} is CUDA's" in line


@pytest.mark.parametrize(
    ("path", "code", "found"),
    [
        ("src/nccl/pending.cc", "std::thread([work] { work(); }).detach();", 1),
        ("src/nccl/pending.cc", "std::thread writer(write);\nstd::jthread other{write};", 2),
        ("src/nccl/pending.cc", "std::vector<std::thread> ranks(3);\nranks.emplace_back(run, 0);", 1),
        ("src/nccl/pending.cc", "auto late = std::async(write);\npthread_create(&id, nullptr, run, nullptr);", 2),
        ("src/nccl/pending.cc", "std::vector<std::thread> ranks;\nranks.push_back(start_thread(what, run));", 0),
        ("src/nccl/pending.cc", "std::thread thread_;  // not std::thread(run)\nstd::thread::id id;", 0),
        ("src/nccl/pending.cc", "std::vector<int> ranks;\nranks.emplace_back(3);", 0),
        ("src/base/thread.cc", "return std::thread(std::move(body));", 0),
        ("tests/cpp/nccl/served_test.cc", "std::thread([work] { work(); });", 0),
    ],
)
def test_threads(checks: ModuleType, path: str, code: str, found: int) -> None:
    assert len(checks.check_threads(Path(path), code)) == found


def test_public_headers_declare_public_types_only(checks: ModuleType) -> None:
    headers = {
        Path("include/tutti/a.h"): "struct Shown;\nclass Hidden;\n",
        Path("include/tutti/b.h"): "struct alignas(16) Shown {\n};\n",
    }
    assert checks.check_public_types(headers) == ["include/tutti/a.h: declares Hidden, which no public header defines"]


def test_circles_of_includes(checks: ModuleType) -> None:
    files = {
        "base/a.h": '#include "base/b.h"\n#include <vector>',
        "base/b.h": '#include "base/c.h"',
        "base/c.h": '#include "base/a.h"\n#include "base/leaf.h"',
        "base/leaf.h": "",
    }
    graph = checks.check_circles.cpp_graph(files)
    assert checks.check_circles.circles(graph) == [["base/a.h", "base/b.h", "base/c.h"]]


def test_circles_of_imports(checks: ModuleType) -> None:
    files = {
        "p/__init__.py": "import importlib",
        "p/a.py": "from p import b, _core",
        "p/b.py": "def late():\n    from p.sub import c",
        "p/sub/__init__.py": "",
        "p/sub/c.py": "from .. import a",
        "p/typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.user import X",
        "p/user.py": "import p.typed",
    }
    graph = checks.check_circles.python_graph(files)
    assert checks.check_circles.circles(graph) == [["p.a", "p.b", "p.sub.c"]]


@pytest.mark.parametrize(
    ("path", "code", "wrong"),
    [
        ("tutti/language/a.py", "from tutti import _shared", ""),
        ("tutti/language/a.py", "def late():\n    from tutti.dist.a import x", "language must not import tutti.dist.a"),
        ("tutti/plans/a.py", "from tutti.language.a import x", ""),
        ("tutti/plans/a.py", "from tutti.cli.a import x", "plans must not import tutti.cli.a"),
        ("tutti/plans/a.py", "from tutti.dist import a", "plans must not import tutti.dist.a"),
        ("tutti/dist/a.py", "import tutti.plans.a", "dist must not import tutti.plans.a"),
        ("tutti/_shared.py", "from tutti.language import a", "_ must not import tutti.language.a"),
        ("tutti/cli/a.py", "from tutti.plans.a import x\nfrom tutti.dist.a import x", ""),
        ("tutti/other.py", "", "other is no layer of the package"),
    ],
)
def test_imports(checks: ModuleType, path: str, code: str, wrong: str) -> None:
    files = {f"tutti/{folder}/a.py": "x = 1" for folder in ("language", "plans", "dist", "cli")}
    graph = checks.check_circles.python_graph({**files, "tutti/_shared.py": "", path: code})
    found = checks.check_imports(graph)
    assert len(found) == bool(wrong)
    assert wrong in "".join(found)
