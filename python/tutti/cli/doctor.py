"""``tutti doctor``: what this machine can do, found by doing it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tutti import _core
from tutti._interrupts import interrupts_later
from tutti._units import format_bytes, format_simd, format_us
from tutti.cli import doctor_gpu
from tutti.cli.doctor_finding import Finding, Verdict
from tutti.dist.needs_torch import require_torch


def _measured(probe: _core.Probe) -> str:
    if probe.unit == "us":
        return f"{probe.detail}: {format_us(probe.value)}"
    if probe.unit == "bytes":
        return f"{probe.detail}; {'no limit' if probe.value < 0 else format_bytes(probe.value)}"
    if probe.unit:
        number = f"{probe.value:.0f}" if probe.value >= 1000 else f"{probe.value:.3g}"
        return f"{probe.detail}: {number} {probe.unit}"
    return probe.detail


def _judge(check: str, probe: _core.Probe, good: str, bad: str, remedy: str) -> Finding:
    if probe.works:
        return Finding(check, Verdict.GOOD, _measured(probe), good)
    return Finding(check, Verdict.SLOWER, _measured(probe), bad, remedy)


def _cores() -> Finding:
    usable, present = _core.usable_cores(), os.cpu_count() or 1
    found = f"{usable} usable of {present}; kernels for {format_simd(_core.simd_target())}"
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    local = int(said) if said.isdecimal() else 1
    if local > usable:
        return Finding(
            "cores",
            Verdict.SLOWER,
            f"{found}; {local} ranks",
            "ranks share cores: each waits by sleeping, and small messages take tens of microseconds",
            f"start at most {usable} ranks here, or raise the affinity or the container's CPU quota",
        )
    if usable == 1:
        return Finding(
            "cores",
            Verdict.SLOWER,
            found,
            "two ranks take turns on one core",
            "raise the affinity (taskset) or the container's CPU quota",
        )
    return Finding("cores", Verdict.GOOD, found, f"up to {usable} ranks have a core of their own")


def _memory_lock() -> Finding:
    return _judge(
        "memory locks",
        _core.probe_memory_lock(),
        "nothing on one machine needs more; RDMA between machines wants no limit",
        "locked memory is refused; only RDMA between machines needs it",
        "ulimit -l unlimited, or --ulimit memlock=-1 for a container",
    )


def _shared_memory() -> Finding:
    return _judge(
        "shared memory",
        _core.probe_memfd(),
        "ranks of this machine share memory; nothing is put into /dev/shm",
        "ranks cannot share memory and talk over TCP instead, at a tenth of the speed",
        "allow memfd_create and SCM_RIGHTS in the sandbox's system call filter",
    )


def _cross_memory() -> Finding:
    return _judge(
        "peers' memory",
        _core.probe_cross_memory(),
        "the kernel copies from rank to rank at once, where that is measured to pay (`pulled`)",
        "calls that copy go through staging: twice the copies of large all-to-alls and scatters",
        "sysctl kernel.yama.ptrace_scope=0; for a container --cap-add SYS_PTRACE, and no seccomp filter",
    )


def _futex() -> Finding:
    return _judge(
        "futex",
        _core.probe_futex(),
        "what a sleeping rank costs the one that waits for it",
        "sleeping ranks wake only every 100 ms",
        "allow futex in the sandbox's system call filter; give all ranks one kernel (not two virtual machines)",
    )


def _membarrier() -> Finding:
    return _judge(
        "membarrier",
        _core.probe_membarrier(),
        "publishing a word needs no fence",
        "every small message pays for a fence, some 20 ns",
        "allow membarrier in the sandbox's system call filter",
    )


def _pidfd() -> Finding:
    return _judge(
        "pidfd",
        _core.probe_pidfd(),
        "the death of a rank is seen at once",
        "the death of a rank is seen by missed heartbeats only",
        "Linux 5.3 or newer; allow pidfd_open in the sandbox's system call filter",
    )


def _huge_pages() -> Finding:
    return _judge(
        "huge pages",
        _core.probe_huge_pages(),
        "large tensors take few TLB entries",
        "large tensors are touched 4 KB at a time",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _shared_huge_pages() -> Finding:
    return _judge(
        "huge pages, shared",
        _core.probe_shared_huge_pages(),
        "mapped tensors come in huge pages",
        "the first touch of a mapped tensor is slow (64 MB: some 50 ms); later ones are not",
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    )


def _arena() -> Finding:
    return _judge(
        "mapped tensors",
        _core.probe_arena(),
        "tutti.empty and the shared allocator have this address space",
        "tutti.empty gives ordinary tensors, and every call copies through staging",
        "raise the limit of address space (ulimit -v), or set TUTTI_ARENA_BYTES to less",
    )


def _descriptors() -> Finding:
    return _judge(
        "descriptors",
        _core.probe_descriptors(),
        "enough for hundreds of groups",
        "many groups of many ranks may run out of descriptors",
        "ulimit -n 65536",
    )


def _interfaces() -> list[Finding]:
    findings = []
    for probe in _core.probe_interfaces():
        findings.append(
            _judge(
                f"interface {probe.name}",
                probe.transfer,
                f"{probe.address}: for " + ("ranks of this machine" if probe.loopback else "ranks of other machines"),
                f"{probe.address} carries no TCP",
                "look at the firewall; choose another with TUTTI_SOCKET_IFNAME",
            )
        )
    if not any(finding.verdict is Verdict.GOOD for finding in findings):
        findings.append(
            Finding(
                "interfaces",
                Verdict.BROKEN,
                "none carries TCP",
                "ranks cannot meet",
                "ip link set lo up",
            )
        )
    return findings


def _names() -> Finding:
    """What PyTorch's TCPStore asks at both ends of each connection, in the form in which it asks."""
    patience, start = 2.0, time.monotonic()

    def look_up() -> None:
        with contextlib.suppress(OSError):  # no name is an answer, too
            socket.getnameinfo(("::ffff:127.0.0.1", 0, 0, 0), 0)

    looking = threading.Thread(target=look_up, daemon=True)
    looking.start()
    looking.join(patience)
    took = time.monotonic() - start
    if took < 0.1:
        return Finding(
            "names", Verdict.GOOD, f"of 127.0.0.1: {format_us(took * 1e6)}", "ranks here reach PyTorch's stores at once"
        )
    return Finding(
        "names",
        Verdict.SLOWER,
        f"of 127.0.0.1: {'more than ' if looking.is_alive() else ''}{took:.2g} s",
        "PyTorch's stores look up names of addresses: ranks wait for that when they meet",
        "a name server that answers, or lines like '::ffff:127.0.0.1 localhost' in /etc/hosts, for each host's address",
    )


