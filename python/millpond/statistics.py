"""Counts allocations, and profiles the allocations of functions and blocks of code.

>>> from millpond import statistics
>>> import millpond
>>> with statistics.statistics():
...     buffer = millpond.DeviceBuffer(size=1000)
...     statistics.get_statistics().peak_bytes
1000
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec, Self, TypeVar

from . import _arguments, _locks
from . import mr as _mr

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass
class Statistics:
    """The counters of one level: bytes and allocations, each as current, peak and total.

    `push_statistics` explains levels. The fields have the same order as in RMM.

    Args:
        current_bytes: The bytes in use.
        current_count: The number of allocations in use.
        peak_bytes: The most bytes that were in use at once.
        peak_count: The most allocations that were in use at once.
        total_bytes: The bytes of all allocations so far.
        total_count: The number of all allocations so far.

    Example:
        >>> import millpond
        >>> millpond.statistics.enable_statistics()
        >>> buffer = millpond.DeviceBuffer(size=1000)
        >>> counters = millpond.statistics.get_statistics()
        >>> counters.peak_bytes, counters.total_count
        (1000, 1)
    """

    current_bytes: int
    current_count: int
    peak_bytes: int
    peak_count: int
    total_bytes: int
    total_count: int


def _counting() -> _mr.StatisticsResourceAdaptor | None:
    """Return the current device's default resource if it is a `StatisticsResourceAdaptor`, or else None."""
    resource = _mr.get_current_device_resource()
    return resource if isinstance(resource, _mr.StatisticsResourceAdaptor) else None


def enable_statistics() -> None:
    """Count the allocations of the current device's default resource from now on.

    This puts a `StatisticsResourceAdaptor` on top of the default resource. If the default resource is already
    such an adaptor, nothing changes.

    Raises:
        MillpondError: libmillpond could not build the layer.

    Example:
        >>> import millpond
        >>> millpond.statistics.enable_statistics()
        >>> millpond.mr.get_current_device_resource().text
        'cuda+statistics'
    """
    if _counting() is None:
        upstream = _mr.get_current_device_resource()
        _mr.set_current_device_resource(_mr.StatisticsResourceAdaptor(upstream))


def get_statistics() -> Statistics | None:
    """Return the counters of the top level.

    Returns:
        The counters, with sizes in bytes; None if statistics are not enabled.

    Example:
        >>> import millpond
        >>> millpond.statistics.get_statistics() is None
        True
        >>> millpond.statistics.enable_statistics()
        >>> millpond.statistics.get_statistics().current_bytes
        0
    """
    resource = _counting()
    return None if resource is None else resource.allocation_counts


def push_statistics() -> Statistics | None:
    """Start a new top level with all counters at 0.

    Only the top level counts, until `pop_statistics` ends it and adds its counts to the level below.

    Returns:
        The counters of the level that was on top until this call, with sizes in bytes; None if statistics are
        not enabled.

    Example:
        >>> import millpond
        >>> millpond.statistics.enable_statistics()
        >>> outer = millpond.statistics.push_statistics()
        >>> buffer = millpond.DeviceBuffer(size=1000)
        >>> millpond.statistics.pop_statistics().peak_bytes
        1000
    """
    resource = _counting()
    return None if resource is None else resource.push_counters()


def pop_statistics() -> Statistics | None:
    """End the top level, and add its counts to the level below.

    Returns:
        The counters of the level that ended, with sizes in bytes; None if statistics are not enabled.

    Raises:
        IndexError: There is no level that `push_statistics` started.

    Example:
        >>> import millpond
        >>> millpond.statistics.enable_statistics()
        >>> outer = millpond.statistics.push_statistics()
        >>> millpond.statistics.pop_statistics().total_bytes
        0
    """
    resource = _counting()
    return None if resource is None else resource.pop_counters()


