//! The costs of driver calls, in nanoseconds of host time.

use std::collections::BTreeMap;

use super::Curve;
use crate::CallKind;

/// The costs of a device's driver calls.
///
/// A cost that is `None`, or is missing in [`calls_ns`](Self::calls_ns), was not measured. Calls without a
/// measured cost take no virtual time. Reports list the calls without a measured cost.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "profiles", derive(serde::Deserialize), serde(deny_unknown_fields, default))]
#[non_exhaustive]
pub struct Costs {
    /// The cost of each kind of call with a constant cost, in nanoseconds.
    pub calls_ns: CallCosts,
    /// The costs of recording an event.
    pub event_record: EventRecordCosts,
    /// The costs of `cuMemAlloc`.
    pub mem_alloc: Option<PlainCosts>,
    /// The costs of `cuMemFree` for plain memory.
    pub mem_free: Option<PlainCosts>,
    /// The costs of `cuMemAllocManaged`.
    pub mem_alloc_managed: Option<SizeCosts>,
    /// The costs of `cuMemFree` for managed memory that the device never touched.
    pub mem_free_managed: Option<SizeCosts>,
    /// The costs of `cuMemHostAlloc`.
    pub mem_host_alloc: Option<SizeCosts>,
    /// The costs of `cuMemFreeHost`.
    pub mem_free_host: Option<SizeCosts>,
    /// The costs of `cuMemCreate`.
    pub mem_create: Option<SizeCosts>,
    /// The costs of `cuMemRelease`.
    pub mem_release: Option<SizeCosts>,
    /// The costs of `cuMemSetAccess`.
    pub mem_set_access: Option<SetAccessCosts>,
    /// The costs of `cuMemUnmap`.
    pub mem_unmap: Option<UnmapCosts>,
}

/// The cost of a call, if it depends only on the size in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Deserialize), serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct SizeCosts {
    /// The nanoseconds of a call, by size in bytes.
    pub by_bytes_ns: Curve,
}

impl SizeCosts {
    /// Creates the cost from a curve: the nanoseconds of a call, by size in bytes.
    pub const fn new(by_bytes_ns: Curve) -> Self {
        Self { by_bytes_ns }
    }
}

/// The cost of allocating or freeing plain memory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Deserialize), serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct PlainCosts {
    /// The nanoseconds for a block of up to 2 MiB, if the call neither takes a page from the device nor
    /// returns a page.
    pub in_page_ns: u64,
    /// The nanoseconds for a larger block, by the total size of its pages in bytes. If the call for a smaller
    /// block takes or returns a page, the value at 2 MiB is added to the cost.
    pub by_bytes_ns: Curve,
}

impl PlainCosts {
    /// Creates the cost of plain memory from the values of the two fields.
    pub const fn new(in_page_ns: u64, by_bytes_ns: Curve) -> Self {
        Self { in_page_ns, by_bytes_ns }
    }
}

/// Additional costs of recording an event. They are added to the cost of `event_record` in `calls_ns`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "profiles", derive(serde::Deserialize), serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct EventRecordCosts {
    /// The additional nanoseconds for a record on the legacy default stream.
    pub legacy_stream_extra_ns: u64,
}

/// The cost of giving access to mappings (`cuMemSetAccess`). It is the sum of a cost for the call and of
/// costs for each mapping in the range.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Deserialize), serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct SetAccessCosts {
    /// The nanoseconds for the call.
    pub call_ns: u64,
    /// The nanoseconds for each mapping, by the size of the mapping in bytes.
    pub mapping_by_bytes_ns: Curve,
    /// The additional nanoseconds for each mapping whose physical memory has another mapping.
    pub second_mapping_extra_ns: u64,
    /// The additional nanoseconds for each aligned 512 MiB of addresses in which no address was accessible
    /// before.
    pub new_512_mib_extra_ns: u64,
}

