//! The statistics of a resource.

/// How often each step of the reuse ladder served a request.
///
/// The resource tries the steps in this order. A resource without streams counts everything that it takes
/// from upstream in `grow`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LadderCounts {
    /// A block that was freed on the same stream.
    pub own_stream: u64,
    /// A block of another stream; the requesting stream is already ordered after its free.
    pub ordered: u64,
    /// A block of another stream whose work before the free had completed, as a query said or as was known.
    pub completed: u64,
    /// A block of another stream, after a wait was inserted on the GPU.
    pub waited: u64,
    /// Fresh memory from upstream.
    pub grow: u64,
    /// A block that became free only after synchronising with the device.
    pub reclaim: u64,
    /// Requests that failed after all these steps.
    pub out_of_memory: u64,
}

impl LadderCounts {
    crate::setters! {
        own_stream: u64,
        ordered: u64,
        completed: u64,
        waited: u64,
        grow: u64,
        reclaim: u64,
        out_of_memory: u64,
    }

    /// Returns the counts since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            own_stream: self.own_stream - earlier.own_stream,
            ordered: self.ordered - earlier.ordered,
            completed: self.completed - earlier.completed,
            waited: self.waited - earlier.waited,
            grow: self.grow - earlier.grow,
            reclaim: self.reclaim - earlier.reclaim,
            out_of_memory: self.out_of_memory - earlier.out_of_memory,
        }
    }

    /// Returns the number of requests served.
    pub fn served(&self) -> u64 {
        self.own_stream + self.ordered + self.completed + self.waited + self.grow + self.reclaim
    }
}

/// How the blocks of a pool were freed, in blocks.
///
/// The first three add up to [`ResourceStatistics::deallocations`]. Many blocks under `evicted` or `heap`
/// mean that the program frees more than its threads may cache.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FreeCounts {
    /// Blocks that the calling thread's cache took, without a lock.
    pub cached: u64,
    /// Blocks that went past the thread's cache to its arena.
    pub past_cache: u64,
    /// Blocks that went to the heap under the pool's lock.
    pub heap: u64,
    /// Cached blocks that a later free of the same thread pushed out.
    pub evicted: u64,
    /// Cached blocks that the pool took back, because it needed memory or the thread was idle.
    pub flushed: u64,
}

impl FreeCounts {
    crate::setters! { cached: u64, past_cache: u64, heap: u64, evicted: u64, flushed: u64 }
}

impl std::ops::AddAssign for FreeCounts {
    fn add_assign(&mut self, other: Self) {
        self.cached += other.cached;
        self.past_cache += other.past_cache;
        self.heap += other.heap;
        self.evicted += other.evicted;
        self.flushed += other.flushed;
    }
}

/// The memory of a resource. All sizes are in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ResourceStatistics {
    /// Bytes in live blocks, after rounding.
    pub bytes_in_use: u64,
    /// Bytes in live blocks, as requested.
    pub bytes_requested: u64,
    /// The highest [`bytes_in_use`](Self::bytes_in_use) so far, over all threads. If several threads call a
    /// pool at the same time, it may be up to 2 % too high.
    pub peak_bytes_in_use: u64,
    /// Bytes held from upstream: live and free.
    pub bytes_reserved: u64,
    /// The highest [`bytes_reserved`](Self::bytes_reserved) so far.
    pub peak_bytes_reserved: u64,
    /// Bytes that a pool over pages took so far beyond its slack of 1 % above its peak of live memory. To
    /// avoid them would have cost more driver calls than the pool may spend.
    pub bytes_beyond_slack: u64,
    /// The largest free block in bytes: no larger request can be served without growth.
    pub largest_free_block: u64,
    /// Live blocks.
    pub blocks_in_use: u64,
    /// Free blocks held.
    pub blocks_free: u64,
    /// Regions held from upstream.
    pub regions: u64,
    /// Successful allocations so far.
    pub allocations: u64,
    /// Accepted deallocations so far.
    pub deallocations: u64,
    /// Deallocations refused; see [`misuse`](crate::misuse).
    pub misuses: u64,
    /// How often each step of the reuse ladder served a request.
    pub ladder: LadderCounts,
    /// How blocks were freed. All 0 unless the resource is a pool.
    pub frees: FreeCounts,
}

impl ResourceStatistics {
    crate::setters! {
        bytes_in_use: u64,
        bytes_requested: u64,
        peak_bytes_in_use: u64,
        bytes_reserved: u64,
        peak_bytes_reserved: u64,
        bytes_beyond_slack: u64,
        largest_free_block: u64,
        blocks_in_use: u64,
        blocks_free: u64,
        regions: u64,
        allocations: u64,
        deallocations: u64,
        misuses: u64,
        ladder: LadderCounts,
        frees: FreeCounts,
    }

    /// Returns whether the statistics hold [`misuses`](Self::misuses) and nothing else. Plain CUDA memory
    /// counts no more.
    pub fn knows_only_misuses(&self) -> bool {
        self.misuses > 0 && *self == Self { misuses: self.misuses, ..Self::default() }
    }

    /// Returns the same statistics with `count` more refused deallocations.
    #[must_use]
    pub fn with_more_misuses(self, count: u64) -> Self {
        Self { misuses: self.misuses + count, ..self }
    }

    /// Returns the sums over two resources side by side. It adds peaks too, although they may come from
    /// different moments. The largest free block is the larger of the two.
    #[must_use]
    pub fn beside(self, other: Self) -> Self {
        let (a, b) = (self.ladder, other.ladder);
        let mut frees = self.frees;
        frees += other.frees;
        Self {
            bytes_in_use: self.bytes_in_use + other.bytes_in_use,
            bytes_requested: self.bytes_requested + other.bytes_requested,
            peak_bytes_in_use: self.peak_bytes_in_use + other.peak_bytes_in_use,
            bytes_reserved: self.bytes_reserved + other.bytes_reserved,
            peak_bytes_reserved: self.peak_bytes_reserved + other.peak_bytes_reserved,
            bytes_beyond_slack: self.bytes_beyond_slack + other.bytes_beyond_slack,
            largest_free_block: self.largest_free_block.max(other.largest_free_block),
            blocks_in_use: self.blocks_in_use + other.blocks_in_use,
            blocks_free: self.blocks_free + other.blocks_free,
            regions: self.regions + other.regions,
            allocations: self.allocations + other.allocations,
            deallocations: self.deallocations + other.deallocations,
            misuses: self.misuses + other.misuses,
            ladder: LadderCounts {
                own_stream: a.own_stream + b.own_stream,
                ordered: a.ordered + b.ordered,
                completed: a.completed + b.completed,
                waited: a.waited + b.waited,
                grow: a.grow + b.grow,
                reclaim: a.reclaim + b.reclaim,
                out_of_memory: a.out_of_memory + b.out_of_memory,
            },
            frees,
        }
    }

    /// Returns the bytes held from upstream that are free.
    pub fn bytes_free(&self) -> u64 {
        self.bytes_reserved.saturating_sub(self.bytes_in_use)
    }

    /// Returns the external fragmentation: the share of the free bytes outside the largest free block, from 0
    /// to 1.
    pub fn fragmentation(&self) -> f64 {
        match self.bytes_free() {
            0 => 0.0,
            free => 1.0 - self.largest_free_block.min(free) as f64 / free as f64,
        }
    }
}
