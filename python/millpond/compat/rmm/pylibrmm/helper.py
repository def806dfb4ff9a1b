"""RMM's module `rmm.pylibrmm.helper`: converts sizes that are text."""

import math
import re

from .... import _arguments

_SIZE = re.compile(r"(\d+(?:\.\d*)?)[ \t]*(?:([kmgtp]?)(i?)b)?", re.IGNORECASE | re.ASCII)


def parse_bytes(s: int | str) -> int:
    """Return a size in bytes.

    Args:
        s: The size as an int in bytes, or as text: a number and a unit, in any letter case. The units are B,
            kB to PB (powers of 1000), and KiB to PiB (powers of 1024). A number without a unit is in bytes.

    Raises:
        ValueError: The text is malformed, or the number is negative or too large.
        TypeError: `s` is neither a number nor a text.

    Example:
        >>> from millpond.compat.rmm.pylibrmm.helper import parse_bytes
        >>> parse_bytes("1.5 KiB")
        1536
    """
    return _parsed(s, "s")


def _parsed(s: int | str, argument: str) -> int:
    """Return a size as `parse_bytes` does. `argument` is the name of the caller's argument."""
    if not isinstance(s, str):
        return _arguments.whole_bytes(s, argument)
    match = _SIZE.fullmatch(s)
    if match is not None:
        number, prefix, binary = match.groups("")
        size = float(number) * (1024 if binary else 1000) ** " kmgtp".index(prefix.lower() or " ")
        if math.isfinite(size) and (prefix or not binary):
            return int(size)
    # The second part is RMM's text.
    raise ValueError(
        f"`{argument}` must be a size such as 4GiB: Could not parse {s!r} as a byte specification"
    )


__all__ = ["parse_bytes"]
