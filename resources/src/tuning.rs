//! The thresholds of the pool, each with its reason and its measured effect.

use std::time::Duration;

/// The driver counts plain allocations in pages of this many bytes. A size that must suffice is rounded up to
/// it, and regions are multiples of it. Over pages, requests of fewer bytes come from the small address
/// range. A span there has at most one page while threads do not contend, so that its handle can be released
/// alone.
pub(crate) const DEVICE_PAGE: u64 = 2 << 20;

// The pool: slow path, caches, arenas, decay.

/// The first calls on a stream, by any thread, that do without a stream cache. So a stream that is rarely
/// used costs no cache.
pub(crate) const CALLS_WITHOUT_CACHE: u32 = 4;

/// How often one request repeats a step that other threads and pools can spoil: the end of the slow path
/// while another stream's block would fit, the question to peer pools, and the wait for another resource's
/// promise. It bounds the time of a request.
pub(crate) const RETRIES: u32 = 32;

/// The pool regards this part of its reserved bytes as little: 1/8. A region takes no more beyond its
/// request, and a span no more of its arena. Before the pool grows, it waits for streams that may be
/// destroyed only if they own more. If speed comes before memory, it then flushes caches only if they hold
/// more: growing is cheaper. The pool is quiet while no more is in use (1/40: no difference; 1/2: bytes 1.074
/// instead of 1.063).
pub(crate) const LITTLE: u64 = 8;

/// How long a call waits for its turn on a pool's slow path, and a growth for the end of another resource's
/// promise. It is far longer than driver calls take, and short enough if the other call waits for this one.
pub(crate) const TURN_PATIENCE: Duration = Duration::from_millis(100);

/// How long a call waits for another thread that may never finish. The admission of a peer device waits for
/// calls that map memory; a fork and the end of the process wait for the decay thread. A backlog that was
/// last seen this long ago is over.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// The most driver calls in one step that returns or unmaps memory. It bounds the time of a step; the pool's
/// lock is free between steps. While the pool is quiet, this many large allocations pass between two steps,
/// so that steps cost each of them one driver call.
pub(crate) const CALLS_PER_RELEASE: usize = 64;

/// With up to this many streams, a request asks all streams that own free blocks at once, and the pool looks
/// for no idle streams to forget.
pub(crate) const FEW_STREAMS: usize = 16;

/// With more streams, a request first asks the streams that together own this percentage of the free bytes.
/// Each stream costs two driver calls, and most own little.
pub(crate) const STREAMS_ASKED_PERCENT: u64 = 70;

/// The largest blocks, in bytes, that a pool with pages takes from arenas while threads do not contend.
/// Larger blocks are easier to stitch in the large heap.
pub(crate) const LARGEST_SMALL_OVER_PAGES: u64 = 128 << 10;

/// How many free blocks a search in one bin of the heap of large blocks compares, and a step of incremental
/// work visits under one lock: a few microseconds.
pub(crate) const CHUNKS_COMPARED: usize = 32;

/// How many free blocks of one bin a search in an arena compares (their sizes differ by at most 3 %), and how
/// many handles of a free extent one step of a release covers.
pub(crate) const FEW_COMPARED: usize = 4;

/// The most bytes of a span over regions, or of any span while threads contend. On an H200, 16 threads held
/// 1000 blocks each. With spans of 4 to 16 MiB the pool held 1.50 times the live bytes (over regions 1.45);
/// with these spans 1.33 (1.29), at 47 million steps per second instead of 52.
pub(crate) const SPAN_BYTES: u64 = 4 << 20;

/// Fewer bytes do not justify a separate piece: an arena's span, or a mapping of a handle's free end.
pub(crate) const LEAST_PIECE: u64 = 512 << 10;

/// A thread's score of contention rises by this when it takes a block after another thread, and falls by 1
/// when it takes a block after itself. At 256 the thread moves to another arena. A thread that rarely meets
/// others stays.
pub(crate) const CONTENTION_PER_BLOCK: u8 = 16;

/// How many blocks a thread frees past its stream caches between two updates of the cache limits.
pub(crate) const FREES_PER_LIMITS: u64 = 1024;

/// How often the pool reads counters that busy threads change before it goes on without two equal readings:
/// for the live bytes, and for quota before the peak rises. The peak also rises for the reserve after this
/// many searches for quota in a row that found other threads busy. A search moves the counters of all other
/// threads out of their processors' caches, which takes some 12 µs from 16 threads. With 16 threads on
/// separate streams on an H200's host, the pool made 60 million steps per second; without reserve and rise,
/// 25 million.
pub(crate) const READINGS: usize = 8;

/// All threads together hold about this part of the peak as quota for their next allocations: 1/128. For the
/// reserve, the peak rises by half of it.
pub(crate) const RESERVE_SHARE: i64 = 128;

/// After this many operations without growth, a pool is in the steady state.
pub(crate) const STEADY_AFTER: u64 = 1 << 15;

/// The part of the free bytes that threads may cache in the steady state: 1/4.
pub(crate) const STEADY_SHARE: u64 = 4;

/// While threads contend, they cache at most this part of the bytes in use: 1/12. A part of the free bytes
/// would not bound the caches: threads that miss the cached blocks make the pool grow, and then more is free.
pub(crate) const CONTENDED_SHARE: u64 = 12;

/// All stream caches together may hold at most this part of the bytes in use: 1/32.
pub(crate) const CACHED_SHARE: u64 = 32;

/// A thread may always cache this many bytes, whatever its share, but of one size class no more. The limit is
/// a quarter of this while [`CACHED_SHARE_SAVING`] applies (256 KiB of a class while the pool grows: no
/// difference).
pub(crate) const CACHED_BYTES: u64 = 4 << 20;

