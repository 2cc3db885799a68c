"""How large what a program says may be: what the reader of plans takes (src/plan/limits.h). A test compares the two."""

from __future__ import annotations

MOST_RANKS = 65536
MOST_CHUNKS = 1 << 24  # of one buffer
MOST_BLOCKS = 4096  # thread blocks of one rank
MOST_OPERATIONS = 1 << 20  # of one thread block
MOST_ALL_OPERATIONS = 1 << 22  # of all ranks, and of loops with what is in them
MOST_OPERANDS = 65536  # of one side of an operation
MOST_CHANNELS = 1 << 18  # of one rank and kind
MOST_SEMAPHORES = 1 << 16  # of one rank
MOST_CREDIT = 1 << 20  # a semaphore's initial value
MOST_UNIT_BYTES = 1 << 40  # of a loop
MOST_NAME_BYTES = 4096
MOST_THREADS = 65536
MOST_ALIGNMENT = 1 << 30
MOST_MESSAGE = 2**64 - 1
