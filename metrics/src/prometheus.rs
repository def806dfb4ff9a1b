//! Text for Prometheus, and a collector for a registry of the crate `prometheus-client`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text::encode};
use prometheus_client::metrics::{MetricType, exemplar::Exemplar};
use prometheus_client::registry::{Registry, Unit};

use crate::catalogue::Kind;
use crate::registered::Metrics;

/// The media type of the text of [`Metrics::render`], for the header `Content-Type`.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Metrics {
    /// Returns all metrics as text in the OpenMetrics format 1.0, which Prometheus reads. A web server
    /// answers a scrape with this text, and with [`CONTENT_TYPE`].
    ///
    /// If the program has a registry of the crate `prometheus-client`, give it a clone instead:
    /// `registry.register_collector(Box::new(metrics.clone()))`.
    #[cfg_attr(docsrs, doc(cfg(feature = "prometheus")))]
    pub fn render(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a String takes any text");
        text
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "prometheus")))]
impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in self.families() {
            if family.samples.is_empty() {
                continue;
            }
            // The encoder adds the unit and `_total`.
            let (name, unit) = match family.prometheus_name.strip_suffix("_bytes") {
                Some(name) => (name, Some(&Unit::Bytes)),
                None => (family.prometheus_name.as_str(), None),
            };
            let is_counter = family.kind == Kind::Counter;
            let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(name, family.help, unit, kind)?;
            for sample in &family.samples {
                let label = |(name, value): &(&str, String)| (name.replace('.', "_"), value.clone());
                let labels: Vec<(String, String)> = sample.labels.iter().map(label).collect();
                let mut value = metric.encode_family(&labels)?;
                if is_counter {
                    value.encode_counter(&sample.value, None::<&Exemplar<Vec<(String, String)>, f64>>)?;
                } else {
                    value.encode_gauge(&sample.value)?;
                }
            }
        }
        Ok(())
    }
}
