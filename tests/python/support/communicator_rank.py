"""One rank of the communicator's tests: a process without torch. Its arguments name what it does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np

import tutti


def data(rank: int, count: int, dtype: Any) -> Any:
    """What a rank gives: small whole numbers, so that sums are exact in every type."""
    return ((np.arange(count) + 3 * rank) % 5 + 1).astype(dtype)


def every_collective(comm: tutti.Communicator) -> None:
    """Against NumPy, in several types and sizes, in place and not."""
    n, me = comm.size, comm.rank
    for dtype in (np.float32, np.float64, np.float16, np.int32, np.uint8, np.complex64):
        for count in (0, 1, 7, 5000):
            parts = [data(r, count, dtype) for r in range(n)]
            whole = np.concatenate(parts)
            total = np.sum(parts, axis=0, dtype=dtype)
            check(comm.all_reduce(parts[me].copy()), total)
            check(comm.all_reduce(parts[me], np.empty(count, dtype)), total)
            check(comm.broadcast(parts[me].copy(), root=n - 1), parts[n - 1])
            check(comm.all_gather(parts[me], np.empty(count * n, dtype)), whole)
            gathered = comm.gather(parts[me], np.empty(count * n, dtype) if me == 0 else None, root=0)
            reduced = comm.reduce(parts[me].copy(), root=n - 1)
            if me == 0:
                check(gathered, whole)
            if me == n - 1:
                check(reduced, total)
            check(comm.scatter(whole if me == 0 else None, np.empty(count, dtype)), parts[me])
            blocks = np.concatenate([data(me + r, count, dtype) for r in range(n)])
            check(
                comm.reduce_scatter(blocks, np.empty(count, dtype)),
                np.sum([data(r + me, count, dtype) for r in range(n)], axis=0, dtype=dtype),
            )
            expected = np.concatenate([data(r + me, count, dtype) for r in range(n)])
            check(comm.all_to_all(blocks, np.empty(count * n, dtype)), expected)
    check(comm.all_reduce(np.full(3, me), op="max"), np.full(3, n - 1))
    comm.barrier()


def check(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(got, wanted)


def messages(comm: tutti.Communicator) -> None:
    """Around the ring, and from anybody."""
    n, me = comm.size, comm.rank
    sent, got = data(me, 1000, np.int64), np.empty(1000, np.int64)
    if me == 0:
        comm.send(sent, 1 % n, tag=7)
    assert comm.recv(got, (me - 1) % n, tag=7) == (me - 1) % n
    if me != 0:
        comm.send(sent, (me + 1) % n, tag=7)
    check(got, data((me - 1) % n, 1000, np.int64))
    if me == 0:
        assert sorted(comm.recv(np.empty(2)) for _ in range(n - 1)) == list(range(1, n))
    else:
        comm.send(np.empty(2), 0)


def refusals(comm: tutti.Communicator) -> None:
    """What is refused leaves the group usable."""
    over, other, whole = np.ones(4 * comm.size + 4), (comm.rank + 1) % comm.size, np.ones(4 * comm.size)
    for bad, error in (
        (lambda: comm.all_reduce(np.ones((4, 4))[:, 1]), ValueError),
        (lambda: comm.all_reduce(np.ones(4), np.empty(5)), ValueError),
        (lambda: comm.all_reduce(np.ones(4), np.empty(4, np.float32)), ValueError),
        (lambda: comm.all_reduce(np.ones(4), op="median"), ValueError),
        (lambda: comm.all_reduce(np.ones(4, np.bool_), op="avg"), ValueError),
        (lambda: comm.broadcast(np.ones(4), root=comm.size), ValueError),
        (lambda: comm.scatter(np.ones(comm.size + 1), np.empty(1), root=comm.rank), ValueError),
        (lambda: comm.send(np.ones(1), comm.size), ValueError),
        (lambda: comm.all_reduce(np.ones(1), timeout=-1), ValueError),
        (lambda: comm.all_reduce("text"), ValueError),
        (lambda: comm.all_reduce(np.ones(4), op="premul_sum"), ValueError),
        (lambda: comm.all_reduce(over[:4], over[1:5]), ValueError),
        (lambda: comm.all_gather(over[1:5], over[: 4 * comm.size]), ValueError),
        (lambda: comm.reduce(np.ones(0), np.ones(4), root=other), ValueError),
        (lambda: comm.gather(np.ones(0), whole, root=other), ValueError),
        (lambda: comm.scatter(whole, np.ones(0), root=other), ValueError),
        (lambda: tutti.Communicator(comm.store, comm.rank, comm.size, name="no time", timeout=0), ValueError),
        (lambda: tutti.Communicator(comm.store, comm.rank, 10**9, name="too many", timeout=1), ValueError),
    ):
        try:
            bad()
        except error:
            continue
        raise AssertionError("not refused")
    check(comm.all_reduce(np.ones(4)), np.full(4, comm.size))


def unusable(comm: tutti.Communicator) -> None:
    """Arguments that are no arrays of numbers, or that must not be written: named, with what to pass instead."""
    ones, me, n = np.ones(4), comm.rank, comm.size
    frozen = np.ones(4)
    frozen.flags.writeable = False
    text = bytes(32)
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/file.npy", ones)
        mapped = np.load(f"{folder}/file.npy", mmap_mode="r")
    swapped = np.ones(4, np.dtype(np.float64).newbyteorder())
    structured = np.ones(4, [("x", "f8"), ("y", "f8")])
    objects = np.ones(4, object)
    dates = np.zeros(4, "datetime64[s]")
    read_only = (frozen, mapped, text, memoryview(text), np.float64(3))
    for array in read_only:
        words = "scalar" if isinstance(array, np.generic) else "read-only"
        refused(lambda array=array: comm.all_reduce(array), "the input is", words)
        refused(lambda array=array: comm.all_reduce(ones, array), "the output is", words)
        refused(lambda array=array: comm.recv(array, (me + 1) % n), "the message is", words)
    refused(lambda: comm.broadcast(frozen, root=(me + 1) % n), "the array is", "read-only", ".copy()")
    refused(lambda: comm.reduce(frozen, root=me), "the input is", "read-only")
    refused(lambda: comm.all_gather(np.ones(1), frozen[:n]), "the output is", "read-only")
    for array, words, remedy in (
        (swapped, "byte order", "newbyteorder"),
        (structured, "structured", "field"),
        (objects, "Python objects", "astype"),
        (dates, "datetime64", "view(numpy.int64)"),
        (np.array(["a"]), "<U1", "view(numpy.uint8)"),
        (np.ones(4, np.longdouble), "wider than", "astype(numpy.float64)"),
        (np.ones(4, np.clongdouble), "wider than", "astype(numpy.complex128)"),
        ([1.0] * 4, "list", "numpy.array"),
        ((1.0,) * 4, "tuple", "numpy.array"),
        (3.0, "scalar", "array"),
        (3, "scalar", "array"),
        ("text", "no array", "NumPy"),
        ({1: 2}, "no array", "NumPy"),
    ):
        refused(lambda array=array: comm.all_reduce(array), "the input is", words, remedy)
        refused(lambda array=array: comm.all_reduce(ones, array), "the output is", words, remedy)
        refused(lambda array=array: comm.send(array, (me + 1) % n), "the message is", words, remedy)
    refused(lambda: comm.send(None, (me + 1) % n), "the message is None")
    for op, words in (("median", "median"), (np.divide, "divide"), (print, "print"), (None, "None")):
        refused(lambda op=op: comm.all_reduce(ones, op=op), words, "max")
    assert (ones == 1).all() and (frozen == 1).all() and text == bytes(32)
    # What is only read may be read-only, and nothing above has cost the group anything.
    check(comm.all_reduce(frozen, np.empty(4)), np.full(4, n))
    check(comm.broadcast(frozen if me == 0 else np.zeros(4)), ones)
    summed = comm.reduce(np.ones(4) if me == 0 else frozen)
    check(summed, np.full(4, n) if me == 0 else ones)
    check(comm.all_gather(text, np.empty(32 * n, np.uint8)), np.zeros(32 * n))
    for op in ("MAX", "Max", np.maximum):
        check(comm.all_reduce(np.full(3, me), op=op), np.full(3, n - 1))
    check(comm.all_reduce(np.full(3, me + 1), op=np.minimum), np.ones(3))
    check(comm.all_reduce(np.full(3, 2), op=np.multiply), np.full(3, 2**n))


def of_ctypes(comm: tutti.Communicator) -> None:
    """Arrays of ctypes, whose buffers say no strides: as inputs, outputs and messages, of one dimension and of two."""
    n, me = comm.size, comm.rank
    right, left = (me + 1) % n, (me - 1) % n
    table = ctypes.c_int32 * 3 * 2
    for array, other in (
        ((ctypes.c_double * 3)(1, 2, 3), RawArray("d", 3)),
        (table((1, 2, 3), (4, 5, 6)), table()),
        ((ctypes.c_uint8 * 3)(1, 2, 3), (ctypes.c_uint8 * 3)()),
    ):
        given = np.array(array)
        check(comm.all_reduce(array, other), n * given)
        check(other, n * given)
        check(array, given)
        check(comm.broadcast(other if me else array), given)
        comm.send(array, right)
        assert comm.recv(other, left) == left
        check(other, given)
        check(comm.all_reduce(array), n * given)
        check(comm.all_gather(array, np.empty((n, *given.shape), given.dtype)), np.stack([n * given] * n))
    pairs = type("Pair", (ctypes.Structure,), {"_fields_": [("x", ctypes.c_double), ("y", ctypes.c_double)]}) * 3
    refused(lambda: comm.send(pairs(), right), "the message (Pair_Array_3) cannot be read", "numpy.array")
    refused(lambda: comm.recv(ctypes.c_char_p(b"text"), left), "the message (c_char_p)")


def refused(call: Callable[[], Any], *words: str) -> None:
    """With a message that has these words."""
    try:
        call()
    except ValueError as error:
        assert all(word in str(error) for word in words), (words, str(error))
    else:
        raise AssertionError(f"not refused: {words}")


def closed(comm: tutti.Communicator) -> None:
    """A call after ``close()`` says so; another ``close()`` does nothing."""
    with tutti.Communicator(comm.store, comm.rank, comm.size, name="closing") as other:
        other.barrier()
    for call in (
        lambda: other.all_reduce(np.ones(1)),
        other.barrier,
        lambda: other.send(np.ones(1), 0),
        lambda: other.recv(np.ones(1)),
    ):
        try:
            call()
        except RuntimeError as error:
            assert "'closing' has been closed" in str(error), error
        else:
            raise AssertionError("not refused")
    other.close()
    comm.barrier()


def several(comm: tutti.Communicator) -> None:
    """A second group over the first one's store."""
    with tutti.Communicator(comm.store, comm.size - 1 - comm.rank, comm.size, name="reversed") as other:
        check(other.broadcast(np.full(2, other.rank), root=0), np.zeros(2))
    comm.barrier()


