"""Lets `python -m vindicate` be the `vindicate` command."""

from vindicate.cli import main

if __name__ == "__main__":
    main()