/// Replaces [`CACHED_SHARE`] in a pool with pages while threads do not contend, because stitching cannot use
/// cached memory. With several streams, it also bounds the largest block that a thread caches.
pub(crate) const CACHED_SHARE_SAVING: u64 = 1024;

/// With `pages=auto`, a pool maps no pages if its maximum is fewer pages than this: rounding to pages would
/// waste much of it.
pub(crate) const LEAST_PAGES: u64 = 64;

/// The number of decay steps in the decay's time.
pub(crate) const DECAY_STEPS: u32 = 16;

// ---- store, heap, block_map, stream_order, sync ----
//
// "Bytes" in these comments are bytes taken over peak live, the mean over six logs after 40 passes, with
// eight perturbed copies of each (`long_run --passes 40 --copies 8`, simulated H200). The present value is
// 1.063, with a spread of about 0.002.

/// The target: physical memory may exceed peak live by this many thousandths before the pool spends driver
/// calls to save memory (5: bytes 1.068 instead of 1.066, 50: 1.078, over 40 copies and 100 passes).
///
/// A pool that spends more driver calls than it earns has up to ten times as much slack. It has all of it
/// once it is overdrawn by as many calls as it may save (a fifth to three times that: no difference).
pub(crate) const SLACK: u64 = 10;

/// The small address range grows by at least this part of itself: 1/64. Each growth first asks other streams
/// (without this: a program on 256 streams asks 49 times in 100 steps instead of 33).
pub(crate) const SPANS_SHARE: u64 = 64;

/// A pool earns this many driver calls per thousand operations (2: bytes 1.067, 6: 1.056).
pub(crate) const CALLS_PER_THOUSAND: u64 = 3;

/// The largest handle for a large block has, in bytes, the geometric mean of the request and peak live,
/// divided by this number, if that is more than [`Policy::handle_bytes`] (25: bytes 1.060, with more calls in
/// first passes).
pub(crate) const HANDLE_SHARE: u64 = 17;

/// How large handles are, and how many driver calls the pool spends to hold less memory. Tests lower these
/// values, so that short programs reach every path.
///
/// A handle costs the same to create and to map at any size, and cannot be mapped in part. So large handles
/// waste memory, and small ones waste time. `docs/lab/pages.md` has the study behind these figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    /// The largest handle for a large block has this many bytes, or more by [`HANDLE_SHARE`] (4 MiB: bytes
    /// 1.059, but first passes with short kernels take up to 4 % longer).
    pub(crate) handle_bytes: u64,
    /// The most alias mappings that the pool keeps: it bounds the time of searches.
    pub(crate) mappings: usize,
    /// The driver calls that a new pool may spend at once, and the most that it saves for later. First passes
    /// of six logs take 1.0245 of live, and the 40th 1.0581. With 768 it is 1.0252 and 1.0547, with 5 % fewer
    /// mappings in `churn_large`, but a loop of training takes 1.051 after 100 steps and programs of several
    /// streams 1.20. With 512 it is 1.0308 and 1.0584. With none for a new pool, multistream's first pass
    /// takes 1.083 instead of 1.037.
    pub(crate) saved_calls: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { handle_bytes: 6 << 20, mappings: 16 << 10, saved_calls: 1024 }
    }
}

/// While the pool has spent its driver calls, requests of at least this many bytes are placed by address.
/// Eight copies of a transformer's training took 1.094 of live with best fit alone, and 1.069 with this. By
/// address at all times, or at all sizes, gpt and cupy take up to 0.026 more. With several streams the pool
/// stays with best fit: multistream and cupy took 0.004 to 0.006 more by address.
pub(crate) const LEAST_BY_ADDRESS: u64 = 8 << 20;

/// Such a request also has at least this part of the heap. Among thousands of blocks of like sizes, best fit
/// finds a chunk that nearly fits. With [`LEAST_BY_ADDRESS`] alone, `churn_large` (65 GiB live, blocks of up
/// to 64 MiB) took 2400 ns on an H200, and 1.098 of live; best fit takes 410 to 700 ns, and 1.067. With both
/// limits it takes 470 to 750 ns, and 1.074. With 1/512 the transformer takes 1.082 instead of 1.053.
pub(crate) const BY_ADDRESS_SHARE: u64 = 1024;

/// A reservation covers this many times the device's memory in addresses, and an alias this many times the
/// bytes that are mapped first. Addresses cost next to nothing. So handles come and go for the pool's whole
/// life without another reservation, and an alias can be extended.
pub(crate) const ADDRESS_FACTOR: u64 = 4;

/// Before the pool grows, it compares at most this many free blocks of a stream with their unowned
/// neighbours: it bounds the time under the lock.
pub(crate) const JOIN_SCAN_LIMIT: usize = 4096;

/// A stream is far behind if its last recorded event is older than this, in nanoseconds, and not yet reached.
///
/// A host that is four kernels of 100 µs ahead stays below this limit, even if streams wait for each other. A
/// host that never waits is 15 to 60 ms ahead (docs/lab/benchmarks.md, "With work in flight").
pub(crate) const FAR_BEHIND_NS: u64 = 1_000_000;

/// A backlog counts until this many looks in a row find none. Otherwise a program that is far ahead most of
/// the time would switch between both modes, which takes more memory than either: multistream with kernels of
/// 5 to 25 µs took 5.4 GiB instead of 3.7 (`millpond-replay busy multistream.csv.gz --device sim:h200 --host
/// ahead -k 5..25 --passes 5`).
pub(crate) const LOOKS_WITHOUT: u32 = 256;

/// A thread that waits for a spin lock spins this many times: most holders release it within some ten
/// nanoseconds. Then it yields as many times, so that a holder that lost its core can run. Then it sleeps.
pub(crate) const SPINS: u32 = 200;