impl SetAccessCosts {
    /// Creates the cost from the nanoseconds for the call, and from the nanoseconds for a mapping by its size
    /// in bytes. The additional costs are 0.
    pub const fn new(call_ns: u64, mapping_by_bytes_ns: Curve) -> Self {
        Self { call_ns, mapping_by_bytes_ns, second_mapping_extra_ns: 0, new_512_mib_extra_ns: 0 }
    }
}

/// The cost of unmapping. It is the sum of a cost for the call and of a cost for each mapping in the range.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Deserialize), serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct UnmapCosts {
    /// The nanoseconds for the call.
    pub call_ns: u64,
    /// The nanoseconds for each mapping, by the size of the mapping in bytes.
    pub mapping_by_bytes_ns: Curve,
}

impl UnmapCosts {
    /// Creates the cost from the nanoseconds for the call, and from the nanoseconds for a mapping by its size
    /// in bytes.
    pub const fn new(call_ns: u64, mapping_by_bytes_ns: Curve) -> Self {
        Self { call_ns, mapping_by_bytes_ns }
    }
}

/// The cost of each kind of call with a constant cost, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "profiles", derive(serde::Deserialize), serde(try_from = "BTreeMap<String, u64>"))]
pub struct CallCosts(BTreeMap<CallKind, u64>);

impl CallCosts {
    /// Returns the cost of a call of this kind in nanoseconds; `None` if the cost was not measured.
    pub fn get(&self, kind: CallKind) -> Option<u64> {
        self.0.get(&kind).copied()
    }

    /// Iterates over the kinds whose cost was measured, with the cost of each kind in nanoseconds.
    pub fn iter(&self) -> impl Iterator<Item = (CallKind, u64)> {
        self.0.iter().map(|(kind, ns)| (*kind, *ns))
    }
}

impl FromIterator<(CallKind, u64)> for CallCosts {
    /// Leaves out kinds of calls whose cost depends on the size. [`Costs`] has separate fields for these
    /// kinds.
    fn from_iter<I: IntoIterator<Item = (CallKind, u64)>>(costs: I) -> Self {
        Self(costs.into_iter().filter(|(kind, _)| !goes_by_size(*kind)).collect())
    }
}

/// Converts a map from the names of the kinds to their costs.
impl TryFrom<BTreeMap<String, u64>> for CallCosts {
    type Error = String;

    fn try_from(costs: BTreeMap<String, u64>) -> Result<Self, String> {
        let known = || CallKind::ALL.into_iter().filter(|kind| !goes_by_size(*kind));
        let kind = |(name, ns): (String, u64)| {
            if let Some(kind) = known().find(|kind| kind.name() == name) {
                return Ok((kind, ns));
            }
            if CallKind::ALL.iter().any(|kind| kind.name() == name) {
                return Err(format!("the cost of `{name}` depends on the size; write [costs.{name}]"));
            }
            let names: Vec<_> = known().map(CallKind::name).collect();
            Err(format!("there is no call `{name}`; the calls with a constant cost are {}", names.join(", ")))
        };
        costs.into_iter().map(kind).collect::<Result<_, _>>().map(Self)
    }
}

/// Whether [`Costs`] has its own field for this kind.
const fn goes_by_size(kind: CallKind) -> bool {
    matches!(
        kind,
        CallKind::MemAlloc
            | CallKind::MemFree
            | CallKind::MemAllocManaged
            | CallKind::MemHostAlloc
            | CallKind::MemFreeHost
            | CallKind::MemCreate
            | CallKind::MemRelease
            | CallKind::MemSetAccess
            | CallKind::MemUnmap
    )
}

