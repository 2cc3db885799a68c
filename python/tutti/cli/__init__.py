"""The ``tutti`` command, a module a subcommand."""

import sys

from tutti.cli.exit_status import CANNOT, INTERRUPTED

__all__ = ["main"]


def main() -> None:
    """Runs the command line. What that needs is loaded here, where Ctrl-C and what the system refuses are a line."""
    try:
        from tutti.cli.app import app

        app()
    except ImportError as error:
        # Most often the compiled part, built for another Python or torch.
        sys.exit(f"tutti: {error}")
    except OSError as error:  # also of what is printed before a command runs: help, the version
        code, text = CANNOT, str(error)
    except KeyboardInterrupt:
        code, text = INTERRUPTED, "interrupted"
    else:
        return
    sys.stderr.write(f"tutti: {text}\n")
    sys.exit(code)
