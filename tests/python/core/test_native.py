"""tutti.compile_native: its cache, its errors, processes at the same time."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import tutti
from tutti.algorithms import native

PLUGIN = """#include <tutti/plugin/algorithm.h>
bool nothing(tutti::plugin::Context&) { return true; }
TUTTI_NATIVE_ALGORITHM(create, .name = "nothing", .collective = "allreduce", .run = nothing)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUTTI_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "native"


def source(folder: Path, text: str = PLUGIN) -> Path:
    path = folder / "plugin.cc"
    path.write_text(text)
    return path


def built(cache: Path) -> list[str]:
    assert not list(cache.glob("*.tmp"))
    return sorted(path.name for path in cache.glob("*.so"))


def test_what_was_built_is_built_once(cache: Path, tmp_path: Path) -> None:
    file = source(tmp_path, '#include "own.h"\n' + PLUGIN)
    (tmp_path / "own.h").write_text("")
    module = tutti.compile_native("mine", file)
    (name,) = built(cache)
    before = (cache / name).stat().st_mtime_ns
    again = tutti.compile_native(name="mine", file=str(file))
    assert (cache / name).stat().st_mtime_ns == before
    identity = module.create().handle.identity
    assert again.create().handle.identity == identity and module.__name__ == "mine"
    (tmp_path / "own.h").write_text("inline int changed = 1;\n")
    assert tutti.compile_native("mine", file).create().handle.identity != identity
    tutti.compile_native("mine", file, options=["-O0"])
    assert len(built(cache)) == 3


KERNEL = """#include <tutti/plugin/kernel.cuh>
#include "sub/own.cuh"
template <class Team>
TUTTI_DEVICE bool nothing(tutti::KernelContext<Team>& c) { return own(c); }
TUTTI_NATIVE_KERNEL(create, nothing, .name = "nothing", .collective = "allreduce", .blocks = 2)
"""


def test_a_kernel_is_known_by_all_that_its_compilers_read(cache: Path, tmp_path: Path) -> None:
    """Also by what only one of them reads: what is compiled for GPUs must be the same on all ranks."""
    (tmp_path / "sub").mkdir()
    own = tmp_path / "sub" / "own.cuh"
    file = source(tmp_path, KERNEL).rename(tmp_path / "plugin.cu")

    def identity(extra: str, *options: str) -> int:
        own.write_text("template <class C> TUTTI_DEVICE bool own(C& c) { return c.barrier(); }\n" + extra)
        return int(tutti.compile_native("mine", file, options).create().handle.identity)

    first = identity("")
    assert tutti.compile_native("mine", file).create().handle.kind == "kernel"
    assert identity("// for people\n") != first  # a compiler for GPUs would find other lines in its messages
    assert identity("#if defined(__CUDACC__)\nint more;\n#endif\n") != first
    assert identity("", "-DMORE=1") != first and identity("") == first


