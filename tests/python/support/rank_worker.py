"""What runs inside a rank's process: it takes functions by name, runs them and sends back what they returned or raised.

Every function gets a `Context` first. The process dies with the test process (PDEATHSIG), and SIGUSR1 writes the stacks
of all its threads to the file that the pool names, so that a hang can be explained before it is ended.
"""

from __future__ import annotations

import ctypes
import datetime
import faulthandler
import importlib
import os
import signal
import sys
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any

PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000


@dataclass
class RankSpec:
    """How a rank is started."""

    rank: int
    size: int
    backend: str
    store_host: str
    store_port: int
    stack_file: str
    env: dict[str, str] = field(default_factory=dict)
    netns: str | None = None


@dataclass
class Raised:
    """An exception of a rank, in a form that every process can read."""

    type_name: str
    bases: tuple[str, ...]
    message: str
    trace: str

    @staticmethod
    def of(error: BaseException) -> Raised:
        bases = tuple(base.__name__ for base in type(error).__mro__)
        return Raised(type(error).__name__, bases, str(error), "".join(traceback.format_exception(error)))


def raised(work: Any) -> bool:
    """Whether a Work holds an exception. torch 2.11 cannot hand it to Python, and says so by a TypeError."""
    try:
        return work.exception() is not None
    except TypeError:
        return not work.is_success()


class Leave(BaseException):
    """Raised by a test function to let its process exit cleanly."""


class Context:
    """A rank's view of the pool: who it is, the store, and its default process group."""

    def __init__(self, spec: RankSpec) -> None:
        self.rank = spec.rank
        self.size = spec.size
        self.backend = spec.backend
        self.spec = spec
        self.generation = ""
        self.kept: dict[str, Any] = {}  # what a test keeps between two calls
        self.lost_wake_ups = 0  # that the pool has been told of
        self._client: Any = None

    def store(self, name: str) -> Any:
        """A name space of its own in the store of the test process."""
        import torch.distributed as dist

        if self._client is None:
            self._client = dist.TCPStore(
                self.spec.store_host,
                self.spec.store_port,
                is_master=False,
                wait_for_workers=False,
                timeout=datetime.timedelta(seconds=60),
            )
        return dist.PrefixStore(name, self._client)

    def init(
        self,
        name: str,
        timeout_s: float = 60.0,
        backend: str | None = None,
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        """Makes the default group under a name that no group had before; an old one is destroyed first."""
        import torch.distributed as dist

        self.close()
        self.generation = name
        dist.init_process_group(
            backend or self.backend,
            store=self.store(name),
            rank=self.rank if rank is None else rank,
            world_size=self.size if size is None else size,
            timeout=datetime.timedelta(seconds=timeout_s),
        )

    def close(self) -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()

    def keep_wake_ups(self) -> None:
        """Fails if some were lost since it was last asked, of whatever group of whatever face of the library."""
        core = sys.modules.get("tutti._core")
        lost = 0 if core is None else core.rescued_waits() - self.lost_wake_ups
        self.lost_wake_ups += lost
        assert lost == 0, f"{lost} wake-ups were lost"

    def meet(self, name: str, ranks: list[int] | None = None) -> None:
        """A barrier through the store: independent of what is under test. The name is used once a generation."""
        self.signal(name)
        self.await_signal(name, list(range(self.size)) if ranks is None else ranks)

    def signal(self, name: str) -> None:
        self.store("meet").set(f"{self.generation}/{name}/{self.rank}", b"1")

    def await_signal(self, name: str, ranks: list[int]) -> None:
        keys = [f"{self.generation}/{name}/{rank}" for rank in ranks]
        self.store("meet").wait(keys, datetime.timedelta(seconds=60))


def call_of(request: Any, context: Context) -> tuple[int, str, Any]:
    """Does what the pool asks, and answers; who has lost a wake-up raises."""
    number, module, name, arguments = request
    try:
        result = getattr(importlib.import_module(module), name)(context, *arguments)
        context.keep_wake_ups()
    except Leave:
        raise
    except BaseException as error:  # noqa: BLE001: everything goes to the test
        return number, "raised", Raised.of(error)
    return number, "ok", result


def open_group(ctx: Context, name: str, timeout_s: float) -> None:
    """Pool call: makes the default group."""
    ctx.init(name, timeout_s)


def close_group(ctx: Context) -> None:
    """Pool call: ends the default group."""
    ctx.close()


def enter_namespace(name: str) -> None:
    """Moves this process into a named network namespace (os.setns exists from Python 3.12 on only)."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(handle, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns({name})")
    finally:
        os.close(handle)


def serve(connection: Any, spec: RankSpec) -> None:
    """The life of a rank: prepares the process, then answers calls until the pool hangs up."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stacks = open(spec.stack_file, "w")  # noqa: SIM115: open for the life of the process
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks)
    os.environ.update(spec.env)
    if spec.netns is not None:
        enter_namespace(spec.netns)
    import torch

    torch.set_num_threads(1)
    if os.environ.get("TUTTI_TEST_DEVICE") == "cuda":
        torch.cuda.set_device(spec.rank % torch.cuda.device_count())
    warnings.simplefilter("ignore", FutureWarning)  # torch renames its collectives from version to version
    context = Context(spec)
    while True:
        try:
            request = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if request is None:
            context.close()
            context.keep_wake_ups()
            return
        try:
            answer = call_of(request, context)
        except Leave:
            return
        try:
            connection.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
        except Exception as error:  # noqa: BLE001: a result that cannot be pickled
            connection.send((answer[0], "raised", Raised.of(error)))
