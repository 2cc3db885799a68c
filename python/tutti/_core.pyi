"""The core of Tutti without torch: settings, checks of the machine, explanations."""

from collections.abc import Callable, Mapping
from typing import Any, Final, overload

import numpy as np

from tutti._metrics import Metrics

__version__: str
build_type: str
compiler: str
most_host_ranks: int

class ConfigVariable:
    """One setting of the environment: what is in force and what it does."""

    name: Final[str]
    value: Final[str]
    help: Final[str]

class LaunchInfo:
    """How this process was launched.

    ``launcher`` is empty for a process on its own, ``local_rank`` -1 when the launcher does not say.
    """

    launcher: Final[str]
    rank: Final[int]
    size: Final[int]
    local_rank: Final[int]

class Probe:
    """What one check of the machine found: `value` is in `unit`, which is empty when nothing was measured."""

    works: Final[bool]
    detail: Final[str]
    value: Final[float]
    unit: Final[str]

class InterfaceProbe:
    """One address of a network interface, and a transfer through it."""

    name: Final[str]
    address: Final[str]
    loopback: Final[bool]
    transfer: Final[Probe]

class Store:
    """Where ranks find each other."""

class TcpStore(Store):
    """One that rank 0 serves."""

    port: Final[int]

def tcp_store(host: str, port: int, serve: bool, timeout: float) -> TcpStore: ...

class UserAlgorithm:
    """What tutti.Algorithm stands on."""

    kind: Final[str]
    name: Final[str]
    collective_name: Final[str]
    collective: Final[str | None]
    in_place: Final[bool]
    min_bytes: Final[int]
    max_bytes: Final[int]
    ranks: Final[int]
    ranks_per_host: Final[int]
    identity: Final[int]
    def with_limits(self, min_bytes: int, max_bytes: int, ranks: int, ranks_per_host: int) -> UserAlgorithm: ...

def plan_algorithm(text: str, place: str, ranks: int = 0, ranks_per_host: int = 0) -> UserAlgorithm:
    """Reads and proves a plan. ``ValueError`` with what is wrong."""

def plugin_algorithms(
    path: str, content: str, kernels: tuple[str, str, dict[str, str], list[str]] | None = None
) -> list[tuple[str, UserAlgorithm]]:
    """The functions of a compiled plug-in and their algorithms. ``kernels``: file, text, headers, options for NVRTC."""

def library_algorithm(collective: str, name: str) -> UserAlgorithm: ...
def run_by(
    comm: Communicator,
    algorithm: UserAlgorithm,
    input: tuple[int, int],
    output: tuple[int, int],
    dtype: str,
    op: str | None,
    root: int = -1,
    extras: Mapping[str, int] = {},
    timeout: float = 0.0,
) -> None:
    """Runs an algorithm as the next collective; both ends are address and bytes."""

def set_algorithms(
    comm: Communicator, algorithms: list[UserAlgorithm], selector: Callable[..., UserAlgorithm | None] | None
) -> None: ...
def algorithm_set(algorithms: list[UserAlgorithm], selector: Callable[..., UserAlgorithm | None] | None) -> object:
    """A capsule for ``set_algorithms`` of tutti._torch.ProcessGroupTutti."""

def give_algorithms(
    giver: Callable[[int], tuple[list[UserAlgorithm], Callable[..., UserAlgorithm | None] | None]] | None,
) -> None:
    """Asked for the algorithms of groups that form under NCCL's name; None: there are none any more."""

class HostArray:
    """Of whoever has DLPack, in main memory, which lives as long as this does."""

    address: Final[int]
    bytes: Final[int]
    contiguous: Final[bool]
    writeable: Final[bool]

def host_array(object: Any) -> HostArray | None:
    """None of what is none."""

class ArenaBuffer:
    """Memory that the ranks of this host map."""

    def __init__(self, bytes: int) -> None: ...
    address: Final[int]
    bytes: Final[int]
    device: Final[int]
    def to_dlpack(self, dtype: str, shape: list[int], strides: list[int]) -> Any: ...
    def numpy(self) -> np.ndarray[Any, np.dtype[np.uint8]]: ...

