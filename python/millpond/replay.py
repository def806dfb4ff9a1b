"""Replays a log of allocations through several stacks: `python -m millpond.replay LOG`."""

import os
import sys
from pathlib import Path
from typing import NoReturn


def binary() -> Path:
    """Return the path of the binary `millpond-replay`.

    Returns:
        The path in the environment variable MILLPOND_REPLAY, or else the path in the package. The file may
        be missing.

    Example:
        >>> from millpond import replay
        >>> replay.binary().name.startswith("millpond-replay")
        True
    """
    named = os.environ.get("MILLPOND_REPLAY")
    return Path(named) if named else Path(__file__).with_name("millpond-replay")


def main() -> NoReturn:
    """Replace this process with `millpond-replay`, which gets this process's arguments.

    Raises:
        SystemExit: The binary is missing; the message says how to install it.
        OSError: The operating system cannot run the binary.

    Example:
        >>> from millpond import replay
        >>> replay.main()  # doctest: +SKIP
    """
    path = binary()
    if not path.exists():
        sys.exit(f"{path} does not exist: install the package with pip, or set MILLPOND_REPLAY")
    os.execv(path, [str(path), *sys.argv[1:]])


if __name__ == "__main__":
    main()
