"""Several hosts: shared memory inside each, authenticated TCP between them; same conformance, same fault rules."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conformance import COLLECTIVES, NOT_IN_GLOO, run_sweep
from failures import DEATH_ON_HOSTS_S, call_until_error, check_death, check_survivors, connect_all, raised_in_time
from rank_pool import Pending, RankPool, unique_name
from rank_worker import Context

World = Callable[..., RankPool]

SIZE = 4
EVERY = 25
ROUNDINGS = 2  # a narrow type may be rounded once inside a host and once between them
PARTITION_S = 6.0  # heartbeats of half a second, on a busy machine
CUT_S = 15.0  # missing heartbeats tell one side of a cut, unanswered probes the other
SUBNET = "10.213.77"


def host_id(rank: int) -> dict[str, str]:
    return {"TUTTI_HOST_ID": f"host{rank // 2}"}


def host_ranks(ctx: Context) -> tuple[list[int], int]:
    import tutti

    communicator = tutti.get_communicator()
    return sorted(communicator.host_ranks), communicator.host_count


@pytest.fixture(scope="module")
def split_pool(backend: str, store_port: int) -> Iterator[list[RankPool]]:
    """Two hosts of two ranks on this machine, told apart by TUTTI_HOST_ID; made anew after a failure."""
    made: list[RankPool] = []
    yield made
    for pool in made:
        pool.kill()


def current(made: list[RankPool], make: Callable[[], RankPool]) -> RankPool:
    if not made or not made[-1].alive:
        made.append(make())
    return made[-1]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_conformance_of_two_hosts(
    split_pool: list[RankPool], backend: str, store_port: int, seed: int, collective: str
) -> None:
    if backend == "gloo" and collective in NOT_IN_GLOO:
        pytest.skip(f"gloo has no {collective}")
    pool = current(split_pool, lambda: RankPool(SIZE, backend, store_port, env_of=host_id))
    run_sweep(pool, collective, seed, EVERY, ROUNDINGS)


@pytest.mark.tutti_only
def test_host_id_splits_the_machine(fresh_world: World) -> None:
    pool = fresh_world(SIZE, env_of=host_id)
    assert pool.call(host_ranks) == [([0, 1], 2), ([0, 1], 2), ([2, 3], 2), ([2, 3], 2)]


@pytest.mark.tutti_only
def test_every_rank_a_host(fresh_world: World, seed: int) -> None:
    pool = fresh_world(3, env_of=lambda rank: {"TUTTI_HOST_ID": str(rank)})
    for collective in COLLECTIVES:
        run_sweep(pool, collective, seed, 4 * EVERY, 3)


def communicate_within_a_collective(ctx: Context) -> dict[str, Any]:
    """Rank 1's second message ends on rank 0 in the middle of an all_reduce, on the thread that is in it: the thread of
    messages is held in the callback of the first."""
    import tutti

    group = dist.new_group(pg_options=tutti.Options(overlap_futures=True))
    token, one, two = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    outer, inner, later = torch.ones(4), torch.full((4,), 2.0), torch.full((4,), 3.0)
    seen: dict[str, Any] = {}
    queued: list[dist.Work] = []
    held, release = threading.Event(), threading.Event()

    def hold(_: torch.futures.Future[Any]) -> None:
        held.set()
        assert release.wait(30)

    def communicate(_: torch.futures.Future[Any]) -> None:
        seen["on the thread of the call"] = threading.get_ident() == threading.main_thread().ident
        for name, call in (
            ("collective", lambda: dist.all_reduce(inner, group=group)),
            ("object collective", lambda: dist.all_gather_object([None] * ctx.size, 1, group=group)),
        ):
            with pytest.raises(ValueError, match="in the course of another collective of this group"):
                call()
            seen[name] = "refused"
        queued.append(dist.all_reduce(inner, group=group, async_op=True))

    if ctx.rank == 0:
        first = dist.irecv(one, 1, group)
        first.get_future().then(hold)
        second = dist.irecv(two, 1, group)
        second.get_future().then(communicate)
        dist.send(token, 1)
        assert held.wait(30)
        dist.send(token, 1)
        dist.all_reduce(outer, group=group)
        release.set()
        first.wait()
        second.wait()
    else:
        dist.recv(token, 0)
        dist.send(torch.ones(1), 0, group)
        dist.recv(token, 0)
        dist.send(torch.ones(1), 0, group)
        dist.all_reduce(outer, group=group)
        queued.append(dist.all_reduce(inner, group=group, async_op=True))
    queued[0].wait()
    dist.all_reduce(later, group=group)
    seen["results"] = [float(tensor[0]) for tensor in (outer, inner, later)]
    dist.destroy_process_group(group)
    return seen


@pytest.mark.tutti_only
def test_a_callback_makes_no_collective_within_one(fresh_world: World) -> None:
    pool = fresh_world(2, env_of=lambda rank: {"TUTTI_HOST_ID": str(rank)})
    receiver, sender = pool.call(communicate_within_a_collective)
    assert sender == {"results": [2.0, 4.0, 6.0]}
    assert receiver == {
        "on the thread of the call": True,
        "collective": "refused",
        "object collective": "refused",
        "results": [2.0, 4.0, 6.0],
    }


@pytest.mark.tutti_only
@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all_single", "send_recv"])
def test_killed_rank_of_two_hosts(fresh_world: World, collective: str, victim: int) -> None:
    pool = fresh_world(SIZE, env_of=host_id)
    survivors = [rank for rank in range(SIZE) if rank != victim]
    pool.call(connect_all)
    pending = pool.begin(
        call_until_error, collective, 30_000, victim, each=lambda rank: (0.04 if rank == victim else None,)
    )
    death = pending.wait(20, [victim])[victim]
    messages = raised_in_time(pending.wait(15, survivors), death.seconds, DEATH_ON_HOSTS_S, pool)
    check_death(messages, victim, collective)
    check_survivors(pool, survivors)


@pytest.mark.tutti_only
def test_wrong_secret_is_refused(fresh_world: World) -> None:
    """A rank without the secret is no member, and both sides say that it is the secret: nobody has died."""
    pool = fresh_world(
        2,
        env_of=lambda rank: {"TUTTI_HOST_ID": str(rank), "TUTTI_SECRET": f"secret {rank}"},
        open_group=False,
    )
    outcomes = pool.begin(open_and_reduce, unique_name("secret")).wait(30)
    assert all(outcome.kind == "raised" for outcome in outcomes.values()), outcomes
    for rank, outcome in outcomes.items():
        text = outcome.error.message
        assert f"rank {1 - rank} cannot be reached" in text and "TUTTI_SECRET" in text, text


def open_and_reduce(ctx: Context, name: str) -> None:
    import torch

    ctx.init(name, 3)
    dist.all_reduce(torch.ones(3))


class Hosts:
    """Two network namespaces joined by a bridge; the test process is reachable from both."""

    def __init__(self) -> None:
        self.tag = f"tt{os.getpid() % 100000}"
        self.names = [f"{self.tag}a", f"{self.tag}b"]

    def run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)

    def build(self) -> None:
        bridge = f"{self.tag}br"
        self.run("ip", "link", "add", bridge, "type", "bridge")
        self.run("ip", "addr", "add", f"{SUBNET}.1/24", "dev", bridge)
        self.run("ip", "link", "set", bridge, "up")
        for index, name in enumerate(self.names):
            outside = f"{name}v"
            self.run("ip", "netns", "add", name)
            self.run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            self.run("ip", "link", "set", outside, "master", bridge, "up")
            inside = ["ip", "-n", name]
            self.run(*inside, "addr", "add", f"{SUBNET}.{index + 2}/24", "dev", "eth0")
            self.run(*inside, "link", "set", "eth0", "up")
            self.run(*inside, "link", "set", "lo", "up")

    def cut(self, index: int, up: bool = False) -> None:
        self.run("ip", "link", "set", f"{self.names[index]}v", "up" if up else "down")

    def remove(self) -> None:
        for name in self.names:
            with suppress(subprocess.SubprocessError):
                self.run("ip", "link", "del", f"{name}v")
            with suppress(subprocess.SubprocessError):
                self.run("ip", "netns", "del", name)
        with suppress(subprocess.SubprocessError):
            self.run("ip", "link", "del", f"{self.tag}br")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the command ip (iproute2)")
    made = Hosts()
    try:
        try:
            made.build()
        except FileNotFoundError:
            pytest.skip("no ip command (Debian: iproute2)")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no network namespaces: {error.cmd}: {error.stderr.strip()}")
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def host_pools() -> Iterator[list[RankPool]]:
    made: list[RankPool] = []
    yield made
    for pool in made:
        pool.kill()


def namespace_pool(hosts: Hosts, backend: str, store_port: int, **options: Any) -> RankPool:
    return RankPool(
        SIZE,
        backend,
        store_port,
        store_host=f"{SUBNET}.1",
        env={"GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": f"{SUBNET}.1"},  # as a launcher on several hosts would
        netns_of=lambda rank: hosts.names[rank // 2],
        **options,
    )


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_conformance_of_namespaces(
    hosts: Hosts, host_pools: list[RankPool], backend: str, store_port: int, seed: int, collective: str
) -> None:
    """2 hosts of 2 ranks: an unchanged program, only the network between them is real."""
    if backend == "gloo" and collective in NOT_IN_GLOO:
        pytest.skip(f"gloo has no {collective}")
    pool = current(host_pools, lambda: namespace_pool(hosts, backend, store_port))
    run_sweep(pool, collective, seed + 1, EVERY, ROUNDINGS)


@pytest.mark.tutti_only
def test_namespaces_are_hosts(hosts: Hosts, host_pools: list[RankPool], backend: str, store_port: int) -> None:
    pool = current(host_pools, lambda: namespace_pool(hosts, backend, store_port))
    assert pool.call(host_ranks) == [([0, 1], 2), ([0, 1], 2), ([2, 3], 2), ([2, 3], 2)]


@pytest.mark.tutti_only
def test_one_name_joins_no_namespaces(hosts: Hosts, backend: str, store_port: int) -> None:
    """TUTTI_HOST_ID says that all share memory: those that cannot are a host each, and the results are right."""
    pool = namespace_pool(hosts, backend, store_port, env_of=lambda rank: {"TUTTI_HOST_ID": "one"})
    try:
        assert pool.call(host_ranks) == [([0, 1], 3), ([0, 1], 3), ([2], 3), ([3], 3)]
        pool.call(connect_all)
    finally:
        pool.kill()


@pytest.mark.tutti_only
def test_killed_rank_across_namespaces(hosts: Hosts, backend: str, store_port: int) -> None:
    pool = namespace_pool(hosts, backend, store_port)
    try:
        pool.call(connect_all)
        pending = pool.begin(
            call_until_error, "all_reduce", 30_000, 5, each=lambda rank: (0.04 if rank == 2 else None,)
        )
        death = pending.wait(20, [2])[2]
        messages = raised_in_time(pending.wait(15, [0, 1, 3]), death.seconds, DEATH_ON_HOSTS_S, pool)
        check_death(messages, 2, "all_reduce")
        check_survivors(pool, [0, 1, 3])
    finally:
        pool.kill()


@pytest.mark.tutti_only
def test_stopped_rank_across_namespaces(hosts: Hosts, backend: str, store_port: int) -> None:
    """A stopped process keeps its connections: the deadline tells, and names it."""
    pool = namespace_pool(hosts, backend, store_port, group_timeout_s=2.0)
    try:
        pending = pool.begin(call_until_error, "all_reduce", 30_000, 5, None)
        assert pending.wait(0.1, [3])[3].kind == "hung"  # it is busy calling
        pool.send_signal(3, signal.SIGSTOP)
        messages = raised_in_time(pending.wait(20, [0, 1, 2]), 0.1, 2.0 + PARTITION_S, pool)
        assert any(re.search(r"\brank 3\b", message) for message in messages.values()), messages
    finally:
        pool.kill()


@pytest.mark.tutti_only
def test_no_route_names_address_and_setting(hosts: Hosts, backend: str, store_port: int) -> None:
    route = f"{SUBNET}.3/32"  # of the second host
    hosts.run("ip", "-n", hosts.names[0], "route", "add", "unreachable", route)
    pool = namespace_pool(hosts, backend, store_port)
    try:
        outcomes = pool.begin(connect_all).wait(30, [0, 1])
        messages = [outcome.error.message for outcome in outcomes.values()]
        # Who hears of it from the other may not know why.
        told = [text for text in messages if f"no way from here to {SUBNET}.3:" in text]
        assert told and all("TUTTI_SOCKET_IFNAME" in text for text in told), messages
    finally:
        hosts.run("ip", "-n", hosts.names[0], "route", "del", "unreachable", route)
        pool.kill()


@pytest.mark.tutti_only
def test_a_way_that_is_missing_for_a_moment_is_awaited(hosts: Hosts, backend: str, store_port: int) -> None:
    """As behind a link that has just come up: for as long as a rank may take to connect."""
    route = f"{SUBNET}.3/32"  # of the second host
    pool = beating_pool(hosts, backend, store_port)
    hosts.run("ip", "-n", hosts.names[0], "route", "add", "unreachable", route)
    try:
        pending = pool.begin(connect_all)
        assert pending.wait(0.5, [0])[0].kind == "hung"  # it tries
        hosts.run("ip", "-n", hosts.names[0], "route", "del", "unreachable", route)
        pending.results()
    finally:
        with suppress(subprocess.SubprocessError):
            hosts.run("ip", "-n", hosts.names[0], "route", "del", "unreachable", route)
        pool.kill()


@pytest.mark.tutti_only
def test_cut_link(hosts: Hosts, backend: str, store_port: int) -> None:
    """No packet arrives any more and no connection closes: heartbeats tell, on both sides."""
    pool = namespace_pool(hosts, backend, store_port)
    try:
        pending = pool.begin(call_until_error, "all_reduce", 30_000, 5, None)
        assert pending.wait(0.1, [0])[0].kind == "hung"  # it is busy calling
        hosts.cut(1)
        messages = raised_in_time(pending.wait(30), 0.1, CUT_S, pool)
        assert all(re.search(r"\brank [0-3]\b", message) for message in messages.values()), messages
    finally:
        hosts.cut(1, up=True)
        pool.kill()


BEAT_MS = 1000  # TUTTI_HEARTBEAT_MS: a host may be silent for six times as long
SILENCE_S = 6 * BEAT_MS / 1000


def reduce_until_told(ctx: Context, folder: str) -> dict[str, Any]:
    """Calls of both kinds, checked, until the file `end` is there or a call fails; `done` is counted in a file."""
    done, message, over, peer = 0, "", torch.zeros(1), 1 - ctx.rank
    try:
        while not over[0]:
            tensor = torch.full((30_000,), float(ctx.rank + 1))
            dist.all_reduce(tensor)
            assert tensor.eq(ctx.size * (ctx.size + 1) / 2).all()
            got = torch.empty(20_000)
            works = [dist.irecv(got, peer), dist.isend(torch.full((20_000,), float(done)), peer)]
            for work in works:
                assert work is not None
                work.wait()
            assert got.eq(float(done)).all()
            done += 1
            over.fill_(float(os.path.exists(f"{folder}/end")))
            dist.all_reduce(over, dist.ReduceOp.MAX)
            with open(f"{folder}/{ctx.rank}.new", "w") as file:
                file.write(str(done))
            os.replace(f"{folder}/{ctx.rank}.new", f"{folder}/{ctx.rank}")
    except dist.DistBackendError as error:
        message = str(error)
    return {"message": message, "done": done}


def await_progress(pending: Pending, folder: Path, limit_s: float) -> None:
    """Every rank has made a call more than before; else what each returned, or where it hangs."""
    ranks = pending.pool.size

    def counts() -> list[int]:
        return [int((folder / str(rank)).read_text()) if (folder / str(rank)).exists() else 0 for rank in range(ranks)]

    deadline, before = time.monotonic() + limit_s, counts()
    while any(now <= then for now, then in zip(counts(), before, strict=True)):
        outcomes = pending.wait(0.02)
        if time.monotonic() > deadline or any(outcome.kind != "hung" for outcome in outcomes.values()):
            outcomes = pending.wait(2)  # what one rank met tells why the other waits
            values = {rank: outcome.value for rank, outcome in outcomes.items()}
            pytest.fail(f"calls went from {before} to {counts()}: {values}\n{pending.pool.explain(outcomes)}")


def beating_pool(hosts: Hosts, backend: str, store_port: int) -> RankPool:
    return RankPool(
        2,
        backend,
        store_port,
        store_host=f"{SUBNET}.1",
        env={"MASTER_ADDR": f"{SUBNET}.1", "TUTTI_HEARTBEAT_MS": str(BEAT_MS)},
        netns_of=lambda rank: hosts.names[rank],
    )


@pytest.mark.tutti_only
def test_a_cut_shorter_than_the_heartbeat_allows_is_survived(
    hosts: Hosts, backend: str, store_port: int, tmp_path: Path
) -> None:
    """Twice, each half as long: the job stands still, then goes on, with every result right."""
    pool = beating_pool(hosts, backend, store_port)
    try:
        pending = pool.begin(reduce_until_told, str(tmp_path))
        for _ in range(2):
            await_progress(pending, tmp_path, 30)
            hosts.cut(1)
            cut = time.monotonic()
            threading.Event().wait(SILENCE_S / 2)  # what is tried is that nothing happens for this long
            hosts.cut(1, up=True)
            # Transfers go on as long after the cut as it was, with old kernels; the neighbour is looked for besides.
            await_progress(pending, tmp_path, time.monotonic() - cut + 30)
        (tmp_path / "end").touch()
        outcomes = pending.results(60)
        assert all(outcome["message"] == "" for outcome in outcomes), outcomes
        assert outcomes[0]["done"] == outcomes[1]["done"]
    finally:
        hosts.cut(1, up=True)
        pool.kill()


@pytest.mark.tutti_only
def test_a_longer_cut_ends_with_an_error_that_says_so(
    hosts: Hosts, backend: str, store_port: int, tmp_path: Path
) -> None:
    """Not before the silence that the heartbeat allows, and then soon; both sides name the other and the reason."""
    pool = beating_pool(hosts, backend, store_port)
    try:
        pending = pool.begin(reduce_until_told, str(tmp_path))
        await_progress(pending, tmp_path, 30)
        hosts.cut(1)
        cut = time.monotonic() - pending.start
        outcomes = pending.wait(SILENCE_S + 30)
        # A side with nothing under way is told by the keepalive, in multiples of four seconds.
        messages = raised_in_time(outcomes, cut, 2 * SILENCE_S + PARTITION_S, pool)
        assert min(outcome.seconds for outcome in outcomes.values()) - cut > SILENCE_S / 2, outcomes
        for rank, message in messages.items():
            assert f"rank {1 - rank}" in message and "its host does not answer any more" in message, message
    finally:
        hosts.cut(1, up=True)
        pool.kill()
