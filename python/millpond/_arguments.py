"""Checks of arguments. The error for a wrong argument names the argument, and shows the allowed values."""

import numbers
import operator
import os
from collections.abc import Collection
from typing import Any, TypeVar

_E = TypeVar("_E", bound=Exception)
_T = TypeVar("_T")

LARGEST = (1 << 64) - 1
ADDRESS = "an address as a number, from 0 to 2**64 - 1"
RESOURCE = 'a millpond resource, such as millpond.stack("cuda+pool")'
STACK = 'a stack as text, such as "cuda+pool"'
SIZE = 'a size: a whole number of bytes from 0 to 2**64 - 1, or a text such as "4GiB"'


def _shown(given: object) -> str:
    try:
        text = repr(given)
    except Exception:  # for instance, of an int with more digits than Python converts
        return f"an object of type {type(given).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}..."


def wrong(error: type[_E], name: str, allowed: str, given: object) -> _E:
    """Make the error for a wrong argument. The extension module also calls this function.

    Args:
        error: The class of the error.
        name: The name of the argument.
        allowed: The text after "must be".
        given: The argument.

    Example:
        >>> from millpond import _arguments
        >>> _arguments.wrong(TypeError, "size", "a number", "many")
        TypeError("`size` must be a number, not 'many'")
    """
    return error(f"`{name}` must be {allowed}, not {_shown(given)}")


def whole(given: Any, name: str, allowed: str, least: int = 0, most: int = LARGEST) -> int:
    """Return a whole number from `least` to `most`. Other numbers raise `ValueError`."""
    try:
        number = operator.index(given)
    except TypeError:
        raise wrong(TypeError, name, allowed, given) from None
    if not least <= number <= most:
        raise wrong(ValueError, name, allowed, given)
    return number


def _is_real(given: object) -> bool:
    return isinstance(given, numbers.Real)


def whole_bytes(given: Any, name: str, allowed: str = SIZE) -> int:
    """Return a size that is a number. A float is accepted if it is whole."""
    try:
        number = int(given) if _is_real(given) else operator.index(given)  # a float has no `__index__`
    except (OverflowError, TypeError, ValueError) as error:  # of infinity, an object and NaN
        kind = next(kind for kind in (OverflowError, TypeError, ValueError) if isinstance(error, kind))
        raise wrong(kind, name, allowed, given) from None
    if number != given or not 0 <= number <= LARGEST:
        raise wrong(ValueError, name, allowed, given)
    return number


def real(given: Any, name: str, allowed: str, most: float) -> float:
    """Return a number from 0 to `most`, which may be a fraction."""
    if not _is_real(given):
        raise wrong(TypeError, name, allowed, given)
    if not 0 <= given <= most:  # NaN fails every comparison
        raise wrong(ValueError, name, allowed, given)
    return float(given)


def flag(given: Any, name: str, allowed: str = "True or False") -> bool:
    """Return a flag. A text is refused, because the text "False" would be true."""
    try:
        if not isinstance(given, (str, bytes)):
            return bool(given)
    except (TypeError, ValueError):  # for instance, of an array
        pass
    raise wrong(TypeError, name, allowed, given)


def text(given: Any, name: str, allowed: str) -> str:
    """Return a text that the library can read."""
    if not isinstance(given, str):
        raise wrong(TypeError, name, allowed, given)
    try:
        is_plain = b"\0" not in given.encode()
    except UnicodeEncodeError:
        is_plain = False
    if not is_plain:
        raise wrong(ValueError, name, "a text of Unicode characters without a zero", given)
    return given


def path(given: Any, name: str) -> bytes:
    """Return the path of a file as bytes."""
    allowed = "the path of a file"
    try:
        encoded = os.fsencode(given)
    except TypeError:
        raise wrong(TypeError, name, allowed, given) from None
    except UnicodeEncodeError:
        raise wrong(ValueError, name, f"{allowed} in the file system's encoding", given) from None
    if b"\0" in encoded:
        raise wrong(ValueError, name, f"{allowed} without a zero byte", given)
    return encoded


def instance(given: Any, name: str, kind: type[_T], allowed: str) -> _T:
    """Return an object of a class."""
    if not isinstance(given, kind):
        raise wrong(TypeError, name, allowed, given)
    return given


def has(given: Any, name: str, attribute: str, allowed: str) -> None:
    """Refuse an object without an attribute."""
    if not hasattr(given, attribute):
        raise wrong(TypeError, name, allowed, given)


def function(given: Any, name: str) -> None:
    """Refuse an object that cannot be called."""
    if not callable(given):
        raise wrong(TypeError, name, "a function", given)


def choice(given: Any, name: str, choices: Collection[str | None]) -> None:
    """Refuse an argument that is none of the choices."""
    # The first two tests keep arrays and objects that cannot be hashed away from `in`.
    if not (given is None or isinstance(given, str)) or given not in choices:
        raise wrong(ValueError, name, f"one of {', '.join(map(repr, choices))}", given)
