//! The list of stacks for tests of all resources and adaptors. A new resource or adaptor adds its line here.
//!
//! [`Builder::all`] returns the stacks of the list, and [`Builder::with_submitted_work`] puts a layer that
//! submits work into each. The texts name the files of plans from the folder of another package.

use std::iter;

use millpond_core::stack::{LayerTable, StackSpec};

use crate::conformance::{Decay, Inspect, Refusals, Subject};
use crate::statistics_check::StatisticsCheck::{self, Counts, Exact, None};

/// Every resource, with the options that change its behavior, and its knowledge of its blocks.
const RESOURCES: &[(&str, Knows)] = &[
    ("cuda", Knows::nothing()),
    ("managed", Knows::nothing()),
    ("pinned_host", Knows::nothing()),
    ("pinned_host+pool:max=1GiB", Knows::its_blocks(Exact)),
    ("host", Knows::its_blocks(None).handing_on()),
    ("host+pool+statistics", Knows::its_blocks(Exact)),
    ("system", Knows::its_blocks(None).handing_on()),
    ("system+pool", Knows::its_blocks(Exact)),
    ("sam_headroom:headroom=1GiB", Knows::its_blocks(None).handing_on()),
    ("cuda_async", Knows::its_blocks(None)),
    ("cuda_async:initial=10%,max=75%", Knows::its_blocks(None)),
    ("cuda_async:release_threshold=0,reuse=own", Knows::its_blocks(None)),
    ("cuda_async:reuse=opportunistic,handles=fd,hw_decompress=off", Knows::its_blocks(None)),
    ("cuda_async_view", Knows::its_blocks(None).sharing()),
    ("cuda_async_view:pool=current", Knows::its_blocks(None).sharing()),
    ("cuda_async_managed", Knows::its_blocks(None).sharing()),
    ("cuda_async_pinned", Knows::its_blocks(None)),
    ("cuda_async_pinned:numa=0,max=8GiB,release_threshold=0,reuse=own", Knows::its_blocks(None)),
    ("cuda_async+pool:max=50%", Knows::its_blocks(Counts)),
    (POOL, Knows::its_blocks(Exact)),
    ("cuda+pool:initial=10%,max=75%", Knows::its_blocks(Exact)),
    ("cuda+pool:reuse=own", Knows::its_blocks(Exact)),
    ("cuda+pool:reuse=ordered", Knows::its_blocks(Exact)),
    ("cuda+pool:reuse=completed", Knows::its_blocks(Exact)),
    ("cuda+pool:reuse=waited", Knows::its_blocks(Exact)),
    ("cuda+pool:pages=off,max=25%", Knows::its_blocks(Exact)),
    ("cuda+pool:pages=on", Knows::its_blocks(Exact)),
    ("cuda+pool:pages=on,decay=100ms", Knows::its_blocks(Exact)),
    ("cuda+pool:decay=off", Knows::its_blocks(Exact)),
    ("cuda+pool:pages=on,reuse=own", Knows::its_blocks(Exact)),
    ("cuda+pool:pages=on,initial=25%,max=50%", Knows::its_blocks(Exact)),
    ("cuda+pool:pages=on+pool:max=75%", Knows::its_blocks(Counts)),
    ("managed+pool:max=50%", Knows::its_blocks(Exact)),
    ("cuda+pool+pool", Knows::its_blocks(Counts)),
    ("cuda+arena:size=20%", Knows::its_blocks(Exact)),
    ("managed+arena:size=20%", Knows::its_blocks(Exact)),
    ("cuda+fixed_size:block_size=64KiB,blocks=16", Knows::its_blocks(Exact).up_to(64 << 10)),
    ("cuda+pool+fixed_size", Knows::its_blocks(Counts).up_to(1 << 20)),
    ("cuda+binning:min=10,max=16", Knows::nothing()),
    ("cuda+pool+binning:bins=4KiB/64KiB/1MiB", Knows::nothing().holding()),
    ("cuda+tracking", Knows::its_blocks(None).handing_on()),
    ("managed+prefetch", Knows::nothing()),
    ("managed+pool:max=50%+prefetch", Knows::its_blocks(Exact)),
    ("system+prefetch", Knows::its_blocks(None).handing_on()),
    ("pinned_host+prefetch", Knows::nothing()),
    ("managed+prefetch+pool:max=50%", Knows::its_blocks(Exact)),
    ("system+prefetch+pool", Knows::its_blocks(Exact)),
    ("managed+prefetch+binning:min=10,max=16", Knows::nothing()),
    ("cuda+zeroing", Knows::nothing()),
    ("cuda+zeroing+pool:max=50%", Knows::its_blocks(Exact)),
    ("cuda+zeroing+fixed_size:block_size=64KiB,blocks=16", Knows::its_blocks(Exact).up_to(64 << 10)),
    // The layer clears freed blocks before the pool can refuse them.
    ("cuda+pool+zeroing", Knows::nothing().holding()),
    ("cuda+pool:max=25%+fallback:to=(cuda+pool)", Knows::its_blocks(Exact)),
    ("cuda_async+capture_scopes", Knows::its_blocks(None)),
    ("cuda+pool+plan:file=../testkit/plans/equal_256.plan", Knows::its_blocks(None)),
    ("cuda+pool+plan:file=../testkit/plans/equal_1024.plan", Knows::its_blocks(None)),
    ("cuda+pool:pages=off,max=50%+plan:file=../testkit/plans/equal_1024.plan", Knows::its_blocks(None)),
];

