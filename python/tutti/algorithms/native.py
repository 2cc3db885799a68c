"""Algorithms in C++ and CUDA, compiled when the program runs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import util
from pathlib import Path
from types import ModuleType

import tutti
from tutti import _core

__all__ = ["NativeAlgorithm", "NativeCodeCompiler", "compile_native", "get_include"]

# "-x c++": whatever the file is called.
_OPTIONS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-x", "c++")
_COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class NativeAlgorithm:
    """What a function of a compiled module returns, for :meth:`tutti.Algorithm.create_from_native_capsule`."""

    handle: _core.UserAlgorithm


def get_include() -> str:
    """The folder of the headers for algorithms in C++ and CUDA: ``#include <tutti/plugin/algorithm.h>``."""
    beside = Path(_core.__file__).parent / "include"
    if (beside / "tutti" / "plugin" / "algorithm.h").exists():
        return str(beside)
    raise RuntimeError(f"{beside} has no tutti/plugin/algorithm.h: install the package again")


class NativeCodeCompiler:
    """What :data:`tutti.compile_native` is: call it."""

    def __call__(self, name: str, file: str | os.PathLike[str], options: Sequence[str] = ()) -> ModuleType:
        """:meth:`compile`."""
        return self.compile(name, file, options)

    def compile(self, name: str, file: str | os.PathLike[str], options: Sequence[str] = ()) -> ModuleType:
        """Compiles a C++ file that includes ``<tutti/plugin/algorithm.h>`` and returns its algorithms as a module.

        The module has a function for every ``TUTTI_NATIVE_ALGORITHM`` of the file. The compiler is ``CXX``, else the
        system's; ``options`` are added to its command line. The result is kept in ``TUTTI_CACHE_DIR`` (else the user's
        cache folder), by the preprocessed source and all that shapes it; processes that compile at the same time wait
        for each other, and none ever sees half a file. Nothing is kept with ``TUTTI_CACHE_DIR=none``, nor where the
        folder cannot be made or written, belongs to another user or lets others in (its mode is to be 0700).

        A ``.cu`` file includes ``<tutti/plugin/kernel.cuh>`` and has a ``TUTTI_NATIVE_KERNEL`` for each. It is compiled
        so for tensors in main memory; for those on GPUs NVRTC compiles it too, when a group is given the algorithm,
        with the file's own headers and those of ``options`` that define macros (``-D``, ``-U``).

        Raises ``FileNotFoundError`` if there is no such file, ``RuntimeError`` with the compiler's command and all
        that it said if it fails or there is none, ``ValueError`` if what it made is no plug-in.
        """
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no name of a module")
        source = Path(file).absolute()
        if not source.is_file():
            raise FileNotFoundError(f"there is no file {source}")
        command = [*_compiler(), *_OPTIONS, f"-I{get_include()}", *options]
        kernels = _kernel_source(command, source, options) if source.suffix == ".cu" else None
        key = _key(command, source, kernels)
        binary = _binary(f"{name}-{key}", [*command, str(source)])
        module = ModuleType(name, f"The algorithms of {source}.")
        module.__file__ = str(binary)
        for function, handle in _core.plugin_algorithms(str(binary), key, kernels):
            setattr(module, function, partial(NativeAlgorithm, handle))
        return module


def _compiler() -> list[str]:
    wanted = os.environ.get("CXX")
    if wanted:
        return shlex.split(wanted)
    for name in _COMPILERS:
        found = shutil.which(name)
        if found:
            return [found]
    raise RuntimeError(f"there is no C++ compiler: none of {', '.join(_COMPILERS)} is in PATH; install one or set CXX")


def _run(command: list[str]) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise RuntimeError(f"the C++ compiler {command[0]!r} cannot be run: {error}. Install it or set CXX") from None
    if done.returncode != 0:
        said = ((b"" if "-E" in command else done.stdout) + done.stderr).decode(errors="replace")
        raise RuntimeError(f"compilation failed (exit status {done.returncode})\n{shlex.join(command)}\n{said}")
    return done.stdout


@cache
def _version(*compiler: str) -> bytes:
    return _run([*compiler, "--version"])


