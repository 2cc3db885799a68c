"""Names of element types: Tutti's short ones and PyTorch's, each by the other."""

from __future__ import annotations

__all__ = ["short_name", "torch_name"]

# How the names begin, PyTorch's and ours; the rest is the same. The more special ones come first.
_STEMS = (("bfloat", "bf"), ("float8_", "f8"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c"))


def short_name(name: str) -> str:
    """``"f32"`` for ``"float32"``; any other text as it stands."""
    for long, short in _STEMS:
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


def torch_name(name: str) -> str:
    """``"float32"`` for ``"f32"``; any other text as it stands."""
    for long, short in _STEMS:
        rest = name.removeprefix(short)
        if rest != name and (rest[:1].isdigit() or (short == "f8" and rest[:1] == "e")):
            return long + rest
    return name
