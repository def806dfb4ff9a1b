"""RMM's module `rmm.pylibrmm.helper`: converts sizes that are text."""

import math
import re

_SIZE = re.compile(r"(\d+(?:\.\d*)?)[ \t]*(?:([kmgtp]?)(i?)b)?", re.IGNORECASE | re.ASCII)


def parse_bytes(s: int | str) -> int:
    """Return a size in bytes.

    Args:
        s: The size as an int in bytes, or as text: a number and a unit, in any letter case. The units are B,
            kB to PB (powers of 1000), and KiB to PiB (powers of 1024). A number without a unit is in bytes.

    Raises:
        ValueError: The text is malformed.

    Example:
        >>> from millpond.compat.rmm.pylibrmm.helper import parse_bytes
        >>> parse_bytes("1.5 KiB")
        1536
    """
    if not isinstance(s, str):
        return int(s)
    match = _SIZE.fullmatch(s)
    if match is not None:
        number, prefix, binary = match.groups("")
        size = float(number) * (1024 if binary else 1000) ** " kmgtp".index(prefix.lower() or " ")
        if math.isfinite(size) and (prefix or not binary):
            return int(size)
    raise ValueError(f"Could not parse {s!r} as a byte specification: write for example 4GiB")


__all__ = ["parse_bytes"]
