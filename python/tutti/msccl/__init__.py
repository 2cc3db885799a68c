"""Reads the XML algorithm files of MSCCL, the predecessor of MSCCL++, as plans.

The semantics are those of MSCCL's loader (``src/graph/topo.cc``) and interpreter (``msccl_interpreter.h``):
docs/msccl-xml.md says what becomes of every step.
"""

from __future__ import annotations

from typing import Any

from tutti.msccl.algorithm import read_algorithm
from tutti.msccl.conversion import convert
from tutti.msccl.document import XmlError, read_document

__all__ = ["XmlError", "import_plan"]


def import_plan(text: bytes, source: str = "algo.xml") -> dict[str, Any]:
    """The plan of an XML algorithm, as docs/plan-format.md has it.

    ``source`` names the file in the operations' ``origin``, so that a verdict points at lines of the XML. Nothing in
    the text is trusted; XmlError, a ValueError, names line and element of the first fault. The plan is not proven yet.
    """
    return convert(read_algorithm(read_document(text)), source)
