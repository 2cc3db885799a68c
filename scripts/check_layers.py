#!/usr/bin/env python3
"""Checks that includes point downwards only, that none go in circles, and that files stay readable.

Layers are the folders of src/, as docs describe them: a folder includes its own headers, the public ones, and those of
the layers below it; tests, benchmarks and examples include a face's in folders of its name only. Only faces include
torch, Python or NCCL headers; only faces, tools and folders named cuda know of CUDA. Public headers name no type that
is not public; those of CUDA are in tutti/cuda, kernels' in tutti/device. Layers of the Python package are its folders
and public modules, over the private modules that all share. Threads are started by src/base/thread.h. A file past 800
lines fails; one past 500 must be listed in scripts/large_files.txt with its reason; a public header past 200 fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import check_circles

ROOT = Path(__file__).resolve().parent.parent
LOWEST = {"base"}
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    # Siblings: what one needs of another crosses as opaque bytes.
    "net": LOWEST,
    "bootstrap": LOWEST | {"net"},
    "transport": LOWEST | {"net"},
    "plan": LOWEST,
    # Communicators of a device are made by ranks that can talk to each other.
    "device": LOWEST | {"bootstrap"},
    "channel": LOWEST | {"device", "net", "bootstrap", "transport"},
    "executor": LOWEST | {"device", "channel", "plan"},
    # Algorithms never see a transport.
    "algorithm": LOWEST | {"device", "channel", "plan", "executor"},
}
ALLOWED["communicator"] = set(ALLOWED)
ALLOWED["tools"] = set(ALLOWED)
# Of Python alone: for the faces that it loads.
ALLOWED["interpreter"] = {"base"}
# Tensors, for the faces of torch.
ALLOWED["aten"] = set(ALLOWED) - {"tools"}
OF_TORCH = {"aten", "torch", "torchcomms"}
FACES = {"torch", "torchcomms", "nccl", "python", "c", "cli"}
for face in FACES:
    ALLOWED[face] = set(ALLOWED) - FACES - (set() if face in OF_TORCH else {"aten"})
FOREIGN = {
    "torch/": OF_TORCH,
    "ATen/": OF_TORCH,
    "c10/": OF_TORCH,
    "pybind11/": OF_TORCH,
    "Python.h": {*OF_TORCH, "python", "interpreter"},
    "interpreter/": {*OF_TORCH, "python", "interpreter"},
    "nanobind/": {"python"},
    "nccl.h": {"nccl"},
}
# What modules of the Python package import, private modules beside. PROGRAMS needs neither the library nor torch.
SHARED = "_"
PROGRAMS = {"language", "msccl", "topology"}
IMPORTS: dict[str, set[str]] = {
    SHARED: set(),
    "topology": set(),
    "msccl": set(),
    "language": {"topology"},
    "default_algos": {"language"},
    "plans": PROGRAMS,
    "communicator": set(),
    "dist": set(),
    "tutti": {"dist"},
    "ops": {"dist"},
    "serving": {"dist"},
    "algorithms": {"tutti", "communicator", "dist", "plans", *PROGRAMS},
    "ext": {"algorithms"},
    "utils": {"algorithms"},
}
IMPORTS["cli"] = set(IMPORTS)
IMPORTS["__main__"] = {"cli"}
# CUDA's public headers are for faces, tools and cuda folders; what lies in a cuda folder is for cuda folders only.
# Beside tutti/cuda, which is such a folder:
PUBLIC_CUDA = re.compile(r"^(include/)?tutti/(device/|plugin/\w+\.cuh$)")
# Names that only CUDA has: its own, those of CUDA's part of the library, and its compiler's words.
CUDA_NAME = re.compile(r"\b(\w*[Cc]uda[A-Z]\w*|\w*cuda_\w*(?=\()|__(?:global|device|shared)__)")
THREAD_STARTERS = {"src/base/thread.cc", "src/base/thread.h"}
RAW_THREAD = re.compile(r"\bstd::(?:j?thread(?:\s+\w+)?\s*[({]|async\b)|\bpthread_create\b")
THREAD_LIST = re.compile(r"\b(?:vector|array|list|deque)<std::j?thread\b[^>]*>\s+(\w+)")
DECLARED = re.compile(r"^\s*(?:class|struct)\s+(\w+)\s*;", re.MULTILINE)
DEFINED = re.compile(r"^\s*(?:class|struct)\s+(?:alignas\([^)]*\)\s+)?(\w+)[^;{]*\{", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
SOURCES = {".cc", ".h", ".cpp", ".cu", ".cuh", ".mm", ".py", ".pyi", ".cmake", ".sh"}
LONG, TOO_LONG, LONG_PUBLIC = 500, 800, 200


def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [Path(line) for line in listing.splitlines() if (ROOT / line).is_file()]


def check_includes(path: Path, text: str) -> list[str]:
    """Wrong includes of one C++ file."""
    public = path.parts[:2] == ("include", "tutti")
    if not public and (path.parts[0] != "src" or len(path.parts) < 3):
        # So a change to a face compiles that face and its own tests.
        inner = {name: name.split("/")[0] for quote, name in INCLUDE.findall(text) if quote == '"' and "/" in name}
        return [
            f"{path}: {name} is for src/{layer} and its tests"
            for name, layer in inner.items()
            if layer in {*FACES, "aten"} and layer not in path.parts
        ]
    layer = "include/tutti" if public else path.parts[1]
    if not public and layer not in ALLOWED:
        return [f"{path}: src/{layer} is no layer that scripts/check_layers.py knows"]
    problems = []
    for quote, name in INCLUDE.findall(text):
        for prefix, faces in FOREIGN.items():
            if name.startswith(prefix) and layer not in faces:
                problems.append(f"{path}: only {', '.join(sorted(faces))} may include {name}")
        if _is_cuda(name) and not _knows_cuda(path, name):
            problems.append(f"{path}: {name} is for the cuda folders; go through device/device.h")
        if quote != '"' or name.startswith("tutti/"):
            continue
        below = name.split("/")[0]
        if public:
            problems.append(f"{path}: a public header includes the internal {name}")
        elif "/" not in name:
            problems.append(f"{path}: include {name} by its path below src/")
        elif below in ALLOWED and below != layer and below not in ALLOWED[layer]:
            problems.append(f"{path}: {layer} must not include {name}: {below} is not below it")
    return problems


def check_public_cuda(path: Path, text: str) -> list[str]:
    """What is CUDA's in a public header outside of CUDA's folders."""
    if path.parts[:2] != ("include", "tutti") or _is_cuda(str(path)):
        return []
    found = {str(path)} if path.suffix == ".cuh" or "cuda" in path.stem else set()
    found |= set(CUDA_NAME.findall(re.sub(r"//.*", "", text)))
    return [f"{path}: {name} is CUDA's: put it in tutti/cuda or tutti/device" for name in sorted(found)]


def check_imports(imports: check_circles.Graph) -> list[str]:
    """Imports within the Python package that do not point downwards."""
    problems = []
    for module, imported in imports.items():
        layer = _python_layer(module)
        if layer not in IMPORTS:
            problems.append(f"{module}: {layer} is no layer of the package that scripts/check_layers.py knows")
            continue
        wrong = [name for name in sorted(imported) if _python_layer(name) not in {SHARED, layer, *IMPORTS[layer]}]
        problems += [f"{module}: {layer} must not import {name}" for name in wrong]
    return problems


def _python_layer(module: str) -> str:
    name = module.split(".")[:2][-1]
    return SHARED if name.startswith("_") and name != "__main__" else name


def check_threads(path: Path, text: str) -> list[str]:
    """Threads that a C++ file of the library starts by itself, so with the program's signals open."""
    if path.parts[0] != "src" or str(path) in THREAD_STARTERS:
        return []
    code = re.sub(r"//.*", "", text)
    raw = [match.group(0) for match in RAW_THREAD.finditer(code)]
    for name in THREAD_LIST.findall(code):
        raw += re.findall(rf"\b{name}\.emplace(?:_back|_front)?\(", code)
    return [f"{path}: {found} starts a thread: use start_thread() of base/thread.h" for found in raw]


