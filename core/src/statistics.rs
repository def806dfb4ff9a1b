//! The statistics of a resource.

/// Counts the requests that each step of the reuse ladder has served. The reuse ladder is a resource's search
/// for a block, in several steps.
///
/// The resource tries the steps in the order of these fields. A resource that does not distinguish streams
/// counts everything that it allocates from upstream in `grow`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LadderCounts {
    /// Requests that were served with a block that had been freed on the same stream.
    pub own_stream: u64,
    /// Requests that were served with a block of another stream. The requesting stream was already ordered
    /// after the block's free.
    pub ordered: u64,
    /// Requests that were served with a block of another stream, because all work before the block's free was
    /// done. The resource already knew this, or learned it from a query.
    pub completed: u64,
    /// Requests that were served with a block of another stream. The resource made the requesting stream wait
    /// on the GPU for the block's free.
    pub waited: u64,
    /// Requests that were served with new memory from upstream.
    pub grow: u64,
    /// Requests that were served with a block that became free only after the resource had synchronised with
    /// the device.
    pub reclaim: u64,
    /// Requests that failed, because no step found a block.
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

    /// Returns how much each count has grown since `earlier`.
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

    /// Returns the number of requests that were served.
    pub fn served(&self) -> u64 {
        self.own_stream + self.ordered + self.completed + self.waited + self.grow + self.reclaim
    }
}

/// Counts how the blocks of a pool were freed. Each field is a number of blocks.
///
/// The sum of the first three fields is [`ResourceStatistics::deallocations`]. If `evicted` or `heap` is
/// large, the program frees more blocks than its threads may cache.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FreeCounts {
    /// Blocks that were freed into the cache of the calling thread, without a lock.
    pub cached: u64,
    /// Blocks that the cache of the calling thread did not accept. These blocks were freed into an arena: a
    /// part of the pool for small blocks, with its own lock.
    pub past_cache: u64,
    /// Blocks that were freed into the heap that the whole pool shares, under the pool's lock.
    pub heap: u64,
    /// Blocks that a thread moved out of its own cache when it freed another block, to make room.
    pub evicted: u64,
    /// Blocks that the pool moved out of a thread's cache. The pool needed memory, or the thread was idle.
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

/// The statistics of a resource. All sizes are in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ResourceStatistics {
    /// The bytes of the live blocks, after the resource rounded the requests up.
    pub bytes_in_use: u64,
    /// The bytes of the live blocks, as the program requested them.
    pub bytes_requested: u64,
    /// The highest [`bytes_in_use`](Self::bytes_in_use) so far, over all threads. If several threads call a
    /// pool at the same time, this number may be up to 2 % too high.
    pub peak_bytes_in_use: u64,
    /// The bytes that the resource holds from upstream, live and free.
    pub bytes_reserved: u64,
    /// The highest [`bytes_reserved`](Self::bytes_reserved) so far.
    pub peak_bytes_reserved: u64,
    /// The bytes that a pool has allocated so far beyond its target. The target is the peak of live memory
    /// plus 1 %. Only a pool that maps pages has such a target. The pool exceeds the target if staying within
    /// it would need more driver calls than the pool may spend.
    pub bytes_beyond_slack: u64,
    /// The largest free block in bytes. The resource cannot serve a larger request without memory from
    /// upstream.
    pub largest_free_block: u64,
    /// The number of live blocks.
    pub blocks_in_use: u64,
    /// The number of free blocks that the resource holds.
    pub blocks_free: u64,
    /// The number of regions that the resource holds from upstream.
    pub regions: u64,
    /// The number of successful allocations so far.
    pub allocations: u64,
    /// The number of accepted deallocations so far.
    pub deallocations: u64,
    /// The number of deallocations that the resource refused; see [`misuse`](crate::misuse).
    pub misuses: u64,
    /// The number of requests that each step of the reuse ladder has served.
    pub ladder: LadderCounts,
    /// How blocks were freed. Every count is 0 unless the resource is a pool.
    pub frees: FreeCounts,
    /// Whether an adaptor counted these figures, because the resource below it keeps none. The free memory
    /// that such a resource holds is not known: `bytes_reserved` contains the live blocks only, and
    /// `largest_free_block` and `blocks_free` are 0.
    #[cfg_attr(feature = "serde", serde(default))]
    pub is_counted_above: bool,
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
        is_counted_above: bool,
    }

    /// Returns whether [`misuses`](Self::misuses) is the only count that the resource keeps, as in plain CUDA
    /// memory.
    pub fn knows_only_misuses(&self) -> bool {
        self.misuses > 0 && *self == Self { misuses: self.misuses, ..Self::default() }
    }

    /// Returns the same statistics with `count` added to [`misuses`](Self::misuses).
    #[must_use]
    pub fn with_more_misuses(self, count: u64) -> Self {
        Self { misuses: self.misuses + count, ..self }
    }

    /// Returns the sum of the statistics of two resources. Peaks are also added, although they may come from
    /// different moments. The exception is the largest free block: the result is the larger of the two.
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
            is_counted_above: self.is_counted_above || other.is_counted_above,
        }
    }

    /// Returns whether the resource itself keeps the figures of its memory. If not, the figures of free
    /// memory, of the reuse ladder and of frees say nothing.
    pub fn are_of_resource(&self) -> bool {
        !self.is_counted_above && !self.knows_only_misuses()
    }

    /// Returns the number of free bytes among the bytes that the resource holds from upstream.
    pub fn bytes_free(&self) -> u64 {
        self.bytes_reserved.saturating_sub(self.bytes_in_use)
    }

    /// Returns the external fragmentation, from 0 to 1: the free bytes outside the largest free block, as a
    /// share of all free bytes.
    pub fn fragmentation(&self) -> f64 {
        match self.bytes_free() {
            0 => 0.0,
            free => 1.0 - self.largest_free_block.min(free) as f64 / free as f64,
        }
    }
}