/// Adaptors that keep accounts. Each is put on plain CUDA, on the pool, and, on the pool, on every other one.
const ADAPTORS: &[&str] = &[
    "fallback:to=(cuda)",
    "limiting:limit=100%",
    "logging:file=/dev/null",
    "statistics",
    "recording",
    "thread_safe",
    "tracking",
];

/// The other adaptors, which are put on plain CUDA and on the pool. The crate's own tests cover their pairs.
const SIMPLE_ADAPTORS: &[&str] = &[
    "aligned:alignment=4KiB,threshold=64KiB",
    "budget:name=job,limit=100%",
    "capture_scopes",
    "prefetch",
    // In programs of one thread, it would wait in vain.
    "retry:timeout=1us",
];

const POOL: &str = "cuda+pool";

/// The misuse that a resource can detect about its blocks. Adaptors on top of it detect the same.
#[derive(Clone, Copy)]
struct Knows {
    statistics: StatisticsCheck,
    refusals: Refusals,
    largest_bytes: u64,
    hands_on: bool,
    shares_pools: bool,
}

impl Knows {
    /// The resource hands on memory from the device.
    const fn nothing() -> Self {
        let refusals = Refusals::NONE;
        Self { statistics: None, refusals, largest_bytes: 64 << 20, hands_on: true, shares_pools: false }
    }

    const fn its_blocks(statistics: StatisticsCheck) -> Self {
        Self { statistics, refusals: Refusals::ALL, hands_on: false, ..Self::nothing() }
    }

    const fn handing_on(self) -> Self {
        Self { hands_on: true, ..self }
    }

    /// The resource's memory belongs to a driver pool.
    const fn sharing(self) -> Self {
        Self { hands_on: true, shares_pools: true, ..self }
    }

    const fn holding(self) -> Self {
        Self { hands_on: false, ..self }
    }

    const fn up_to(self, largest_bytes: u64) -> Self {
        Self { largest_bytes, ..self }
    }
}

/// Makes the list's stacks, with what a test needs to look into them.
#[derive(Clone, Debug)]
pub struct Builder {
    table: LayerTable,
    inspect: Inspect,
    decay: Decay,
}

impl Builder {
    /// Creates a builder. `table` has all layers that the texts name, and [`ZeroingLayer`]. `inspect` checks
    /// every pool of a stack, and `decay` lets every pool release memory that it has not needed lately.
    ///
    /// [`ZeroingLayer`]: crate::canary::ZeroingLayer
    pub fn new(table: LayerTable, inspect: Inspect, decay: Decay) -> Self {
        Self { table, inspect, decay }
    }

    fn subject(&self, text: &str, knows: Knows) -> Subject {
        let subject = Subject::from_text(text, &self.table)
            .largest_bytes(knows.largest_bytes)
            .inspected_by(self.inspect)
            .decayed_by(self.decay);
        if knows.shares_pools { subject.shares_pools() } else { subject }
    }

    /// Returns every resource, every adaptor on plain CUDA and on the pool, and every ordered pair of
    /// accounting adaptors on the pool. Requests have at most `largest_bytes`.
    pub fn all(&self, largest_bytes: u64) -> Vec<Subject> {
        let subject = |text: &str, knows: Knows| {
            let knows = knows.up_to(knows.largest_bytes.min(largest_bytes));
            let subject = self.subject(text, knows).statistics(knows.statistics).refuses(knows.refusals);
            if knows.hands_on { subject.hands_on() } else { subject }
        };
        let mut all: Vec<Subject> = RESOURCES.iter().map(|&(text, knows)| subject(text, knows)).collect();
        for adaptor in ADAPTORS.iter().chain(SIMPLE_ADAPTORS) {
            // A free block that is large enough for a request may be too small after alignment.
            let statistics = if adaptor.starts_with("aligned") { Counts } else { Exact };
            all.push(subject(&format!("cuda+{adaptor}"), Knows::nothing()));
            all.push(subject(&format!("{POOL}+{adaptor}"), Knows::its_blocks(statistics)));
        }
        all.extend(pairs().map(|text| subject(&text, Knows::its_blocks(Exact))));
        all
    }

    /// Returns every resource with the layer `zeroing` above each layer of its stack in turn.
    pub fn with_submitted_work(&self) -> Vec<Subject> {
        let insert = |&(text, knows): &(&str, Knows)| {
            let spec: StackSpec = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            let texts: Vec<String> = (1..=spec.layers().len())
                .map(|place| {
                    let mut layers: Vec<String> = spec.layers().iter().map(ToString::to_string).collect();
                    layers.insert(place, "zeroing".to_owned());
                    layers.join("+")
                })
                // Such a pool can map pages only directly over `cuda`.
                .filter(|text| !text.contains("zeroing+pool:pages=on"))
                .collect();
            iter::zip(texts, iter::repeat(knows))
        };
        let stacks = RESOURCES.iter().filter(|(text, _)| !text.contains("zeroing")).flat_map(insert);
        stacks.map(|(text, knows)| self.subject(&text, knows)).collect()
    }
}

/// Returns a stack's share of a test's operations. Host-accessible memory is real memory, and each block is a
/// mapping: one operation there costs as much as a hundred elsewhere.
pub fn share(subject: &Subject) -> u64 {
    let of_host = ["managed", "pinned_host", "host", "system", "sam_headroom"];
    if of_host.iter().any(|base| subject.name().contains(base)) { 1 } else { 20 }
}

/// Returns every ordered pair of the accounting adaptors, on the pool.
pub fn pairs() -> impl Iterator<Item = String> {
    let with = |first| ADAPTORS.iter().map(move |second| format!("{POOL}+{first}+{second}"));
    ADAPTORS.iter().flat_map(with)
}
