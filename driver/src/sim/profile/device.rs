//! A device's size and the costs of its driver calls.

use std::sync::Arc;

use super::{Costs, PlainCosts, SizeCosts};
use crate::CallKind;

const KIB: u64 = 1 << 10;

/// Describes a device for simulation: its size, and the costs of its driver calls.
///
/// `millpond-replay calibrate` measures a device, and writes its profile to a TOML file. `Profile::from_toml`
/// reads such a file (with the feature `profiles`). The folder `driver/profiles` contains the built-in
/// profile of an H200.
///
/// Costs are nanoseconds of host time, including the time of reading the timer. Between two measured sizes, a
/// cost is interpolated linearly: see [`Curve`](super::Curve). Calls whose cost was not measured cost
/// nothing: see [`call_ns`](Self::call_ns).
///
/// The time that work takes on the device is a simple model, not a measurement. A kernel takes 2 µs, plus 1
/// ns for each 4 KiB that the kernel touches. A copy or fill takes 1 µs, plus 1 ns for each 1 KiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    name: String,
    capacity: u64,
    measured_on: Option<String>,
    multiprocessors: i64,
    compute_capability: (i64, i64),
    costs: Arc<Costs>,
    /// By kind, as from [`Costs::call_ns`]; read in each call.
    calls: [Option<u64>; CallKind::ALL.len()],
}

impl Profile {
    /// Returns the same profile with another capacity in bytes. The name of the new profile states the
    /// capacity.
    #[must_use]
    pub fn resized(self, bytes: u64) -> Self {
        let name = format!("{} with {}", self.name, millpond_core::format_bytes(bytes));
        Self { name, capacity: bytes, ..self }
    }

    /// Another device without measured costs, which uses this one's costs.
    pub(super) fn standing_in_for(
        self,
        name: String,
        capacity: u64,
        multiprocessors: i64,
        compute_capability: (i64, i64),
    ) -> Self {
        Self { name, capacity, measured_on: None, multiprocessors, compute_capability, ..self }
    }

    /// Creates a profile with these costs. `measured_on` tells where the costs were measured.
    pub fn measured(
        name: impl Into<String>,
        capacity: u64,
        multiprocessors: i64,
        compute_capability: (i64, i64),
        measured_on: impl Into<String>,
        costs: Costs,
    ) -> Self {
        Self {
            name: name.into(),
            capacity,
            measured_on: Some(measured_on.into()),
            multiprocessors,
            compute_capability,
            calls: CallKind::ALL.map(|kind| costs.call_ns(kind)),
            costs: Arc::new(costs),
        }
    }

    /// The same profile with another note on where it was measured; `None` if it was not.
    #[cfg(feature = "profiles")]
    pub(super) fn with_measured_on(self, measured_on: Option<String>) -> Self {
        Self { measured_on, ..self }
    }

    /// Returns the same profile with other costs.
    #[must_use]
    pub fn with_costs(self, costs: Costs) -> Self {
        Self { calls: CallKind::ALL.map(|kind| costs.call_ns(kind)), costs: Arc::new(costs), ..self }
    }

    /// Returns a name of the device that people can read.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the capacity of the device in bytes.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns whether the costs were measured on this kind of device.
    pub const fn is_measured(&self) -> bool {
        self.measured_on.is_some()
    }

    /// Returns where and when the costs were measured; `None` if they were not measured.
    pub fn measured_on(&self) -> Option<&str> {
        self.measured_on.as_deref()
    }

    /// Returns the costs of the driver calls.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Returns the number of multiprocessors.
    pub const fn multiprocessors(&self) -> i64 {
        self.multiprocessors
    }

    /// Returns the compute capability, major and minor.
    pub const fn compute_capability(&self) -> (i64, i64) {
        self.compute_capability
    }

    /// Returns the constant part of the cost of a call of this kind, in nanoseconds. Returns `None` if the
    /// cost was not measured. The simulated device then uses 0.
    pub const fn call_ns(&self, kind: CallKind) -> Option<u64> {
        self.calls[kind as usize]
    }

    /// The extra nanoseconds of recording an event on the legacy default stream.
    pub(in crate::sim) fn legacy_record_extra_ns(&self) -> u64 {
        self.costs.event_record.legacy_stream_extra_ns
    }

    /// The nanoseconds to allocate a block that takes this many bytes of pages; 0 if it fits into a shared
    /// page.
    pub(in crate::sim) fn mem_alloc_ns(&self, bytes: u64, pages_bytes: u64) -> u64 {
        PlainCosts::ns(self.costs.mem_alloc.as_ref(), bytes, pages_bytes)
    }

    /// The nanoseconds to free a block that returns this many bytes of pages; 0 if its page stays in use.
    pub(in crate::sim) fn mem_free_ns(&self, bytes: u64, pages_bytes: u64) -> u64 {
        PlainCosts::ns(self.costs.mem_free.as_ref(), bytes, pages_bytes)
    }

    pub(in crate::sim) fn mem_alloc_managed_ns(&self, bytes: u64) -> u64 {
        SizeCosts::ns(self.costs.mem_alloc_managed.as_ref(), bytes)
    }

    pub(in crate::sim) fn mem_free_managed_ns(&self, bytes: u64) -> u64 {
        SizeCosts::ns(self.costs.mem_free_managed.as_ref(), bytes)
    }

    pub(in crate::sim) fn mem_host_alloc_ns(&self, bytes: u64) -> u64 {
        SizeCosts::ns(self.costs.mem_host_alloc.as_ref(), bytes)
    }

    pub(in crate::sim) fn mem_free_host_ns(&self, bytes: u64) -> u64 {
        SizeCosts::ns(self.costs.mem_free_host.as_ref(), bytes)
    }

    pub(in crate::sim) fn mem_create_ns(&self, bytes: u64) -> u64 {
        SizeCosts::ns(self.costs.mem_create.as_ref(), bytes)
    }

    pub(in crate::sim) fn mem_release_ns(&self, bytes: u64) -> u64 {
        SizeCosts::ns(self.costs.mem_release.as_ref(), bytes)
    }

    /// The nanoseconds of one mapping in a call that makes it accessible. `new` counts the aligned 512 MiB of
    /// addresses that had no accessible mapping before.
    pub(in crate::sim) fn set_access_mapping_ns(&self, bytes: u64, is_second: bool, new: u64) -> u64 {
        let Some(costs) = &self.costs.mem_set_access else { return 0 };
        let extra = if is_second { costs.second_mapping_extra_ns } else { 0 };
        costs.mapping_by_bytes_ns.ns(bytes) + extra + new.saturating_mul(costs.new_512_mib_extra_ns)
    }

    /// The nanoseconds of one mapping in a call that unmaps it.
    pub(in crate::sim) fn unmap_mapping_ns(&self, bytes: u64) -> u64 {
        self.costs.mem_unmap.as_ref().map_or(0, |costs| costs.mapping_by_bytes_ns.ns(bytes))
    }

    pub(in crate::sim) const fn kernel_ns(&self, bytes: u64) -> u64 {
        2_000 + bytes / (4 * KIB)
    }

    pub(in crate::sim) const fn copy_ns(&self, bytes: u64) -> u64 {
        1_000 + bytes / KIB
    }
}
