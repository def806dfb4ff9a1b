//! The thresholds of the pool, each with its reason and its measured effect.

/// Bytes of the pages in which the driver places plain allocations. A request for just enough free memory is
/// rounded up to it.
pub(crate) const DEVICE_PAGE: u64 = 2 << 20;

// ---- backing, heap, block_map, stream_order, sync ----
//
// "Bytes" beside a threshold are bytes taken over peak live, the mean over six logs after 40 passes, eight
// perturbed copies of each (`long_run --passes 40 --copies 8`, simulated H200): 1.063 as it is, with a spread
// of about 0.002.

/// How large handles are, and how many driver calls the pool spends to hold less memory.
///
/// A handle costs the same to create and to map whatever its size, and cannot be mapped in part: large ones
/// waste memory, small ones time. `docs/PAGES.md` holds the study behind these figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    /// The target: physical memory may exceed peak live by this many thousandths (`PoolOptions::slack`).
    pub(crate) slack: u64,
    /// Requests of fewer bytes are served from the small address range, whose handles are one granule each.
    pub(crate) small_bytes: u64,
    /// The small address range grows by this part of itself, so that it does not grow often.
    pub(crate) spans_share: u64,
    /// The small address range grows by at most this many bytes at a time.
    pub(crate) most_spans_at_once: u64,
    /// The largest handle for a large block has this many bytes, or more by `handle_share` (4 MiB: bytes
    /// 1.059, but first passes with short kernels take up to 4 % longer).
    pub(crate) handle_bytes: u64,
    /// The largest handle for a large block has the geometric mean of the request and peak live, in bytes,
    /// over this number, if that is more than `handle_bytes` (25: bytes 1.060, with more calls in first
    /// passes).
    pub(crate) handle_share: u64,
    /// A free end of a handle with fewer bytes than this is not worth a mapping.
    pub(crate) least_piece: u64,
    /// The pool keeps this many alias mappings, and [`MAPPINGS_PER_HANDLE`] more for each handle: it bounds
    /// the time of searches.
    pub(crate) mappings: usize,
    /// Driver calls that a new pool may spend at once (without these and the early calls: multistream's first
    /// pass takes 1.083 of live instead of 1.037).
    pub(crate) first_calls: u64,
    /// A new pool earns one more driver call for this many allocations and deallocations.
    pub(crate) operations_for_early_call: u64,
    /// A new pool earns at most this many driver calls in that way.
    pub(crate) early_calls: u64,
    /// A pool earns this many driver calls for each thousand operations (2: bytes 1.067, 6: 1.056).
    pub(crate) calls_per_thousand: u64,
    /// A pool saves at most this many driver calls for later (512: bytes 1.068, 4096: no better).
    pub(crate) most_saved_calls: u64,
    /// Each of these driver calls that the pool spends beyond what it earned gives it a thousandth more slack
    /// (2 to 32: no effect).
    pub(crate) calls_for_slack: u64,
    /// The most slack, in thousandths, that overdrawn driver calls give.
    pub(crate) most_slack: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            slack: 10,
            small_bytes: 2 << 20,
            spans_share: 64,
            most_spans_at_once: 32 << 20,
            handle_bytes: 6 << 20,
            handle_share: 17,
            least_piece: 512 << 10,
            mappings: 8192,
            first_calls: 512,
            operations_for_early_call: 16,
            early_calls: 512,
            calls_per_thousand: 3,
            most_saved_calls: 1024,
            calls_for_slack: 8,
            most_slack: 100,
        }
    }
}

/// How many blocks of a bin best fit compares before it takes one that fits: it bounds the time of a search.
/// Blocks of one bin differ by 3 % at most.
pub(crate) const CHUNKS_COMPARED: usize = 32;

/// A reservation has this many times the device's memory in bytes of addresses, which cost next to nothing:
/// handles come and go for the pool's whole life without another reservation.
pub(crate) const RESERVATION_FACTOR: u64 = 4;