impl Costs {
    /// Returns the constant part of the cost of a call of this kind, in nanoseconds; `None` if the cost was
    /// not measured.
    pub fn call_ns(&self, kind: CallKind) -> Option<u64> {
        let by_size = |is_measured: bool| is_measured.then_some(0);
        match kind {
            CallKind::MemAlloc => by_size(self.mem_alloc.is_some()),
            CallKind::MemFree => by_size(self.mem_free.is_some()),
            CallKind::MemAllocManaged => by_size(self.mem_alloc_managed.is_some()),
            CallKind::MemHostAlloc => by_size(self.mem_host_alloc.is_some()),
            CallKind::MemFreeHost => by_size(self.mem_free_host.is_some()),
            CallKind::MemCreate => by_size(self.mem_create.is_some()),
            CallKind::MemRelease => by_size(self.mem_release.is_some()),
            CallKind::MemSetAccess => self.mem_set_access.as_ref().map(|costs| costs.call_ns),
            CallKind::MemUnmap => self.mem_unmap.as_ref().map(|costs| costs.call_ns),
            kind => self.calls_ns.get(kind),
        }
    }
}

impl Costs {
    /// Multiplies the costs of all calls of this kind by `factor`. For the kind `MemFree`, the method
    /// multiplies only the costs of plain memory.
    pub fn scale(&mut self, kind: CallKind, factor: f64) {
        let scale = |ns: &mut u64| *ns = (*ns as f64 * factor).round() as u64;
        let sizes =
            |costs: Option<&mut SizeCosts>| costs.into_iter().for_each(|it| it.by_bytes_ns.scale(scale));
        let plain = |costs: Option<&mut PlainCosts>| {
            if let Some(costs) = costs {
                scale(&mut costs.in_page_ns);
                costs.by_bytes_ns.scale(scale);
            }
        };
        match kind {
            CallKind::MemAlloc => plain(self.mem_alloc.as_mut()),
            CallKind::MemFree => plain(self.mem_free.as_mut()),
            CallKind::MemAllocManaged => sizes(self.mem_alloc_managed.as_mut()),
            CallKind::MemHostAlloc => sizes(self.mem_host_alloc.as_mut()),
            CallKind::MemFreeHost => sizes(self.mem_free_host.as_mut()),
            CallKind::MemCreate => sizes(self.mem_create.as_mut()),
            CallKind::MemRelease => sizes(self.mem_release.as_mut()),
            CallKind::MemSetAccess => {
                if let Some(costs) = &mut self.mem_set_access {
                    scale(&mut costs.call_ns);
                    scale(&mut costs.second_mapping_extra_ns);
                    scale(&mut costs.new_512_mib_extra_ns);
                    costs.mapping_by_bytes_ns.scale(scale);
                }
            }
            CallKind::MemUnmap => {
                if let Some(costs) = &mut self.mem_unmap {
                    scale(&mut costs.call_ns);
                    costs.mapping_by_bytes_ns.scale(scale);
                }
            }
            kind => {
                if kind == CallKind::EventRecord {
                    scale(&mut self.event_record.legacy_stream_extra_ns);
                }
                if let Some(ns) = self.calls_ns.0.get_mut(&kind) {
                    scale(ns);
                }
            }
        }
    }
}

impl PlainCosts {
    /// Returns the nanoseconds for a block of `bytes` bytes. `pages_bytes` is the size of the pages that the
    /// call takes from the device or returns to it. It is 0 if other blocks share the page of this block.
    pub fn ns(costs: Option<&Self>, bytes: u64, pages_bytes: u64) -> u64 {
        let Some(costs) = costs else { return 0 };
        let shares = if crate::plain::shares(bytes) { costs.in_page_ns } else { 0 };
        let pages = if pages_bytes > 0 { costs.by_bytes_ns.ns(pages_bytes) } else { 0 };
        shares.saturating_add(pages)
    }
}

impl SizeCosts {
    /// Returns the nanoseconds for `bytes` bytes; 0 if the cost was not measured.
    pub fn ns(costs: Option<&Self>, bytes: u64) -> u64 {
        costs.map_or(0, |costs| costs.by_bytes_ns.ns(bytes))
    }
}
