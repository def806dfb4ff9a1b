//! Records the allocations of named parts of a program.

use std::any::type_name;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use millpond_core::format_bytes;
use parking_lot::Mutex;

use super::Counters;
use crate::AllocationCounters;

/// Records the allocations of named phases of a program. For each phase, records how often the phase ran, its
/// peak bytes and its total bytes.
///
/// A phase is a call of a closure, or the time between the creation and the drop of a [`scope`](Self::scope).
/// Each phase has a [level](super::StatisticsResourceAdaptor#levels) of counters in a
/// [`StatisticsResourceAdaptor`](super::StatisticsResourceAdaptor). Phases may be nested. An outer phase also
/// counts the allocations of its inner phases.
///
/// Levels belong to the resource, not to a thread. So a phase also counts allocations that other threads make
/// while the phase runs. The scope that began last must end first.
///
/// ```
/// use millpond_adaptors::StatisticsResourceAdaptor;
/// use millpond_adaptors::statistics::{ProfilerRecords, ReportOrder};
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// static PROFILE: ProfilerRecords = ProfilerRecords::new();
///
/// let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
/// let resource = StatisticsResourceAdaptor::new(cuda);
/// {
///     let _scope = PROFILE.scope(&resource, "load");
///     resource.allocate_bytes(1000, StreamRef::LEGACY)?;
/// }
/// PROFILE.measure(&resource, "train", || resource.allocate_bytes(5000, StreamRef::LEGACY))?;
///
/// let records = PROFILE.records(ReportOrder::PeakBytes);
/// assert_eq!((records[0].0.as_str(), records[0].1.peak_bytes), ("train", 5000));
/// println!("{}", PROFILE.report(ReportOrder::PeakBytes));
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Default)]
pub struct ProfilerRecords {
    records: Mutex<BTreeMap<Cow<'static, str>, MemoryRecord>>,
}

impl fmt::Debug for ProfilerRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints without the lock, because a formatter is code of the program.
        let records = self.records.lock().clone();
        f.debug_struct("ProfilerRecords").field("records", &records).finish()
    }
}

/// The allocations of one phase of a program.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MemoryRecord {
    /// The number of times that the phase ran.
    pub calls: u64,
    /// The highest number of live bytes in one run. Only blocks that this run allocated count.
    pub peak_bytes: u64,
    /// The number of bytes that all runs allocated together.
    pub total_bytes: u64,
}

/// The order of the phases in a report. The largest value comes first. Phases with equal values are ordered
/// by name.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReportOrder {
    /// The phases are ordered by their peak bytes.
    #[default]
    PeakBytes,
    /// The phases are ordered by their total bytes.
    TotalBytes,
    /// The phases are ordered by how often they ran.
    Calls,
}

impl ReportOrder {
    fn key(self, record: &MemoryRecord) -> u64 {
        match self {
            Self::PeakBytes => record.peak_bytes,
            Self::TotalBytes => record.total_bytes,
            Self::Calls => record.calls,
        }
    }
}

impl ProfilerRecords {
    /// Creates an empty set of records.
    pub const fn new() -> Self {
        Self { records: Mutex::new(BTreeMap::new()) }
    }

