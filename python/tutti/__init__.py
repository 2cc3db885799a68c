"""Tutti: collective communication for PyTorch.

Importing it makes ``torch.distributed.init_process_group("tutti")`` known and loads nothing else: the library itself
comes with the first group, or with the first function of this module that needs it.

Tensors that all ranks of a machine map, so that collectives on them need no copy:
:func:`empty`, :func:`zeros`, :func:`use_shared_allocator`, :func:`is_mapped`, :func:`arena_stats`; of CUDA tensors also
:func:`register_tensors`, :func:`unregister_tensors`, :func:`mem_pool`, :func:`peer_tensors`, :func:`cuda_direct_calls`.

What the groups have done: :func:`get_metrics`, :func:`log_metrics`, :func:`reset_metrics`, :func:`flight_record`,
:func:`dump_flight_record`, :func:`dump_flight_trace`, :func:`group_info`.

Under gloo's name, for frameworks that know backends by name: :func:`pretend`.

Without torch, on NumPy arrays: :class:`Communicator`, :func:`make_id`.

Collectives of one's own, written as programs: :mod:`tutti.language`, which needs neither torch nor the library, and
:class:`AlgoSpec`.

Algorithms that a program chooses itself: :data:`compile` and :data:`compile_native` make them, :class:`Algorithm` runs
them, :class:`AlgorithmCollectionBuilder` lets ordinary calls take them; :class:`CommGroup`, :class:`RawBuffer`,
:class:`Executor` and :class:`ExecutionPlan` are as programs for MSCCL++ use them.

What ``torch.distributed`` offers to its own backends only: :func:`split_group`, :func:`shrink`,
:func:`monitored_barrier`, :func:`set_timeout`, :func:`sequence_number`, :func:`get_error`, :func:`abort`.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from tutti.dist.autoload import register, torch_registers

if TYPE_CHECKING:
    from tutti._metrics import Metrics, MetricsRow
    from tutti.algorithms.algorithm import Algorithm, AlgorithmBuilder
    from tutti.algorithms.buffers import GpuBuffer, RawBuffer, RawGpuBuffer
    from tutti.algorithms.builder import AlgorithmCollectionBuilder, CollectiveRequest
    from tutti.algorithms.collection import AlgorithmCollection
    from tutti.algorithms.compiler import compile
    from tutti.algorithms.executor import ExecutionPlan, Executor
    from tutti.algorithms.group import CommGroup
    from tutti.algorithms.native import compile_native, get_include
    from tutti.algorithms.types import AlgorithmType, CollectiveBufferMode, DataType, PacketType, ReduceOp
    from tutti.communicator import Communicator, make_id
    from tutti.dist.backend import (
        Options,
        abort,
        arena_stats,
        empty,
        flight_record,
        get_error,
        get_metrics,
        is_mapped,
        monitored_barrier,
        reset_metrics,
        sequence_number,
        set_timeout,
        shared_allocator_enabled,
        shrink,
        split_group,
        use_shared_allocator,
        zeros,
    )
    from tutti.dist.cuda_memory import cuda_direct_calls, mem_pool, peer_tensors, register_tensors, unregister_tensors
    from tutti.dist.groups import get_communicator
    from tutti.dist.pretence import pretend
    from tutti.dist.report import GroupInfo, dump_flight_record, dump_flight_trace, group_info, log_metrics
    from tutti.language.utils import AlgoSpec

__version__ = "0.1.0"

__all__ = [
    "AlgoSpec",
    "Algorithm",
    "AlgorithmBuilder",
    "AlgorithmCollection",
    "AlgorithmCollectionBuilder",
    "AlgorithmType",
    "CollectiveBufferMode",
    "CollectiveRequest",
    "CommGroup",
    "Communicator",
    "DataType",
    "ExecutionPlan",
    "Executor",
    "GpuBuffer",
    "GroupInfo",
    "Metrics",
    "MetricsRow",
    "Options",
    "PacketType",
    "RawBuffer",
    "RawGpuBuffer",
    "ReduceOp",
    "__version__",
    "abort",
    "arena_stats",
    "compile",
    "compile_native",
    "cuda_direct_calls",
    "dump_flight_record",
    "dump_flight_trace",
    "empty",
    "flight_record",
    "get_communicator",
    "get_error",
    "get_include",
    "get_metrics",
    "group_info",
    "is_mapped",
    "log_metrics",
    "make_id",
    "mem_pool",
    "monitored_barrier",
    "peer_tensors",
    "pretend",
    "register",
    "register_tensors",
    "reset_metrics",
    "sequence_number",
    "set_timeout",
    "shared_allocator_enabled",
    "shrink",
    "split_group",
    "unregister_tensors",
    "use_shared_allocator",
    "zeros",
]

# Where the names are that are not in dist.backend.
_HOMES = {
    "AlgoSpec": "tutti.language.utils",
    "Algorithm": "tutti.algorithms.algorithm",
    "AlgorithmBuilder": "tutti.algorithms.algorithm",
    "AlgorithmCollection": "tutti.algorithms.collection",
    "AlgorithmCollectionBuilder": "tutti.algorithms.builder",
    "AlgorithmType": "tutti.algorithms.types",
    "CollectiveBufferMode": "tutti.algorithms.types",
    "CollectiveRequest": "tutti.algorithms.builder",
    "CommGroup": "tutti.algorithms.group",
    "Communicator": "tutti.communicator",
    "DataType": "tutti.algorithms.types",
    "ExecutionPlan": "tutti.algorithms.executor",
    "Executor": "tutti.algorithms.executor",
    "GpuBuffer": "tutti.algorithms.buffers",
    "GroupInfo": "tutti.dist.report",
    "Metrics": "tutti._metrics",
    "MetricsRow": "tutti._metrics",
    "PacketType": "tutti.algorithms.types",
    "RawBuffer": "tutti.algorithms.buffers",
    "RawGpuBuffer": "tutti.algorithms.buffers",
    "ReduceOp": "tutti.algorithms.types",
    "compile": "tutti.algorithms.compiler",
    "compile_native": "tutti.algorithms.native",
    "cuda_direct_calls": "tutti.dist.cuda_memory",
    "dump_flight_record": "tutti.dist.report",
    "dump_flight_trace": "tutti.dist.report",
    "get_communicator": "tutti.dist.groups",
    "get_include": "tutti.algorithms.native",
    "group_info": "tutti.dist.report",
    "log_metrics": "tutti.dist.report",
    "make_id": "tutti.communicator",
    "mem_pool": "tutti.dist.cuda_memory",
    "peer_tensors": "tutti.dist.cuda_memory",
    "pretend": "tutti.dist.pretence",
    "register_tensors": "tutti.dist.cuda_memory",
    "unregister_tensors": "tutti.dist.cuda_memory",
}


def __getattr__(name: str) -> Any:
    """Loads the part of the package that holds ``name``, at its first use."""
    if name not in __all__:
        raise AttributeError(f"module 'tutti' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES.get(name, "tutti.dist.backend")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# Where importing torch registers the backend, the ``tutti`` command need not wait for that import.
if "torch" in sys.modules or not torch_registers():
    register()
