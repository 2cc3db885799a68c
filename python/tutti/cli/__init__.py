"""The ``tutti`` command, a module a subcommand."""

from tutti.cli.app import main

__all__ = ["main"]
