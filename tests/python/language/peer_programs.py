"""The programs of a checkout of microsoft/mscclpp, and with which arguments they are run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

FOLDERS = ("python/mscclpp/language/tests", "test/executor-tests/algos", "python/mscclpp/default_algos")
RANKS = ("2", "3", "4", "8")
HOSTS = (("4", "2"), ("8", "4"), ("12", "4"), ("6", "2"))

# What the fragments of docs/dsl/concepts.md expect to be there.
PROLOGUE = """
from mscclpp.language import *
rank_id = src_rank = 0
dst_rank, nranks, gpu_size = 1, 2, 2
with CollectiveProgram("fragment", AllReduce(2, 1, True), 2):
    rank, channel, sem = Rank(0), MemoryChannel(1, 0), Semaphore(rank=0, initial_value=1)
    input_buffer, output_buffer = rank.get_input_buffer(), rank.get_output_buffer()
    dst_chunk, src_chunk = output_buffer[0:1], input_buffer[1:2]
    remote_chunk = other_peer_chunk = Rank(1).get_output_buffer()[0:1]
    rank = 0 if "Rank(rank)" in FRAGMENT else rank
    exec(FRAGMENT)
    print(JSON())
"""

# A call of the functions that are only defined: their files leave it to the caller.
CALLS = {
    "python/mscclpp/default_algos/reducescatter_multi_nodes.py": """
import itertools
from mscclpp.language.utils import AlgoSpec
n, per_host = {ranks}, {per_host}
spec = AlgoSpec(name="rs", collective=ReduceScatter(n, 1, True), nranks_per_node=per_host, world_size=n, in_place=True,
    instances=1, protocol="LL", auto_sync=False, reuse_resources=True, use_double_scratch_buffer=True)
print(reducescatter_multi_nodes(spec).to_json())
""",
}
NVLS_CALL = """
import mscclpp.language.utils
from mscclpp.language.collectives import AllReduce
spec = mscclpp.language.utils.AlgoSpec(name="a", collective=AllReduce({ranks}, 1, True), nranks_per_node={ranks},
    world_size={ranks}, in_place=True, instances=2, protocol="Simple")
print(allreduce_nvls(spec).to_json())
"""


@dataclass(frozen=True)
class Case:
    """A program as text, as its authors wrote it."""

    name: str
    source: str
    argv: tuple[str, ...] = ()
    instances: int | None = None
    fragment: bool = False

    @property
    def label(self) -> str:
        more = () if self.instances is None else (f"instances={self.instances}",)
        return " ".join((self.name, *self.argv, *more))

    def for_package(self, package: str) -> dict[str, object]:
        """The case with the imports of ``package``."""
        source = self.source
        if self.instances is not None:
            source = re.sub(r"\binstances=\d+", f"instances={self.instances}", source)
        return {"name": self.label, "source": re.sub(r"\bmscclpp\b", package, source), "argv": self.argv}


def cases(checkout: Path) -> Iterator[Case]:
    """All programs there are, with all arguments that they are run with."""
    for folder in FOLDERS:
        for path in sorted((checkout / folder).rglob("*.py")):
            if path.name != "__init__.py":
                yield from _file_cases(str(path.relative_to(checkout)), path.read_text())
    yield from _page_cases(checkout)


def _file_cases(name: str, source: str) -> Iterator[Case]:
    if name in CALLS:
        for ranks, per_host in HOSTS:
            yield Case(f"{name} {ranks}/{per_host}", source + CALLS[name].format(ranks=ranks, per_host=per_host))
        return
    fixed = re.search(r"\binstances=\d+,", source)
    for argv in _arguments(set(re.findall(r'add_argument\(\s*"--(\w+)"', source))):
        yield Case(name, source, argv)
        if fixed:
            yield from (Case(name, source, argv, instances) for instances in (1, 3))


def _arguments(options: set[str]) -> Iterator[tuple[str, ...]]:
    choices: list[list[tuple[str, ...]]] = []
    if "name" in options:
        choices.append([("--name", "program")])
    if {"num_gpus", "gpus_per_node"} <= options:
        choices.append([("--num_gpus", ranks, "--gpus_per_node", per_host) for ranks, per_host in HOSTS])
    elif "num_gpus" in options:
        choices.append([("--num_gpus", ranks) for ranks in RANKS])
    elif "gpus_per_node" in options:
        choices.append([("--gpus_per_node", per_host) for per_host in RANKS])
    for option, values in {
        "nnodes": "12",
        "instances": "124",
        "tbg_size": "12",
        "tbg": "12",
        "split_mask": "013",
        "min_message_size": ("8192",),
    }.items():
        if option in options:
            choices.append([("--" + option, value) for value in values])
    for combination in product(*choices):
        yield tuple(word for part in combination for word in part)


def _page_cases(checkout: Path) -> Iterator[Case]:
    """The programs and fragments of the documentation, and of the example of a customised communicator."""
    quick = _blocks(checkout / "docs/dsl/quick_start.md")
    yield Case("docs/dsl/quick_start.md", next(block for block in quick if "def simple_allgather" in block))
    for page in ("docs/dsl/integration.md", "docs/guide/mscclpp-torch-integration.md"):
        block = next(block for block in _blocks(checkout / page) if "def allreduce_nvls" in block)
        imports = "import mscclpp.language\nfrom mscclpp.language import *\n"
        program = block.replace("mscclpp.AlgoSpec", "mscclpp.language.utils.AlgoSpec").replace("import mscclpp\n", "")
        for ranks in RANKS:
            yield Case(f"{page} {ranks}", imports + program + NVLS_CALL.format(ranks=ranks))
    example = (checkout / "examples/torch-integration/customized_comm_with_dsl.py").read_text()
    function = example[example.index("def allreduce_nvls") : example.index("def setup_plan")]
    imports = "\n".join(re.findall(r"^from mscclpp.*$", example, re.MULTILINE))
    source = f"import mscclpp.language\n{imports}\n{function.replace('.language.AlgoSpec', '.language.utils.AlgoSpec')}"
    yield Case("examples/torch-integration/customized_comm_with_dsl.py", source + NVLS_CALL.format(ranks=4))
    for number, fragment in enumerate(_blocks(checkout / "docs/dsl/concepts.md")):
        yield Case(f"docs/dsl/concepts.md {number}", f"FRAGMENT = {fragment!r}\n{PROLOGUE}", fragment=True)


def _blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
