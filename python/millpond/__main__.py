"""Runs `millpond-replay`: `python -m millpond run train.py`."""

import os
import sys
from typing import NoReturn

from . import replay


def main() -> NoReturn:
    """Replace this process with `millpond-replay`; a program of Python runs with this interpreter.

    Raises:
        SystemExit: The binary is missing; the message says how to install it.
        OSError: The operating system cannot run the binary.

    Example:
        >>> from millpond import __main__
        >>> __main__.main()  # doctest: +SKIP
    """
    os.environ.setdefault("MILLPOND_RUN_PYTHON", sys.executable)
    replay.main()


if __name__ == "__main__":
    main()
