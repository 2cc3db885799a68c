"""One rank of the tests of what communicators are given, and of ranks that differ: a process without torch."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
from algorithms_rank import check, data, defaults_of, refused, run, spec, switch, total

import tutti
from tutti.language import AlgoSpec, AllReduce
from tutti.language.builtins import ring_all_reduce


def ran(comm: tutti.Communicator) -> set[str]:
    """Names of the algorithms that have run all_reduce so far."""
    return {row["algorithm"] for row in comm.metrics()["rows"] if row["collective"] == "all_reduce" and row["calls"]}


def registered(comm: tutti.Communicator) -> None:
    """What a communicator's own builder holds takes the calls that fit; another communicator is not disturbed."""
    with tutti.Communicator(comm.store, comm.rank, comm.size, name="other") as other:
        builder = tutti.AlgorithmCollectionBuilder(comm)
        assert builder is tutti.AlgorithmCollectionBuilder(comm)
        assert builder is not tutti.AlgorithmCollectionBuilder(other)
        builder.add_algorithm_builder(tutti.compile(switch, spec(comm, max_message_size=4096), comm.rank))
        wanted = tutti.compile(ring_all_reduce, AlgoSpec("second", AllReduce(comm.size, 1)), comm.rank)
        builder.add_algorithm_builder(tutti.AlgorithmBuilder(lambda: wanted))
        collection = builder.build()
        assert [a.name for a in collection] == ["mine", "second"] and len(collection) == 2
        assert collection[1] is wanted and collection.get_by_collective("allreduce") == list(collection)
        for count, name in ((8, "plan:mine"), (4096, "plan:second")):
            check(comm.all_reduce(data(comm.rank, count)), total(comm, count))
            check(other.all_reduce(data(comm.rank, count)), total(comm, count))
            assert comm.size == 1 or name in ran(comm), ran(comm)
        assert not any(name.startswith("plan:") for name in ran(other))
        check(comm.all_reduce(data(comm.rank, 8), op="max"), np.max([data(r, 8) for r in range(comm.size)], axis=0))
        builder.reset()
        before = ran(comm)
        check(comm.all_reduce(data(comm.rank, 4097)), total(comm, 4097))
        comm.reset_metrics()
        check(comm.all_reduce(data(comm.rank, 8)), total(comm, 8))
        assert before and not any(name.startswith("plan:") for name in ran(comm))


def selected(comm: tutti.Communicator) -> None:
    """Selector functions: their answers, their None, their fallback, their mistakes."""
    builder = tutti.AlgorithmCollectionBuilder(comm)
    builder.add_algorithm_builder(tutti.compile(switch, spec(comm), comm.rank))
    asked: list[tutti.CollectiveRequest] = []

    def selector(algorithms: Any, request: tutti.CollectiveRequest) -> Any:
        asked.append(request)
        if request.message_size == 12:
            raise KeyError("no such thing")
        if request.message_size == 16:
            return "an algorithm"
        if request.collective != "allreduce" or request.message_size < 1000:
            return None
        return algorithms["allreduce"]["mine"]

    def fallback(algorithms: Any, request: tutti.CollectiveRequest) -> Any:
        return algorithms["allreduce"]["ring_allreduce"] if request.message_size == 400 else None

    builder.set_algorithm_selector(selector)
    builder.set_fallback_algorithm_selector(fallback)
    builder.build()
    for count, name in ((1000, "plan:mine"), (100, "plan:ring_allreduce"), (2, "")):
        comm.reset_metrics()
        check(comm.all_reduce(data(comm.rank, count)), total(comm, count))
        if comm.size > 1:
            assert (name in ran(comm)) if name else not any("plan" in one for one in ran(comm)), (name, ran(comm))
    check(comm.all_reduce(data(comm.rank, 1000), op="min"), np.min([data(r, 1000) for r in range(comm.size)], axis=0))
    comm.barrier()
    if comm.size > 1:
        request = asked[0]
        assert (request.collective, request.message_size, request.dtype) == ("allreduce", 4000, tutti.DataType.float32)
        assert (request.rank, request.world_size, request.n_ranks_per_node) == (comm.rank, comm.size, comm.size)
        assert request.op is tutti.ReduceOp.SUM and request.buffer_mode() is tutti.CollectiveBufferMode.IN_PLACE
        refused(ValueError, "no such thing", lambda: comm.all_reduce(np.ones(3, np.float32)))
        refused(ValueError, "not str", lambda: comm.all_reduce(np.ones(4, np.float32)))
        check(comm.all_reduce(np.ones(5)), np.full(5, comm.size))
    refused(ValueError, "a function", lambda: builder.set_algorithm_selector(3))
    refused(ValueError, "is added", lambda: builder.add_algorithm_builder(3))
    builder.reset()
    builder.add_algorithm_builder(defaults_of(comm)["staged"])  # the library's own, before the one that it prefers
    builder.build()
    comm.reset_metrics()
    check(comm.all_reduce(data(comm.rank, 2)), total(comm, 2))
    assert comm.size == 1 or "staged" in ran(comm)
    builder.reset()