def _key(command: list[str], source: Path, kernels: _KernelSource | None) -> str:
    """Of the source as the compilers read it, headers and all, wherever it lies, and of all that shapes the result."""
    compiler = tuple(_compiler())
    text = _run([*_preprocess(command), "-E", "-P", str(source)])
    parts = [tutti.__version__.encode(), _version(*compiler), "\0".join(command).encode(), text]
    if kernels is not None:
        _, device_text, headers, options = kernels
        parts += [part.encode() for part in (device_text, *(word for item in sorted(headers.items()) for word in item))]
        parts += [option.encode() for option in options]
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()[:32]


def _preprocess(command: list[str]) -> list[str]:
    return [part for part in command if part != "-shared"]


# File, text, the headers of its own by the names that it includes them by, and options: what NVRTC gets.
_KernelSource = tuple[str, str, dict[str, str], list[str]]


def _kernel_source(command: list[str], source: Path, options: Sequence[str]) -> _KernelSource:
    folders = [source.parent.absolute()]
    macros = []
    words = iter(options)
    for word in words:
        flag, value = word[:2], word[2:]
        if flag not in ("-I", "-D", "-U"):
            continue
        value = value or next(words, "")
        if flag == "-I":
            folders.append(Path(value).absolute())
        else:
            macros.append(flag + value)
    headers: dict[str, str] = {}
    own = _own_headers(command, source)
    # NVRTC knows headers by the names in #include, which may also be those beside the including header.
    for header in own:
        text = header.read_text(errors="replace")
        for folder in [*folders, *(other.parent for other in own)]:
            if not header.is_relative_to(folder):
                continue
            name = str(header.relative_to(folder))
            if headers.setdefault(name, text) != text:
                raise RuntimeError(f"{source} includes two different headers by the name {name}, as NVRTC would see it")
    return str(source), source.read_text(errors="replace"), headers, macros


def _own_headers(command: list[str], source: Path) -> list[Path]:
    """What the file includes that is neither Tutti's nor the system's."""
    rule = _run([*_preprocess(command), "-MM", "-MT", "x", str(source)]).decode(errors="replace")
    files = [Path(os.path.abspath(file)) for file in shlex.split(rule.replace("\\\n", " "))[1:]]
    own, tuttis = Path(os.path.abspath(source)), Path(get_include())
    return [file for file in files if file != own and not file.is_relative_to(tuttis)]


@cache
def _passing_folder(process: int) -> Path:
    """Of this process: a forked child has one of its own."""
    folder = tempfile.mkdtemp(prefix="tutti-native-")
    # Not atexit: processes of multiprocessing run none of it.
    util.Finalize(None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=0)
    return Path(folder)


def _lasting_folder() -> Path | None:
    """Where results are kept. None if they are not to be, or others are let in: they could put code there."""
    wanted = os.environ.get("TUTTI_CACHE_DIR", "")
    if wanted == "none":
        return None
    if wanted:
        folder = Path(wanted) / "native"
    else:
        cache_home = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(cache_home if os.path.isabs(cache_home) else os.path.expanduser("~/.cache"))
        if not base.is_absolute():  # nobody has said where home is
            return None
        folder = base / "tutti" / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    return folder if status.st_uid == os.geteuid() and not status.st_mode & 0o077 else None


def _binary(name: str, command: list[str]) -> Path:
    """The compiled file: kept where that can be, else this process's own."""
    # The compiler's failures are no OSError, so what is caught here is the folder's.
    with contextlib.suppress(OSError):
        if (folder := _lasting_folder()) is not None:
            return _made_in(folder, name, command)
    return _made_in(_passing_folder(os.getpid()), name, command)


def _made_in(folder: Path, name: str, command: list[str]) -> Path:
    binary = folder / f"{name}.so"
    with _alone(folder / f"{name}.lock"):
        if not binary.exists():
            _build(command, binary)
    return binary


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Lets one process at a time in. Where files cannot be locked all go in: then each compiles for itself."""
    with open(lock, "w") as handle:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(command: list[str], binary: Path) -> None:
    """Compiles beside the place and then renames, so that whoever finds the file finds all of it."""
    descriptor, temporary = tempfile.mkstemp(prefix=binary.stem, suffix=".tmp", dir=binary.parent)
    os.close(descriptor)
    try:
        _run([*command, "-o", temporary])
        os.replace(temporary, binary)
    finally:
        Path(temporary).unlink(missing_ok=True)


compile_native = NativeCodeCompiler()
