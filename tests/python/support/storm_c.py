"""The C face under storm_rank.py: libtutti_c.so by ctypes, with the calls of ``tutti.Communicator`` around it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
from storm_faces import LIMIT_S, OF_ANY, Arrays, Face, carried

ID_BYTES, SUM = 128, 0
TYPES = {np.dtype(np.uint8): 1, np.dtype(np.float32): 16, np.dtype(np.float64): 17}


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("timeout_ms", ctypes.c_int64), ("name", ctypes.c_char_p)]


def library() -> ctypes.CDLL:
    """The one beside the package's modules."""
    core = importlib.util.find_spec("tutti._core")
    assert core is not None and core.origin is not None
    loaded = ctypes.CDLL(str(Path(core.origin).with_name("libtutti_c.so")))
    loaded.tutti_last_error.restype = loaded.tutti_result_name.restype = ctypes.c_char_p
    return loaded


class Group:
    """A ``tutti_group``."""

    lib = library()

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.handle = handle
        self.rank, self.size = self.lib.tutti_group_rank(handle), self.lib.tutti_group_size(handle)

    @classmethod
    def made_by(cls, name: str, *arguments: Any) -> Group | None:
        handle = ctypes.c_void_p()
        cls.do(name, *arguments, ctypes.byref(handle))
        return cls(handle) if handle else None

    @classmethod
    def do(cls, name: str, *arguments: Any) -> None:
        """A failure is raised as the Python face does."""
        result = getattr(cls.lib, name)(*arguments)
        if result != 0:
            kind = {1: ValueError, 2: ValueError, 4: TimeoutError}.get(result, RuntimeError)
            raise kind(f"{cls.lib.tutti_result_name(result).decode()}: {cls.lib.tutti_last_error().decode()}")

    def call(self, name: str, input: Any, output: Any, count: int, *rest: int) -> None:
        """Whatever is None is NULL."""
        of = input if input is not None else output
        pointers = [None if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in (input, output)]
        options = [ctypes.c_int32(number) for number in (TYPES[of.dtype], *rest)]
        self.do(f"tutti_{name}", self.handle, *pointers, ctypes.c_size_t(count), *options)

    def all_reduce(self, x: Any, out: Any = None) -> Any:
        out = x if out is None else out
        self.call("all_reduce", x, out, x.size, SUM)
        return out

    def reduce(self, x: Any, root: int) -> None:
        self.call("reduce", x, x if root == self.rank else None, x.size, SUM, root)

    def broadcast(self, x: Any, root: int) -> Any:
        where, count, kind = x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.size), TYPES[x.dtype]
        self.do("tutti_broadcast", self.handle, where, count, kind, root)
        return x

    def all_gather(self, x: Any, out: Any) -> Any:
        self.call("all_gather", x, out, x.size)
        return out

    def gather(self, x: Any, out: Any, root: int) -> None:
        self.call("gather", x, out, x.size, root)

    def scatter(self, parts: Any, out: Any, root: int) -> Any:
        self.call("scatter", parts, out, out.size, root)
        return out

    def reduce_scatter(self, x: Any, out: Any) -> Any:
        self.call("reduce_scatter", x, out, out.size, SUM)
        return out

    def all_to_all(self, x: Any, out: Any) -> Any:
        self.call("all_to_all", x, out, x.size // self.size)
        return out

    def barrier(self) -> None:
        self.do("tutti_barrier", self.handle)

    def message(self, name: str, x: Any, peer: int, tag: int, *rest: Any) -> None:
        where, count = x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.size)
        self.do(name, self.handle, where, count, TYPES[x.dtype], peer, ctypes.c_uint64(tag), *rest)

    def send(self, x: Any, peer: int, tag: int = 0) -> None:
        self.message("tutti_send", x, peer, tag)

    def recv(self, x: Any, peer: int, tag: int = 0) -> int:
        source = ctypes.c_int(-2)
        self.message("tutti_recv", x, peer, tag, ctypes.byref(source))
        return source.value

    def split(self, color: int | None, key: int = 0) -> Group | None:
        return self.made_by("tutti_group_split", self.handle, -1 if color is None else color, key, None)

    def shrink(self, id: bytes, timeout: float) -> tuple[Group, list[int]]:
        members = (ctypes.c_int * self.size)(*[-1] * self.size)
        smaller = self.made_by("tutti_group_shrink", self.handle, id, ctypes.c_int64(int(timeout * 1000)), members)
        assert smaller is not None and list(members[smaller.size :]) == [-1] * (self.size - smaller.size), members[:]
        return smaller, members[: smaller.size]

    def abort(self, reason: str) -> None:
        self.lib.tutti_group_abort(self.handle, reason.encode())

    def close(self) -> None:
        self.lib.tutti_group_destroy(self.handle)
        self.handle = ctypes.c_void_p()


class C(Arrays):
    """Groups of tutti.h. They have no store: all meet by ids."""

    kinds = (*Face.kinds, *OF_ANY)

    def open(self) -> Any:
        self.has_store = False
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        options = Options(ctypes.sizeof(Options), int(LIMIT_S * 1000), b"storm")
        id = carried("id", self.make_id, rank == 0)
        return Group.made_by("tutti_group_create", id, rank, size, ctypes.byref(options))

    def make_id(self, address: str = "localhost") -> bytes:
        id = ctypes.create_string_buffer(ID_BYTES)
        Group.do("tutti_make_id", address.encode(), id)
        return id.raw

    def look(self, chooser: random.Random) -> None:
        """Has no such calls."""

    def metrics(self) -> Any:
        return None
