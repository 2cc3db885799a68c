"""``python -m tutti``: the same as the ``tutti`` command."""

from tutti.cli import main

if __name__ == "__main__":
    main()
