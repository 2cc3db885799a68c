"""Algorithms that a program chooses itself: compiled from the language or from C++, and run by a communicator.

``docs/algorithms.md`` describes everything; the names are in :mod:`tutti` too. Nothing here needs torch.
"""

from __future__ import annotations
