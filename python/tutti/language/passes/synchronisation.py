"""Writes the joints that the program asked for (``data_sync``) as operations of their own."""

from __future__ import annotations

from dataclasses import replace

from tutti.language.operations import Joining, Loop, Nop, Operation
from tutti.language.vocabulary import SyncType


def state_sync(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """The operations with a nop on each side where they join the lanes."""
    stated: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Loop):
            operation = replace(operation, body=state_sync(operation.body))
        sync = operation.sync if isinstance(operation, Joining) else SyncType.none
        if SyncType.before in sync:
            stated.append(Nop(origins=operation.origins))
        stated.append(operation)
        if SyncType.after in sync:
            stated.append(Nop(origins=operation.origins))
    return tuple(stated)
