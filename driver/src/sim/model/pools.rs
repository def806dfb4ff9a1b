//! Stream-ordered memory and its pools.
//!
//! This is a plain model of CUDA's pools. A pool takes its memory in chunks, hands out pieces of them by best
//! fit, and keeps the returned pieces. Neighbours in a chunk join if they were freed on the same stream or
//! are both done. A chunk returns to the device when it is one piece. CUDA does not document how its pools
//! divide memory. On the logs of docs/book/src/benchmarks.md, this model takes 1.4 to 3.0 times the live
//! memory, and CUDA's pools on an H200 take 1.0 to 1.3 times. A request is served, in this order, by
//! 1. the smallest piece that fits and that the requesting stream may use. It may use a piece if it is
//!    ordered after the piece's free (`ReuseFollowEventDependencies`; without it, only pieces freed on that
//!    very stream), or if the piece's work is done (`ReuseAllowOpportunistic`);
//! 2. new memory; if the device has none left, all pools first return their free chunks whose work is done,
//!    once;
//! 3. pieces that a wait on the device makes available (`ReuseAllowInternalDependencies`), only if there is
//!    no new memory, as CUDA documents it.

use millpond_core::driver::{
    AccessFlags, AccessLocation, HandleTypes, MemAllocationType, MemLocation, MemPool, MemPoolAttribute,
    MemPoolProps,
};
use millpond_core::{DeviceId, DriverError};
use rustc_hash::FxHashMap;

use super::answer::{Answer, Refusal};
use super::clock::Epoch;
use super::pieces::{FreePieces, Piece};

pub(crate) const FIRST_POOL: u64 = 0x53_0000_0000;

/// A location and a kind of memory, which together have a default pool and a current one.
pub(crate) type Place = (MemLocation, MemAllocationType);

const DEVICE_MEMORY: Place = (MemLocation::Device, MemAllocationType::Pinned);

/// The pools of different devices in a machine have different handles.
const HANDLES_OF_A_DEVICE: u64 = 1 << 24;

#[derive(Debug)]
pub(crate) struct Pool {
    /// Destroyed; removed when its last block is freed.
    pub(crate) ended: bool,
    /// Created in a context that was reset: it can only be destroyed.
    pub(crate) is_of_old_context: bool,
    /// A pool that the driver created.
    pub(crate) is_default: bool,
    pub(crate) props: MemPoolProps,
    /// The pool that this one imports.
    pub(crate) imported_from: Option<MemPool>,
    /// The places that were given access, apart from fixed access.
    pub(crate) access: Vec<(AccessLocation, AccessFlags)>,
    pub(crate) follow_events: bool,
    pub(crate) opportunistic: bool,
    pub(crate) internal: bool,
    pub(crate) threshold: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) cached: FreePieces,
}

/// The pools by number. The first is the device's default pool.
#[derive(Debug)]
pub(crate) struct Pools {
    first: u64,
    pub(crate) pools: Vec<Option<Pool>>,
    /// The default pools of other places, once queried, and the current pools that were set.
    defaults: FxHashMap<Place, MemPool>,
    current: FxHashMap<Place, MemPool>,
    /// The piece behind each handed-out pointer.
    pub(crate) blocks: FxHashMap<u64, Piece>,
    /// The allocation behind each imported pointer, by generation.
    pub(crate) imports: FxHashMap<u64, u64>,
}

impl Pool {
    pub(crate) fn new(props: MemPoolProps) -> Self {
        Self {
            ended: false,
            is_of_old_context: false,
            is_default: false,
            props,
            imported_from: None,
            access: Vec::new(),
            follow_events: true,
            opportunistic: true,
            internal: true,
            threshold: 0,
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            cached: FreePieces::default(),
        }
    }

    pub(crate) fn place(&self) -> Place {
        (self.props.location, self.props.kind)
    }

    /// Whether the pool's memory is managed.
    pub(crate) fn is_managed(&self) -> bool {
        self.props.kind == MemAllocationType::Managed
    }

    /// Whether the pool's memory is host memory, not device memory.
    pub(crate) fn is_on_host(&self) -> bool {
        self.props.location.is_host() && !self.is_managed()
    }

    /// Whether the pool is shared between processes. Such a pool keeps its memory until it ends.
    pub(crate) fn is_shared(&self) -> bool {
        self.imported_from.is_some() || !self.props.handles.is_none()
    }

    pub(crate) fn access_of(&self, from: impl Into<AccessLocation>) -> AccessFlags {
        // All nodes of the host are one place.
        let from = match from.into() {
            AccessLocation::HostNuma(_) => AccessLocation::Host,
            from => from,
        };
        let found = self.access.iter().find(|(known, _)| *known == from);
        found.map_or(AccessFlags::None, |(_, access)| *access)
    }

