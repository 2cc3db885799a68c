"""The ``torch.distributed`` face in Python: group creation, and what has no route through torch.

What the package may take from here (all load ``tutti._torch`` on first use, none at import):

- ``create_backend(dist_opts, options, parent)``: what ``torch.distributed`` calls on each rank of a new group.
  ``backend_of(group=None)``: the parent of groups that are made of ranks of that one.
- ``empty(*size, dtype, device, group, ...)``, ``zeros(...)``: tensors that all ranks of the host map. What CUDA
  tensors need beside: ``cuda_memory``.
- ``use_shared_allocator(enabled=True, threshold=None)``: every large CPU tensor becomes one.
- ``shared_allocator_enabled()``, ``arena_stats()``: for ``tutti info`` and tests.
- ``get_metrics(group=None)``: ``{"rows": [{"device", "collective", "size_class", "algorithm", "calls", "bytes",
  "timed_calls", "total_ns", "wait_ns", "p50_ns"}, ...], "mapped_calls": int, "errors": int,
  "rescued_waits": int, "device_calls": int}``;
  ``reset_metrics(group=None)``.
- ``flight_record(group=None, device=None)``: JSON text in the schema of PyTorch's flight recorder.
- ``monitored_barrier(group, timeout, wait_all_ranks)``, ``set_timeout(timeout, group)``, ``get_error(group)``,
  ``sequence_number(group)``, ``abort(group, reason)``, ``split_group(ranks, group, ...)``,
  ``shrink(group, timeout)``: for what ``torch.distributed`` refuses to a backend that it does not know.
- ``Options``: ``pg_options`` of ``init_process_group`` and ``new_group``.
"""

from __future__ import annotations

import contextlib
import operator
import warnings
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tutti import _core, _formed, _want
from tutti.dist import pretence
from tutti.dist.groups import get_communicator
from tutti.dist.needs_torch import load

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch.distributed import ProcessGroup

    from tutti._metrics import Metrics

__all__ = [
    "abort",
    "arena_stats",
    "create_backend",
    "empty",
    "flight_record",
    "get_error",
    "get_metrics",
    "is_mapped",
    "monitored_barrier",
    "reset_metrics",
    "sequence_number",
    "set_timeout",
    "shared_allocator_enabled",
    "shrink",
    "split_group",
    "use_shared_allocator",
    "zeros",
]