    /// Begins a phase. When the returned scope is dropped, the phase ends and is recorded.
    ///
    /// `counters` is the statistics adaptor of a stack.
    /// [`find_trait::<dyn AllocationCounters>`](millpond_core::find_trait) finds this adaptor.
    pub fn scope<'a>(
        &'a self,
        counters: &'a dyn AllocationCounters,
        name: impl Into<Cow<'static, str>>,
    ) -> ProfilerScope<'a> {
        counters.push_counters();
        ProfilerScope { records: self, counters, name: name.into() }
    }

    /// Runs a closure as a phase with this name.
    pub fn measure<T>(
        &self,
        counters: &dyn AllocationCounters,
        name: impl Into<Cow<'static, str>>,
        body: impl FnOnce() -> T,
    ) -> T {
        let _scope = self.scope(counters, name);
        body()
    }

    /// Runs a function as a phase. The name of the phase is the path of the function, such as
    /// `my_crate::train`. For a closure, the name is the path of the function that contains the closure.
    pub fn measure_function<T, F: FnOnce() -> T>(&self, counters: &dyn AllocationCounters, body: F) -> T {
        self.measure(counters, type_name::<F>().trim_end_matches("::{{closure}}"), body)
    }

    /// Adds one run with these counters to the record of a phase.
    pub fn add(&self, name: impl Into<Cow<'static, str>>, counted: &Counters) {
        let bytes = |value: i64| u64::try_from(value).unwrap_or(0);
        let name = name.into(); // the caller's code, so without the lock
        let mut records = self.records.lock();
        let record = records.entry(name).or_default();
        record.calls += 1;
        record.peak_bytes = record.peak_bytes.max(bytes(counted.bytes.peak));
        record.total_bytes = record.total_bytes.saturating_add(bytes(counted.bytes.total));
    }

    /// Returns the names and records of all phases, in this order.
    pub fn records(&self, order: ReportOrder) -> Vec<(String, MemoryRecord)> {
        let records = self.records.lock();
        let mut records: Vec<_> = records.iter().map(|(name, record)| (name.to_string(), *record)).collect();
        // The sort is stable: equal records stay in the order of their names.
        records.sort_by_key(|(_, record)| std::cmp::Reverse(order.key(record)));
        records
    }

    /// Returns the records of all phases as a table, in this order.
    pub fn report(&self, order: ReportOrder) -> ProfilerReport {
        ProfilerReport { rows: self.records(order) }
    }

    /// Removes all records.
    pub fn clear(&self) {
        self.records.lock().clear();
    }
}

/// A phase that is being measured; see [`ProfilerRecords::scope`].
#[must_use = "the phase ends when the scope is dropped"]
pub struct ProfilerScope<'a> {
    records: &'a ProfilerRecords,
    counters: &'a dyn AllocationCounters,
    name: Cow<'static, str>,
}

impl Drop for ProfilerScope<'_> {
    fn drop(&mut self) {
        match self.counters.pop_counters() {
            Ok(counted) => self.records.add(std::mem::take(&mut self.name), &counted),
            Err(error) => {
                let name = &self.name;
                tracing::warn!(
                    target: "millpond::adaptors",
                    %name,
                    %error,
                    "the profiler cannot record this phase"
                );
            }
        }
    }
}

impl fmt::Debug for ProfilerScope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProfilerScope").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A table of phases, which [`Display`](fmt::Display) prints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfilerReport {
    rows: Vec<(String, MemoryRecord)>,
}