def _is_cuda(name: str) -> bool:
    return "cuda" in name.split("/")[:-1] or PUBLIC_CUDA.match(name) is not None


def _knows_cuda(path: Path, name: str) -> bool:
    if _is_cuda(str(path)):
        return True
    return name.startswith("tutti/") and path.parts[1] in {*FACES, "aten", "tools"}


def check_public_types(headers: dict[Path, str]) -> list[str]:
    """Types that public headers declare and none of them defines: names of the inside."""
    defined = {name for text in headers.values() for name in DEFINED.findall(text)}
    return [
        f"{path}: declares {name}, which no public header defines"
        for path, text in sorted(headers.items())
        for name in DECLARED.findall(text)
        if name not in defined
    ]


def reasons() -> dict[str, str]:
    """path -> reason, from lines "path: reason"."""
    listing = ROOT / "scripts" / "large_files.txt"
    entries = {}
    for line in listing.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            path, _, reason = line.partition(":")
            entries[path.strip()] = reason.strip()
    return entries


def check_size(path: Path, text: str, known: dict[str, str]) -> list[str]:
    lines = text.count("\n")
    if lines > TOO_LONG:
        return [f"{path}: {lines} lines; {TOO_LONG} is the limit"]
    if lines > LONG and not known.get(str(path)):
        return [f"{path}: {lines} lines; past {LONG} needs a reason in scripts/large_files.txt"]
    if path.parts[:2] == ("include", "tutti") and lines > LONG_PUBLIC:
        return [f"{path}: {lines} lines; public headers stay under {LONG_PUBLIC}"]
    return []


def main() -> int:
    problems = []
    known = reasons()
    files = [path for path in tracked() if path.suffix in SOURCES]
    for path in files:
        text = (ROOT / path).read_text(errors="replace")
        problems += check_size(path, text, known)
        if path.suffix not in {".py", ".pyi", ".cmake", ".sh"}:
            problems += check_includes(path, text)
            problems += check_public_cuda(path, text)
            problems += check_threads(path, text)
    public = {path: (ROOT / path).read_text() for path in files if path.parts[:2] == ("include", "tutti")}
    problems += check_public_types(public)
    includes, imports = check_circles.graphs(ROOT, files)
    problems += check_circles.problems(includes, imports)
    problems += check_imports(imports)
    for listed in known:
        if not (ROOT / listed).is_file():
            problems.append(f"scripts/large_files.txt lists {listed}, which is not there")
    for problem in problems:
        print(problem)
    print(f"{len(files)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
