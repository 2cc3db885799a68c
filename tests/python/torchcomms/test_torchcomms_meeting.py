"""Communicators that are given no store: how ranks meet, and what they say where they cannot. Needs no torchcomms."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread, Timer

import pytest
import torch
import torch.distributed as dist
from launching import free_port
from rank_pool import RankPool
from rank_worker import Context

import tutti.dist.backend  # noqa: F401 - there may be no descriptor for it later
from tutti.dist import meeting
from tutti.dist.needs_torch import load
from tutti.dist.torchcomms import make_group

World = Callable[..., RankPool]
pytestmark = pytest.mark.tutti_only
SHORT, LONG = timedelta(seconds=1), timedelta(seconds=30)


def held_open() -> tuple[list[str], int]:
    """Sockets and the rest, and threads."""
    files = []
    for one in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the list's own
            files.append(os.readlink(f"/proc/self/fd/{one}"))
    return sorted(files), len(os.listdir("/proc/self/task"))


def join(ctx: Context, key: str, anew: bool, limit: timedelta = LONG, left: int = -1) -> str:
    """What is raised, which has left nothing behind; empty: a sum is right."""
    before = held_open()
    try:
        with descriptors(left) if left >= 0 else nullcontext():
            group, _ = make_group(None, ctx.rank, ctx.size, key, limit, {}, anew)
    except RuntimeError as error:
        said = str(error)
    else:
        x = torch.ones(3)
        group.allreduce([x]).wait()
        assert x.tolist() == [ctx.size] * 3
        group.abort()
        return ""
    assert held_open() == before, said
    return said


def arrive(ctx: Context, name: str, absent: int = -1) -> None:
    """All go on together, with what is loaded and what libuv keeps for the whole process."""
    load()
    dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    store = ctx.store(name)
    store.set(str(ctx.rank), "")
    store.wait([str(r) for r in range(ctx.size) if r != absent])


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """So many of them can be had, and no more."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1 + left, limits[1]))
    try:
        while True:
            try:
                taken.append(os.dup(2))
            except OSError:
                break
        for one in taken[:left]:
            os.close(one)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in taken[left:]:
            os.close(one)


def wanting(ctx: Context, ports: list[int]) -> list[tuple[str, str]]:
    """Each case at a port of its own. All try again at once."""
    outcomes = []
    for port, (odd, left, anew) in zip(ports, WANTING, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        arrive(ctx, f"wanting {port}")
        first = join(ctx, f"first {port}", anew, SHORT, left if ctx.rank == odd else -1)
        # Of the ranks' common store any try of one rank may meet any of another.
        outcomes.append((first, join(ctx, f"{'second' if anew else 'first'} {port}", anew) if first else ""))
    return outcomes


WANTING = [(0, 0, True), (0, 9, False), (2, 0, False), (2, 0, True)]  # of which rank, descriptors left, anew


def world(fresh_world: World) -> RankPool:
    return fresh_world(3, open_group=False, env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})


def test_want_of_descriptors_is_named_and_all_can_try_again(fresh_world: World) -> None:
    said = world(fresh_world).call(wanting, [free_port() for _ in WANTING])
    for case, (odd, left, anew) in enumerate(WANTING):
        for rank, (first, second) in enumerate(each[case] for each in said):
            told = f"rank {odd} has no store" if rank == odd else "rank 0 has not" if odd == 0 else "ranks [2] have not"
            # Rank 0 may have taken one rank's connection and not the other's.
            half = odd == 0 and rank != 0 and "or rank 0 has none for them" in first
            alone = anew or rank == odd or first
            assert not alone or ((told in first or half) and "ulimit -n" in first), (odd, left, anew, rank, first)
            assert second == "", (odd, left, anew, rank, second)


def without(ctx: Context, absent: int) -> str:
    if ctx.rank == absent:
        return ""
    arrive(ctx, f"without {absent}", absent)
    return join(ctx, f"without {absent}", True, SHORT)


def at_a_port_in_use(ctx: Context) -> tuple[str, str]:
    """By what says nothing, as a child does that a rank has forked while it served a store."""
    dual = socket.has_dualstack_ipv6()  # else the other family's may be free
    where = ("", int(os.environ["MASTER_PORT"]) if ctx.rank == 1 else 0)
    with socket.create_server(where, family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual):
        arrive(ctx, "in use")
        first = join(ctx, "in use", False, SHORT)
    return first, join(ctx, "free", False)


def test_who_does_not_come_and_a_port_in_use_are_named(fresh_world: World) -> None:
    pool = world(fresh_world)
    for absent, told in ((0, "rank 0 has not come to 127.0.0.1:"), (2, "ranks [2] have not come")):
        for rank, said in enumerate(pool.call(without, absent)):
            assert told in said or rank == absent, said
    for rank, (first, second) in enumerate(pool.call(at_a_port_in_use)):
        assert ("EADDRINUSE" if rank == 0 else "does not answer") in first, first
        assert second == ""