def __getattr__(name: str) -> Any:
    if name in ("Options", "ProcessGroupTutti"):
        return getattr(load(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _generation(store: dist.Store, name: str, rank: int) -> int:
    """How often `rank`'s place in a group of this name has been taken in the job's store, this time included.

    Equal on all ranks of a group, also when a name returns with other ranks (re-initialisation) or other processes (a
    restart): it makes ids unique.
    """
    return int(store.add(f"tutti/generation/{name}/{rank}", 1))


def _honour_shared_allocator_wish(module: Any) -> None:
    """Turns the shared allocator on where ``TUTTI_SHARED_ALLOCATOR`` asks for it; training goes on without it."""
    if not module.shared_allocator_wanted() or module.shared_allocator_enabled():
        return
    try:
        module.use_shared_allocator(True, None)
    except RuntimeError as error:
        warnings.warn(f"TUTTI_SHARED_ALLOCATOR has no effect: {error}", RuntimeWarning, stacklevel=2)


def backend_of(group: ProcessGroup | None = None) -> Any:
    """The Tutti backend of the group (default: of the default group), if it has one: all its ranks find the same."""
    import torch.distributed as dist

    if group is not None or dist.is_initialized():
        for device in ("cpu", "cuda"):
            with contextlib.suppress(ValueError):
                return get_communicator(group, device)
    return None


def create_backend(dist_opts: Any, options: Any, parent: Any = None) -> Any:
    """Creates the backend of one process group; ``torch.distributed`` calls it on every rank of the group.

    ``parent``: the backend whose ranks ``dist_opts.global_ranks_in_group`` are. The group is made in it then, and the
    store, if there is one, is asked only where that has failed.
    """
    module = load()
    # In gloo's place those for another backend are passed over, as gloo does.
    wrong = ""
    if not (options is None or isinstance(options, module.Options) or pretence.in_force()):
        wrong = f"pg_options of a tutti group must be tutti.Options, got {type(options).__name__}"
        options = module.Options()
        options._refused = wrong  # the other ranks, which wait for this one, are told
    try:
        backend = _made(module, dist_opts, options, parent)
    except ValueError:
        if wrong:
            raise TypeError(wrong) from None
        raise
    _honour_shared_allocator_wish(module)  # after the group, which tells the other ranks of a setting that is not valid
    _formed.give(
        dist_opts.group_size, lambda handles, choose: backend.set_algorithms(_core.algorithm_set(handles, choose))
    )
    return backend


def _made(module: Any, dist_opts: Any, options: Any, parent: Any) -> Any:
    rank, size = dist_opts.group_rank, dist_opts.group_size
    name = str(dist_opts.group_id)
    if parent is None:
        turn = _generation(dist_opts.store, name, rank)
        place = f"{name}/{turn}"
        with (
            _want.told(dist_opts.store, place, rank),
            pretence.look_for_gloo(dist_opts.store, place, rank, size, first=turn == 1),
        ):
            return module.ProcessGroupTutti(dist_opts.store, rank, size, place, _options(dist_opts, options))
    ranks = list(dist_opts.global_ranks_in_group)
    with _want.told_by(lambda: parent.tell_want_of_part(ranks, name), name, rank):
        own_options = _options(dist_opts, options)
    return parent.make_part(dist_opts.store, ranks, name, own_options)


def _options(dist_opts: Any, options: Any) -> Any:
    """Those of one group: what its maker gives, and what torch does."""
    module = load()
    options = options.__copy__() if isinstance(options, module.Options) else module.Options()
    timeout = dist_opts.timeout if isinstance(dist_opts.timeout, timedelta) else _timedelta(dist_opts.timeout)
    if options._timeout not in (timeout, module.Options()._timeout):
        warnings.warn(
            f"the timeout of pg_options ({options._timeout}) has no effect, as in torch's own backends: the group's is "
            f"that of init_process_group or new_group ({timeout})",
            RuntimeWarning,
            stacklevel=2,
        )
    options._timeout = timeout
    options.group_name = str(dist_opts.group_id)
    options.global_ranks_in_group = list(dist_opts.global_ranks_in_group)
    return options


def _size(sizes: tuple[Any, ...]) -> list[int]:
    given: Any = sizes[0] if len(sizes) == 1 else sizes
    # A number of numpy's or a tensor of one has the methods of sequences as well, so this comes first.
    with contextlib.suppress(TypeError):
        return [operator.index(given)]
    # Texts are sequences too, those of bytes even of whole numbers.
    if not isinstance(given, str | bytes | bytearray):
        with contextlib.suppress(TypeError):
            return [operator.index(n) for n in given]
    raise TypeError(f"a size is whole numbers or one sequence of them, not {given!r}")


def empty(
    *size: Any,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    device: torch.device | str | None = None,
    group: ProcessGroup | None = None,
) -> torch.Tensor:
    """An uninitialised tensor in memory that all ranks map: collectives on it copy nothing.

    ``size`` is given as to ``torch.empty``: numbers or one sequence. ``dtype`` is any that PyTorch has (default:
    ``torch.get_default_dtype()``).

    On the CPU, the default, all ranks of this host map it. Where the arena is full or cannot be made, the tensor is an
    ordinary one (:func:`is_mapped` tells).

    On a CUDA device the call is collective over ``group`` (the default group for ``None``): all ranks ask for the same
    size, and use the tensor together, as :func:`register_tensors` says. The group holds it. Where the ranks' GPUs
    cannot reach each other, it is an ordinary one on all ranks.

    Raises ``RuntimeError`` for a negative size or when memory is exhausted, ``TypeError`` for one that is not of whole
    numbers, ``ValueError`` for another device or if the ranks' sizes differ.
    """
    import torch

    dtype = torch.get_default_dtype() if dtype is None else dtype
    where = torch.device("cpu" if device is None else device)
    if where.type == "cuda":
        from tutti.dist import cuda_memory

        return cuda_memory.empty(_size(size), dtype, where, group).requires_grad_(requires_grad)
    if where.type != "cpu":
        raise ValueError(f"tutti.empty makes CPU and CUDA tensors, not {where.type} tensors")
    if group is not None:
        raise ValueError("tutti.empty takes a group for CUDA tensors only: every rank of the host maps a CPU tensor")
    tensor: torch.Tensor = load().empty(_size(size), dtype)
    return tensor.requires_grad_(requires_grad)


def zeros(
    *size: Any,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    device: torch.device | str | None = None,
    group: ProcessGroup | None = None,
) -> torch.Tensor:
    """As :func:`empty`, filled with zeros."""
    return empty(*size, dtype=dtype, device=device, group=group).zero_().requires_grad_(requires_grad)


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in memory that all ranks of this host map; of a CUDA tensor, whether it is registered."""
    module = load()
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tutti.is_mapped takes a torch tensor, not {type(tensor).__name__}")
    if tensor.is_cuda:
        from tutti.dist import cuda_memory

        return cuda_memory.is_registered(tensor)
    return bool(module.is_mapped(tensor))


def use_shared_allocator(enabled: bool = True, threshold: int | None = None) -> None:
    """Lets every CPU tensor of at least ``threshold`` bytes lie in memory that all ranks of this host map.

    Affects tensors made from now on, DDP's gradient buckets among them. ``threshold`` (bytes) is
    ``TUTTI_SHARED_THRESHOLD`` by default, 64 KB unless set. The environment variable ``TUTTI_SHARED_ALLOCATOR=1`` does
    the same when the first group is created.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled is True or False, not {enabled!r}: pass a number of bytes as threshold")
    if isinstance(threshold, bool) or (threshold is not None and operator.index(threshold) < 0):
        raise ValueError(f"threshold is a number of bytes, 0 or more, not {threshold!r}")
    load().use_shared_allocator(enabled, threshold)


def shared_allocator_enabled() -> bool:
    """Whether :func:`use_shared_allocator` is in force."""
    return bool(load().shared_allocator_enabled())


def arena_stats() -> dict[str, int]:
    """Bytes of the arena of mapped tensors: ``bytes`` of address space, ``in_use``, ``cached``, ``quarantined``."""
    return dict(load().arena_stats())


def get_metrics(group: ProcessGroup | None = None) -> Metrics:
    """What ``group`` (the default group for ``None``) has done on this rank since its creation or the last reset.

    Counts are exact, times in nanoseconds: see :class:`tutti.Metrics` and :class:`tutti.MetricsRow`. Raises
    ``ValueError`` if the group has no tutti backend.
    """
    return get_communicator(group).metrics()


def reset_metrics(group: ProcessGroup | None = None) -> None:
    """Sets the group's metrics on this rank to zero. ``ValueError`` if the group has no tutti backend."""
    get_communicator(group).reset_metrics()


def flight_record(group: ProcessGroup | None = None, device: str | None = None) -> str:
    """The group's last calls on this rank as JSON in the schema of PyTorch's flight recorder, oldest first.

    ``device`` is ``"cpu"`` or ``"cuda"``: calls on such tensors only; ``None`` takes all. Calls on CUDA tensors stand
    under process groups of their own, since they are numbered apart: ``"<name>/cuda"``, and one for each pair of ranks
    that sends messages. Their ``"state"`` is what the GPU says now; what was captured into a graph stays
    ``"scheduled"``, with ``"captured"`` set.

    ``TUTTI_FLIGHT_RECORDER_ENTRIES`` says how many are kept. Works after a failure too, which is when it is wanted.
    """
    return get_communicator(group).flight_record(device or "")


_MOST_TIME = timedelta(days=100_000)  # fits what torch counts in


def _timedelta(timeout: timedelta | float) -> timedelta:
    """A time as torch takes it. ``ValueError`` for one that is too long or no number of seconds."""
    try:
        time = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    except (ValueError, OverflowError):  # NaN, infinity
        time = timedelta.max
    if abs(time) > _MOST_TIME:
        raise ValueError(f"a timeout is a timedelta or seconds, at most {_MOST_TIME.days} days, not {timeout}")
    return time


def monitored_barrier(
    group: ProcessGroup | None = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """As ``torch.distributed.monitored_barrier``, which takes groups named gloo only.

    ``timeout`` is a ``timedelta`` or seconds (default: the group's). Raises ``DistBackendError`` naming the first rank
    that has not come, or with ``wait_all_ranks`` all of them; ``ValueError`` for a timeout below a millisecond.
    """
    backend = get_communicator(group)
    time = backend.timeout if timeout is None else _timedelta(timeout)
    if time < timedelta(milliseconds=1):
        raise ValueError(f"a timeout is at least a millisecond, not {timeout}; None is that of the group")
    backend.monitored_barrier(time, wait_all_ranks)


def set_timeout(timeout: timedelta | float, group: ProcessGroup | None = None) -> None:
    """The time (``timedelta`` or seconds) that calls of the group issued from now on may take."""
    get_communicator(group).set_timeout(_timedelta(timeout))


_ERRORS = ("success", "timeout", "comm_error", "remote_error")


def get_error(group: ProcessGroup | None = None) -> tuple[str, str | None]:
    """``("success", None)``, or the kind and the text of the failure that ended the group.

    Kinds: ``"timeout"``, ``"comm_error"`` (this rank's own failure), ``"remote_error"`` (another rank's).
    """
    backend = get_communicator(group)
    return _ERRORS[backend.error_kind()], backend.failure()


def sequence_number(group: ProcessGroup | None = None) -> int:
    """How many collectives this rank has issued in the group; equal on all ranks that are in step."""
    return int(get_communicator(group).sequence)


def abort(group: ProcessGroup | None = None, reason: str = "tutti.abort()") -> None:
    """Ends all waiting and later calls of the group on this rank with an error, and tells the other ranks."""
    get_communicator(group).abort_because(reason)


def _devices_of(group: ProcessGroup) -> list[torch.device]:
    """Whose tensors the group gives to the backend that it has for CPU tensors."""
    backend = get_communicator(group)
    found = []
    for device in group._device_types:
        other = group._get_backend(device)
        if getattr(other, "wrapped_pg", other) is backend:
            found.append(device)
    return found


def _wrap(backend: Any, parent: ProcessGroup, store: dist.Store, name: Any) -> ProcessGroup:
    """A process group over a backend that torch.distributed did not make itself, for the devices of its parent's."""
    from torch.distributed import ProcessGroup

    group = ProcessGroup(store, backend.rank(), backend.size())
    group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
    for device in _devices_of(parent):
        group._register_backend(device, ProcessGroup.BackendType.CUSTOM, backend)
    group._set_group_name(name)
    group._set_group_desc("undefined")
    return group


def _adopt(group: ProcessGroup, parent: ProcessGroup, store: dist.Store, global_ranks: list[int]) -> ProcessGroup:
    """Enters `group` in torch.distributed's tables, as new_group does for its own, under the backend of its parent."""
    import torch.distributed as dist

    c10d = dist.distributed_c10d
    world = c10d._world
    name = group.group_name
    backend = c10d.BackendConfig(c10d.get_backend(parent)).get_device_backend_map()["cpu"]
    world.pg_map[group] = (backend, store)
    world.pg_names[group] = name
    world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(global_ranks)}
    world.pg_backend_config[group] = ",".join(f"{device.type}:{backend}" for device in group._device_types)
    c10d._register_process_group(name, group)
    tag = f"ptd:{name}"
    world.tags_to_pg.setdefault("", []).append(group)
    world.tags_to_pg.setdefault(tag, []).append(group)
    world.pg_to_tag[group] = tag
    return group


_splits: weakref.WeakKeyDictionary[ProcessGroup, dict[str, int]] = weakref.WeakKeyDictionary()


def _next_split(parent: ProcessGroup, parts: str) -> int:
    """The how manieth split of the group into these ranks it is: equal on all of them, who alone take part in it."""
    counts = _splits.setdefault(parent, {})
    counts[parts] = counts.get(parts, 0) + 1
    return counts[parts]


def split_group(
    ranks: list[list[int]], group: ProcessGroup | None = None, timeout: timedelta | float | None = None
) -> ProcessGroup | None:
    """Splits a group into one group for each list of (group) ranks; ``None`` on ranks that are in none of them.

    ``timeout`` is a ``timedelta`` or seconds (default: the group's). ``ValueError`` for a list that is empty, a rank
    that the group does not have, or one that is in two lists.

    ``torch.distributed.split_group`` refuses groups without an accelerator.
    """
    import torch.distributed as dist

    parent = dist.distributed_c10d._get_default_group() if group is None else group
    backend = get_communicator(parent)
    seen = [rank for part in ranks for rank in part]
    if not ranks or not all(ranks) or len(set(seen)) != len(seen):
        raise ValueError("split_group takes at least one list of ranks, none empty, each rank in at most one list")
    if strangers := [rank for rank in seen if not 0 <= rank < backend.size()]:
        raise ValueError(f"split_group: {strangers[0]} is not a rank of this group of {backend.size()}")
    own = next((sorted(part) for part in ranks if backend.rank() in part), None)
    if own is None:
        return None
    options = backend.options
    if timeout is not None:
        options._timeout = _timedelta(timeout)
    parts = "-".join(map(str, own))
    name = f"{parent.group_name}:split:{parts}:{_next_split(parent, parts)}"
    parent_store = dist.distributed_c10d._world.pg_map[parent][1]
    options.group_name = dist.distributed_c10d.GroupName(name)
    options.global_ranks_in_group = [dist.get_global_rank(parent, rank) for rank in own]
    store = dist.PrefixStore(f"{name}/", parent_store)
    child = _wrap(backend.split_ranks(store, own, options), parent, store, name)
    return _adopt(child, parent, store, options.global_ranks_in_group)


def shrink(
    group: ProcessGroup | None = None, timeout: timedelta | float = timedelta(seconds=10)
) -> tuple[ProcessGroup, list[int]]:
    """A working group of the ranks that are still there, after a failure; all of them call it.

    Returns the new group and the ranks that its members had in the old one. Ranks that do not answer within
    ``timeout`` are left out; the others form a group, each step within as long again (at least 5 s), or raise. The old
    group stays registered: destroy it when you like.
    """
    import torch.distributed as dist

    old = dist.distributed_c10d._get_default_group() if group is None else group
    smaller, members = get_communicator(old).shrink_to_survivors(_timedelta(timeout))
    name = f"{old.group_name}:shrunk:{'-'.join(map(str, members))}"
    old_store = dist.distributed_c10d._world.pg_map[old][1]
    name += f":{_generation(old_store, name, smaller.rank())}"
    store = dist.PrefixStore(f"{name}/", old_store)
    global_ranks = [dist.get_global_rank(old, rank) for rank in members]
    return _adopt(_wrap(smaller, old, store, name), old, store, global_ranks), members
