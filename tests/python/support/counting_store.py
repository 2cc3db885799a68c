"""A store that counts what is asked of it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed as dist


class CountingStore(dist.Store):
    """Passes everything on, and counts it."""

    def __init__(self, below: Any) -> None:
        super().__init__()
        self.below = below
        self.asked: Counter[str] = Counter()
        self.keys: set[str] = set()

    def _count(self, operation: str, *keys: str) -> None:
        self.asked[operation] += 1
        self.keys.update(keys)

    def set(self, key: str, value: Any) -> None:
        self._count("set", key)
        self.below.set(key, value)

    def get(self, key: str) -> Any:
        self._count("get")
        return self.below.get(key)

    def add(self, key: str, amount: int) -> int:
        self._count("add", key)
        return int(self.below.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        self._count("check")
        return bool(self.below.check(keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._count("wait")
        self.below.wait(keys, timeout or timedelta(seconds=60))

    def clone(self) -> Any:
        return self

    def delete_key(self, key: str) -> bool:
        self._count("delete")
        return bool(self.below.delete_key(key))
