"""Sizes, times and lists as people write and read them. 1 KB is 1024 bytes everywhere in Tutti."""

from __future__ import annotations

import re
from fractions import Fraction

# The library's whole numbers, and its sizes.
MOST_INT, MOST_BYTES = 2**31 - 1, 2**63 - 1

_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str) -> int:
    """Bytes of ``"64KB"``, ``"64k"``, ``"1.5 MiB"`` or ``"4096"``; ValueError if it is none of these."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", text.upper())
    if match is None:
        raise ValueError(f'"{text}" is no size; write it like 64KB, 4MB or 4096')
    size = Fraction(match[1]) * _FACTORS[match[2]]
    if size.denominator != 1:
        raise ValueError(f'"{text}" is not a whole number of bytes')
    if size > MOST_BYTES:
        raise ValueError(f'"{text}" is more than a size can be, {MOST_BYTES} bytes')
    return int(size)


def parse_count(text: str) -> int:
    """A whole number such as ``"4"``; ValueError if it is none."""
    if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) is None:
        raise ValueError(f'"{text}" is no whole number')
    return int(text)


def parse_words(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated list, each once."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def format_bytes(size: float) -> str:
    """``"64 KB"``; three significant digits at most."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TB"


def format_simd(target: str) -> str:
    """``"AVX-512"`` for Highway's ``"AVX3"``, ``"AVX-512 ZEN4"`` for ``"AVX3_ZEN4"``; others as they stand."""
    return target.replace("AVX3", "AVX-512").replace("_", " ")


def format_us(microseconds: float) -> str:
    """``"4.2 us"``, ``"1.35 ms"``, ``"2.1 s"``."""
    if microseconds < 1e3:
        return f"{microseconds:.3g} us"
    if microseconds < 1e6:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds / 1e6:.3g} s"