    /// The access that never changes: from the device to its own memory, and from the host. A pool of managed
    /// memory only notes its access. CUDA ignores the number of a NUMA node.
    pub(crate) fn fixed_access(&self, from: AccessLocation, me: DeviceId) -> Option<AccessFlags> {
        match from {
            _ if self.is_managed() => None,
            AccessLocation::Device(device) => {
                (device == me && !self.is_on_host()).then_some(AccessFlags::ReadWrite)
            }
            _ if self.is_on_host() => Some(AccessFlags::ReadWrite),
            _ => Some(AccessFlags::None),
        }
    }

    /// Refuses an access as an H100's driver (580, CUDA 13.0) does, which knows no access for reading only.
    pub(crate) fn check_access(&self, access: AccessFlags, from: AccessLocation, me: DeviceId) -> Answer<()> {
        let fixed = self.fixed_access(from, me);
        if access == AccessFlags::Read || fixed == Some(AccessFlags::None) {
            return Err(Refusal::not_supported(format!("the pool has no such access from {from}")));
        }
        if from == AccessLocation::HostNumaCurrent {
            return Err(Refusal::invalid_value("name the NUMA node by number"));
        }
        match (fixed, from) {
            (Some(fixed), AccessLocation::Device(_)) if fixed != access => {
                let text = "the device always keeps access to its own memory";
                Err(Refusal::new(DriverError::INVALID_DEVICE, text))
            }
            (Some(fixed), _) if fixed != access => {
                Err(Refusal::not_supported("the host always keeps access to its own memory"))
            }
            _ => Ok(()),
        }
    }

    /// An imported pool has no attributes that can be set, and cannot be trimmed.
    pub(crate) fn refuse_import(&self) -> Answer<()> {
        match self.imported_from {
            Some(_) => Err(Refusal::invalid_value("the pool was imported")),
            None => Ok(()),
        }
    }

    /// The attributes that never change.
    pub(crate) fn fixed_attribute(&self, attribute: MemPoolAttribute, device: DeviceId) -> Option<u64> {
        let MemPoolProps { location, kind, handles, max_bytes, hw_decompress, .. } = self.props;
        let handles = if self.imported_from.is_some() { HandleTypes::NONE } else { handles };
        Some(match attribute {
            MemPoolAttribute::AllocationType => u64::from(kind.cuda_number()),
            MemPoolAttribute::ExportHandleTypes => u64::from(handles.bits()),
            MemPoolAttribute::LocationType => u64::from(location.cuda_type()),
            MemPoolAttribute::LocationId => match location {
                MemLocation::Device => u64::from(device.ordinal()),
                MemLocation::HostNuma(node) => u64::from(node.cast_unsigned()),
                MemLocation::Host | MemLocation::HostNumaCurrent => 0,
            },
            MemPoolAttribute::MaxPoolSize => max_bytes,
            MemPoolAttribute::HwDecompressEnabled => u64::from(hw_decompress),
            _ => return None,
        })
    }

    pub(crate) fn attribute(&mut self, attribute: MemPoolAttribute) -> &mut u64 {
        match attribute {
            MemPoolAttribute::ReservedMemCurrent => &mut self.reserved,
            MemPoolAttribute::ReservedMemHigh => &mut self.reserved_high,
            MemPoolAttribute::UsedMemCurrent => &mut self.used,
            MemPoolAttribute::UsedMemHigh => &mut self.used_high,
            _ => &mut self.threshold,
        }
    }

    pub(crate) fn switch(&mut self, attribute: MemPoolAttribute) -> Option<&mut bool> {
        match attribute {
            MemPoolAttribute::ReuseFollowEventDependencies => Some(&mut self.follow_events),
            MemPoolAttribute::ReuseAllowOpportunistic => Some(&mut self.opportunistic),
            MemPoolAttribute::ReuseAllowInternalDependencies => Some(&mut self.internal),
            _ => None,
        }
    }
}

impl Pools {
    /// `slice` is the device's index in its machine.
    pub(crate) fn new(slice: Option<usize>) -> Self {
        let default = Pool { is_default: true, ..Pool::new(MemPoolProps::default()) };
        Self {
            first: FIRST_POOL + slice.unwrap_or(0) as u64 * HANDLES_OF_A_DEVICE,
            pools: vec![Some(default)],
            defaults: FxHashMap::default(),
            current: FxHashMap::default(),
            blocks: FxHashMap::default(),
            imports: FxHashMap::default(),
        }
    }

