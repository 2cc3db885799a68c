"""The all-reduce of an inference engine, with the methods that engines call.

vLLM and engines like it keep an all-reduce of their own beside NCCL, for the small messages of decoding. Their class
has ``should_custom_ar``, ``custom_all_reduce`` and ``capture``; :class:`CustomAllReduce` has them too, over Tutti::

    communicator.ca_comm = tutti.serving.CustomAllReduce(cpu_group, device)

Nothing needs to be registered: captured calls work on any buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tutti.dist import backend  # first: it says what to do where torch is missing

# isort: split
import torch

from tutti.dist.needs_torch import load
from tutti.dist.serving_calls import add_rms_norm_into, quantized_into

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["CustomAllReduce"]

DEFAULT_MAX_BYTES = 8 << 20


class CustomAllReduce:
    """Sums tensors of up to ``max_size`` bytes over the ranks of a group.

    ``group`` is any process group, whatever its backend: it only says who takes part, and where the ranks find each
    other. ``device`` is the rank's. Making one is collective. If it cannot be (no GPU support, ranks on several
    machines, one of them dies), ``disabled`` is true on all ranks, ``why_disabled`` says why, and every call is left to
    the engine; of a death at the last moment some ranks hear at their next call. The limit of time is that of a group
    of Tutti's, whose ranks hear at once of one that dies meanwhile; with another backend's group it is half an hour,
    for which they wait where a rank has died before it came.
    """

    def __init__(
        self, group: ProcessGroup, device: torch.device | int | str, max_size: int = DEFAULT_MAX_BYTES
    ) -> None:
        import torch.distributed as dist

        self.device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        self.max_size = max_size
        self.rank, self.world_size = group.rank(), group.size()
        self.disabled = self.world_size == 1
        self.why_disabled = "one rank has nothing to add up" if self.disabled else ""
        self._group: Any = None
        if self.disabled:
            return
        parent = backend.backend_of(group)  # hears of a rank that dies meanwhile
        made_for = SimpleNamespace(
            store=dist.distributed_c10d._world.pg_map[group][1],
            group_rank=self.rank,
            group_size=self.world_size,
            group_id="tutti.CustomAllReduce",
            global_ranks_in_group=range(self.world_size),
            timeout=load().Options()._timeout if parent is None else parent.timeout,
        )
        try:
            self._group = backend.create_backend(made_for, None, parent)
            self.all_reduce(torch.zeros(8, device=self.device))
            self._group.barrier().wait()  # one rank that cannot ends it for all
        except BaseException as error:
            self.disabled, self.why_disabled = True, str(error) or type(error).__name__
            if self._group is not None:
                self._group.abort_because(f"it has no all-reduce for an engine: {self.why_disabled}")
                self._group = None
            if not isinstance(error, Exception):  # KeyboardInterrupt and its like
                raise

    def should_custom_ar(self, inp: torch.Tensor) -> bool:
        """Whether :meth:`custom_all_reduce` takes this tensor. The answer is the same on all ranks."""
        if self.disabled or inp.device.type != self.device.type:
            return False
        return inp.is_contiguous() and 0 < inp.numel() * inp.element_size() <= self.max_size

    def custom_all_reduce(self, input: torch.Tensor) -> torch.Tensor | None:
        """The sum in a new tensor, or ``None`` for a tensor that the engine has to reduce otherwise."""
        return self.all_reduce(input) if self.should_custom_ar(input) else None

    def all_reduce(
        self, inp: torch.Tensor, *, out: torch.Tensor | None = None, registered: bool = False
    ) -> torch.Tensor:
        """The sum, in ``out`` if there is one. ``registered`` makes no difference: no buffer needs to be."""
        out = torch.empty_like(inp) if out is None else out
        self._made.all_reduce_into(out, inp)
        return out

    def all_reduce_add_rms_norm(
        self,
        inp: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        norm_out: torch.Tensor | None = None,
        quant_out: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
        scales_out: torch.Tensor | None = None,
    ) -> None:
        """``residual`` becomes ``s = all_reduce(inp) + residual``, and ``norm_out`` (else ``inp``) its RMS norm.

        What an engine's pass puts in the place of an all-reduce and the norm behind it. With ``quant_out``
        (float8_e4m3fn) the norm goes there alone, divided by ``scale`` (one float32 value), or by a scale a row that is
        written to ``scales_out``. For any size: ``max_size`` does not count here.
        """
        out = quant_out if quant_out is not None else inp if norm_out is None else norm_out
        add_rms_norm_into(self._made, inp, residual, weight, eps, out, residual, scale, scales_out)

    def all_reduce_quantized(self, inp: torch.Tensor, bits: str = "fp8", block: int = 128) -> torch.Tensor:
        """The sum, nearly, at half the bytes on the wire: :func:`tutti.ops.all_reduce_quantized`."""
        out = torch.empty_like(inp, memory_format=torch.contiguous_format)
        quantized_into(self._made, out, inp, bits, block)
        return out

    @property
    def _made(self) -> Any:
        if self._group is None:
            raise RuntimeError(f"there is no all-reduce of Tutti's here: {self.why_disabled}")
        return self._group

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Around the capture of CUDA graphs. Nothing is left to do here: captured calls keep no addresses of peers."""
        yield

    def close(self) -> None:
        """Ends it; a later call is a ``RuntimeError``. Collective."""
        group, self._group = self._group, None
        self.disabled, self.why_disabled = True, "it has been closed"
        if group is not None:
            group.shutdown()
