"""The store that torchrun serves to the ranks that it starts."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

__all__ = ["agents_store"]

_uses = itertools.count()  # of this process; all ranks use it in the same order


def agents_store(timeout: float) -> Any | None:
    """Of torchrun's agent, at ``MASTER_PORT``; each use has names of its own in it. ``timeout`` is in seconds.

    ``None`` where no agent serves one, where ``TUTTI_MASTER_ADDR`` or ``TUTTI_MASTER_PORT`` names another place, or
    without torch. A store of one's own needs a port that nobody else takes; torchrun picks ``MASTER_PORT`` at random
    among those which the kernel gives to anybody, so the next one may be in use.
    """
    variables = os.environ
    host, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT", "")
    served = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    elsewhere = variables.get("TUTTI_MASTER_ADDR") or variables.get("TUTTI_MASTER_PORT")
    if not served or elsewhere or not host or not port.isdecimal() or find_spec("torch") is None:
        return None
    from torch.distributed import PrefixStore, TCPStore

    store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout))
    restart = variables.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"tutti.Communicator/{restart}/{next(_uses)}", store)
