//! The list of all metrics: names, units, and where the values come from.

use millpond_adaptors::Budget;
use millpond_core::{FailureCounts, LayerMemory, MemoryInfo, ResourceStatistics};

use crate::pool_figures::PoolFigures;

use Kind::{Counter, Gauge, UpDownCounter};

/// The type of a metric, in OpenTelemetry's terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Kind {
    /// A sum that only increases; Prometheus' `counter`. It restarts at 0 with its stack, and if the program
    /// clears the counters.
    Counter,
    /// A sum that increases and decreases; Prometheus' `gauge`.
    UpDownCounter,
    /// A value, such as a peak, whose sums say nothing; Prometheus' `gauge`.
    Gauge,
}

pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) unit: &'static str,
    pub(crate) help: &'static str,
    pub(crate) source: Source,
}

/// How a value is read. `None` stands for a figure that a resource does not keep.
pub(crate) enum Source {
    /// One value for each stack.
    Stack(fn(&ResourceStatistics) -> Option<u64>),
    /// One value for each stack. If the stack keeps no such figure, the driver's pool at its base does.
    StackOrPool(fn(&ResourceStatistics) -> Option<u64>, fn(&PoolFigures) -> Option<u64>),
    /// One value for each step of the reuse ladder of each stack.
    Steps,
    /// One value for each kind of failure of each stack.
    Failures,
    /// One value for each layer that reports its memory.
    Layer(fn(&LayerMemory) -> Option<u64>),
    /// One value for each budget.
    Budget(fn(&Budget) -> u64),
    /// One value for each device.
    Device(fn(MemoryInfo) -> u64),
}

impl Source {
    /// Returns the names of the labels, in their order.
    pub(crate) fn labels(&self) -> &'static [&'static str] {
        match self {
            Self::Stack(_) | Self::StackOrPool(..) => &["device", "stack"],
            Self::Steps => &["device", "stack", "step"],
            Self::Failures => &["device", "stack", "kind"],
            Self::Layer(_) => &["device", "stack", "layer"],
            Self::Budget(_) => &["device", "budget", "parent"],
            Self::Device(_) => &["device", "hw.id"],
        }
    }
}

const fn new(
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    help: &'static str,
    source: Source,
) -> Metric {
    Metric { name, kind, unit, help, source }
}

/// Returns a figure that each resource with statistics keeps.
fn counted(of: &ResourceStatistics, value: u64) -> Option<u64> {
    (!of.knows_only_misuses()).then_some(value)
}

/// Returns a figure that says nothing if an adaptor counted above the resource.
fn own(of: &ResourceStatistics, value: u64) -> Option<u64> {
    of.are_of_resource().then_some(value)
}

fn layer(of: &LayerMemory, value: fn(&ResourceStatistics) -> Option<u64>) -> Option<u64> {
    of.statistics.as_ref().and_then(value)
}

pub(crate) const CATALOGUE: &[Metric] = &[
    new(
        "millpond.memory.live",
        UpDownCounter,
        "By",
        "Live blocks of the stack, after rounding",
        Source::StackOrPool(|of| counted(of, of.bytes_in_use), |pool| pool.live()),
    ),
    new(
        "millpond.memory.requested",
        UpDownCounter,
        "By",
        "Live blocks of the stack, as the program requested them",
        Source::Stack(|of| counted(of, of.bytes_requested)),
    ),
    new(
        "millpond.memory.peak",
        Gauge,
        "By",
        "Highest live memory of the stack so far",
        Source::StackOrPool(|of| counted(of, of.peak_bytes_in_use), |pool| pool.peak()),
    ),
    new(
        "millpond.memory.reserved",
        UpDownCounter,
        "By",
        "Memory that the stack holds, live and free",
        Source::StackOrPool(|of| own(of, of.bytes_reserved), |pool| Some(pool.reserved)),
    ),
    new(
        "millpond.memory.reserved_peak",
        Gauge,
        "By",
        "Highest reserved memory of the stack so far",
        Source::StackOrPool(|of| own(of, of.peak_bytes_reserved), |pool| Some(pool.reserved_peak)),
    ),
    new(
        "millpond.memory.largest_free",
        Gauge,
        "By",
        "Largest free block of the stack",
        Source::Stack(|of| own(of, of.largest_free_block)),
    ),
    new(
        "millpond.blocks.live",
        UpDownCounter,
        "{block}",
        "Live blocks of the stack",
        Source::Stack(|of| counted(of, of.blocks_in_use)),
    ),
    new(
        "millpond.allocations",
        Counter,
        "{allocation}",
        "Successful allocations",
        Source::Stack(|of| counted(of, of.allocations)),
    ),
    new(
        "millpond.frees",
        Counter,
        "{free}",
        "Accepted frees",
        Source::Stack(|of| counted(of, of.deallocations)),
    ),
    new(
        "millpond.requests",
        Counter,
        "{request}",
        "Served requests by the step that found the memory; waited: the stream waits on the GPU; grow: new \
         memory; reclaim: after a wait for the device",
        Source::Steps,
    ),
    new(
        "millpond.failures",
        Counter,
        "{request}",
        "Requests that failed in a registered stack, also if it is a part of another one; memory: a resource \
         had none; limit: a layer `limiting` refused; budget: a budget refused",
        Source::Failures,
    ),
    new(
        "millpond.misuses",
        Counter,
        "{free}",
        "Wrong frees that the stack refused",
        Source::Stack(|of| Some(of.misuses)),
    ),
    new(
        "millpond.layer.live",
        UpDownCounter,
        "By",
        "Live blocks that the layer counts",
        Source::Layer(|of| layer(of, |of| counted(of, of.bytes_in_use))),
    ),
    new(
        "millpond.layer.peak",
        Gauge,
        "By",
        "Highest live memory that the layer has counted so far",
        Source::Layer(|of| layer(of, |of| counted(of, of.peak_bytes_in_use))),
    ),
    new(
        "millpond.layer.reserved",
        UpDownCounter,
        "By",
        "Memory that the layer holds, live and free",
        Source::Layer(|of| layer(of, |of| own(of, of.bytes_reserved))),
    ),
    new(
        "millpond.layer.failures",
        Counter,
        "{request}",
        "Requests that failed in the layer, or in the layers below; a layer above may have served them",
        Source::Layer(|of| of.failures.as_ref().map(FailureCounts::total)),
    ),
    new(
        "millpond.layer.usage",
        UpDownCounter,
        "By",
        "Memory that counts against the layer's limit",
        Source::Layer(|of| of.limit_used_bytes),
    ),
    new("millpond.layer.limit", UpDownCounter, "By", "The layer's limit", Source::Layer(|of| of.limit_bytes)),
    new(
        "millpond.budget.usage",
        UpDownCounter,
        "By",
        "Live memory of the budget and of the budgets below",
        Source::Budget(Budget::used_bytes),
    ),
    new(
        "millpond.budget.limit",
        UpDownCounter,
        "By",
        "The budget's limit",
        Source::Budget(Budget::limit_bytes),
    ),
    new(
        "millpond.budget.guaranteed",
        UpDownCounter,
        "By",
        "Memory that the budget can call back from others",
        Source::Budget(Budget::guaranteed_bytes),
    ),
    new(
        "hw.gpu.memory.usage",
        UpDownCounter,
        "By",
        "Memory of the device that is not free, of all processes",
        Source::Device(|of| of.total.saturating_sub(of.free)),
    ),
    new(
        "hw.gpu.memory.limit",
        UpDownCounter,
        "By",
        "Size of the device's memory",
        Source::Device(|of| of.total),
    ),
];
