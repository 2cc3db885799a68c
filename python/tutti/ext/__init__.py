"""Where programs for MSCCL++ find :class:`AlgorithmCollectionBuilder`."""

from __future__ import annotations

from tutti.algorithms.builder import AlgorithmCollectionBuilder

__all__ = ["AlgorithmCollectionBuilder"]
