//! The values of one metric.

use crate::catalogue::{Kind, Metric};

/// A metric with its values at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Family {
    /// The name in OpenTelemetry, for example `millpond.memory.live`.
    pub name: &'static str,
    /// The name in Prometheus without the suffix `_total`, for example `millpond_memory_live_bytes`.
    pub prometheus_name: String,
    /// The type.
    pub kind: Kind,
    /// The unit in OpenTelemetry's notation, for example `By`.
    pub unit: &'static str,
    /// A sentence for people.
    pub help: &'static str,
    /// The names of the labels of each value.
    pub labels: &'static [&'static str],
    /// The values, ordered by their labels.
    pub samples: Vec<Sample>,
}

/// A value with its labels.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Sample {
    /// The names and values of the labels. In Prometheus, a dot in a name becomes `_`.
    pub labels: Vec<(&'static str, String)>,
    /// The value, in the family's unit.
    pub value: u64,
}

impl Family {
    pub(crate) fn new(metric: &Metric, mut samples: Vec<Sample>) -> Self {
        samples.sort_unstable();
        let &Metric { name, kind, unit, help, .. } = metric;
        let suffix = if unit == "By" { "_bytes" } else { "" };
        let (prometheus_name, labels) = (name.replace('.', "_") + suffix, metric.source.labels());
        Self { name, prometheus_name, kind, unit, help, labels, samples }
    }
}
