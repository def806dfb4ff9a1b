//! The thresholds of the pool, each with its reason and its measured effect.

use std::time::Duration;

/// The driver's page, in bytes, by which it counts plain allocations: sizes that must suffice are rounded up
/// to it. Regions are multiples of it. Over pages, requests of fewer bytes come from the small address range,
/// and a span there has no more while threads do not contend, so that its handle can be released alone.
pub(crate) const DEVICE_PAGE: u64 = 2 << 20;

// The pool: slow path, caches, arenas, decay.

/// Calls on a stream, by any thread, that are served without a stream cache. A stream that is used only a few
/// times then costs no cache.
pub(crate) const CALLS_WITHOUT_CACHE: u32 = 4;

/// How often one request tries again what other threads and pools can spoil: the end of the slow path while
/// another stream's block would fit, the question to peer pools, and the wait for another resource's promise.
/// It bounds the time of a request.
pub(crate) const RETRIES: u32 = 32;

/// This part of a pool's reserved bytes is little: 1/8. A region takes no more beyond its request, and a span
/// no more of its arena. Before it grows, the pool waits for streams that may be destroyed only if they own
/// more, and flushes caches only if they hold more where speed comes before memory: growing is cheaper. It is
/// quiet while no more is in use (1/40: no difference; 1/2: bytes 1.074 instead of 1.063).
pub(crate) const LITTLE: u64 = 8;

/// How long a call waits for its turn on a pool's slow path, and a growth for the end of another resource's
/// promise: far longer than driver calls take, and short enough if the other call waits for this one.
pub(crate) const TURN_PATIENCE: Duration = Duration::from_millis(100);

/// How long a call waits for what another thread does and need not end: the admission of a peer device for
/// calls that map memory, a fork and the end of the process for the decay thread. A backlog that was last
/// seen so long ago is over.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// The most driver calls of one step that returns or unmaps memory, which bounds how long it takes: the
/// pool's lock is free between steps. While the pool is quiet, as many large allocations pass between two
/// steps, so that a step costs each a driver call.
pub(crate) const CALLS_PER_RELEASE: usize = 64;

/// Up to this number, streams are few: a request asks all that own free blocks at once, and the pool looks
/// for no idle ones to forget.
pub(crate) const FEW_STREAMS: usize = 16;

/// With more streams, a request first asks those that own this percentage of the free bytes together. Each
/// stream costs two driver calls, and most own little.
pub(crate) const STREAMS_ASKED_PERCENT: u64 = 70;

/// The largest blocks in bytes that a pool with pages takes from arenas while threads do not contend: larger
/// blocks are easier to stitch in the large heap.
pub(crate) const LARGEST_SMALL_OVER_PAGES: u64 = 128 << 10;

/// Free blocks that a search in a bin of the heap of large blocks compares, and that a step of incremental
/// work looks at under one lock: a few microseconds.
pub(crate) const CHUNKS_COMPARED: usize = 32;

/// Free blocks of one bin that a search in an arena compares (their sizes differ by at most 3 %), and handles
/// of a free extent that a step of a release does.
pub(crate) const FEW_COMPARED: usize = 4;

/// The most bytes of a span over regions, or while threads contend. With spans of 4 to 16 MiB, 16 threads
/// with 1000 blocks each held 1.50 times the live bytes (over regions 1.45) on an H200; with these 1.33
/// (1.29), at 47 million steps per second instead of 52.
pub(crate) const SPAN_BYTES: u64 = 4 << 20;

/// Fewer bytes are not worth a piece of their own: an arena's span, or a mapping of a handle's free end.
pub(crate) const LEAST_PIECE: u64 = 512 << 10;

/// What a thread's score of contention rises by for a block that it takes after another thread; it falls by 1
/// for a block that it takes after its own. At 256 the thread moves to another arena: one that rarely meets
/// others stays.
pub(crate) const CONTENTION_PER_BLOCK: u8 = 16;

/// Blocks that a thread frees past its stream caches between two updates of the cache limits.
pub(crate) const FREES_PER_LIMITS: u64 = 1024;

/// How often counters that busy threads change are read before the pool goes on without two equal readings:
/// for the live bytes, and for quota before the peak rises. As many searches for quota in a row that found
/// others busy raise the peak for the reserve. A search moves the counters of all other threads out of their
/// processors' caches, some 12 µs of 16 threads' time. With 16 threads on streams of their own on an H200's
/// host, without reserve and rise: 25 million steps per second instead of 60.
pub(crate) const READINGS: usize = 8;

/// All threads together hold about this part of the peak as quota for their next allocations: 1/128. Half of
/// it is what the peak rises by for the reserve.
pub(crate) const RESERVE_SHARE: i64 = 128;

/// Operations without growth after which a pool is in the steady state.
pub(crate) const STEADY_AFTER: u64 = 1 << 15;

/// The part of the free bytes that threads may cache in the steady state: 1/4.
pub(crate) const STEADY_SHARE: u64 = 4;

/// While threads contend, they cache at most this part of the bytes in use: 1/12. A part of the free bytes
/// would be no bound then: the pool grows for the threads that miss the cached blocks, and more is free.
pub(crate) const CONTENDED_SHARE: u64 = 12;

/// All stream caches together may hold this part of the bytes in use: 1/32.
pub(crate) const CACHED_SHARE: u64 = 32;

/// A thread may cache at least this many bytes, whatever the share, and of one size class no more. It is a
/// quarter where [`CACHED_SHARE_SAVING`] holds (256 KiB of a class while the pool grows: no difference).
pub(crate) const CACHED_BYTES: u64 = 4 << 20;

