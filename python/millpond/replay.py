"""`python -m millpond.replay LOG`: replay a log of allocations through stacks of resources."""

import os
import sys
from pathlib import Path


def binary():
    """Return the path of the binary: MILLPOND_REPLAY, or the one of the package."""
    named = os.environ.get("MILLPOND_REPLAY")
    return Path(named) if named else Path(__file__).with_name("millpond-replay")


def main():
    """Become the binary."""
    path = binary()
    if not path.exists():
        sys.exit(f"{path} is not there: install the package with pip, or name the binary in MILLPOND_REPLAY")
    os.execv(path, [str(path), *sys.argv[1:]])


if __name__ == "__main__":
    main()