class DeviceBuffer:
    """Memory of a GPU; of the current one for -1."""

    def __init__(self, bytes: int, device: int) -> None: ...
    address: Final[int]
    bytes: Final[int]
    device: Final[int]
    def to_dlpack(self, dtype: str, shape: list[int], strides: list[int]) -> Any: ...
    def copy(self, address: int, bytes: int) -> None:
        """From memory of the host or of a GPU; done when it returns."""

class Communicator:
    """What tutti.Communicator stands on."""

    rank: Final[int]
    size: Final[int]
    name: Final[str]
    host_ranks: Final[list[int]]
    host_count: Final[int]
    sequence: Final[int]
    splits: Final[int]
    def run(
        self, collective: str, input: Any, output: Any, op: str = "sum", root: int = -1, timeout: float = 0.0
    ) -> None: ...
    def send(self, array: Any, peer: int, tag: int = 0, timeout: float = 0.0) -> None: ...
    def recv(self, array: Any, peer: int, tag: int = 0, timeout: float = 0.0) -> int: ...
    def flight_record(self) -> str: ...
    def reset_metrics(self) -> None: ...
    def abort(self, reason: str) -> None: ...
    def shutdown(self) -> None: ...

class DeviceArray:
    """An array in the memory of a GPU."""

    @staticmethod
    def from_dlpack(capsule: Any, which: str, written: bool) -> DeviceArray: ...
    @staticmethod
    def from_address(address: int, count: int, dtype: str, device: int, owner: Any) -> DeviceArray: ...
    address: Final[int]
    nbytes: Final[int]
    dtype: Final[str]
    device: Final[int]

class DeviceCommunicator:
    """The calls of a tutti.Communicator on arrays of GPUs. Streams are handles; None is the group's own, and waits."""

    def own_stream(self, device: int) -> int: ...
    def message_stream(self, device: int, peer: int, send: bool) -> int: ...
    def run(
        self,
        size: int,
        collective: str,
        input: DeviceArray | None,
        output: DeviceArray | None,
        op: str,
        root: int,
        timeout: float,
        stream: int | None,
    ) -> None: ...
    def send(self, array: DeviceArray, peer: int, tag: int, timeout: float, stream: int | None) -> None: ...
    def recv(self, array: DeviceArray, peer: int, tag: int, timeout: float, stream: int | None) -> None: ...
    def run_by(
        self,
        size: int,
        algorithm: UserAlgorithm,
        input: tuple[int, int],
        output: tuple[int, int],
        dtype: str,
        op: str | None,
        root: int,
        timeout: float,
        device: int,
        stream: int | None,
        blocks: int = 0,
        threads: int = 0,
    ) -> None: ...
    def set_algorithms(self, algorithms: list[UserAlgorithm], selector: Any) -> None: ...
    def synchronize(self, device: int, stream: int) -> None: ...
    def metrics(self, host: Communicator) -> Metrics: ...
    def reset_metrics(self) -> None: ...
    def flight_record(self, host: Communicator, kind: str) -> str: ...
    def abort(self, reason: str) -> None: ...
    def shutdown(self) -> None: ...

def device_communicator(communicator: Communicator) -> DeviceCommunicator: ...
def device_of(address: int) -> int | None: ...
def environment_store(rank: int, size: int, timeout: float) -> Store: ...
def create_communicator(store: Any, rank: int, size: int, name: str, timeout: float) -> Communicator: ...
def tell_cannot_join(store: Any, name: str, rank: int, why: str) -> None: ...
def memory_store() -> Store: ...
def make_id(address: str = "") -> bytes: ...
def join_group(id: bytes, rank: int, size: int, name: str, timeout: float) -> Communicator: ...
def split_group(parent: Communicator, color: int, key: int, name: str) -> Communicator | None: ...
@overload
def shrink_group(group: Communicator, id: bytes, timeout: float) -> tuple[Communicator, list[int]]: ...
@overload
def shrink_group(group: Communicator, store: Any, id: str, timeout: float) -> tuple[Communicator, list[int]]: ...
def rescued_waits() -> int: ...
def collectives() -> list[str]: ...
def collective_traits(collective: str) -> dict[str, bool]: ...
def dtypes() -> list[str]: ...
def config() -> list[ConfigVariable]: ...
def launch_info(environment: Mapping[str, str] | None = None) -> LaunchInfo: ...
def explain(
    collective: str,
    bytes: int,
    ranks: int = 2,
    dtype: str = "f32",
    op: str = "sum",
    mapped: bool = False,
    device: str = "cpu",
) -> str: ...

