"""Options, the store of the test run, and the fixtures that hand out pools of ranks."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

# pytest puts this folder on the path, where those in it would be found as packages: torchcomms, where that is not
# installed, by torch, too, so before torch is imported.
with contextlib.suppress(ValueError):
    sys.path.remove(str(Path(__file__).parent))

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
# PyTorch's stores look names of addresses up: what waits for a name server that does not answer is not what is tested.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
# What the user has tuned on this machine, or proven before, is not what the tests are about.
os.environ["TUTTI_TUNING_PATH"] = "none"
os.environ["TUTTI_CACHE_DIR"] = "none"

import hypothesis
import pytest
import rank_pool
import torch.distributed as dist
from rank_pool import RankPool

ROOT = Path(__file__).resolve().parents[2]
MAX_POOLS = 3  # idle ranks cost memory
PATIENCE_S = 30.0  # behind a test's time limit, which ends what hangs in Python
ERRORS = pytest.StashKey[int]()

# What these assert is said as fully as what tests assert.
pytest.register_assert_rewrite("conformance", "failures", "launching")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", default="tutti", help="backend under test; gloo validates the tests themselves")
    parser.addoption("--seed", type=int, default=20240, help="seed of every random choice of the tests")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ERRORS] = os.dup(2)  # a test's own are captured
    if getattr(config.option, "maxworkerrestart", "0") is None:
        config.option.maxworkerrestart = "0"  # pytest-xdist waits for ever for what a worker that ended had left
    config.addinivalue_line("markers", "tutti_only: a promise that other backends do not make")
    hypothesis.settings.register_profile(
        "ranks", deadline=None, derandomize=True, print_blob=True, suppress_health_check=list(hypothesis.HealthCheck)
    )
    hypothesis.settings.load_profile("ranks")


def time_limit(item: pytest.Item) -> float:
    """That pytest-timeout gives a test, or would; 0: none."""
    if not item.config.pluginmanager.hasplugin("timeout"):
        return 300.0
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    given = item.config.getoption("timeout")
    return float(item.config.getini("timeout") or 0 if given is None else given)


def watch(item: pytest.Item) -> None:
    """Ends the process if the test goes on for too long from here, by a thread that needs no lock of Python's."""
    limit = time_limit(item)
    if limit > 0:
        faulthandler.dump_traceback_later(limit + PATIENCE_S, exit=True, file=item.config.stash[ERRORS])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    watch(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    if isinstance(node, pytest.Item):
        watch(node)  # pytest has taken it back, and what ends a failed test may hang


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    backend = config.getoption("--backend")
    for item in items:
        if backend != "tutti" and item.get_closest_marker("tutti_only"):
            item.add_marker(pytest.mark.skip(reason=f"a promise of tutti that {backend} does not make"))
    if any(item.path.name in ("test_training.py", "test_calls.py") for item in items):
        rank_pool.PRELOAD += rank_pool.PRELOAD_FOR_TRAINING


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of libtutti_cuda.so, built from the C++ tests' host_plugin.cc over the library that is loaded here."""
    from tutti import _core

    folder = tmp_path_factory.mktemp("host_plugin")
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = next(line.split()[-1] for line in maps if "/libtutti.so" in line)
    assert _core.__version__
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared"]
    command += [f"-I{ROOT / folder}" for folder in ("include", "src", "tests/cpp")]
    command += [str(ROOT / "tests/cpp/cuda/host_plugin.cc")]
    subprocess.run([*command, library, "-o", str(folder / "libtutti_cuda.so")], check=True)
    return str(folder)


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A libnccl.so.2 that is a stand-in for NCCL, built from the C++ tests' stand_in.cc."""
    library = tmp_path_factory.mktemp("stand_in") / "libnccl.so.2"
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += [f"-I{ROOT / 'src'}", "-Wl,-soname,libnccl.so.2", str(ROOT / "tests/cpp/nccl/stand_in.cc")]
    subprocess.run([*command, "-o", str(library)], check=True)
    return str(library)


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    name = str(request.config.getoption("--backend"))
    if name == "tutti":
        try:
            importlib.import_module("tutti._torch")
        except ImportError as error:  # every test would fail alike
            pytest.exit(f"the backend cannot be loaded: {error}", returncode=3)
    return name


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--seed"))


@pytest.fixture(scope="session")
def store_port() -> Iterator[int]:
    """The port of a store in this process, which outlives every rank."""
    store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    yield int(store.port)


@pytest.fixture(scope="session")
def shared_pools() -> Iterator[dict[Any, RankPool]]:
    pools: dict[Any, RankPool] = {}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture
def world(
    request: pytest.FixtureRequest, backend: str, store_port: int, shared_pools: dict[Any, RankPool]
) -> Iterator[Callable[..., RankPool]]:
    """world(n, **env) gives a pool of n ranks with a healthy default group, kept for later tests."""
    used: list[RankPool] = []

    def give(size: int, **env: str) -> RankPool:
        key = (size, tuple(sorted(env.items())))
        pool = shared_pools.pop(key, None)
        if pool is None or not pool.alive:
            while len(shared_pools) >= MAX_POOLS:
                shared_pools.pop(next(iter(shared_pools))).close()
            pool = RankPool(size, backend, store_port, env=env)
        shared_pools[key] = pool  # the most recently used is last
        used.append(pool)
        return pool

    before = request.session.testsfailed
    yield give
    if request.session.testsfailed > before:
        for pool in used:
            pool.kill()


@pytest.fixture
def fresh_world(backend: str, store_port: int) -> Iterator[Callable[..., RankPool]]:
    """fresh_world(n, ...) gives a pool of this test alone, for tests that break their ranks."""
    pools: list[RankPool] = []

    def give(size: int, **options: Any) -> RankPool:
        pools.append(RankPool(size, backend, store_port, **options))
        return pools[-1]

    yield give
    for pool in pools:
        pool.kill()