def loss(comm: tutti.Communicator) -> None:
    """A rank dies; the others learn which."""
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            comm.all_reduce(np.ones(100))
    except RuntimeError as error:
        assert "rank 1" in str(error) and "all_reduce" in str(error), error


def new_id(comm: tutti.Communicator) -> bytes:
    """Of rank 0, on all ranks."""
    given = tutti.make_id("localhost") if comm.rank == 0 else bytes(128)
    return bytes(comm.broadcast(np.frombuffer(given, np.uint8).copy()).tobytes())


def by_id(comm: tutti.Communicator) -> None:
    """A group without a store, its parts and theirs."""
    n, me = comm.size, comm.rank
    with tutti.Communicator.from_id(new_id(comm), me, n, name="by id", timeout=20) as group:
        assert (group.rank, group.size, group.store) == (me, n, None)
        check(group.all_reduce(np.full(2, me + 1)), np.full(2, n * (n + 1) // 2))
        part = group.split(None if me == 1 else 5, -me)
        assert (part is None) == (me == 1)
        if part is not None:
            assert (part.rank, part.size) == (0 if me == 2 else 1, 2)
            check(part.broadcast(np.full(2, me)), np.full(2, 2))
            alone = part.split(me, name="alone")
            assert alone is not None and alone.size == 1
            check(alone.all_reduce(np.ones(2)), np.ones(2))
        refused(lambda: group.split(-1), "a color is 0 or more")
        refused(group.shrink, "without a store")
        refused(lambda: group.shrink(bytes(128)), "no id of a group")
        refused(lambda: group.shrink(b"short"), "no id of a group")
        refused(lambda: tutti.Communicator.from_id(b"short", me, n), "no id of a group")
        refused(lambda: tutti.make_id("x" * 81), "address")
        group.barrier()


def one_cannot_join(comm: tutti.Communicator) -> None:
    """By an id, for what it alone reads or is given: all hear who and why, long before their time is over."""
    me, n = comm.rank, comm.size
    for setting, own, text in (
        ({"TUTTI_STAGE_BYTES": "x"}, {}, "TUTTI_STAGE_BYTES=x is not valid"),
        ({}, {"timeout": -1}, "not negative"),
        ({}, {"rank": n}, f"rank {n} of {n}"),
    ):
        id, given = new_id(comm), {"rank": me, "size": n, "timeout": 600}
        if me == 1:
            os.environ.update(setting)
            given.update(own)
        try:
            tutti.Communicator.from_id(id, **given)
        except (ValueError, RuntimeError) as error:
            assert text in str(error), error
            assert isinstance(error, ValueError if me == 1 else RuntimeError), error
            assert me == 1 or f"rank {own.get('rank', 1)} cannot join the group of rank {me}" in str(error), error
        else:
            raise AssertionError(f"it formed, in spite of {setting or own}")
        for name in setting:
            os.environ.pop(name, None)
        comm.barrier()


def shrinks(comm: tutti.Communicator) -> None:
    """A rank dies; the others go on, by a new id or in the store, and so do those of a part."""
    me = comm.rank
    group = tutti.Communicator.from_id(new_id(comm), me, comm.size, timeout=20)
    part = comm.split(0 if me < 3 else None)
    second = new_id(comm)
    comm.barrier()
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for broken, rest, id in ((group, [0, 2, 3], second), (comm, [0, 2, 3], None), (part, [0, 2], None)):
        if broken is None:
            continue
        try:
            while True:
                broken.all_reduce(np.ones(100))
        except RuntimeError as error:
            assert "rank 1" in str(error), error
        smaller, members = broken.shrink(id, timeout=5)
        assert (members, smaller.size) == (rest, len(rest)), members
        check(smaller.all_reduce(np.full(2, me)), np.full(2, sum(rest)))
        halves = smaller.split(smaller.rank % 2)
        assert halves is not None
        check(halves.broadcast(np.full(2, me)), np.full(2, rest[smaller.rank % 2]))
        smaller.close()
        broken.close()


def apart(comm: tutti.Communicator) -> None:
    """What one rank is refused counts on none: the ranks meet in the groups that they make after it."""
    everybody = list(range(comm.size))

    def one_is_refused(group: tutti.Communicator) -> None:
        if group.rank != 1:
            return
        for call in (
            lambda: group.split(2**40),
            lambda: group.split(0, 2**40),
            lambda: group.split(0, name=3),  # type: ignore[arg-type]
            lambda: group.shrink(timeout=-1),
            lambda: group.shrink(timeout=float("nan")),
            lambda: group.shrink(timeout="1"),  # type: ignore[arg-type]
            lambda: group.shrink(b"short"),
            lambda: group.shrink(bytes(128)),
            lambda: group.shrink("text"),  # type: ignore[arg-type]
        ):
            try:
                call()
            except (ValueError, TypeError):
                continue
            raise AssertionError("not refused")

    one_is_refused(comm)
    part = comm.split(0)
    assert part is not None
    one_is_refused(part)
    second = part.split(0, -part.rank)
    assert second is not None
    for group in (second, part, comm):
        one_is_refused(group)
        smaller, members = group.shrink(timeout=10)
        assert members == everybody, members
        check(smaller.all_reduce(np.ones(2)), np.full(2, comm.size))
        smaller.close()


def again(comm: tutti.Communicator) -> None:
    """Groups beside and after the first, each found by the environment; torchrun's store needs torch."""
    for _ in range(2):
        with tutti.Communicator(timeout=20) as beside:
            x = np.full(3, beside.rank + 1.0)
            beside.all_reduce(x)
            comm.all_reduce(x)
            assert (x == beside.size**2 * (beside.size + 1) / 2).all(), x


def mismatch(comm: tutti.Communicator) -> None:
    """Different calls name each other."""
    try:
        if comm.rank == 0:
            comm.all_reduce(np.ones(8))
        else:
            comm.broadcast(np.ones(8))
        raise AssertionError("not seen")
    except RuntimeError as error:
        assert "all_reduce" in str(error) and "broadcast" in str(error), error


if __name__ == "__main__":
    with tutti.Communicator(timeout=20) as communicator:
        for task in sys.argv[1:]:
            globals()[task](communicator)
    with_torch = "again" in sys.argv  # torchrun's store is torch's
    assert ("torch" in sys.modules) == with_torch, "torch was loaded"
    print("done")
