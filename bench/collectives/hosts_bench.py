"""Times Tutti beside gloo between two hosts of two ranks: network namespaces of this machine, as root.

    chrt -r 5 python bench/collectives/hosts_bench.py --cases all_reduce:65536:40,all_to_all:16777216:2 --rounds 12

A case is collective:bytes:calls. Libraries take turns in one launch, in each round the other way round; results are
checked before. Several builds of Tutti can take turns: `--build before=/folder/with/libtutti.so.0`, for each one.
`chrt -r 5`: other work on the machine then does not count. Every line: medians of the slowest rank's microseconds a
call, of the CPU time of all ranks, of the bytes and packets between the hosts; and gloo's time over it, the median of
the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

RANKS, SUBNET, BRIDGE, HOSTS = 4, "10.214.91", "tuttihb", ["tuttiha", "tuttihc"]


def call_of(collective: str, nbytes: int, group: Any) -> tuple[Callable[[], Any], Callable[[], bool]]:
    """The call, and whether what one has left is right. `nbytes`: of the largest tensor that a rank gives or gets."""
    import torch
    import torch.distributed as dist

    rank, count = dist.get_rank(), max(nbytes // 4, RANKS)
    part, root = count // RANKS, rank == 0
    whole = torch.full((part * RANKS,), float(rank))
    block, out = torch.full((part,), float(rank)), torch.full((part * RANKS,), -1.0)
    data, ones = torch.zeros(count), torch.full((count,), float(rank + 1))  # zeros: sums do not grow from call to call
    got, opposite = torch.full_like(whole, -1.0), (rank + 2) % RANKS  # of the other host
    parts = list(whole.chunk(RANKS))
    wanted = torch.arange(RANKS).repeat_interleave(part)
    total = sum(range(1, RANKS + 1))

    def holds(tensor: Any, value: Any, here: bool = True) -> bool:
        return not here or bool((tensor == value).all())

    def reduced() -> bool:
        dist.all_reduce(ones, group=group)
        return holds(ones, total)

    def reduced_at_root() -> bool:
        dist.reduce(ones, 0, group=group)
        return holds(ones, total, root)

    def exchange() -> None:
        pair = [dist.isend(whole, opposite, group=group), dist.irecv(got, opposite, group=group)]
        for work in pair:
            assert work is not None
            work.wait()

    calls: dict[str, tuple[Callable[[], Any], Callable[[], bool]]] = {
        "all_reduce": (lambda: dist.all_reduce(data, group=group), reduced),
        "broadcast": (lambda: dist.broadcast(whole, 0, group=group), lambda: holds(whole, 0)),
        "reduce": (lambda: dist.reduce(data, 0, group=group), reduced_at_root),
        "all_gather": (lambda: dist.all_gather_into_tensor(out, block, group=group), lambda: holds(out, wanted)),
        "gather": (
            lambda: dist.gather(block, list(out.chunk(RANKS)) if root else None, 0, group=group),
            lambda: holds(out, wanted, root),
        ),
        "scatter": (lambda: dist.scatter(block, parts if root else None, 0, group=group), lambda: holds(block, 0)),
        "reduce_scatter": (
            lambda: dist.reduce_scatter_tensor(block, whole, group=group),
            lambda: holds(block, sum(range(RANKS))),
        ),
        "all_to_all": (lambda: dist.all_to_all_single(out, whole, group=group), lambda: holds(out, wanted)),
        "send_recv": (exchange, lambda: holds(got, opposite)),
        "barrier": (lambda: dist.barrier(group=group), lambda: True),
    }
    if collective not in calls:
        raise SystemExit(f"hosts_bench: no collective {collective}; there are {', '.join(calls)}")
    return calls[collective]


def run_rank() -> None:
    """Reads "library collective bytes calls" a line, answers with a line of JSON."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, RANKS, is_master=False, timeout=timedelta(seconds=60))
    import tutti  # noqa: F401

    own = dist.PrefixStore(os.environ["BENCH_SET"], store)
    dist.init_process_group("gloo", store=own, rank=int(os.environ["RANK"]), world_size=RANKS)
    groups = {"gloo": dist.group.WORLD, "tutti": dist.new_group(backend="tutti")}
    calls: dict[str, Callable[[], Any]] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        library, collective, nbytes, count = line.split()
        key = f"{library} {collective} {nbytes}"
        if key not in calls:
            calls[key], right = call_of(collective, int(nbytes), groups[library])
            calls[key]()
            if not right():
                raise SystemExit(f"hosts_bench: {key}: wrong result")
        call = calls[key]
        dist.barrier(group=groups["gloo"])
        cpu, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        for _ in range(int(count)):
            call()
        took, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        spent = now.ru_utime + now.ru_stime - cpu.ru_utime - cpu.ru_stime
        print(json.dumps({"us": took / int(count) * 1e6, "cpu": spent / int(count) * 1e6}), flush=True)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def remove_hosts() -> None:
    for command in [["link", "del", f"{h}v"] for h in HOSTS] + [["netns", "del", h] for h in HOSTS]:
        subprocess.run(["ip", *command], capture_output=True)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)


