"""XML algorithms of MSCCL as plans: proven, run, and refused where they are wrong."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import commands
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msccl_files import FILES, File, chain_broadcast, ring_all_reduce

from tutti import _core
from tutti.msccl import XmlError, import_plan

pytestmark = pytest.mark.tutti_only

invoke = partial(commands.invoke, "plan")


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", FILES)
def test_files_are_proven_and_give_the_right_result(name: str, ranks: int) -> None:
    plan = import_plan(FILES[name](ranks).text())
    text = json.dumps(plan)
    verdict = _core.check_plan(text, True)
    assert verdict["outcome"] == "proven", verdict["fault"]
    for size, seed in ((64 * ranks, None), (4 * (17 * ranks + 1), 3)):
        report = _core.run_plan(text, size, seed=seed)
        assert report["checked"]
        assert report["fault"] is None


def test_reductions_are_the_callers() -> None:
    plan = json.dumps(import_plan(ring_all_reduce(3).text()))
    for op in ("sum", "max", "product"):
        assert _core.run_plan(plan, 1200, op=op)["fault"] is None


def test_the_root_is_who_receives_nothing() -> None:
    assert import_plan(chain_broadcast(5, 3).text())["root"] == 3


def test_limits_become_those_of_a_rank_block() -> None:
    file = FILES["ring all-gather"](4)
    file.head.update(minBytes="1000", maxBytes="4096")
    plan = import_plan(file.text())
    assert (plan["min_message_size"], plan["max_message_size"]) == (250, 1023)  # MSCCL's limit is exclusive
    assert import_plan(ring_all_reduce(2).text())["max_message_size"] == 2**64 - 1


def test_a_fault_names_the_line_of_the_file() -> None:
    """Without its dependence the sum is sent before it is made."""
    file = FILES["all-pairs all-reduce"](3)
    text = file.text().decode()
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if 's="2" type="s"' in line)
    lines[at] = lines[at].replace('depid="2"', 'depid="-1"').replace('deps="4"', 'deps="-1"')
    fault = _core.check_plan(json.dumps(import_plan("\n".join(lines).encode(), "pairs.xml")), True)["fault"]
    assert fault["kind"] == "race"
    assert f"pairs.xml:{at + 1}" in {site["origin"] for site in fault["sites"]}


STEP = 'srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1"'
HEAD = 'name="a" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="0"'


def algorithm(head: str = HEAD, first: str = "", second: str = "") -> bytes:
    chunks = 'i_chunks="2" o_chunks="2" s_chunks="0"'
    gpus = "".join(f'\n<gpu id="{rank}" {chunks}>\n{body}\n</gpu>' for rank, body in enumerate((first, second)))
    return f"<algo {head}>{gpus}\n</algo>".encode()


def block(steps: str, attributes: str = 'id="0" send="1" recv="1" chan="0"') -> str:
    return f"<tb {attributes}>{steps}</tb>"


BACK = 'id="0" send="0" recv="0" chan="0"'
BAD = {
    "": "line 1: this is no XML",
    "<algo>": "this is no XML",
    "<other/>": "an algorithm file begins with <algo>",
    "<!DOCTYPE algo [<!ENTITY a 'aaaa'>]><algo/>": "a document type has no place",
    '<?xml-stylesheet href="x"?><algo/>': "a processing instruction has no place",
    "<algo>text</algo>": "text (",
    "<algo><a><b><c><d/></c></b></a></algo>": "/algo/a[0]/b[0]/c[0]: <d> does not belong here",
    algorithm(HEAD.replace('ngpus="2"', 'ngpus="3"')): "/algo/@ngpus: 3 ranks are announced, 2 <gpu> are here",
    algorithm(HEAD.replace('ngpus="2"', 'ngpus="2.5"')): '/algo/@ngpus: "2.5" is no whole number',
    algorithm(HEAD.replace('ngpus="2"', 'ngpus="99999999999999999999"')): "is no whole number",
    algorithm(HEAD.replace("allreduce", "allswap")): '/algo/@coll: "allswap" is none of',
    algorithm(HEAD.replace("Simple", "Fast")): "/algo/@proto",
    algorithm(HEAD + ' spin="1"'): "/algo/@spin: nothing is known",
    algorithm(HEAD.replace('loop="2"', 'loop="4"')): "/algo/gpu[0]/@i_chunks: 2; this collective has 4 here",
    algorithm(first=block("", 'id="1" send="-1" recv="-1" chan="0"')): "thread block 0 is missing",
    algorithm(first=block("", 'id="0" send="0" recv="-1" chan="0"')): "/algo/gpu[0]/tb[0]/@send: a rank's peer",
    algorithm(first=block("", 'id="0" send="2" recv="-1" chan="0"')): "2 is not from -1 to 1",
    algorithm(first=block(f'<step s="1" type="s" {STEP}/>')): "step[0]/@s: steps are numbered in order",
    algorithm(first=block(f'<step s="0" type="ra" {STEP}/>')): '"ra" is none of',
    algorithm(
        first=block(f'<step s="0" type="s" {STEP.replace("srcoff=" + chr(34) + "0", "srcoff=" + chr(34) + "2")}/>')
    ): ('chunks 2 to 2 of buffer "i", which has 2'),
    algorithm(
        first=block(f'<step s="0" type="cpy" {STEP.replace("cnt=" + chr(34) + "1", "cnt=" + chr(34) + "0")}/>')
    ): ("0 is not from 1"),
    algorithm(first=block(f'<step s="0" type="s" {STEP}/>', 'id="0" send="-1" recv="-1" chan="0"')): (
        '"s" in a thread block whose "send" names no rank'
    ),
    algorithm(first=block(f'<step s="0" type="s" {STEP}/>')): "rank 1 has no thread block that receives from rank 0",
    algorithm(second=block(f'<step s="0" type="r" {STEP}/>', BACK)): "rank 0 has no thread block that sends to rank 1",
    algorithm(
        first=block(f'<step s="0" type="s" {STEP}/>\n<step s="1" type="s" {STEP}/>'),
        second=block(f'<step s="0" type="r" {STEP}/>', BACK),
    ): "line 4: /algo/gpu[0]/tb[0]/step[1]: rank 0 sends 2 times to rank 1 on channel 0, which receives 1 times",
    algorithm(
        first=block(f'<step s="0" type="s" {STEP}/>'),
        second=block(f'<step s="0" type="r" {STEP.replace("cnt=" + chr(34) + "1", "cnt=" + chr(34) + "2")}/>', BACK),
    ): "2 chunks are received, but rank 0 sends 1 (line 3)",
    algorithm(
        first=block(f'<step s="0" type="s" {STEP}/>')
        + block(f'<step s="0" type="s" {STEP}/>', 'id="1" send="1" recv="1" chan="0"')
    ): "thread block 0 of this rank sends to the same rank on the same channel 0",
    algorithm(first=block(f'<step s="0" type="cpy" {STEP} depid="1" deps="0"/>')): "there is no thread block 1",
    algorithm(first=block(f'<step s="0" type="cpy" {STEP} depid="0" deps="3"/>')): "thread block 0 has no step 3",
    algorithm(first=block(f'<step s="0" type="cpy" {STEP} depid="0" deps="0"/>')): "a step cannot wait for itself",
    algorithm(
        first=block(f'<step s="0" type="cpy" {STEP} depid="1" deps="0"/>', 'id="0" send="-1" recv="-1" chan="0"')
        + block(f'<step s="0" type="cpy" {STEP}/>', 'id="1" send="-1" recv="-1" chan="0"')
    ): "does not say when it is over: its hasdep is 0",
}


@pytest.mark.parametrize(("text", "message"), BAD.items(), ids=range(len(BAD)))
def test_what_is_wrong_is_named(text: str | bytes, message: str) -> None:
    with pytest.raises(XmlError) as caught:
        import_plan(text if isinstance(text, bytes) else text.encode())
    assert message in str(caught.value)
    assert str(caught.value).startswith("line ")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused_or_are_plans(data: st.DataObject) -> None:
    """Whatever is done to a file, an XmlError or a text that the core reads comes out."""
    text = bytearray(FILES[data.draw(st.sampled_from(sorted(FILES)))](3).text())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        end = min(len(text), at + data.draw(st.integers(0, 12)))
        text[at:end] = data.draw(
            st.one_of(st.binary(max_size=6), st.sampled_from([b"9", b"-1", b"0", b"re", b'"', b"s"]))
        )
    try:
        plan = import_plan(bytes(text))
    except XmlError:
        return
    try:
        _core.plan_info(json.dumps(plan))
    except ValueError as error:
        # Names past the plan's limits, or collectives that a broken header no longer fits.
        assert str(error).startswith("plan: /")


def test_commands_take_xml(tmp_path: Path) -> None:
    file, target = tmp_path / "ring.xml", tmp_path / "ring.json"
    file.write_bytes(ring_all_reduce(4).text())
    assert invoke("import", file, "-o", target)[0] == 0
    assert invoke("diff", file, target)[0] == 0
    assert "proven" in invoke("check", "--strict", file)[1]
    assert "right; 4 ranks" in invoke("run", file, "--size", "4KB")[1]
    assert invoke("simulate", file, "--topology", "ring", "--size", "64KB")[0] == 0
    assert "allreduce among 4 ranks" in invoke("show", file)[1]
    file.write_bytes(b"<algo/>")
    for command in (("import",), ("check",), ("run",), ("show",), ("simulate", "--topology", "ring", "--size", "4")):
        code, output = invoke(*command, file)
        assert code == 2
        assert "line 1: /algo/@ngpus: is missing" in output


def test_a_file_without_steps_does_nothing() -> None:
    plan = import_plan(File(2, "custom", 2).text())
    assert all(not gpu["threadblocks"] for gpu in plan["gpus"])
    assert _core.check_plan(json.dumps(plan))["outcome"] == "proven"


def test_messages_go_straight_to_where_nobody_is_disturbed() -> None:
    for name in ("ring all-gather", "all-pairs all-to-all", "chain broadcast"):
        plan = import_plan(FILES[name](4).text())
        assert all(gpu["scratch_chunks"] == 0 for gpu in plan["gpus"]), name
    # Into what has been sent before: the sender may be early, so the message waits in a slot.
    swap = File(2, "custom", 1)
    for rank in range(2):
        swap.block(rank, 1 - rank, 1 - rank, [("s", "i0", "", 1), ("r", "", "i0", 1)])
    plan = import_plan(swap.text())
    assert [gpu["scratch_chunks"] for gpu in plan["gpus"]] == [1, 1]
    assert _core.check_plan(json.dumps(plan), True)["outcome"] == "proven"
    # After it, it may.
    late = File(2, "custom", 1)
    late.block(0, 1, -1, [("s", "i0", "", 1)])
    late.block(1, -1, 0, [("r", "", "o0", 1), ("cpy", "o0", "i0", 1)])
    assert import_plan(late.text())["gpus"][1]["scratch_chunks"] == 0


def test_a_dependence_makes_a_target_safe() -> None:
    for depends in (True, False):
        file = File(2, "custom", 1)
        file.block(0, 1, -1, [("s", "i0", "", 1)])
        file.block(1, -1, 0, [("r", "", "o0", 1)], announces=frozenset({0}))
        file.block(1, -1, -1, [("cpy", "o0", "i0", 1)], depends={0: (0, 0)} if depends else None)
        plan = import_plan(file.text())
        assert plan["gpus"][1]["scratch_chunks"] == (0 if depends else 1)
        outcome = _core.check_plan(json.dumps(plan), True)["outcome"]
        assert outcome == ("proven" if depends else "rejected")


def test_buffers_in_place_are_one_memory() -> None:
    """A block of the output is the input: receiving into it is no reason to let the sender be early."""
    file = File(2, "allgather", 2, in_place=True)
    for rank in range(2):
        file.block(rank, 1 - rank, 1 - rank, [("s", "i0", "", 1), ("r", "", f"o{1 - rank}", 1)])
    plan = import_plan(file.text())
    assert all(gpu["scratch_chunks"] == 0 for gpu in plan["gpus"])
    text = json.dumps(plan)
    assert _core.check_plan(text, True)["outcome"] == "proven"
    assert _core.run_plan(text, 4096)["fault"] is None
    file = File(2, "custom", 1, in_place=True)
    for rank in range(2):
        file.block(rank, 1 - rank, 1 - rank, [("s", "i0", "", 1), ("r", "", "o0", 1)])
    assert all(gpu["scratch_chunks"] == 1 for gpu in import_plan(file.text())["gpus"])
