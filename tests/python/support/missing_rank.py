"""A rank of a group whose last rank never comes, or is none of it: it prints what it has raised."""

from __future__ import annotations

import os
import time

import tutti

time.sleep(0.3 * int(os.environ["RANK"]))  # so that the time of rank 0, which serves the store, is over first
try:
    tutti.Communicator(timeout=2)
except (TimeoutError, RuntimeError, ValueError) as error:
    print(type(error).__name__, error)
print("done")