class TuningRank:
    """One rank of `tutti tune`. All ranks make the same calls in the same order."""

    def __init__(self, store: Any, rank: int, size: int, device: str = "cpu") -> None: ...
    def crowded(self) -> bool: ...
    def gpus(self) -> str: ...
    def measure(
        self,
        collective: str,
        dtype: str,
        bytes: int,
        mapped: bool,
        candidates: list[tuple[str, str]],
        seconds: float,
    ) -> dict[str, Any]:
        """Tries, checks and times a call by each candidate: (algorithm, file of its plan or "").

        Keys: ``default``, ``choice``, ``ns`` (nanoseconds by algorithm), ``refused`` (reasons by algorithm).
        """

    def forget_plans(self) -> None: ...

def machine() -> dict[str, Any]: ...
def default_tuning_file() -> str: ...
def library_algorithm_names(collective: str, device: str = "cpu") -> list[str]: ...
def check_tuning_table(text: str) -> None: ...
def best_candidate(times_ns: list[list[float]], by_default: int) -> int: ...
def usable_cores() -> int: ...
def simd_target() -> str: ...
def probe_memfd() -> Probe: ...
def probe_cross_memory() -> Probe: ...
def probe_futex() -> Probe: ...
def probe_membarrier() -> Probe: ...
def probe_pidfd() -> Probe: ...
def probe_memory_lock() -> Probe: ...
def probe_huge_pages() -> Probe: ...
def probe_shared_huge_pages() -> Probe: ...
def probe_arena() -> Probe: ...
def probe_descriptors() -> Probe: ...
def probe_interfaces() -> list[InterfaceProbe]: ...
def cuda_report() -> dict[str, Any]:
    """What CUDA offers here (include/tutti/cuda/report.h). Initialises CUDA in this process; raises nothing."""

def try_cuda_group() -> str:
    """Makes a group over all GPUs, as threads: how its ranks reach each other. ``NotImplementedError`` if it
    cannot be made."""

def check_plan(text: str, strict: bool = False) -> dict[str, Any]:
    """Proves a plan, or says what is wrong.

    Keys: ``outcome`` ("proven", "proven after repair", "rejected"), ``fault`` (None, or ``kind``, ``message``,
    ``sites``), ``repairs``, ``repaired`` (the plan with them, or None), ``same_bits``, ``checked`` (whether the
    collective says what the outputs hold), ``calls``.
    """

def run_plan(
    text: str,
    bytes: int,
    dtype: str = "f32",
    op: str = "sum",
    threads: bool = False,
    invocations: int = 1,
    seed: int | None = None,
    timeout_ms: int = 10_000,
    device: str = "cpu",
) -> dict[str, Any]:
    """Runs all ranks of a plan in this process, on made-up data; ``device`` "cuda": on the GPUs here.

    ``checked`` (the collective has a definition to check against), ``fault`` (None if all is right), ``nanoseconds``
    of each of the invocations, which are back to back.
    """

def plan_on_gpu(text: str, blocks: int) -> dict[str, Any]:
    """What a plan needs on a GPU whose kernels have at most ``blocks`` thread blocks at once. Needs no GPU.

    ``refused`` (why it cannot run there, or None), ``blocks``, ``threads`` of a block, ``segment_bytes`` of a rank's
    block, ``memory_bytes``, ``records``.
    """

def emit_plan(
    text: str,
    rank: int,
    bytes: int,
    dtype: str = "f32",
    op: str = "sum",
    in_place: bool = False,
    most_cluster: int = 1,
) -> dict[str, Any]:
    """A rank's part of a plan, for a block of so many bytes: ``source``, which is CUDA C++, ``threads``, and
    ``cluster``: how many blocks of the GPU run each thread block, at most ``most_cluster``.

    The plan is proven first. Raises NotImplementedError if GPUs cannot run it. Needs no GPU and no compiler.
    """

