"""Statistics, the profiler, reports, and logs."""

from typing import Any, assert_type

import millpond
from millpond import statistics

statistics.enable_statistics()
counters = statistics.get_statistics()
assert_type(counters, statistics.Statistics | None)
assert counters is not None
assert_type(counters.peak_bytes, int)

records = statistics.ProfilerRecords()


@statistics.profiler(records=records, name="load")
def load(size: int) -> millpond.DeviceBuffer:
    """Allocate."""
    return millpond.DeviceBuffer(size=size)


assert_type(load(1000), millpond.DeviceBuffer)
with statistics.statistics():
    load(2000)
with statistics.profiler(records=records, name="block"):
    load(3000)
assert_type(records.records["load"].memory_peak, int)
assert_type(records.report(ordered_by="num_calls"), str)

report = millpond.memory_report()
assert_type(report, millpond.MemoryReport)
assert_type(report.data, dict[str, Any])
assert_type(millpond.get_log_filenames(), dict[int, str | None])
if millpond.should_log(millpond.level_enum.warn):
    millpond.flush_logger()
