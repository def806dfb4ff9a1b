//! The thresholds of the pool, each with its reason and its measured effect.

use std::time::Duration;

/// The bytes of the pages in which the driver counts plain allocations: sizes that must suffice are rounded
/// up to it.
pub(crate) const DEVICE_PAGE: u64 = 2 << 20;

// The pool: slow path, caches, arenas, decay.

/// Calls on a stream, by any thread, that are served without a stream cache. A stream that is used only a few
/// times then costs no cache.
pub(crate) const CALLS_WITHOUT_CACHE: u32 = 4;

/// How often a request retries at the end of the slow path while another stream's block would fit: other
/// threads may take each block that is released for it.
pub(crate) const LAST_RETRIES: usize = 8;

/// The pool waits for streams that may be destroyed before it grows if their blocks have more than this part
/// of its reserved bytes: 1/8. With less, growing is cheaper than the wait.
pub(crate) const UNREACHABLE_SHARE: u64 = 8;

/// How long a call waits for its turn on a pool's slow path, and a growth for the end of another resource's
/// promise: far longer than driver calls take, and short enough if the other call waits for this one.
pub(crate) const TURN_PATIENCE: Duration = Duration::from_millis(100);

/// How long an admission of a peer device that a user named waits for other calls that map memory.
pub(crate) const ADMISSION_PATIENCE: Duration = Duration::from_secs(2);

/// How often one growth waits for the end of another resource's promise. It bounds the time of a request
/// while other resources keep growing.
pub(crate) const PROMISE_WAITS: u32 = 64;

/// Driver calls of one task that releases memory: the pool's lock is free between tasks.
pub(crate) const CALLS_PER_RELEASE: usize = 64;

/// How often a request asks the peer pools for memory: their free extents have other sizes, and another
/// request may take the memory first.
pub(crate) const PEER_ROUNDS: u32 = 32;

/// Up to this number of streams, a request asks all that own free blocks at once.
pub(crate) const STREAMS_ASKED_AT_LEAST: usize = 16;

/// With more streams, a request first asks those that own this percentage of the free bytes together. Each
/// stream costs two driver calls, and most own little.
pub(crate) const STREAMS_ASKED_PERCENT: u64 = 70;

/// Streams that an out-of-memory report names as worth waiting for: a reader needs no more.
pub(crate) const STREAMS_NAMED: usize = 4;

/// Regions are at least this many bytes, and multiples of it: the driver's page for plain allocations.
pub(crate) const REGION_UNIT: u64 = DEVICE_PAGE;

/// A region is at most this part of the reserved bytes, unless the request needs more: 1/8. It bounds the
/// memory that a growth takes beyond the request.
pub(crate) const REGION_SHARE: u64 = 8;

/// The largest blocks in bytes that a pool with pages takes from arenas while threads do not contend: larger
/// blocks are easier to stitch in the large heap.
pub(crate) const LARGEST_SMALL_OVER_PAGES: u64 = 128 << 10;

/// Large allocations between two releases of excess memory: each costs driver calls.
pub(crate) const ALLOCATIONS_PER_RELEASE: u32 = 64;

/// Free blocks of one bin that a search in the heap of large blocks compares, which bounds its time.
pub(crate) const LARGE_FITS_COMPARED: usize = 32;

/// Free blocks of one bin that a search in an arena compares: the sizes in a bin differ by at most 3 %.
pub(crate) const SMALL_FITS_COMPARED: usize = 4;

/// The largest number of arenas. It bounds the tables that have an entry for each arena.
pub(crate) const ARENAS: usize = 64;

/// Arenas per thread that can run at once, so that a thread that moves finds an unused one.
pub(crate) const ARENAS_PER_THREAD: usize = 2;

/// The bytes of a span while threads contend. With spans of 4 to 16 MiB, 16 threads with 1000 blocks each
/// held 1.50 times the live bytes (over regions 1.45) on an H200; with these 1.33 (1.29), at 47 million steps
/// per second instead of 52.
pub(crate) const CONTENDED_SPAN: u64 = 4 << 20;

/// While threads do not contend, a span is this part of its arena's bytes, 1/8, and at least
/// [`SMALLEST_SPAN`] bytes, so that a few blocks in use keep few bytes.
pub(crate) const SPAN_SHARE: u64 = 8;

/// See [`SPAN_SHARE`].
pub(crate) const SMALLEST_SPAN: u64 = 512 << 10;

/// Blocks that a thread takes from its arena after it found it locked, during which it counts contention:
/// threads that take turns do not contend.
pub(crate) const CONTENTION_WINDOW: u8 = u8::MAX;

/// What a thread's score of contention rises by for a block that it takes after another thread; it falls by 1
/// for a block that it takes after its own.
pub(crate) const CONTENTION_PER_BLOCK: u8 = 16;

/// The score at which a thread moves to another arena: one that rarely meets others stays.
pub(crate) const CONTENTION_AFTER: u8 = 160;

/// Blocks of one size class in a stream cache, which bounds a cache's size.
pub(crate) const STACK_BLOCKS: usize = 32;

/// Blocks that a thread frees past its stream caches between two updates of the cache limits.
pub(crate) const FREES_PER_LIMITS: u64 = 1024;

/// Stream caches of a thread in one pool; a thread that needs more flushes all of them.
pub(crate) const MAX_STREAM_CACHES: usize = 512;

