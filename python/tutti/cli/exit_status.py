"""Exit statuses of the command line, beside 0 and what a command says of itself with 1."""

__all__ = ["CANNOT", "INTERRUPTED"]

CANNOT, INTERRUPTED = 2, 130