def by_default(comm: tutti.Communicator) -> None:
    """What the process's builder holds goes to communicators that are formed afterwards, as it is then."""
    builder = tutti.AlgorithmCollectionBuilder()
    assert builder is tutti.AlgorithmCollectionBuilder()
    builder.add_algorithm_builder(tutti.compile(switch, spec(comm), comm.rank))
    with tutti.Communicator(comm.store, comm.rank, comm.size, name="after") as after:
        tutti.AlgorithmCollectionBuilder.reset()
        assert tutti.AlgorithmCollectionBuilder() is builder and len(builder.build()) == 0
        check(after.all_reduce(data(comm.rank, 50)), total(comm, 50))
        check(comm.all_reduce(data(comm.rank, 50)), total(comm, 50))
        assert comm.size == 1 or "plan:mine" in ran(after)
        assert "plan:mine" not in ran(comm)
    builder.add_algorithm_builder(tutti.compile(switch, spec(comm), comm.rank))  # also after reset() of the class
    with tutti.Communicator(comm.store, comm.rank, comm.size, name="later") as later:
        builder.reset()
        check(later.all_reduce(data(comm.rank, 50)), total(comm, 50))
        assert comm.size == 1 or "plan:mine" in ran(later)


def groups(comm: tutti.Communicator) -> None:
    """CommGroup by an address, over something like mpi4py, and from the environment."""
    port = int(os.environ["TEST_PORT"])
    group = tutti.CommGroup(interfaceIpPortTrio=f"lo:127.0.0.1:{port}", rank=comm.rank, size=comm.size, timeout=20)
    assert (group.my_rank, group.nranks, group.nranks_per_node) == (comm.rank, comm.size, comm.size)
    assert group.nranks_per_ipc_domain == group.ipc_domain_n_ranks == comm.size
    group.barrier()
    algorithm = tutti.compile(switch, spec(comm), comm.rank)
    mine = data(comm.rank, 30)
    algorithm.execute(group, mine, mine, executor=tutti.Executor(group.communicator))
    check(mine, total(comm, 30))
    if comm.size > 1 and comm.rank < 2:
        letter = np.full(3, comm.rank)
        if comm.rank == 0:
            group.send(letter, 1, 5)
        else:
            group.recv(letter, 0, 5)
        check(letter, np.zeros(3))

    class Mpi:
        """What CommGroup needs of mpi4py."""

        def Get_rank(self) -> int:
            return comm.rank

        def Get_size(self) -> int:
            return comm.size

        def bcast(self, what: Any, root: int) -> Any:
            text = np.zeros(500, np.uint8)
            said = repr(what).encode()
            text[: len(said)] = np.frombuffer(said, np.uint8)
            return eval(comm.broadcast(text, root).tobytes().rstrip(b"\0").decode())

    over = tutti.CommGroup(mpi_comm=Mpi(), timeout=20)
    check(over.communicator.all_reduce(np.ones(2)), np.full(2, comm.size))
    for bad in ("lo:127.0.0.1", "lo:127.0.0.1:0", "127.0.0.1:80", "lo::x"):
        refused(
            ValueError, "INTERFACE:IP:PORT", lambda bad=bad: tutti.CommGroup(interfaceIpPortTrio=bad, rank=0, size=1)
        )
    refused(
        ValueError,
        "one of interfaceIpPortTrio, mpi_comm and torch_group",
        lambda: tutti.CommGroup(mpi_comm=Mpi(), interfaceIpPortTrio="lo:127.0.0.1:80", rank=0, size=1),
    )
    refused(
        ValueError,
        "a rank below a size",
        lambda: tutti.CommGroup(interfaceIpPortTrio="lo:127.0.0.1:80", rank=2, size=2),
    )