/// The same for a pool with pages while threads do not contend: stitching misses cached memory. With several
/// streams it is the largest block that a thread caches, too.
pub(crate) const CACHED_SHARE_SAVING: u64 = 1024;

/// With `pages=auto`, a pool whose maximum is fewer pages than this maps none: rounding to pages would waste
/// much of it.
pub(crate) const LEAST_PAGES: u64 = 64;

/// Decay steps in the decay's time.
pub(crate) const DECAY_STEPS: u32 = 16;

// ---- store, heap, block_map, stream_order, sync ----
//
// "Bytes" beside a threshold are bytes taken over peak live, the mean over six logs after 40 passes, eight
// perturbed copies of each (`long_run --passes 40 --copies 8`, simulated H200): 1.063 as it is, with a spread
// of about 0.002.

/// The target: physical memory may exceed peak live by this many thousandths before the pool saves memory at
/// the price of driver calls (5: bytes 1.068 instead of 1.066, 50: 1.078, over 40 copies and 100 passes).
///
/// A pool that spends more driver calls than it earns has up to ten times as much slack: all of it once it is
/// overdrawn by as many as it may save (a fifth to three times that: no difference).
pub(crate) const SLACK: u64 = 10;

/// The small address range grows by at least this part of itself: 1/64. Each growth asks other streams first
/// (without: a program on 256 streams asks 49 times in 100 steps instead of 33).
pub(crate) const SPANS_SHARE: u64 = 64;

/// A pool earns this many driver calls for each thousand operations (2: bytes 1.067, 6: 1.056).
pub(crate) const CALLS_PER_THOUSAND: u64 = 3;

/// The largest handle for a large block has the geometric mean of the request and peak live, in bytes, over
/// this number, if that is more than [`Policy::handle_bytes`] (25: bytes 1.060, with more calls in first
/// passes).
pub(crate) const HANDLE_SHARE: u64 = 17;

/// How large handles are, and how many driver calls the pool spends to hold less memory: what tests set
/// lower, so that short programs reach every path.
///
/// A handle costs the same to create and to map whatever its size, and cannot be mapped in part: large ones
/// waste memory, small ones time. `docs/PAGES.md` holds the study behind these figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    /// The largest handle for a large block has this many bytes, or more by [`HANDLE_SHARE`] (4 MiB: bytes
    /// 1.059, but first passes with short kernels take up to 4 % longer).
    pub(crate) handle_bytes: u64,
    /// The pool keeps this many alias mappings: it bounds the time of searches.
    pub(crate) mappings: usize,
    /// Driver calls that a new pool may spend at once, and the most that it saves for later (512: bytes
    /// 1.068, 4096: no better; a new pool without any: multistream's first pass takes 1.083 of live instead
    /// of 1.037).
    pub(crate) saved_calls: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { handle_bytes: 6 << 20, mappings: 16 << 10, saved_calls: 1024 }
    }
}

/// While the pool has spent its driver calls, requests of at least this many bytes are placed by address.
/// Eight copies of a transformer's training took 1.094 of live with best fit alone, and 1.069 so. By address
/// at all times, or at all sizes, gpt and cupy take up to 0.026 more. With several streams best fit stays:
/// multistream and cupy took 0.004 to 0.006 more by address.
pub(crate) const LEAST_BY_ADDRESS: u64 = 8 << 20;

/// Such a request has this part of the heap, too. Among thousands of blocks of like sizes best fit finds a
/// chunk that nearly fits: with [`LEAST_BY_ADDRESS`] alone, `churn_large` (65 GiB live, blocks of up to 64
/// MiB) took 2400 ns on an H200 where best fit takes 410 to 700, and 1.098 of live in place of 1.067. So it
/// takes 470 to 750 ns, and 1.074. With 1/512 the transformer takes 1.082 in place of 1.053.
pub(crate) const BY_ADDRESS_SHARE: u64 = 1024;

/// A reservation has this many times the device's memory in bytes of addresses, and an alias this many times
/// the bytes that are mapped first: addresses cost next to nothing. So handles come and go for the pool's
/// whole life without another reservation, and an alias can be extended.
pub(crate) const ADDRESS_FACTOR: u64 = 4;

/// Before the pool grows, at most this many free blocks of a stream are compared with their unowned
/// neighbours: it bounds the time under the lock.
pub(crate) const JOIN_SCAN_LIMIT: usize = 4096;

/// A stream is far behind if its last recorded event is older than this, in nanoseconds, and not reached.
///
/// A host that is four kernels of 100 µs ahead stays below this limit, also where streams wait for each
/// other; one that never waits is 15 to 60 ms ahead (docs/BENCHMARKS.md, "With work in flight").
pub(crate) const FAR_BEHIND_NS: u64 = 1_000_000;

/// A backlog counts until this many looks in a row have found none. Without it, a program that is far ahead
/// most of the time switches between both modes, which takes more memory than either: multistream with
/// kernels of 5 to 25 µs took 5.4 GiB instead of 3.7 (`millpond-replay busy multistream.csv.gz --device
/// sim:h200 --host ahead -k 5..25 --passes 5`).
pub(crate) const LOOKS_WITHOUT: u32 = 256;

/// A thread that waits for a spin lock spins this many times, as most holders release it within some ten
/// nanoseconds, then yields as many times, so that a holder that lost its core can run, and then sleeps.
pub(crate) const SPINS: u32 = 200;
