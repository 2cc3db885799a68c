"""Calls at the edges of NCCL's interface that need no GPU: LIBRARY. Prints what each returned, as JSON.

Run above NCCL itself and above the library under its name: both must answer alike.
"""

from __future__ import annotations

import ctypes
import json
import sys

INT_MAX, NONE = 0x7FFFFFFF, None


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_char * 128)]


class SimInfo(ctypes.Structure):
    """ncclSimInfo_t."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("time", ctypes.c_float),
    ]


class Config(ctypes.Structure):
    """The beginning of ncclConfig_t."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    ]


def main() -> None:
    """All of it, in an order in which nothing depends on a communicator that could not be made."""
    nccl = ctypes.CDLL(sys.argv[1])
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    answers: list[tuple[str, object]] = []

    lacking = set(sys.argv[2:])  # functions that the NCCL to compare with is too old for

    def call(name: str, *arguments: object) -> int:
        if name in lacking:
            return -1
        result = int(getattr(nccl, name)(*arguments))
        answers.append((f"{name}{tuple(a for a in arguments if isinstance(a, int) or a is None)}", result))
        return result

    comm, other = ctypes.c_void_p(), ctypes.c_int(-7)
    here, number = ctypes.byref(comm), ctypes.byref(other)
    identity = UniqueId()
    memory = ctypes.create_string_buffer(64)
    at, size = ctypes.cast(memory, ctypes.c_void_p), ctypes.c_size_t(4)

    for code in range(-1, 12):
        answers.append((f"text of {code}", nccl.ncclGetErrorString(code).decode()))
    answers.append(("last error", nccl.ncclGetLastError(None).decode()))
    call("ncclGetVersion", None)
    call("ncclGetVersion", number)
    answers.append(("version", other.value))
    call("ncclGetUniqueId", None)
    call("ncclGetUniqueId", ctypes.byref(identity))

    # Communicators that cannot be made.
    for ranks, rank in ((0, 0), (-1, 0), (2, -1), (2, 2)):
        call("ncclCommInitRank", here, ranks, identity, rank)
        call("ncclCommInitRankConfig", here, ranks, identity, rank, None)
        call("ncclCommInitRankScalable", here, ranks, rank, 1, ctypes.byref(identity), None)
    call("ncclCommInitRank", None, 2, identity, 0)
    call("ncclCommInitRankScalable", here, 2, 0, 0, None, None)
    call("ncclCommInitRankConfig", here, 2, identity, 2, ctypes.byref(Config(1 << 20, 1, 1, 5)))
    devices = (ctypes.c_int * 2)(0, 0)
    call("ncclCommInitAll", None, 2, devices)
    call("ncclCommInitAll", here, 0, None)
    call("ncclCommInitAll", here, -3, None)
    call("ncclCommInitAll", here, 2, devices)
    call("ncclCommGrow", None, 2, None, 0, here, None)
    call("ncclCommGrow", None, 2, None, 0, None, None)

    # Without a communicator.
    for name in ("ncclCommDestroy", "ncclCommDestroy", "ncclCommAbort", "ncclCommFinalize"):
        call(name, None)
    call("ncclCommRevoke", None, 0)
    call("ncclCommRevoke", None, 3)
    call("ncclCommGetAsyncError", None, number)
    call("ncclCommGetAsyncError", None, None)
    for name in ("ncclCommCount", "ncclCommCuDevice", "ncclCommUserRank"):
        call(name, None, number)
    call("ncclCommGetUniqueId", None, ctypes.byref(identity))
    call("ncclRedOpCreatePreMulSum", number, at, 7, 1, None)
    call("ncclRedOpDestroy", 0, None)
    call("ncclRedOpDestroy", 77, None)
    call("ncclCommDeregister", None, None)
    call("ncclMemFree", None)
    call("ncclMemAlloc", None, size)
    call("ncclMemAlloc", here, size)
    call("ncclCommRegister", None, at, size, here)
    call("ncclCommWindowRegister", None, at, size, here, 0)
    call("ncclCommWindowDeregister", None, None)
    call("ncclCommSplit", None, 0, 0, here, None)
    call("ncclCommSplit", None, -1, 0, None, None)
    call("ncclCommSuspend", None, 0)
    call("ncclCommResume", None)

    def collectives() -> None:
        for kind, op, root in ((7, 0, 0), (100, 0, 0), (7, 99, 0), (7, 0, -1), (7, 0, 100)):
            call("ncclAllReduce", at, at, size, kind, op, None, None)
            call("ncclReduce", at, at, size, kind, op, root, None, None)
            call("ncclReduceScatter", at, at, size, kind, op, None, None)
            call("ncclBroadcast", at, at, size, kind, root, None, None)
            call("ncclBcast", at, size, kind, root, None, None)
            call("ncclAllGather", at, at, size, kind, None, None)
            call("ncclAlltoAll", at, at, size, kind, None, None)
            call("ncclGather", at, at, size, kind, root, None, None)
            call("ncclScatter", at, at, size, kind, root, None, None)
            call("ncclSend", at, size, kind, root, None, None)
            call("ncclRecv", at, size, kind, root, None, None)
        call("ncclAllReduce", None, None, ctypes.c_size_t(0), 7, 0, None, None)
        call("ncclAllReduceConfig", at, at, size, 7, 0, None, None, None)

    collectives()

    # Groups: an end without a start, nested ones, a simulated end, and errors inside.
    call("ncclGroupEnd")
    call("ncclGroupSimulateEnd", None)
    for _ in range(2):
        call("ncclGroupStart")
        call("ncclGroupStart")
        call("ncclGroupEnd")
        call("ncclGroupEnd")
        call("ncclGroupEnd")
    for info in (SimInfo(24, 0x74685283, 23203, -1.0), SimInfo(24, 5, 23203, -1.0), None):
        call("ncclGroupStart")
        call("ncclGroupSimulateEnd", ctypes.byref(info) if info is not None else None)
        call("ncclGroupEnd")
    call("ncclGroupStart")
    call("ncclAllReduce", at, at, size, 7, 0, None, None)
    call("ncclGroupStart")
    call("ncclGroupEnd")
    call("ncclGroupEnd")
    call("ncclGroupEnd")
    call("ncclGroupStart")
    collectives()
    call("ncclCommInitRank", here, 2, identity, 5)
    call("ncclGroupEnd")
    answers.append(("last error", nccl.ncclGetLastError(None).decode()))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