def make_hosts() -> None:
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", f"{SUBNET}.1/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for index, host in enumerate(HOSTS):
        run("ip", "netns", "add", host)
        run("ip", "link", "add", f"{host}v", "type", "veth", "peer", "name", "eth0", "netns", host)
        run("ip", "link", "set", f"{host}v", "master", BRIDGE, "up")
        run("ip", "-n", host, "addr", "add", f"{SUBNET}.{index + 2}/24", "dev", "eth0")
        run("ip", "-n", host, "link", "set", "eth0", "up")
        run("ip", "-n", host, "link", "set", "lo", "up")


def sent(what: str) -> int:
    return sum(int(pathlib.Path(f"/sys/class/net/{h}v/statistics/rx_{what}").read_text()) for h in HOSTS)


def start_ranks(name: str, libraries: str, port: int) -> list[subprocess.Popen[str]]:
    ranks = []
    for r in range(RANKS):
        env = dict(os.environ, RANK=str(r), BENCH_SET=name, MASTER_ADDR=f"{SUBNET}.1", MASTER_PORT=str(port))
        env |= {"GLOO_SOCKET_IFNAME": "eth0", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        env |= {"TUTTI_HOST_ID": f"{name}{r // 2}"} | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
        command = ["ip", "netns", "exec", HOSTS[r // 2], sys.executable, __file__, "--rank"]
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True, bufsize=1))
    return ranks


def answers(ranks: list[subprocess.Popen[str]]) -> list[str]:
    lines = [rank.stdout.readline() for rank in ranks if rank.stdout is not None]
    if not all(lines):
        raise SystemExit("hosts_bench: a rank has ended")
    return lines


def measure(ranks: list[subprocess.Popen[str]], library: str, case: list[str]) -> dict[str, float]:
    before = sent("bytes"), sent("packets")
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write(" ".join([library, *case]) + "\n")
    results = [json.loads(line) for line in answers(ranks)]
    calls = int(case[2])
    return {
        "us": max(result["us"] for result in results),
        "cpu": sum(result["cpu"] for result in results),
        "bytes": (sent("bytes") - before[0]) / calls,
        "packets": (sent("packets") - before[1]) / calls,
    }


def compare(sets: dict[str, list[subprocess.Popen[str]]], case: list[str], rounds: int) -> None:
    turns = [(name, "tutti") for name in sets] + [(next(iter(sets)), "gloo")]
    seen: dict[tuple[str, str], list[dict[str, float]]] = {turn: [] for turn in turns}
    for index in range(-1, rounds):  # the first round is not counted
        for turn in turns[:: 1 if index % 2 else -1]:
            result = measure(sets[turn[0]], turn[1], case)
            if index >= 0:
                seen[turn].append(result)
    for turn in turns:
        middle = {what: statistics.median(r[what] for r in seen[turn]) for what in seen[turn][0]}
        ratio = statistics.median(g["us"] / t["us"] for g, t in zip(seen[turns[-1]], seen[turn], strict=True))
        figures = "  ".join(f"{what} {value:.0f}" for what, value in middle.items())
        print(f"{case[0]} {case[1]}  {'gloo' if turn[1] == 'gloo' else turn[0]}:  {figures}  gloo/it {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="all_reduce:65536:40,all_gather:1048576:20,all_to_all:16777216:2")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--build", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return run_rank()
    import torch.distributed as dist

    sets: dict[str, list[subprocess.Popen[str]]] = {}
    remove_hosts()
    try:
        make_hosts()
        store = dist.TCPStore(f"{SUBNET}.1", 0, None, is_master=True, wait_for_workers=False)
        for build in options.build or ["tutti="]:
            name, _, libraries = build.partition("=")
            sets[name] = start_ranks(name, libraries, store.port)
        for ranks in sets.values():
            answers(ranks)
        for case in options.cases.split(","):
            compare(sets, case.split(":"), options.rounds)
    finally:
        for rank in [rank for ranks in sets.values() for rank in ranks]:
            with suppress(OSError):
                if rank.stdin is not None:
                    rank.stdin.close()
            try:
                rank.wait(10)
            except subprocess.TimeoutExpired:
                rank.kill()
        remove_hosts()
    return None


if __name__ == "__main__":
    main()