    pub(crate) const fn default_pool(&self) -> MemPool {
        MemPool(self.first)
    }

    pub(crate) const fn handle(&self, index: usize) -> MemPool {
        MemPool(self.first + index as u64)
    }

    pub(crate) fn add(&mut self, pool: Pool) -> MemPool {
        self.pools.push(Some(pool));
        self.handle(self.pools.len() - 1)
    }

    pub(crate) fn remove(&mut self, pool: MemPool) {
        let index = self.index(pool);
        self.pools[index] = None;
    }

    fn index(&self, pool: MemPool) -> usize {
        usize::try_from(pool.0.wrapping_sub(self.first)).unwrap_or(usize::MAX)
    }

    /// The default pool of a place; CUDA has one for each.
    pub(crate) fn default_of(&mut self, place: Place) -> Answer<MemPool> {
        if place == DEVICE_MEMORY {
            return Ok(self.default_pool());
        }
        let (location, kind) = place;
        check_place(location)?;
        if let Some(known) = self.defaults.get(&place) {
            return Ok(*known);
        }
        let props = MemPoolProps::default().location(location).kind(kind);
        let pool = self.add(Pool { is_default: true, ..Pool::new(props) });
        self.defaults.insert(place, pool);
        Ok(pool)
    }

    pub(crate) fn current_of(&mut self, place: Place) -> Answer<MemPool> {
        match self.current.get(&place) {
            Some(pool) => Ok(*pool),
            None => self.default_of(place),
        }
    }

    /// The current pool of the device's own memory.
    pub(crate) fn current(&self) -> MemPool {
        self.current.get(&DEVICE_MEMORY).copied().unwrap_or(self.default_pool())
    }

    pub(crate) fn set_current(&mut self, place: Place, pool: MemPool) -> Answer<()> {
        check_place(place.0)?;
        let found = self.alive(pool)?;
        if found.imported_from.is_some() {
            return Err(Refusal::invalid_value("an imported pool cannot be a current pool"));
        }
        if found.place() != place {
            return Err(Refusal::invalid_value(
                "the pool's memory has another location or another kind than the requested memory",
            ));
        }
        self.current.insert(place, pool);
        Ok(())
    }

    /// Makes sure that a pool that ends is no longer current.
    pub(crate) fn forget_current(&mut self, pool: MemPool) {
        self.current.retain(|_, current| *current != pool);
    }

    pub(crate) fn get(&mut self, pool: MemPool) -> Answer<&mut Pool> {
        let index = self.index(pool);
        let unknown = || Refusal::invalid_value(format!("there is no pool {:#x} of this device", pool.0));
        self.pools.get_mut(index).and_then(Option::as_mut).ok_or_else(unknown)
    }

    /// The pool of a mapping, which exists as long as the mapping.
    pub(crate) fn of_mapping(&self, pool: MemPool) -> Option<&Pool> {
        self.pools.get(self.index(pool))?.as_ref()
    }

    pub(crate) fn alive(&mut self, pool: MemPool) -> Answer<&mut Pool> {
        match self.get(pool)? {
            Pool { ended: true, .. } => Err(Refusal::invalid_value("the pool was destroyed")),
            Pool { is_of_old_context: true, .. } => {
                Err(Refusal::invalid_value("the pool belongs to a context that was reset"))
            }
            found => Ok(found),
        }
    }

    /// Marks the pools of a context that was reset. Their cached memory stays, and the default pools
    /// continue.
    pub(crate) fn end_of_context(&mut self) {
        let made = self.pools.iter_mut().flatten().filter(|pool| !pool.is_default);
        made.for_each(|pool| pool.is_of_old_context = true);
        self.current.clear();
        self.imports.clear();
    }

    pub(crate) fn for_each_epoch(&self, mut each: impl FnMut(Epoch)) {
        self.pools.iter().flatten().flat_map(|pool| pool.cached.iter()).for_each(|cached| each(cached.freed));
    }

    /// The number of pools that were created and not destroyed, without the default pools.
    pub(crate) fn created(&self) -> usize {
        self.pools.iter().flatten().filter(|pool| !pool.is_default && !pool.ended).count()
    }
}

/// Refuses a place that has no pools in CUDA. The simulated host has one NUMA node.
pub(crate) fn check_place(location: MemLocation) -> Answer<()> {
    match location {
        MemLocation::Device | MemLocation::Host | MemLocation::HostNuma(0) => Ok(()),
        MemLocation::HostNuma(node) => {
            Err(Refusal::invalid_value(format!("the host has no NUMA node {node}")))
        }
        MemLocation::HostNumaCurrent => Err(Refusal::invalid_value("name the pool's NUMA node by number")),
    }
}