/// The binary logarithm of a thread's recently used stream caches, which it finds without a lock. Any other
/// stream cache costs a call some 80 ns more; with 9 bits (512 entries), one call in eight of a thread on 256
/// streams paid that.
pub(crate) const RECENT_BITS: usize = 10;

/// How often the live bytes are read until two readings agree; busy threads may change them each time.
pub(crate) const LIVE_READINGS: usize = 4;

/// How often a thread that needs quota searches all busy threads for it before it raises the peak.
pub(crate) const PEAK_SCANS: usize = 4;

/// Searches that found other threads busy after which the peak rises by 1 / [`PEAK_RISE_SHARE`] of itself,
/// for the reserve. A search moves the counters of all other threads out of their processors' caches, some 12
/// µs of 16 threads' time. With 16 threads on streams of their own on an H200's host, without reserve and
/// rise: 25 million steps per second instead of 60.
pub(crate) const BUSY_SCANS: i64 = 16;

/// See [`BUSY_SCANS`].
pub(crate) const PEAK_RISE_SHARE: i64 = 256;

/// All threads together hold about this part of the peak as quota for their next allocations: 1/128.
pub(crate) const RESERVE_SHARE: i64 = 128;

/// With several streams, the largest block that a thread caches, as a part of the bytes in use: 1/4096.
/// Larger ones are missed where blocks are stitched.
pub(crate) const CACHED_BLOCK_SHARE: u64 = 4096;

/// Operations without growth after which a pool is in the steady state.
pub(crate) const STEADY_AFTER: u64 = 1 << 15;

/// The part of the free bytes that threads may cache in the steady state: 1/4.
pub(crate) const STEADY_SHARE: u64 = 4;

/// While threads contend, they cache at most this part of the bytes in use: 1/12. A part of the free bytes
/// would be no bound then: the pool grows for the threads that miss the cached blocks, and more is free.
pub(crate) const CONTENDED_SHARE: u64 = 12;

/// All stream caches together may hold this part of the bytes in use: 1/32.
pub(crate) const CACHED_SHARE: u64 = 32;
/// A thread may cache at least this many bytes, whatever the share.
pub(crate) const CACHED_LEAST: u64 = 4 << 20;
/// The bytes of one size class in a stream cache; one block is always allowed.
pub(crate) const CACHED_CLASS: u64 = 8 << 20;

/// The same for a pool with pages while threads do not contend: stitching misses cached memory.
pub(crate) const CACHED_SHARE_SAVING: u64 = 1024;
/// See [`CACHED_SHARE_SAVING`].
pub(crate) const CACHED_LEAST_SAVING: u64 = 1 << 20;
/// See [`CACHED_SHARE_SAVING`]; in the steady state.
pub(crate) const CACHED_CLASS_STEADY: u64 = 1 << 20;
/// See [`CACHED_SHARE_SAVING`]; while the pool grows.
pub(crate) const CACHED_CLASS_GROWING: u64 = 256 << 10;

/// Before growth, caches are flushed only if they hold at least this part of the reserved bytes: 1/256. With
/// pages they are always flushed, since mapping pages costs more.
pub(crate) const FLUSH_SHARE: u64 = 256;
/// The same while threads contend, as a part of the arena's bytes: growing costs contending threads less than
/// the loss of their caches.
pub(crate) const FLUSH_SHARE_CONTENDED: u64 = 16;
/// The same while threads contend and the pool maps pages.
pub(crate) const FLUSH_SHARE_CONTENDED_PAGES: u64 = 4;

/// With `pages=auto`, a pool whose maximum is fewer pages than this maps none: rounding to pages would waste
/// much of it.
pub(crate) const LEAST_PAGES: u64 = 64;

/// Decay steps in the decay's time.
pub(crate) const DECAY_STEPS: u32 = 16;

/// The shortest pause of the decay thread between two steps.
pub(crate) const SHORTEST_DECAY_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause of the decay thread between two steps.
pub(crate) const LONGEST_DECAY_PAUSE: Duration = Duration::from_secs(60);

/// How long the end of the process waits for the decay thread to end.
pub(crate) const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// How long a fork waits for the decay step in progress.
pub(crate) const FORK_PATIENCE: Duration = Duration::from_secs(1);

// ---- store, heap, block_map, stream_order, sync ----
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

/// While the pool has spent its driver calls, requests of at least this many bytes are placed by address.
/// Eight copies of a transformer's training took 1.094 of live with best fit alone, and 1.069 so. By address
/// at all times, or at all sizes, gpt and cupy take up to 0.026 more. With several streams best fit stays:
/// multistream and cupy took 0.004 to 0.006 more by address.
pub(crate) const LEAST_BY_ADDRESS: u64 = 8 << 20;

/// Such a request has this part of the heap, too. Among thousands of blocks of like sizes best fit finds a
/// chunk that nearly fits: with [`LEAST_BY_ADDRESS`] alone, `churn_large` (65 GiB live, blocks of up to
/// 64 MiB) took 2400 ns on an H200 where best fit takes 410 to 700, and 1.098 of live in place of 1.067. So
/// it takes 470 to 750 ns, and 1.074. With 1/512 the transformer takes 1.082 in place of 1.053.
pub(crate) const BY_ADDRESS_SHARE: u64 = 1024;

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

/// The most driver calls of one step that returns excess memory to the driver: it bounds how long the
/// allocation takes that makes the step.
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