impl fmt::Display for ProfilerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10} {:>12} {:>12}  name", "calls", "peak", "total")?;
        for (name, MemoryRecord { calls, peak_bytes, total_bytes }) in &self.rows {
            let (peak, total) = (format_bytes(*peak_bytes), format_bytes(*total_bytes));
            write!(f, "\n{calls:>10} {peak:>12} {total:>12}  {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::{DeviceMemoryResourceExt, DevicePtr, StreamRef, find_trait};
    use millpond_driver::sim::{SimConfig, SimDevice};
    use millpond_resources::CudaMemoryResource;

    use super::*;
    use crate::{LimitingLayer, StatisticsResourceAdaptor};

    const S: StreamRef = StreamRef::LEGACY;

    type Resource = StatisticsResourceAdaptor<CudaMemoryResource>;

    fn resource() -> Resource {
        StatisticsResourceAdaptor::new(CudaMemoryResource::new(SimDevice::new(SimConfig::h200())))
    }

    fn allocate(resource: &Resource, bytes: u64) -> DevicePtr {
        resource.allocate_bytes(bytes, S).unwrap()
    }

    fn use_for_a_moment(resource: &Resource, bytes: u64) {
        let ptr = allocate(resource, bytes);
        // SAFETY: the block is live, unused, and freed with its size.
        unsafe { resource.deallocate_bytes(ptr, bytes, S) };
    }

    fn names(records: &ProfilerRecords, order: ReportOrder) -> Vec<String> {
        records.records(order).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn parts_are_nested_and_called_several_times() {
        let (resource, records) = (resource(), ProfilerRecords::new());
        let kept = allocate(&resource, 7000);
        for _ in 0..2 {
            let _outer = records.scope(&resource, "outer");
            use_for_a_moment(&resource, 1000);
            for _ in 0..3 {
                let _inner = records.scope(&resource, "inner".to_owned());
                use_for_a_moment(&resource, 500);
                use_for_a_moment(&resource, 600);
            }
        }
        let found = records.records(ReportOrder::PeakBytes);
        let outer = MemoryRecord { calls: 2, peak_bytes: 1000, total_bytes: 2 * (1000 + 3 * 1100) };
        let inner = MemoryRecord { calls: 6, peak_bytes: 600, total_bytes: 6 * 1100 };
        assert_eq!(found, [("outer".to_owned(), outer), ("inner".to_owned(), inner)]);
        assert_eq!(resource.counters().bytes.total, 7000 + outer.total_bytes as i64);
        assert!(resource.pop_counters().is_err(), "every level was ended");
        // SAFETY: the block is live, unused, and freed with its size.
        unsafe { resource.deallocate_bytes(kept, 7000, S) };
    }

    #[test]
    fn a_report_is_a_table_in_the_order_that_was_asked_for() {
        let (resource, records) = (resource(), ProfilerRecords::new());
        records.measure(&resource, "large", || use_for_a_moment(&resource, 3 << 20));
        (0..4).for_each(|_| records.measure(&resource, "busy", || use_for_a_moment(&resource, 1 << 20)));
        assert_eq!(names(&records, ReportOrder::default()), ["large", "busy"]);
        assert_eq!(names(&records, ReportOrder::TotalBytes), ["busy", "large"]);
        assert_eq!(names(&records, ReportOrder::Calls), ["busy", "large"]);
        records.measure(&resource, "also busy", || ());
        records.measure(&resource, "idle", || ());
        assert_eq!(names(&records, ReportOrder::PeakBytes), ["large", "busy", "also busy", "idle"]);
        let report = records.report(ReportOrder::PeakBytes).to_string();
        let lines: Vec<Vec<&str>> = report.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["calls", "peak", "total", "name"]);
        assert_eq!((lines[1].first(), lines[1].last()), (Some(&"1"), Some(&"large")));
        assert!(lines[2].contains(&"4") && report.contains("3 MiB") | report.contains("3MiB"), "{report}");
        assert_eq!(lines.len(), 5);
        records.clear();
        assert_eq!(records.report(ReportOrder::Calls).to_string().lines().count(), 1);
    }

    #[test]
    fn a_function_is_recorded_under_its_path() {
        fn train() -> u32 {
            7
        }
        let (resource, records) = (resource(), ProfilerRecords::new());
        assert_eq!(records.measure_function(&resource, train), 7);
        records.measure_function(&resource, || use_for_a_moment(&resource, 10));
        let found = names(&records, ReportOrder::Calls).join(" ");
        assert!(found.contains("a_function_is_recorded_under_its_path::train"), "{found}");
        assert!(found.contains("tests::a_function_is_recorded_under_its_path "), "{found}");
    }

    #[test]
    fn a_part_that_panics_is_recorded_and_ends_its_level() {
        let (resource, records) = (resource(), ProfilerRecords::new());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            records.measure(&resource, "part", || {
                allocate(&resource, 100);
                panic!("on purpose");
            })
        }));
        assert!(panicked.is_err());
        let (name, record) = records.records(ReportOrder::Calls).remove(0);
        assert_eq!((name.as_str(), record.calls, record.peak_bytes), ("part", 1, 100));
        assert!(resource.pop_counters().is_err());
    }

    #[test]
    fn a_level_that_somebody_else_ended_is_not_recorded() {
        let (resource, records) = (resource(), ProfilerRecords::new());
        let scope = records.scope(&resource, "part");
        resource.pop_counters().unwrap();
        drop(scope);
        assert_eq!(records.records(ReportOrder::Calls), []);
    }

    #[test]
    fn the_counters_of_a_stack_are_found() {
        let stack = resource().layer(LimitingLayer::new(1 << 20)).unwrap().into_any();
        let counters = find_trait::<dyn AllocationCounters>(&stack).unwrap();
        let records = ProfilerRecords::default();
        records.measure(counters, "part", || stack.allocate_bytes(100, S)).unwrap();
        assert_eq!(records.records(ReportOrder::Calls)[0].1.total_bytes, 100);
    }
}
