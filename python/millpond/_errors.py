"""The exceptions of the package. `from_status` converts a status of libmillpond to an exception."""

import json
import re
from typing import Any


class MillpondError(RuntimeError):
    """A call of libmillpond failed. This is the base class of the package's errors.

    Attributes:
        code: The driver's code (`CUresult`) as an int; 0 if the driver reported no error.

    Example:
        >>> import millpond
        >>> try:
        ...     millpond.stack("cuda+pol")
        ... except millpond.MillpondError as error:
        ...     print(type(error).__name__, error.code)
        StackError 0
    """

    code = 0


class OutOfMemoryError(MillpondError, MemoryError):
    """The resource has no memory for a request.

    Attributes:
        report: A text that says what was missing, lists remedies, and shows the memory that is held.
        data: The same report as a dict, with sizes in bytes. It is None if the layer wrote no report.

    Example:
        >>> import millpond
        >>> resource = millpond.stack("cuda+limiting:limit=1MiB")
        >>> try:
        ...     millpond.DeviceBuffer(size=2 << 20, mr=resource)
        ... except MemoryError as error:
        ...     print(type(error).__name__, error.report != "")
        OutOfMemoryError True
    """

    report = ""
    data: dict[str, Any] | None = None


class InvalidArgumentError(MillpondError, ValueError):
    """An argument is invalid. The call would fail however much memory is free.

    Example:
        >>> import millpond
        >>> resource = millpond.stack("cuda")
        >>> try:
        ...     resource.allocate(8, alignment=3)
        ... except ValueError as error:
        ...     print(type(error).__name__)
        InvalidArgumentError
    """


class StackError(InvalidArgumentError):
    """The text of a stack is malformed, or names a layer or an option that does not exist.

    Example:
        >>> import millpond
        >>> try:
        ...     millpond.stack("cuda+pol")
        ... except millpond.StackError as error:
        ...     print("pool" in str(error))
        True
    """


class NoDeviceError(MillpondError):
    """The machine has no CUDA driver, or no device with this number.

    Example:
        >>> import millpond
        >>> try:
        ...     millpond.Device.find(1000)
        ... except millpond.NoDeviceError:
        ...     print("there is no device 1000")
        there is no device 1000
    """


class UnsupportedError(MillpondError, NotImplementedError):
    """The driver, the device or the resource does not support the operation.

    Example:
        >>> import millpond
        >>> try:
        ...     millpond.stack("cuda").counts()
        ... except NotImplementedError as error:
        ...     print(type(error).__name__)
        UnsupportedError
    """


class DriverError(MillpondError):
    """The driver reported an error; `code` holds its `CUresult`.

    Example:
        >>> import millpond
        >>> issubclass(millpond.DriverError, RuntimeError)
        True
    """


class PoisonedError(DriverError):
    """This process can no longer use the device, or the device's context was reset.

    After some driver errors, every later call on the device fails. In this case, restart the process. After a
    reset of the context, open the device again, and make new resources and streams.

    Example:
        >>> import millpond
        >>> issubclass(millpond.PoisonedError, millpond.DriverError)
        True
    """


class LogFileError(MillpondError):
    """A file, such as a log, could not be opened, read or written.

    Example:
        >>> import millpond
        >>> base = millpond.mr.CudaMemoryResource()
        >>> try:
        ...     millpond.mr.LoggingResourceAdaptor(base, "/dev/null/log.csv")
        ... except millpond.LogFileError as error:
        ...     print("/dev/null" in str(error))
        True
    """


class BusyError(MillpondError):
    """Another thread's call is still using a resource that only one thread may use at a time.

    Wrap the resource in `mr.ThreadSafeResourceAdaptor` to share it between threads.

    Example:
        >>> import millpond
        >>> issubclass(millpond.BusyError, millpond.MillpondError)
        True
    """


_BY_STATUS: dict[int, type[MillpondError]] = {
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


def from_status(
    status: int,
    message: str,
    code: int,
    report: str | None,
    report_json: str | None,
    raised: str | None = None,
) -> MillpondError:
    """Make the exception for a status of libmillpond.

    Args:
        status: The status that a function of the C interface returned.
        message: The message. The function replaces `(os error N)` in it with `[Errno N]`.
        code: The driver's code; 0 if the driver reported no error.
        report: The report of an out-of-memory error as text, if there is one.
        report_json: The same report as JSON.
        raised: The text of a callback's exception, if one was raised.

    Returns:
        The exception; the caller raises it.

    Example:
        >>> from millpond import _errors
        >>> _errors.from_status(1, "out of memory", 2, None, None).code
        2
    """
    message = re.sub(r"\(os error (\d+)\)", r"[Errno \1]", message)  # Python's form
    if raised is not None:
        message = f"{message}\n  the callback raised: {raised}"
    error = _BY_STATUS.get(status, MillpondError)(message)
    error.code = code
    if isinstance(error, OutOfMemoryError):
        error.report = report or message
        error.data = json.loads(report_json) if report_json else None
    return error