@pytest.mark.parametrize("relative", [False, True])
def test_a_kernel_s_source_goes_with_its_headers(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.cuh").write_text('#include "deep.cuh"\n#include <elsewhere.cuh>\n')
    (tmp_path / "sub" / "deep.cuh").write_text("// deep\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "elsewhere.cuh").write_text("#include <more/of.cuh>\n")
    (tmp_path / "far" / "more").mkdir()
    (tmp_path / "far" / "more" / "of.cuh").write_text("// far\n")
    file = source(tmp_path, '#include <tutti/plugin/kernel.cuh>\n#include <cstring>\n#include "sub/own.cuh"\n')
    options = ["-I", "far" if relative else str(tmp_path / "far"), "-DA=1", "-U", "B", "-O1"]
    command = [*native._compiler(), *native._OPTIONS, f"-I{tutti.get_include()}", *options]
    name, text, headers, macros = native._kernel_source(command, file, options)
    assert name == str(file) and text == file.read_text() and macros == ["-DA=1", "-UB"]
    assert headers == {
        "sub/own.cuh": (tmp_path / "sub" / "own.cuh").read_text(),
        "sub/deep.cuh": "// deep\n",
        "deep.cuh": "// deep\n",
        "own.cuh": (tmp_path / "sub" / "own.cuh").read_text(),
        "far/elsewhere.cuh": "#include <more/of.cuh>\n",
        "elsewhere.cuh": "#include <more/of.cuh>\n",
        "far/more/of.cuh": "// far\n",
        "more/of.cuh": "// far\n",
        "of.cuh": "// far\n",
    }
    (tmp_path / "far" / "elsewhere.cuh").write_text('#include "deep.cuh"\n')
    (tmp_path / "far" / "deep.cuh").write_text("// another\n")
    with pytest.raises(RuntimeError, match=r"two different headers by the name deep\.cuh"):
        native._kernel_source(command, file, options)


@pytest.mark.parametrize(
    ("settings", "why"),
    [(".blocks = 65", "1 to 64"), (".threads = 48", "whole warps"), (".threads = 1024", "32 to 512")],
)
def test_kernels_are_launched_as_they_can_be(cache: Path, tmp_path: Path, settings: str, why: str) -> None:
    text = KERNEL.replace('#include "sub/own.cuh"\n', "").replace("own(c)", "true").replace(".blocks = 2", settings)
    with pytest.raises(RuntimeError, match=why):
        tutti.compile_native("mine", source(tmp_path, text))


def test_processes_at_the_same_time_build_once(cache: Path, tmp_path: Path) -> None:
    """A compiler that counts how often it is asked for more than the preprocessor's work."""
    compiler = tmp_path / "counting"
    compiler.write_text(
        f'#!/bin/sh\ncase " $* " in *" -E "*|*--version*) ;; *) echo built >> {tmp_path}/count;; esac\nexec c++ "$@"\n'
    )
    compiler.chmod(0o755)
    code = f"import tutti; print(tutti.compile_native('mine', {str(source(tmp_path))!r}).create().handle.name)"
    environment = {**os.environ, "CXX": str(compiler), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["nothing\n"] * 4
    assert (tmp_path / "count").read_text() == "built\n" and len(built(cache)) == 1


def test_errors_of_the_compiler_are_shown_whole(cache: Path, tmp_path: Path) -> None:
    lines = "".join(f"int wrong{number} = unknown{number};\n" for number in range(5))
    with pytest.raises(RuntimeError) as caught:
        tutti.compile_native("mine", source(tmp_path, PLUGIN + lines))
    text = str(caught.value)
    assert all(f"unknown{number}" in text for number in range(5)) and "-std=c++20" in text and "exit status" in text
    with pytest.raises(RuntimeError, match=r"missing\.h"):
        tutti.compile_native("mine", source(tmp_path, '#include "missing.h"\n'))
    with pytest.raises(RuntimeError, match=r"has a \.run|and a \.run"):
        tutti.compile_native("mine", source(tmp_path, PLUGIN.replace(", .run = nothing", "")))
    assert built(cache) == []


def test_what_is_no_plugin_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="no file"):
        tutti.compile_native("mine", tmp_path / "nowhere.cc")
    with pytest.raises(ValueError, match="no name of a module"):
        tutti.compile_native("../mine", source(tmp_path))
    for text, why in (
        ("int nothing = 0;\n", "no plug-in"),
        ("#include <tutti/plugin/algorithm.h>\n", "no TUTTI_NATIVE_ALGORITHM"),
        (PLUGIN.replace("allreduce", "barrier"), '"barrier" is no collective'),
        (PLUGIN + "void missing();\nint use = (missing(), 1);\n", "cannot be loaded"),
    ):
        with pytest.raises(ValueError, match=why):
            tutti.compile_native("mine", source(tmp_path, text))
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    with pytest.raises(RuntimeError, match="set CXX"):
        tutti.compile_native("mine", source(tmp_path))
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler"):
        tutti.compile_native("mine", source(tmp_path))


def compile_and_end(file: str, temporary: str) -> None:
    os.environ.update(TUTTI_CACHE_DIR="none", TMPDIR=temporary)  # its server may be older than the test
    tempfile.tempdir = None
    folder = Path(str(tutti.compile_native("mine", file).__file__)).parent
    assert folder.parent == Path(os.environ["TMPDIR"])


def test_without_a_cache_nothing_is_left(tmp_path: Path) -> None:
    process = multiprocessing.get_context("forkserver").Process(
        target=compile_and_end, args=(str(source(tmp_path)), str(tmp_path))
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert not list(tmp_path.glob("tutti-native-*"))


def test_where_the_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = source(tmp_path)
    monkeypatch.delenv("TUTTI_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert str(tutti.compile_native("mine", file).__file__).startswith(str(tmp_path / "user" / "tutti" / "native"))
    monkeypatch.setenv("TUTTI_CACHE_DIR", "none")
    assert str(tmp_path) not in str(tutti.compile_native("mine", file).__file__)


@pytest.mark.parametrize(
    "settings",
    [
        {"TUTTI_CACHE_DIR": "/dev/null"},
        {"TUTTI_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/proc"},
        {"TUTTI_CACHE_DIR": "/proc/self"},
    ],
)
def test_without_a_folder_it_compiles_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    module = tutti.compile_native("mine", source(tmp_path))
    assert module.create().handle.name == "nothing"
    assert Path(str(module.__file__)).parent == native._passing_folder(os.getpid())


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o755, 0o710])
def test_a_folder_that_lets_others_in_is_neither_read_nor_written(cache: Path, tmp_path: Path, mode: int) -> None:
    cache.mkdir(parents=True, mode=0o700)
    file = source(tmp_path)
    kept = Path(str(tutti.compile_native("mine", file).__file__))
    assert kept.parent == cache
    kept.unlink()  # rather than written over: this process has loaded it
    kept.write_bytes(b"planted")
    before = sorted(cache.iterdir())
    cache.chmod(mode)
    module = tutti.compile_native("mine", file)
    assert module.create().handle.name == "nothing"
    assert Path(str(module.__file__)).parent == native._passing_folder(os.getpid())
    assert sorted(cache.iterdir()) == before and kept.read_bytes() == b"planted"


def test_a_folder_that_cannot_be_used_is_passed_over(cache: Path, tmp_path: Path) -> None:
    """A folder lies where the lock is to be: as on a read-only disk, what fails is the first write."""
    file = source(tmp_path)
    kept = Path(str(tutti.compile_native("mine", file).__file__))
    lock = kept.with_suffix(".lock")
    lock.unlink()
    lock.mkdir()
    module = tutti.compile_native("mine", file)
    assert module.create().handle.name == "nothing"
    assert Path(str(module.__file__)).parent == native._passing_folder(os.getpid())