def _settings() -> Finding:
    try:
        count = sum(name.startswith("TUTTI_") for name in os.environ)
        _core.config()
    except ValueError as error:
        return Finding("settings", Verdict.BROKEN, str(error), "no group can be made", "correct or unset the variable")
    return Finding("settings", Verdict.GOOD, f"{count} TUTTI_ variables set", "all of them can be read")


def _torch_group() -> Finding:
    """Two processes form a group and reduce; what users will do, with nothing left out."""
    try:
        require_torch()
    except ImportError as error:
        return Finding("torch group", Verdict.SLOWER, "not there", "tutti.Communicator works without it", str(error))
    with tempfile.TemporaryDirectory(prefix="tutti-doctor-") as folder:
        command = [sys.executable, "-m", "tutti.cli.doctor_rank", folder]
        ranks: list[subprocess.Popen[str]] = []
        said, failures = [], []
        try:
            for number in range(2):
                with interrupts_later():  # which would lose the rank that is being started
                    rank = subprocess.Popen(
                        [*command, str(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                    )
                    ranks.append(rank)
            for rank in ranks:
                try:
                    out, err = rank.communicate(timeout=120)
                except subprocess.TimeoutExpired:
                    rank.kill()
                    out, err = rank.communicate()
                    err += "\nno answer within 120 s"
                if rank.returncode != 0:
                    failures.append((err.strip().splitlines() or ["killed"])[-1])
                said.append(out.strip())
        finally:
            for rank in ranks:
                rank.kill()  # where Ctrl-C has ended the wait
                rank.wait()
    if failures:
        return Finding(
            "torch group",
            Verdict.BROKEN,
            failures[0],
            "init_process_group('tutti') does not work here",
            "if it is an import error, install the package again: it is built for one Python and one torch",
        )
    return Finding("torch group", Verdict.GOOD, said[0], "2 processes made a group and the result was right")


CHECKS: tuple[Callable[[], Finding | list[Finding]], ...] = (
    _settings,
    _cores,
    _shared_memory,
    _cross_memory,
    _futex,
    _membarrier,
    _pidfd,
    _memory_lock,
    _huge_pages,
    _shared_huge_pages,
    _descriptors,
    _interfaces,
    _names,
    _arena,
)


def examine(quick: bool, console: Console) -> list[Finding]:
    """Runs all checks, with a line on the terminal that says which."""
    findings: list[Finding] = []
    checks = CHECKS if quick else (*CHECKS, _torch_group)
    with console.status("") as status:
        for check in checks:
            status.update(f"checking {check.__name__.strip('_').replace('_', ' ')} ...")
            result = check()
            findings += result if isinstance(result, list) else [result]
        status.update("checking GPUs ...")
        findings += doctor_gpu.findings(quick)
    return findings


def run(quick: bool) -> int:
    """Prints the report; 1 if something makes Tutti unusable."""
    console = Console()
    findings = examine(quick, console)
    table = Table(box=None, pad_edge=False)
    table.add_column("check", style="bold", no_wrap=True)
    table.add_column("")
    table.add_column("found", overflow="fold")
    table.add_column("what it means", overflow="fold")
    for finding in findings:
        table.add_row(finding.check, finding.verdict.value, escape(finding.found), finding.meaning)
    console.print(table)
    remedies = [finding for finding in findings if finding.remedy]
    if remedies:
        console.print("\n[bold]What could be done[/bold]")
        for finding in remedies:
            # On one line each, however long: a command can be pasted.
            console.print(f"  {finding.check}: {escape(finding.remedy)}", highlight=False, soft_wrap=True)
    broken = [finding.check for finding in findings if finding.verdict is Verdict.BROKEN]
    if broken:
        console.print(f"\n[red]Tutti cannot work here[/red]: {', '.join(broken)}.")
        return 1
    console.print("\nTutti works here.")
    return 0
