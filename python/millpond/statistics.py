"""Counters of allocations, and a profiler over them."""

import functools
import inspect
from contextlib import contextmanager
from dataclasses import dataclass

from . import _locks
from . import mr as _mr


@dataclass
class Statistics:
    """Current, peak and total bytes and allocations."""

    current_bytes: int
    peak_bytes: int
    total_bytes: int
    current_count: int
    peak_count: int
    total_count: int


def _counting():
    """Return the current resource if it counts."""
    resource = _mr.get_current_device_resource()
    return resource if isinstance(resource, _mr.StatisticsResourceAdaptor) else None


def enable_statistics():
    """Put a StatisticsResourceAdaptor on the current resource, unless it is one."""
    if _counting() is None:
        upstream = _mr.get_current_device_resource()
        _mr.set_current_device_resource(_mr.StatisticsResourceAdaptor(upstream))


def get_statistics():
    """Return the counters of the present level, or None if statistics are not enabled."""
    resource = _counting()
    return None if resource is None else resource.allocation_counts


def push_statistics():
    """Start a level, and return the counters of the one below; None if statistics are not enabled."""
    resource = _counting()
    return None if resource is None else resource.push_counters()


def pop_statistics():
    """End a level, and return its counters; None if statistics are not enabled."""
    resource = _counting()
    return None if resource is None else resource.pop_counters()


@contextmanager
def statistics():
    """Count in a level of its own inside of the context."""
    enable_statistics()
    resource = _counting()
    push_statistics()
    try:
        yield
    finally:
        if _mr.get_current_device_resource() is not resource:
            raise ValueError("the current resource was changed inside of the context")
        pop_statistics()


class ProfilerRecords:
    """What profiled code allocated, by name. Threads may add at the same time."""

    @dataclass
    class MemoryRecord:
        """The calls of one name: their number, the bytes of all, and the highest peak in bytes."""

        num_calls: int = 0
        memory_total: int = 0
        memory_peak: int = 0

        def add(self, memory_total, memory_peak):
            """Add a call."""
            self.num_calls += 1
            self.memory_total += memory_total
            self.memory_peak = max(self.memory_peak, memory_peak)

    def __init__(self):
        self._lock = _locks.lock()
        self._records = {}

    def add(self, name, data):
        """Add the counters of a call."""
        with self._lock:
            record = self._records.setdefault(name, self.MemoryRecord())
            record.add(memory_total=data.total_bytes, memory_peak=data.peak_bytes)

    @property
    def records(self):
        """The records by name."""
        with self._lock:
            return dict(self._records)

    def report(self, ordered_by="memory_peak"):
        """Return a table, ordered by "memory_peak", "num_calls" or "memory_total"."""
        if ordered_by not in ("memory_peak", "num_calls", "memory_total"):
            raise ValueError(f"records cannot be ordered by {ordered_by!r}")
        rows = sorted(self.records.items(), key=lambda row: getattr(row[1], ordered_by), reverse=True)
        lines = [
            "Memory Profiling",
            "================",
            "",
            f"Ordered by: {ordered_by}",
            "",
            f"{'ncalls':>8} {'memory_peak':>15} {'memory_total':>15}  name",
        ]
        for name, record in rows:
            lines.append(
                f"{record.num_calls:>8,} {record.memory_peak:>15,} {record.memory_total:>15,}  {name}"
            )
        return "\n".join(lines)

    def __repr__(self):
        return self.report()


default_profiler_records = ProfilerRecords()


class ProfilerContext:
    """Profiles a function as its decorator, or a block as its context. Without statistics it does nothing."""

    def __init__(self, *, records=default_profiler_records, name=""):
        self._records = records
        self._name = name
        self._levels = []

    def __call__(self, func):
        name = self._name
        if not name:
            line = inspect.getsourcelines(func)[1]
            name = f"{inspect.getfile(func)}:{line}({func.__qualname__})"

        @functools.wraps(func)
        def profiled(*args, **kwargs):
            with ProfilerContext(records=self._records, name=name):
                return func(*args, **kwargs)

        return profiled

    def __enter__(self):
        if not self._name:
            raise ValueError("a profiled context needs a name")
        resource = _counting()
        if resource is not None:
            resource.push_counters()
        self._levels.append(resource)
        return self

    def __exit__(self, *exc):
        resource = self._levels.pop()
        if resource is not None:
            self._records.add(self._name, resource.pop_counters())


def profiler(*, records=default_profiler_records, name=""):
    """Return a decorator and context that profiles the memory of the current resource."""
    return ProfilerContext(records=records, name=name)