def held(ctx: Context) -> tuple[str, str]:
    """Rank 2 has read where the ranks' own store is, and comes there when rank 1 has given up."""
    told, store = ctx.store("held"), dist.TCPStore

    class Held(store):  # type: ignore[misc,valid-type]
        def __init__(self, host: str, port: int, *arguments: object, **options: object) -> None:
            if ctx.rank == 2 and port != int(os.environ["MASTER_PORT"]):
                told.set("2 has read", "")
                told.wait(["1 has given up"])
            super().__init__(host, port, *arguments, **options)

        def set(self, key: str, value: str) -> None:
            if key.endswith("1/read"):  # rank 0 waits for it
                told.set("1 has given up", "")
                told.wait(["2 has signed in"])
            super().set(key, value)
            if key.endswith("2/read"):
                told.set("2 has signed in", "")

    arrive(ctx, "held")
    if ctx.rank == 1:
        told.wait(["2 has read"])
    dist.TCPStore = Held  # type: ignore[misc]
    try:
        first = join(ctx, "held", False, SHORT if ctx.rank == 1 else LONG)
    finally:
        dist.TCPStore = store  # type: ignore[misc]
    return first, join(ctx, "held", False) if first else ""


def test_a_meeting_that_has_ended_is_not_the_end_for_who_has_time(fresh_world: World) -> None:
    first, second = zip(*world(fresh_world).call(held), strict=True)
    assert "rank 1 has given up: ranks [2]" in first[1] and first[0] == first[2] == "", first
    assert second == ("", "", "")


NAME_S = 1.1  # what looking up a name takes


def slow_names(ctx: Context, resolver: str) -> str | None:
    """Where that is longer than rank 0 waits for what may be wanting; None: not allowed here."""
    arrive(ctx, "slow names")
    if not mounted(resolver, "/etc/resolv.conf"):
        return None
    start = time.monotonic()
    socket.getnameinfo(("::ffff:127.0.0.1", 0, 0, 0), 0)
    if time.monotonic() - start < NAME_S:
        return None  # others know it here
    meeting._PATIENCE_S = 1.0
    return join(ctx, "slow names", True)


def mounted(file: str, over: str) -> bool:
    """For this thread and those that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespaces, private, bind = 0x20000, 0x44000, 0x1000  # CLONE_NEWNS, MS_REC | MS_PRIVATE, MS_BIND
    return (
        libc.unshare(namespaces) == 0
        and libc.mount(None, b"/", None, ctypes.c_ulong(private), None) == 0
        and libc.mount(file.encode(), over.encode(), None, ctypes.c_ulong(bind), None) == 0
    )


def answer_late(server: socket.socket) -> None:
    """That there is no such name."""
    with suppress(OSError):  # it is closed
        while True:
            query, who = server.recvfrom(512)
            Timer(NAME_S, server.sendto, (query[:2] + b"\x81\x83" + query[4:], who)).start()


def test_ranks_meet_where_a_name_server_is_slow(fresh_world: World, tmp_path: Path) -> None:
    """PyTorch's stores look up a name of the address of each connection, at both ends."""
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.253\n")
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RES_OPTIONS": "timeout:20 attempts:1"}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        try:
            server.bind(("127.0.0.253", 53))
        except OSError as error:
            pytest.skip(f"no name server can be put up: {error}")
        Thread(target=answer_late, args=(server,), daemon=True).start()
        said = fresh_world(2, open_group=False, env=env).call(slow_names, str(resolver))
    if None in said:
        pytest.skip("a process cannot be given another name server here")
    assert said == ["", ""]


def test_an_address_of_another_machine_is_named_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(address: tuple[bytes, int], timeout: float) -> None:
        assert address[0] == b"192.0.2.1" and timeout <= meeting._PATIENCE_S
        raise TimeoutError("timed out")

    monkeypatch.setattr(meeting, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(socket, "create_connection", nobody)  # what answers at which address is the network's affair
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"MASTER_ADDR is 192\.0\.2\.1, which does not lead to this machine"):
        meeting.meet(0, 2, LONG, "here", once=False)
    assert time.monotonic() - start < LONG.total_seconds() / 2, "told by the limit of time"


def test_an_address_that_is_none_is_refused_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    for port, said in {"": "MASTER_ADDR and MASTER_PORT are not set", "soon": "MASTER_PORT is 'soon'"}.items():
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(ValueError, match=said):
            meeting.meet(0, 2, timedelta(seconds=1), "here", once=True)
