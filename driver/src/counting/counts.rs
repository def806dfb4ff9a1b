//! The kinds of driver calls, and their counts.

use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// The kind of a driver call. [`CallCounts`] has one entry for each kind.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[non_exhaustive]
        pub enum CallKind {
            $($(#[$doc])* #[cfg_attr(feature = "serde", serde(rename = $name))] $kind,)*
        }

        impl CallKind {
            /// All kinds, in the order of declaration.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// Returns the name of the kind in logs and in serialized data.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    /// Allocating plain device memory.
    MemAlloc = "mem_alloc",
    /// Allocating managed memory.
    MemAllocManaged = "mem_alloc_managed",
    /// Freeing plain or managed memory.
    MemFree = "mem_free",
    /// Allocating memory in stream order, from any pool.
    MemAllocAsync = "mem_alloc_async",
    /// Freeing memory in stream order.
    MemFreeAsync = "mem_free_async",
    /// Creating, destroying, querying and configuring pools of the driver.
    MemPool = "mem_pool",
    /// Trimming a pool of the driver.
    MemPoolTrim = "mem_pool_trim",
    /// Reserving addresses.
    MemAddressReserve = "mem_address_reserve",
    /// Freeing reserved addresses.
    MemAddressFree = "mem_address_free",
    /// Creating physical memory.
    MemCreate = "mem_create",
    /// Releasing physical memory.
    MemRelease = "mem_release",
    /// Mapping physical memory.
    MemMap = "mem_map",
    /// Unmapping physical memory.
    MemUnmap = "mem_unmap",
    /// Making mappings accessible.
    MemSetAccess = "mem_set_access",
    /// Moving managed memory.
    MemPrefetch = "mem_prefetch",
    /// Advising on managed memory.
    MemAdvise = "mem_advise",
    /// Querying free and total memory.
    MemGetInfo = "mem_get_info",
    /// Querying a pointer: its range, kind, and address on the device.
    PointerQuery = "pointer_query",
    /// Allocating pinned host memory.
    MemHostAlloc = "mem_host_alloc",
    /// Freeing pinned host memory.
    MemFreeHost = "mem_free_host",
    /// Pinning and unpinning memory that the program allocated.
    MemHostRegister = "mem_host_register",
    /// Allocating pageable host memory; CUDA is not called.
    PageableAlloc = "pageable_alloc",
    /// Creating a stream.
    StreamCreate = "stream_create",
    /// Destroying a stream.
    StreamDestroy = "stream_destroy",
    /// Querying a stream's identity.
    StreamGetId = "stream_get_id",
    /// Waiting for a stream.
    StreamSynchronize = "stream_synchronize",
    /// Querying whether a stream is done.
    StreamQuery = "stream_query",
    /// Making a stream wait for an event.
    StreamWaitEvent = "stream_wait_event",
    /// Querying whether a stream is capturing.
    StreamIsCapturing = "stream_is_capturing",
    /// Creating an event.
    EventCreate = "event_create",
    /// Destroying an event.
    EventDestroy = "event_destroy",
    /// Recording an event.
    EventRecord = "event_record",
    /// Querying whether an event is done.
    EventQuery = "event_query",
    /// Waiting for an event.
    EventSynchronize = "event_synchronize",
    /// Waiting for the device.
    Synchronize = "synchronize",
    /// Exchanging a thread's capture mode.
    CaptureMode = "capture_mode",
    /// Copying memory.
    Copy = "copy",
    /// Filling memory.
    Fill = "fill",
    /// Sharing memory between processes.
    Ipc = "ipc",
    /// Querying versions, attributes and granularities.
    Other = "other",
}

impl fmt::Display for CallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The number and the duration of the calls of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct KindCounts {
    /// The number of calls.
    pub calls: u64,
    /// The number of calls for which the driver returned an error.
    pub failures: u64,
    /// The sum of the wall times of these calls over all threads, in nanoseconds.
    pub wall_ns: u64,
}

/// The number and the duration of a driver's calls, by kind.
///
/// With the feature `serde`, the counts are serialized as a map. The keys are the kinds that occurred, and
/// the values are their [`KindCounts`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallCounts([KindCounts; CallKind::ALL.len()]);

impl Default for CallCounts {
    fn default() -> Self {
        Self([KindCounts::default(); CallKind::ALL.len()])
    }
}

impl CallCounts {
    /// Returns the counts of the calls of this kind.
    pub const fn get(&self, kind: CallKind) -> KindCounts {
        self.0[kind as usize]
    }

    pub(super) fn get_mut(&mut self, kind: CallKind) -> &mut KindCounts {
        &mut self.0[kind as usize]
    }

    /// Iterates over the kinds that occurred, with the counts of each kind, in the order of
    /// [`CallKind::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (CallKind, KindCounts)> {
        CallKind::ALL.into_iter().zip(self.0).filter(|(_, counts)| counts.calls > 0)
    }

    /// Returns the number of calls of all kinds.
    pub fn total_calls(&self) -> u64 {
        self.0.iter().map(|counts| counts.calls).sum()
    }

    /// Returns the sum of the wall times of all calls, in nanoseconds.
    pub fn total_wall_ns(&self) -> u64 {
        self.0.iter().map(|counts| counts.wall_ns).sum()
    }

    /// Returns the counts of the calls that were made since `earlier`. `earlier` must come from the same
    /// driver, and the driver must not have been reset since then.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|i| KindCounts {
            calls: self.0[i].calls.saturating_sub(earlier.0[i].calls),
            failures: self.0[i].failures.saturating_sub(earlier.0[i].failures),
            wall_ns: self.0[i].wall_ns.saturating_sub(earlier.0[i].wall_ns),
        }))
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for CallCounts {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;

        let mut map = serializer.serialize_map(None)?;
        for (kind, counts) in self.iter() {
            map.serialize_entry(&kind, &counts)?;
        }
        map.end()
    }
}
