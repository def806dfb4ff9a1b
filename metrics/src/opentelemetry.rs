//! Instruments of an OpenTelemetry meter.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};

use crate::catalogue::{CATALOGUE, Kind};
use crate::registered::Metrics;

impl Metrics {
    /// Adds an observable instrument to a meter for each metric. The meter keeps the instruments as long as
    /// it lives, and asks for their values whenever it exports. Call this once for each meter.
    #[cfg_attr(docsrs, doc(cfg(feature = "opentelemetry")))]
    pub fn observe(&self, meter: &Meter) {
        for metric in CATALOGUE {
            let (metrics, name) = (self.clone(), metric.name);
            macro_rules! build {
                ($instrument:ident, $value:expr) => {{
                    let builder = meter.$instrument(name).with_unit(metric.unit);
                    builder
                        .with_description(metric.help)
                        .with_callback(move |observer| metrics.report(name, observer, $value))
                        .build();
                }};
            }
            match metric.kind {
                Kind::Counter => build!(u64_observable_counter, |value| value),
                Kind::Gauge => build!(u64_observable_gauge, |value| value),
                // OpenTelemetry has no unsigned sum that decreases.
                Kind::UpDownCounter => build!(i64_observable_up_down_counter, |value| {
                    i64::try_from(value).unwrap_or(i64::MAX)
                }),
            }
        }
    }

    fn report<T>(&self, name: &str, observer: &dyn AsyncInstrument<T>, value: fn(u64) -> T) {
        for sample in self.family(name).into_iter().flat_map(|family| family.samples) {
            let labels = sample.labels.into_iter().map(|(name, value)| KeyValue::new(name, value));
            observer.observe(value(sample.value), &labels.collect::<Vec<_>>());
        }
    }
}