def nvrtc_info(nvrtc: str = "") -> dict[str, str]:
    """``path`` and ``version`` of the compiler: TUTTI_NVRTC, else ``nvrtc``, else what is found.

    Raises NotImplementedError that says where it was looked for.
    """

def compile_cuda(source: str, architecture: str = "sm_90", nvrtc: str = "") -> dict[str, Any]:
    """Compiles what :func:`emit_plan` has made: ``cubin`` (bytes), ``log``, ``compiler`` (its version)."""

def plan_info(text: str) -> dict[str, Any]: ...
def export_mscclpp(text: str) -> str: ...
def simulate_plan(
    plan: str, topology: str, block_bytes: int, budget_s: float | None = None, timeline: bool = False
) -> dict[str, Any]:
    """How long a plan takes on a topology (docs/simulator.md).

    Keys: ``time_us``, ``algorithm_gbs``, ``latency_bound_us``, ``bandwidth_bound_us``, ``complete``, ``done``,
    ``basis`` (what was simulated and how the rest follows; empty if all was), ``critical_path`` and ``timeline``
    (steps, in order), ``links`` (``name``, ``bytes``, ``share``; the busiest first).
    """

def plan_families() -> dict[str, str]:
    """What :func:`generate_plan` can make: names and what they are for."""

def generate_plan(family: str, ranks: int, ranks_per_host: int = 8, pieces: int = 0, indent: int = -1) -> str:
    """A plan of a family, as a template where its ranks are alike. ValueError if it is not for so many ranks."""

def check_generated(
    family: str, ranks: int, ranks_per_host: int = 8, pieces: int = 0, strict: bool = False
) -> dict[str, Any]:
    """:func:`check_plan` of a generated plan, without its text."""

def simulate_generated(
    family: str,
    ranks: int,
    topology: str,
    block_bytes: int,
    ranks_per_host: int = 8,
    pieces: int = 0,
    budget_s: float | None = None,
    timeline: bool = False,
) -> dict[str, Any]:
    """:func:`simulate_plan` of a generated plan, without its text."""

def fold_plan(
    text: str, dims: list[int] | None = None, input_blocks: int = 1, output_blocks: int = 1, indent: int = -1
) -> str:
    """The template of a plan; without ``dims`` a symmetry is looked for.

    ValueError if its ranks are not alike; it names the first rank and operation that differ.
    """

def write_out_plan(text: str, indent: int = -1) -> str:
    """A template's plan with all its ranks."""

def ranks_of_plan(text: str) -> int:
    """How many ranks a plan or template is for."""

class PlanStepper:
    """All ranks of a plan in this process, run an operation at a time; sums stand in for all reductions.

    Inputs say where they come from, in cells of ``cell_bytes`` (src/executor/cpu/stepper.h). Tasks of a rank are its
    thread blocks, then its port channels.
    """

    def __init__(self, text: str, cells: int = 1) -> None: ...
    def begin(self) -> None:
        """Begins the next call; the one before must be over."""

    def step(self, rank: int, task: int) -> bool:
        """Runs a task to the end of its operation or until it must wait. False if it could do nothing."""

    def tasks(self, rank: int) -> list[dict[str, Any]]:
        """``block`` or ``port`` (the other is -1), ``ended``.

        Unless it has ended also ``of_block``, ``op``, ``inner``, ``ready``, ``done`` and ``bytes`` of the operation,
        ``waits_for`` ("signal", "semaphore", "barrier", "flush", "packets" or ""), ``counter``, ``peer``.
        """

    def counters(self, rank: int) -> dict[str, Any]:
        """``memory`` and ``port``: (raised, taken) of each channel; ``semaphores``: what they stand at."""

    def chunk(self, rank: int, buffer: str, index: int, packets: bool = False) -> bytes: ...
    def chunks_of(self, rank: int, buffer: str) -> int: ...
    cell_bytes: Final[int]
