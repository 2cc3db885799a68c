"""The part of the package that is built against torch: whether it is there, and loading it.

Importing this file loads nothing. Everything else of the package that needs torch asks here first, so that where it is
missing the user reads what to do.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["BACKEND", "load", "refuse_another_torch", "require_torch"]

BACKEND = "tutti"

_BUILD = (
    "pip install scikit-build-core nanobind, then in a checkout of Tutti: "
    "pip install --no-build-isolation --force-reinstall --no-deps ."
)


def require_torch() -> None:
    """ImportError in one line, with the command, if torch is not installed, or was not when the package was built."""
    if find_spec("torch") is None:
        raise ImportError(f"this part of tutti needs torch, which is not installed here: {_command()}", name="torch")
    if find_spec("tutti._torch") is None:
        raise ImportError(f"this tutti was built without torch: {_BUILD}", name="tutti._torch")


def load() -> Any:
    """The C++ module; loaded on first use, since it maps PyTorch's libraries and ours."""
    require_torch()
    import torch  # its libraries must be in the process first

    if "tutti._torch" not in sys.modules:
        refuse_another_torch(torch.__version__)
    from tutti import _torch

    return _torch


def refuse_another_torch(present: str) -> None:
    """ImportError in one line, with the command, if the C++ module was built for another release of torch.

    PyTorch's C++ interfaces change from release to release: the module would not load, or load and misbehave.
    """
    built = _built_for() or present
    if built.split(".")[:2] != present.split(".")[:2]:
        raise ImportError(
            f"this tutti was built for torch {built}, and here is torch {present}: "
            f"pip install torch=={built.split('+')[0]}, or in a checkout of Tutti: pip install --no-build-isolation ."
        )


def _command() -> str:
    """What brings torch, and the module built for it where that is missing too."""
    if find_spec("tutti._torch") is None:
        return f'pip install "torch>=2.11", then {_BUILD}'
    built = _built_for()
    return f"pip install torch=={built.split('+')[0]}" if built else 'pip install "torch>=2.11"'


def _built_for() -> str:
    """The release of torch that the C++ module was built for; empty where the package does not say it."""
    from tutti import _core

    path = Path(_core.__file__).parent / "torch_version.txt"
    return path.read_text() if path.exists() else ""