def differ_in_choice(comm: tutti.Communicator) -> None:
    """Two algorithms of the same call name each other."""
    known = defaults_of(comm)
    names = ("ring_allreduce", "default_allreduce_packet")
    mine = known[names[comm.rank % 2]]
    for algorithm in known.values():
        if algorithm.name in names:  # known to both, so both are named in full
            algorithm.execute(comm, np.ones(4), np.ones(4), op=tutti.ReduceOp.SUM)
    try:
        mine.execute(comm, np.ones(4), np.ones(4), op=tutti.ReduceOp.SUM)
        raise AssertionError("not seen")
    except RuntimeError as error:
        assert all(f"by {name} (" in str(error) for name in names), error


def differ_in_plan(comm: tutti.Communicator) -> None:
    """Two plans of one name are told apart by their content."""
    mine = spec(comm, instances=1 + comm.rank % 2)
    algorithm = tutti.compile(switch, mine, comm.rank)
    try:
        algorithm.execute(comm, np.ones(4), np.ones(4))
        raise AssertionError("not seen")
    except RuntimeError as error:
        assert len(set(re.findall(r"by mine \((\w+)\)", str(error)))) == 2, error


def differ_in_asking(comm: tutti.Communicator) -> None:
    """One rank asks for an algorithm, the other leaves it to the library."""
    try:
        if comm.rank == 0:
            tutti.compile(switch, spec(comm, "a_name_longer_than_it_fits"), 0).execute(comm, np.ones(4), np.ones(4))
        else:
            comm.all_reduce(np.ones(4))
        raise AssertionError("not seen")
    except RuntimeError as error:
        name = "a_name_longer_than_it_fits" if comm.rank == 0 else "a_name_..it_fits"
        assert f"rank 0 calls all_reduce #1 f64[4] sum by {name} (" in str(error), error
        assert "rank 1 calls all_reduce #1 f64[4] sum." in str(error) or comm.rank == 1, error


def differ_in_registering(comm: tutti.Communicator) -> None:
    """One rank has registered a plan, the other has not: the next call says so, whichever algorithm it takes."""
    if comm.rank == 0:
        builder = tutti.AlgorithmCollectionBuilder(comm)
        builder.add_algorithm_builder(tutti.compile(switch, spec(comm), 0))
        builder.build()
    try:
        comm.all_gather(np.ones(4), np.ones(8))
        raise AssertionError("not seen")
    except RuntimeError as error:
        assert "with the plans" in str(error), error


def hosts(comm: tutti.Communicator) -> None:
    """Ranks of several hosts: what needs shared memory says so, native algorithms run, registered plans step aside."""
    algorithm = tutti.compile(switch, spec(comm), comm.rank)
    refused(ValueError, "cannot run", lambda: algorithm.execute(comm, np.ones(4), np.ones(4)))
    builder = tutti.AlgorithmCollectionBuilder(comm)
    builder.add_algorithm_builder(algorithm)
    builder.build()
    check(comm.all_reduce(data(comm.rank, 50)), total(comm, 50))
    names = [name for name, one in defaults_of(comm).items() if one.is_native_algorithm()]
    done = 0
    for name in names:
        out = np.empty(50, np.float32)
        try:
            defaults_of(comm)[name].execute(comm, data(comm.rank, 50), out, op=tutti.ReduceOp.SUM)
        except ValueError:
            continue
        check(out, total(comm, 50))
        done += 1
    assert done >= 1


if __name__ == "__main__":
    run(globals())
