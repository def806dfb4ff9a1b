//! The kinds of driver calls, and their counts.

use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// The kind of a driver call; see [`CallCounts`].
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[non_exhaustive]
        pub enum CallKind {
            $($(#[$doc])* #[cfg_attr(feature = "serde", serde(rename = $name))] $kind,)*
        }

        impl CallKind {
            /// Every kind, in the order of the declaration.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// The kind's name, as logs and serde have it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    /// Plain device memory.
    MemAlloc = "mem_alloc",
    /// Managed memory.
    MemAllocManaged = "mem_alloc_managed",
    /// The end of plain or managed memory.
    MemFree = "mem_free",
    /// Memory in stream order, from any pool.
    MemAllocAsync = "mem_alloc_async",
    /// The end of memory in stream order.
    MemFreeAsync = "mem_free_async",
    /// Making, ending, asking and setting pools of the driver.
    MemPool = "mem_pool",
    /// Trimming a pool of the driver.
    MemPoolTrim = "mem_pool_trim",
    /// Reserving addresses.
    MemAddressReserve = "mem_address_reserve",
    /// The end of a reservation.
    MemAddressFree = "mem_address_free",
    /// Physical memory.
    MemCreate = "mem_create",
    /// The end of physical memory.
    MemRelease = "mem_release",
    /// Mapping.
    MemMap = "mem_map",
    /// Unmapping.
    MemUnmap = "mem_unmap",
    /// Making mappings accessible.
    MemSetAccess = "mem_set_access",
    /// Moving managed memory.
    MemPrefetch = "mem_prefetch",
    /// Advice on managed memory.
    MemAdvise = "mem_advise",
    /// Free and total memory.
    MemGetInfo = "mem_get_info",
    /// A query about a pointer: its range, its kind, its address on the device.
    PointerQuery = "pointer_query",
    /// Pinned host memory.
    MemHostAlloc = "mem_host_alloc",
    /// The end of pinned host memory.
    MemFreeHost = "mem_free_host",
    /// Pinning and unpinning of others' memory.
    MemHostRegister = "mem_host_register",
    /// Making a stream.
    StreamCreate = "stream_create",
    /// The end of a stream.
    StreamDestroy = "stream_destroy",
    /// A stream's identity.
    StreamGetId = "stream_get_id",
    /// Waiting for a stream.
    StreamSynchronize = "stream_synchronize",
    /// Whether a stream is done.
    StreamQuery = "stream_query",
    /// Making a stream wait.
    StreamWaitEvent = "stream_wait_event",
    /// Whether a stream is capturing.
    StreamIsCapturing = "stream_is_capturing",
    /// Making an event.
    EventCreate = "event_create",
    /// The end of an event.
    EventDestroy = "event_destroy",
    /// Recording an event.
    EventRecord = "event_record",
    /// Whether an event has happened.
    EventQuery = "event_query",
    /// Waiting for an event.
    EventSynchronize = "event_synchronize",
    /// Waiting for the device.
    Synchronize = "synchronize",
    /// Exchanging a thread's capture mode.
    CaptureMode = "capture_mode",
    /// Copies.
    Copy = "copy",
    /// Fills.
    Fill = "fill",
    /// Memory between processes.
    Ipc = "ipc",
    /// Versions, attributes and granularities.
    Other = "other",
}

impl fmt::Display for CallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The calls of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KindCounts {
    /// How many calls.
    pub calls: u64,
    /// How many of them the driver refused.
    pub failures: u64,
    /// Nanoseconds spent in them, all threads together.
    pub wall_ns: u64,
}

/// How often and how long a driver was asked, by kind.
///
/// With the feature `serde` it is written as a map from the kinds that occurred to their [`KindCounts`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallCounts([KindCounts; CallKind::ALL.len()]);

impl Default for CallCounts {
    fn default() -> Self {
        Self([KindCounts::default(); CallKind::ALL.len()])
    }
}

impl CallCounts {
    /// The calls of this kind.
    pub const fn get(&self, kind: CallKind) -> KindCounts {
        self.0[kind as usize]
    }

    pub(super) fn get_mut(&mut self, kind: CallKind) -> &mut KindCounts {
        &mut self.0[kind as usize]
    }

    /// The kinds that occurred, in the order of [`CallKind::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (CallKind, KindCounts)> {
        CallKind::ALL.into_iter().zip(self.0).filter(|(_, counts)| counts.calls > 0)
    }

    /// All calls together.
    pub fn total_calls(&self) -> u64 {
        self.0.iter().map(|counts| counts.calls).sum()
    }

    /// Nanoseconds spent in all calls together.
    pub fn total_wall_ns(&self) -> u64 {
        self.0.iter().map(|counts| counts.wall_ns).sum()
    }

    /// The calls since `earlier`, an earlier count of the same driver without a reset in between.
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