/// A device counts as at least this large, in bytes, where the size of a reservation is chosen.
pub(crate) const LEAST_RESERVATION_BASIS: u64 = 1 << 30;

/// An alias gets this many times the bytes of addresses that are mapped first, so that it can be extended.
pub(crate) const SLOT_FACTOR: u64 = 4;

/// The fewest bytes of addresses of an alias, so that a small one can be extended, too.
pub(crate) const LEAST_SLOT: u64 = 64 << 20;

/// Alias mappings kept for each handle, besides [`Policy::mappings`].
pub(crate) const MAPPINGS_PER_HANDLE: usize = 4;

/// The pool is quiet while at most this part of its memory is in use (an eighth to a fortieth: no difference;
/// a half: bytes 1.074 instead of 1.063).
pub(crate) const QUIET_SHARE: u64 = 16;

/// The most driver calls of one step that returns excess memory to the driver: it bounds how long one
/// deallocation takes.
pub(crate) const CALLS_FOR_EXCESS: u64 = 64;

/// The most driver calls of one step that unmaps free handles from aliases: it bounds how long the allocation
/// takes that makes the step.
pub(crate) const CALLS_FOR_TIDYING: usize = 64;

/// A step of an incremental release looks at this many handles of a free extent for one that may be released:
/// it bounds the time under the lock.
pub(crate) const HANDLES_PER_EXTENT: usize = 4;

/// A step of incremental work looks at this many free chunks under one lock: a few microseconds.
pub(crate) const CHUNKS_PER_STEP: usize = 32;

/// Before the pool grows, at most this many free blocks of a stream are compared with their unowned
/// neighbours: it bounds the time under the lock.
pub(crate) const JOIN_SCAN_LIMIT: usize = 4096;

/// The most bytes of a span over pages while threads do not contend: one handle of the small address range,
/// which can be released alone.
pub(crate) const PAGED_SPAN_BYTES: u64 = 2 << 20;

/// The most bytes of a span over regions, or where threads contend: each growth takes the pool's lock.
pub(crate) const SPAN_BYTES: u64 = 16 << 20;

/// Bytes of the metadata arena's first piece; each further one is twice as large, up to one huge page. It
/// bounds the host memory of a small pool.
pub(crate) const FIRST_PIECE_BYTES: usize = 16 << 10;

/// The pool looks for idle streams to forget when it knows this many, and again at twice those that are left:
/// it bounds the cost of streams that a program no longer uses.
pub(crate) const FIRST_SWEEP: usize = 32;

/// A stream is far behind if its last recorded event is older than this, in nanoseconds, and not reached.
///
/// A host that is four kernels of 100 µs ahead stays below this limit, also where streams wait for each
/// other; one that never waits is 15 to 60 ms ahead (docs/BENCHMARKS.md, "With work in flight").
pub(crate) const FAR_BEHIND_NS: u64 = 1_000_000;

/// A backlog counts until this many looks in a row have found none. Without it, a program that is far ahead
/// most of the time switches between both modes, which takes more memory than either: multistream with
/// kernels of 5 to 25 µs took 5.4 GiB instead of 3.7
/// (`millpond-replay busy multistream.csv.gz --device sim:h200 --host ahead -k 5..25 --passes 5`).
pub(crate) const LOOKS_WITHOUT: u32 = 256;

/// A backlog also ends when it was last seen this many nanoseconds ago: a program that found its device idle
/// for that time is not ahead of it.
pub(crate) const LONGEST_BACKLOG_NS: u64 = 2_000_000_000;

/// A thread that waits for a spin lock spins this many times before it yields: most holders release the lock
/// within some ten nanoseconds.
pub(crate) const SPINS: u32 = 200;

/// A thread that waits for a spin lock yields this many times before it sleeps, so that a holder that lost
/// its core can run.
pub(crate) const YIELDS: u32 = 50;

/// A thread that waits longer for a spin lock sleeps this many microseconds at a time, to leave the core to
/// others.
pub(crate) const SLEEP_US: u64 = 20;
