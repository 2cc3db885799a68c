"""`tutti plan step`: the debugger, scripted; what it shows of values and waits."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from commands import invoke
from hypothesis import given
from hypothesis import strategies as st

from tutti import _core
from tutti.language import AllGather, AllReduce
from tutti.language.builtins import BUILTINS
from tutti.language.utils import AlgoSpec
from tutti.plans.provenance import Content, read_chunk
from tutti.plans.resolved import Where
from tutti.plans.stepping import Session
from tutti.plans.waiting import cycle

pytestmark = pytest.mark.tutti_only

PLANS = Path(__file__).resolve().parents[2] / "cpp" / "plan" / "plans"
RING = PLANS / "ring_all_reduce_3.json"


def script(file: Path, *lines: str) -> tuple[int, str]:
    return invoke("plan", "step", file, lines="\n".join(lines), columns=200)


def after(output: str, command: str) -> str:
    """What was printed in answer to the last such command."""
    return output.rpartition(f"(step) {command}\n")[2].partition("(step) ")[0]


def built(collective: Any, name: str, ranks: int) -> str:
    text: str = BUILTINS[collective.name, name](AlgoSpec(name, collective, ranks, ranks)).to_json()
    return text


SUMS = {
    "ring": built(AllReduce(4, 4, True), "ring", 4),
    "one_shot": built(AllReduce(4, 1, True), "one_shot", 4),  # packets
    "rabenseifner of 17": built(AllReduce(17, 17, True), "rabenseifner", 17),  # more ranks than a word tells apart
    **{name: (PLANS / f"{name}.json").read_text() for name in ("packet_all_reduce_3", "tree_all_reduce_7")},
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("cells", [1, 3])
def test_any_order_of_steps_ends_with_all_ranks_contributions(name: str, cells: int) -> None:
    session = Session(SUMS[name], cells)
    everybody = dict.fromkeys(range(session.ranks), 1)
    order = random.Random(7)
    for call in (1, 2):
        while not session.ended:
            tasks = [(r, t, task) for r, own in enumerate(session.tasks()) for t, task in enumerate(own)]
            idle = [(r, t) for r, t, task in tasks if task["ended"] or not task["ready"]]
            assert not any(session.step(*entry) for entry in idle)
            ready = [(r, t) for r, t, task in tasks if not task["ended"] and task["ready"]]
            rank, task = order.choice(ready)
            before = session.tasks()
            assert session.step(rank, task)
            assert session.tasks() != before or session.plan["protocol"] == "LL"
        for rank in range(session.ranks):
            side = "o" if session.stepper.chunks_of(rank, "o") else "i"
            for index, _, contents in session.chunks(rank, side):
                assert contents == [Content(everybody, index, call)]
        if call == 1:
            session.begin()


def test_contents_of_gathered_chunks() -> None:
    session = Session(built(AllGather(5, 1, True), "ring", 5))
    session.run(lambda _: False)
    assert session.ended
    assert [str(contents[0]) for _, _, contents in session.chunks(2, "o")] == [f"r{rank} [0]" for rank in range(5)]


@given(
    counts=st.dictionaries(st.integers(0, 40), st.integers(1, 15), max_size=20),
    chunk=st.integers(0, 1000),
    call=st.integers(1, 50),
)
def test_a_sum_can_be_taken_apart(counts: dict[int, int], chunk: int, call: int) -> None:
    words = [0] * 4
    for rank, count in counts.items():
        words[0] += count * (((call - 1) << 32) + chunk + 1)
        words[1 + rank // 15] += count << (4 * (rank % 15))
    data = b"".join(word.to_bytes(8, "little") for word in words)
    (content,) = read_chunk(data, 32)
    assert content.ranks == counts
    if counts:
        assert (content.chunk, content.call) == (chunk, call)


def test_names_of_contents() -> None:
    assert str(Content({}, None, None)) == "·"
    assert str(Content({0: 1, 1: 1, 2: 1, 5: 1}, 3, 1)) == "r0-2+r5 [3]"
    assert str(Content({0: 1, 1: 2}, None, 2)) == "r0+2·r1 [?] of call 2"


def test_steps_go_forwards_and_backwards() -> None:
    session = Session(RING.read_text())
    states = []
    for _ in range(12):
        states.append((session.tasks(), [list(session.chunks(rank, "s")) for rank in range(3)]))
        turn = session.following()
        assert turn is not None
        session.step(*turn)
    for count in (1, 4, 2):
        before = len(session.history)
        assert session.back(count) == count
        assert len(session.history) == before - count
        at = len(session.history) - 1
        assert (session.tasks(), [list(session.chunks(rank, "s")) for rank in range(3)]) == states[at]
    assert session.back(100) == 5
    assert session.tasks() == states[0][0]


def test_commands_move_and_show() -> None:
    code, output = script(
        RING,
        *("step", "step 2 0", "continue 2 0 6", "buffers 2", "list", "counters 2", "break signal", "continue"),
        *("back 2", "where", "delete", "continue", "buffers 0", "call", "continue", "quit"),
    )
    assert code == 0
    assert "ran: rank 0, thread block 0, operation 0: rlxsignal" in after(output, "step")
    assert "at: rank 2, thread block 0, operation 6: wait" in after(output, "continue 2 0 6")
    assert "r1 [0]" in after(output, "buffers 2")
    assert "->" in after(output, "list")
    assert "rank 2, memory channel 0 from rank 1: raised 1, taken" in after(output, "counters 2")
    assert "1: any signal" in after(output, "break signal")
    assert "2 undone" in after(output, "back 2")
    assert "can go on" in after(output, "where")
    assert "0-2: r0-2 [0-2]" in after(output, "buffers 0")
    assert "call 2 begins" in after(output, "call")
    assert "call 2 is over" in after(output, "continue")


def test_next_runs_the_others_as_it_must() -> None:
    code, output = script(RING, "continue 1 0 1", "next 1 0", "where")
    assert code == 0
    assert "ran: rank 1, thread block 0, operation 1: rlxwait" in after(output, "next 1 0")


def test_breakpoints_by_place_and_line(tmp_path: Path) -> None:
    plan = json.loads(RING.read_text())
    (tmp_path / "ring.py").write_text("first = 1\nchannel.put(chunk, tb=0)\n")
    plan["gpus"][1]["threadblocks"][0]["ops"][3]["origin"] = "ring.py:2"
    file = tmp_path / "ring.json"
    file.write_text(json.dumps(plan))
    _, output = script(file, "break ring.py:2", "break 2 0 5", "continue", "continue", "delete 1", "break", "delete 9")
    assert "rank 1, thread block 0, operation 3: put" in output
    assert "ring.py:2: channel.put(chunk, tb=0)" in output
    assert "at: rank 2, thread block 0, operation 5" in after(output, "continue")
    assert "1: rank 2, thread block 0, operation 5" in after(output, "break")


def test_a_deadlock_names_the_circle() -> None:
    code, output = script(PLANS / "both_wait_first.json", "continue", "waits", "step", "back 1")
    assert code == 1
    assert "deadlock: these wait for each other:" in after(output, "continue")
    for rank, other in ((0, 1), (1, 0)):
        line = f"rank {rank}, thread block 0, operation 0 waits for a signal of rank {other} on memory channel 0"
        assert f"{line}, which is to come from rank {other}, thread block 0, operation 1 (signal)" in after(
            output, "waits"
        )
    assert "deadlock" in after(output, "step")


def test_a_signal_that_nobody_gives() -> None:
    plan = json.loads(RING.read_text())
    ops = plan["gpus"][0]["threadblocks"][0]["ops"]
    ops.remove(next(op for op in ops if op["name"] == "signal"))
    session = Session(json.dumps(plan))
    assert session.run(lambda _: False) is None
    assert session.stuck
    (wait,) = cycle(session.waits())
    assert (wait.where.rank, wait.on) == (1, ())


def packets(ops: dict[int, list[list[dict[str, Any]]]]) -> Session:
    """Ranks with these thread blocks, a chunk of each buffer, and semaphore 0."""
    gpus = [
        {
            "id": rank,
            "input_chunks": 1,
            "output_chunks": 1,
            "scratch_chunks": 1,
            "threadblocks": [
                {"id": number, "ops": block, "channels": [], "remote_buffer_refs": []}
                for number, block in enumerate(blocks)
            ],
            "channels": [],
            "remote_buffers": [],
            "semaphores": [{"init_value": 0}],
        }
        for rank, blocks in ops.items()
    ]
    head = {"name": "t", "collective": "test", "protocol": "LL", "inplace": False, "gpus": gpus}
    return Session(json.dumps(head))


def test_waits_for_packets_semaphores_and_barriers() -> None:
    def chunk(buffer: str) -> list[dict[str, Any]]:
        return [{"type": buffer, "index": 0, "size": 1}]

    meet = {"name": "barrier", "barrier_id": 4, "num_threadblocks": 2}
    session = packets(
        {
            0: [
                [
                    {"name": "upkt", "src_buff": chunk("s"), "dst_buff": chunk("o")},
                    {"name": "sem_acquire", "semaphore_ids": [0]},
                    meet,
                ],
                [
                    {"name": "cpkt", "src_buff": chunk("i"), "dst_buff": chunk("s")},
                    {"name": "sem_release", "semaphore_ids": [0]},
                    meet,
                ],
            ]
        }
    )
    assert not session.step(0, 0)
    (wait,) = session.waits()
    assert (wait.what, wait.on) == ("packets in chunk 0 of its scratch", (Where(0, 1, 0),))
    assert next(session.chunks(0, "s"))[1:] == (True, [])
    session.step(0, 1)
    assert str(next(session.chunks(0, "s"))[2][0]) == "r0 [0]"
    session.step(0, 0)
    (wait,) = session.waits()
    assert (wait.what, wait.on) == ("semaphore 0", (Where(0, 1, 1),))
    assert session.counters(0)["semaphores"] == [0]
    session.step(0, 1)
    session.step(0, 0)
    session.step(0, 0)
    (wait,) = session.waits()
    assert (wait.what, wait.on) == ("barrier 4", (Where(0, 1, 2),))
    session.run(lambda _: False)
    assert session.ended


def test_what_is_asked_for_wrongly_is_said() -> None:
    _, output = script(
        RING,
        "dance",
        "step 9 0",
        "step 0 9",
        "next x 0",
        "call",
        "buffers 7",
        "list 0 9",
        "help",
        "# nothing",
        "b put",
        "del 4",
    )
    assert 'no command is called "dance"' in output
    assert "there is no rank 9" in output
    assert "rank 0 has no task 9" in output
    assert '"x" is no number' in output
    assert "this call is not over" in output
    assert "there is no rank 7" in output
    assert "who waits for what" in after(output, "help")
    assert script(PLANS / "verdicts.json")[0] == 2


def test_the_core_checks_what_it_is_given() -> None:
    stepper = _core.PlanStepper(RING.read_text())
    stepper.begin()
    for wrong in (
        lambda: stepper.step(3, 0),
        lambda: stepper.step(0, 1),
        lambda: stepper.tasks(-1),
        lambda: stepper.chunk(0, "x", 0),
        lambda: stepper.chunk(0, "s", 3),
        lambda: stepper.chunk(0, "i", -1),
    ):
        with pytest.raises(ValueError):
            wrong()
