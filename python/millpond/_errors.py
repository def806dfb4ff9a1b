"""The exceptions of libmillpond's failures."""

import json
import re


class MillpondError(RuntimeError):
    """A call of libmillpond's failed. `code` is the driver's (`CUresult`), or 0."""

    code = 0


class OutOfMemoryError(MillpondError, MemoryError):
    """Memory is out. `report` says why and what would have helped, `data` holds the same as a dict."""

    report = ""
    data = None


class InvalidArgumentError(MillpondError, ValueError):
    """An argument is invalid in any state of memory."""


class StackError(InvalidArgumentError):
    """The text of a stack cannot be read, or names something that does not exist."""


class NoDeviceError(MillpondError):
    """There is no CUDA driver, or no such device."""


class UnsupportedError(MillpondError, NotImplementedError):
    """The driver, the device or the resource cannot do it."""


class DriverError(MillpondError):
    """The driver reported an error."""


class PoisonedError(DriverError):
    """An earlier error of the driver is final, or the device's context was reset."""


class LogFileError(MillpondError):
    """Reading or writing a file failed."""


class BusyError(MillpondError):
    """Another thread's call is in a resource that lets one thread in at a time, and does not end."""


_BY_STATUS = {
    1: OutOfMemoryError,
    2: InvalidArgumentError,
    3: StackError,
    4: NoDeviceError,
    5: UnsupportedError,
    6: DriverError,
    7: PoisonedError,
    8: LogFileError,
    10: BusyError,
}


def from_status(status, message, code, report, report_json):
    """Make the exception of a status of libmillpond's."""
    message = re.sub(r"\(os error (\d+)\)", r"[Errno \1]", message)  # as Python writes it
    error = _BY_STATUS.get(status, MillpondError)(message)
    error.code = code
    if isinstance(error, OutOfMemoryError):
        error.report = report or message
        error.data = json.loads(report_json) if report_json else None
    return error
