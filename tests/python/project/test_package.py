"""The package as users import it: light, complete, typed."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool
from rank_worker import Context

import tutti
from tutti import _core
from tutti.language import collectives

pytestmark = pytest.mark.tutti_only
ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python" / "tutti"

LIGHT = """
import sys
import tutti
assert "torch" not in sys.modules, "torch was imported"
assert not [name for name in sys.modules if name.startswith(("tutti._core", "tutti._torch", "tutti.dist.backend"))]
print("light")
"""


def test_importing_costs_nothing_where_torch_registers_the_backend() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", LIGHT], env=os.environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert "light" in finished.stdout, finished.stderr


def test_every_public_name_is_there_and_documented() -> None:
    for name in tutti.__all__:
        value = getattr(tutti, name)
        assert name == "__version__" or (value.__doc__ or "").strip(), f"tutti.{name} has no docstring"
    assert dir(tutti) == sorted(tutti.__all__)
    with pytest.raises(AttributeError, match="no_such_thing"):
        tutti.no_such_thing  # noqa: B018


def test_versions_agree() -> None:
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert tutti.__version__ == said == _core.__version__
    cuda = tomllib.loads((ROOT / "packaging/cuda/pyproject.toml").read_text())["project"]
    assert (cuda["version"], cuda["dependencies"]) == (said, [f"tutti-comms=={said}"])


def stub_names(body: list[ast.stmt]) -> set[str]:
    names = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def public_names(module: Any) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_") or name == "__version__"}


def parameters(function: ast.FunctionDef) -> tuple[tuple[str, bool], ...]:
    """Names, and which of them may be left out."""
    given = function.args
    names = [arg.arg for arg in (*given.posonlyargs, *given.args)]
    optional = dict.fromkeys(names[len(names) - len(given.defaults) :], True)
    optional |= {arg.arg: value is not None for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    names += [arg.arg for arg in given.kwonlyargs]
    return tuple((name, optional.get(name, False)) for name in names if name != "self")


def compare_stub(body: list[ast.stmt], owner: Any, place: str) -> None:
    """Members of the module or of a class of it, those of their members, and what functions take."""
    assert {name for name in stub_names(body) if not name.startswith("__") or not place} == public_names(owner), place
    overloads: dict[str, set[Any]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            compare_stub(node.body, getattr(owner, node.name), f"{place}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            overloads.setdefault(node.name, set()).add(parameters(node))
    for name, said in overloads.items():
        made = getattr(getattr(owner, name), "__nb_signature__", ())  # none: a property, or a constructor
        texts = (re.sub(r"\\\d+", "None", re.sub(r"ndarray\[[^]]*]", "ndarray", text)) for text, *_ in made)
        there = {parameters(node) for text in texts for node in ast.parse(f"{text}: ...").body}  # type: ignore[arg-type]
        assert said == there or not made, f"{place}{name}"


def test_the_stub_says_what_the_module_has() -> None:
    compare_stub(ast.parse((PACKAGE / "_core.pyi").read_text()).body, _core, "")


@pytest.mark.parametrize("name", sorted(set(_core.collectives()) - {"barrier"}))
def test_programs_and_calls_agree_on_what_a_collective_is(name: str) -> None:
    program = {kind.name: kind for kind in vars(collectives).values() if hasattr(kind, "init_buffers")}[
        name.replace("_", "")
    ]
    traits, ranks = _core.collective_traits(name), 3
    rooted = traits["has_root"]
    one = program(ranks, 1, root=1) if rooted else program(ranks, 1)
    assert (one.root is not None) == rooted
    sizes = [one.sizes(rank) for rank in range(ranks)]
    if name in ("all_reduce", "reduce", "broadcast", "all_to_all"):  # of as many chunks as all shares together
        assert max(sizes) == (ranks, ranks)
        return
    assert (max(sizes)[0] == ranks) == traits["input_blocks"]
    assert (max(size[1] for size in sizes) == ranks) == traits["output_blocks"]


def test_the_package_says_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def use_reports(ctx: Context, folder: str) -> None:
    """Rank's part of the next test."""
    import torch
    import torch.distributed as dist

    tutti.reset_metrics()
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    info = tutti.group_info()
    assert (info.rank, info.size, info.host_ranks, info.failure) == (ctx.rank, ctx.size, tuple(range(ctx.size)), None)
    assert info.sequence >= 3
    assert info.timeout.total_seconds() > 0

    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tutti")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    tutti.log_metrics()
    logger.removeHandler(handler)
    assert len(records) == 1
    row = next(line for line in records[0].splitlines() if line.startswith("all_reduce"))
    assert " 3 " in row, records[0]

    path = tutti.dump_flight_record(f"{folder}/record.{{rank}}.json")
    assert path.name == f"record.{ctx.rank}.json"
    assert json.loads(path.read_text())["entries"]


def test_reports(fresh_world: Callable[..., RankPool], tmp_path: Path) -> None:
    fresh_world(2).call(use_reports, str(tmp_path))


def test_groups_of_other_backends_are_refused() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="tutti"):
            tutti.group_info()
    finally:
        dist.destroy_process_group()


def test_another_torch_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tutti.dist import needs_torch

    monkeypatch.setattr(_core, "__file__", str(tmp_path / "_core.so"))
    needs_torch.refuse_another_torch("2.13.0")  # a package that does not say what it was built for
    (tmp_path / "torch_version.txt").write_text("2.13.0+cpu")
    needs_torch.refuse_another_torch("2.13.1+cu130")  # the same interfaces
    with pytest.raises(
        ImportError, match=r"built for torch 2\.13\.0\+cpu, and here is torch 2\.12\.1: pip install"
    ) as caught:
        needs_torch.refuse_another_torch("2.12.1")
    assert "\n" not in str(caught.value)


def test_the_package_knows_its_torch() -> None:
    import torch

    path = Path(_core.__file__).parent / "torch_version.txt"
    assert path.read_text().split("+")[0] == torch.__version__.split("+")[0]
