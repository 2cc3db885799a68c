"""What the groups of this process have done, for people: metrics as a table, flight records as files."""

from __future__ import annotations

import json
import logging
import pickle
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti._units import format_bytes, format_us
from tutti.dist import backend
from tutti.dist.groups import get_communicator

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_LOGGER = logging.getLogger("tutti")


@dataclass(frozen=True)
class GroupInfo:
    """Where a rank stands in a group.

    ``host_ranks`` are the ranks (of the group) that share memory with this one, itself included; ``sequence`` counts
    the collectives issued so far; ``failure`` is the error that poisoned the group, if any; ``asked_as`` is the name of
    the backend that the program asked for, which is another than ``"tutti"`` after :func:`tutti.pretend`.
    """

    name: str
    rank: int
    size: int
    host_ranks: tuple[int, ...]
    host_count: int
    sequence: int
    timeout: timedelta
    failure: str | None
    asked_as: str


def group_info(group: ProcessGroup | None = None) -> GroupInfo:
    """Describes ``group`` (the default group if None) as this rank sees it.

    Raises ValueError if the group has no tutti backend.
    """
    import torch.distributed as dist

    communicator = get_communicator(group)
    return GroupInfo(
        name=communicator.group_name,
        rank=communicator.rank(),
        size=communicator.size(),
        host_ranks=tuple(communicator.host_ranks),
        host_count=communicator.host_count,
        sequence=communicator.sequence,
        timeout=communicator.timeout,
        failure=communicator.failure(),
        asked_as=dist.get_backend(group),
    )


def log_metrics(group: ProcessGroup | None = None, level: int = logging.INFO) -> None:
    """Writes :func:`tutti.get_metrics` as a table to the logger ``"tutti"``, a line a collective and size class.

    If that logger would show nothing at ``level`` (logging is not configured), the table goes to standard error.
    """
    text = format_metrics(group)
    if _LOGGER.isEnabledFor(level) and _LOGGER.hasHandlers():
        _LOGGER.log(level, "%s", text)
        return
    import sys

    print(text, file=sys.stderr)


def format_metrics(group: ProcessGroup | None = None) -> str:
    """The table that :func:`log_metrics` writes."""
    metrics = backend.get_metrics(group)
    head = ("collective", "size", "algorithm", "calls", "bytes", "p50", "mean", "waiting")
    rows = [head]
    for row in metrics["rows"]:
        timed = row["timed_calls"]
        rows.append(
            (
                row["collective"],
                row["size_class"],
                row["algorithm"],
                str(row["calls"]),
                format_bytes(row["bytes"]),
                format_us(row["p50_ns"] / 1e3) if timed else "-",
                format_us(row["total_ns"] / timed / 1e3) if timed else "-",
                f"{100 * row['wait_ns'] / row['total_ns']:.0f} %" if row["total_ns"] else "-",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(f"{metrics['mapped_calls']} calls needed no copy, {metrics['errors']} errors")
    if metrics["rescued_waits"]:
        lines.append(f"{metrics['rescued_waits']} wake-ups were lost: please report this")
    return "\n".join(lines)


def dump_flight_record(path: str | Path, group: ProcessGroup | None = None) -> Path:
    """Writes the last calls of ``group`` on this rank to ``path``; returns where.

    The file is JSON in the schema of PyTorch's flight recorder. ``"{rank}"`` in the path is replaced by the rank, so
    that all ranks may give the same. Raises OSError if it cannot be written.
    """
    info = group_info(group)
    target = Path(str(path).replace("{rank}", str(info.rank)))
    target.write_text(backend.flight_record(group))
    return target


def dump_flight_trace(folder: str | Path, group: ProcessGroup | None = None, device: str = "cpu") -> Path:
    """Writes the last collectives of ``group`` on this rank to ``folder/trace_<rank>``; returns where.

    The file is what PyTorch's analyser reads: when there is one of each rank of the group, ``torchfrtrace FOLDER`` says
    which rank differs from the others, or is missing, in which call. Each group takes a folder of its own, made where
    it is missing. ``device`` tells which calls, those on ``"cpu"`` or on ``"cuda"`` tensors: each is numbered apart and
    takes a folder of its own, too. Sends and receives are left out: the analyser takes each call for one of the whole
    group. Raises OSError if the file cannot be written, and ValueError if the group has made no calls on such tensors.
    """
    import torch.distributed as dist

    group = dist.distributed_c10d._get_default_group() if group is None else group
    record: dict[str, Any] = json.loads(backend.flight_record(group, device))
    if not record["pg_status"]:
        raise ValueError(f"the group has made no calls on {device} tensors")
    name, description = group.group_name, group.group_desc
    # A record knows the ranks of its group; the analyser goes by those of the job.
    ranks = sorted(dist.get_process_group_ranks(group))
    status = next(iter(record["pg_status"].values()))  # of the group, before those of pairs of ranks
    record["pg_status"] = {name: status}
    record["pg_config"] = {name: {"name": name, "desc": description, "ranks": str(ranks)}}
    record["entries"] = [entry for entry in record["entries"] if not entry["is_p2p"]]
    for entry in record["entries"]:
        entry["process_group"] = (name, description)
        # By these the analyser drops what some rank has forgotten already, so they must count alike on all ranks.
        entry["record_id"] = entry["collective_seq_id"]
    target = Path(folder, f"trace_{dist.get_rank()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(pickle.dumps(record))
    return target