@contextmanager
def statistics() -> Iterator[None]:
    """Count the allocations inside a `with` block separately.

    If statistics are enabled, the `with` statement starts a level, and ends the level after the block.
    Otherwise, it enables statistics, and restores the default resource after the block.

    Raises:
        ValueError: The code in the block replaced the default resource.

    Example:
        >>> import millpond
        >>> with millpond.statistics.statistics():
        ...     buffer = millpond.DeviceBuffer(size=1000)
        ...     millpond.statistics.get_statistics().current_bytes
        1000
    """
    before = None if _counting() is not None else _mr.get_current_device_resource()
    if before is None:
        push_statistics()
    else:
        enable_statistics()
    resource = _counting()
    try:
        yield
    finally:
        if _mr.get_current_device_resource() is not resource:
            raise ValueError("the `with` block replaced the default resource; replace it outside the block")
        if before is None:
            pop_statistics()
        else:
            _mr.set_current_device_resource(before)


class ProfilerRecords:
    """The allocations of profiled code, by name. Several threads may add to the records at the same time.

    Example:
        >>> import millpond
        >>> records = millpond.statistics.ProfilerRecords()
        >>> millpond.statistics.enable_statistics()
        >>> with millpond.statistics.profiler(records=records, name="load"):
        ...     buffer = millpond.DeviceBuffer(size=1000)
        >>> records.records["load"].memory_peak
        1000
    """

    @dataclass
    class MemoryRecord:
        """The counters of all calls with one name.

        Args:
            num_calls: The number of calls.
            memory_total: The bytes that all calls allocated.
            memory_peak: The most bytes that one call had in use at once.

        Example:
            >>> import millpond
            >>> record = millpond.statistics.ProfilerRecords.MemoryRecord()
            >>> record.num_calls
            0
        """

        num_calls: int = 0
        memory_total: int = 0
        memory_peak: int = 0

        def add(self, memory_total: int, memory_peak: int) -> None:
            """Add a call.

            Args:
                memory_total: The bytes that the call allocated.
                memory_peak: The most bytes that the call had in use at once.

            Raises:
                TypeError: An argument is not a number.
                ValueError: An argument is negative.

            Example:
                >>> import millpond
                >>> record = millpond.statistics.ProfilerRecords.MemoryRecord()
                >>> record.add(memory_total=3000, memory_peak=2000)
                >>> record
                ProfilerRecords.MemoryRecord(num_calls=1, memory_total=3000, memory_peak=2000)
            """
            total = _arguments.whole(memory_total, "memory_total", "a number of bytes")
            peak = _arguments.whole(memory_peak, "memory_peak", "a number of bytes")
            self.num_calls += 1
            self.memory_total += total
            self.memory_peak = max(self.memory_peak, peak)

    def __init__(self) -> None:
        self._lock = _locks.lock()
        self._records: dict[str, ProfilerRecords.MemoryRecord] = {}

    def add(self, name: str, data: Statistics) -> None:
        """Add the counters of a call.

        Args:
            name: The name that the calls share.
            data: The counters of the call, with sizes in bytes.

        Raises:
            TypeError: `name` is not a text, or `data` is not a `Statistics`.

        Example:
            >>> from millpond.statistics import ProfilerRecords, Statistics
            >>> records = ProfilerRecords()
            >>> records.add("load", Statistics(0, 0, 2000, 1, 3000, 2))
            >>> records.records["load"].memory_total
            3000
        """
        _arguments.instance(name, "name", str, "a text")
        _arguments.instance(data, "data", Statistics, "a Statistics")
        with self._lock:
            record = self._records.setdefault(name, self.MemoryRecord())
            record.add(memory_total=data.total_bytes, memory_peak=data.peak_bytes)

    @property
    def records(self) -> dict[str, MemoryRecord]:
        """The records by name, as a new dict.

        Example:
            >>> import millpond
            >>> millpond.statistics.ProfilerRecords().records
            {}
        """
        with self._lock:
            return dict(self._records)

    def report(self, ordered_by: str = "memory_peak") -> str:
        """Return the records as a table, sorted by the column `ordered_by`, highest value first.

        Args:
            ordered_by: The column that orders the rows: "memory_peak", "num_calls" or "memory_total".

        Returns:
            The table as text, with sizes in bytes.

        Raises:
            ValueError: The table has no such column.

        Example:
            >>> from millpond.statistics import ProfilerRecords, Statistics
            >>> records = ProfilerRecords()
            >>> records.add("load", Statistics(0, 0, 2000, 1, 3000, 2))
            >>> print(records.report().splitlines()[-1].split())
            ['1', '2,000', '3,000', 'load']
        """
        _arguments.choice(ordered_by, "ordered_by", ("memory_peak", "num_calls", "memory_total"))
        rows = sorted(self.records.items(), key=lambda row: getattr(row[1], ordered_by), reverse=True)
        title = ["Memory Profiling", "================", ""]
        if not rows:
            return "\n".join([*title, "No data: nothing was profiled, or statistics were not enabled"])
        lines = [
            *title,
            f"Ordered by: {ordered_by}",
            "",
            f"{'ncalls':>8} {'memory_peak':>15} {'memory_total':>15}  name",
        ]
        for name, record in rows:
            lines.append(
                f"{record.num_calls:>8,} {record.memory_peak:>15,} {record.memory_total:>15,}  {name}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.report()


default_profiler_records = ProfilerRecords()


def _get_descriptive_name_of_object(obj: Callable[..., object]) -> str:
    """Return the file, line and name of a function, without the decorators around it."""
    obj = inspect.unwrap(obj)
    return f"{inspect.getfile(obj)}:{inspect.getsourcelines(obj)[1]}({obj.__qualname__})"


class ProfilerContext:
    """Profiles a function as a decorator, or a block as a context manager. `profiler` makes this object.

    If statistics are not enabled, this object does nothing.

    Args:
        records: The records that receive the counters.
        name: The name of the record. The default for a function is its file, line and name.

    Raises:
        ValueError: A `with` block is profiled without a name.
        TypeError: `records` is not a `ProfilerRecords`, or `name` is not a text.

    Example:
        >>> from millpond.statistics import ProfilerContext, ProfilerRecords
        >>> with ProfilerContext(records=ProfilerRecords(), name="load"):
        ...     pass
    """

    def __init__(self, *, records: ProfilerRecords = default_profiler_records, name: str = "") -> None:
        self._records = _arguments.instance(records, "records", ProfilerRecords, "a ProfilerRecords")
        self._name = _arguments.instance(name, "name", str, "a text")
        self._levels: list[_mr.StatisticsResourceAdaptor | None] = []

    def __call__(self, func: Callable[_P, _R]) -> Callable[_P, _R]:
        _arguments.function(func, "func")
        name = self._name
        if not name:
            line = inspect.getsourcelines(func)[1]
            name = f"{inspect.getfile(func)}:{line}({func.__qualname__})"

        @functools.wraps(func)
        def profiled(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with ProfilerContext(records=self._records, name=name):
                return func(*args, **kwargs)

        return profiled

    def __enter__(self) -> Self:
        if not self._name:
            raise ValueError('a profiled `with` block needs a name; write for example profiler(name="load")')
        resource = _counting()
        if resource is not None:
            resource.push_counters()
        self._levels.append(resource)
        return self

    def __exit__(self, *exc: object) -> None:
        resource = self._levels.pop()
        if resource is not None:
            self._records.add(self._name, resource.pop_counters())


def profiler(*, records: ProfilerRecords = default_profiler_records, name: str = "") -> ProfilerContext:
    """Return an object that profiles the allocations of a function or a block.

    The object counts the allocations of the current device's default resource. If statistics are not enabled,
    it does nothing.

    Args:
        records: The records that receive the counters; by default `default_profiler_records`.
        name: The name of the record. The default for a function is its file, line and name.

    Returns:
        An object that is a decorator for a function, and a context manager for a block.

    Raises:
        ValueError: A `with` block is profiled without a name.
        TypeError: `records` is not a `ProfilerRecords`, or `name` is not a text.

    Example:
        >>> import millpond
        >>> records = millpond.statistics.ProfilerRecords()
        >>> millpond.statistics.enable_statistics()
        >>> @millpond.statistics.profiler(records=records, name="load")
        ... def load():
        ...     return millpond.DeviceBuffer(size=1000)
        >>> buffer = load()
        >>> records.records["load"].num_calls
        1
    """
    return ProfilerContext(records=records, name=name)
