//! Tests the instruments with OpenTelemetry's SDK.

use millpond_core::DeviceMemoryResourceExt;
use millpond_metrics::{Family, Kind, Metrics, Sample};
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

use crate::{MIB, S, build, device, free};

type Point = (Vec<(String, String)>, u64);

fn point<'a>(labels: impl Iterator<Item = &'a KeyValue>, value: u64) -> Point {
    let mut labels: Vec<_> =
        labels.map(|label| (label.key.to_string(), label.value.as_str().into_owned())).collect();
    labels.sort();
    (labels, value)
}

/// Returns the type and the values of an exported metric.
fn exported(metric: &Metric) -> (Kind, Vec<Point>) {
    let (kind, mut points): (Kind, Vec<Point>) = match metric.data() {
        AggregatedMetrics::U64(MetricData::Sum(sum)) => {
            assert!(sum.is_monotonic());
            (Kind::Counter, sum.data_points().map(|it| point(it.attributes(), it.value())).collect())
        }
        AggregatedMetrics::I64(MetricData::Sum(sum)) => {
            assert!(!sum.is_monotonic());
            let value = |value| u64::try_from(value).unwrap();
            let points = sum.data_points().map(|it| point(it.attributes(), value(it.value())));
            (Kind::UpDownCounter, points.collect())
        }
        AggregatedMetrics::U64(MetricData::Gauge(gauge)) => {
            (Kind::Gauge, gauge.data_points().map(|it| point(it.attributes(), it.value())).collect())
        }
        other => panic!("{} is exported as {other:?}", metric.name()),
    };
    points.sort();
    (kind, points)
}

/// Returns the values of a stack's device.
fn here(family: &Family, device: &str) -> Vec<Point> {
    let is_here = |sample: &&Sample| sample.labels.contains(&("device", device.to_owned()));
    let mut points: Vec<Point> = family
        .samples
        .iter()
        .filter(is_here)
        .map(|sample| {
            let labels = sample.labels.iter().map(|(name, value)| KeyValue::new(*name, value.clone()));
            point(labels.collect::<Vec<_>>().iter(), sample.value)
        })
        .collect();
    points.sort();
    points
}

#[test]
fn a_meter_exports_all_metrics() {
    let stack = build("cuda+pool:max=1GiB+budget:name=otel,limit=16MiB", &device());
    let metrics = Metrics::new();
    metrics.register(&stack, "train").unwrap();
    let exporter = InMemoryMetricExporter::default();
    let provider =
        SdkMeterProvider::builder().with_reader(PeriodicReader::builder(exporter.clone()).build()).build();
    metrics.observe(&provider.meter("millpond"));
    let block = stack.allocate_bytes(3 * MIB, S).unwrap();
    stack.allocate_bytes(20 * MIB, S).unwrap_err();

    provider.force_flush().unwrap();
    let finished = exporter.get_finished_metrics().unwrap();
    let scopes = finished.last().unwrap().scope_metrics();
    let all: Vec<&Metric> = scopes.flat_map(|scope| scope.metrics()).collect();
    let device = stack.device().to_string();
    let families = metrics.families();
    for family in families.iter().filter(|family| !here(family, &device).is_empty()) {
        let metric = all.iter().find(|metric| metric.name() == family.name);
        let metric = metric.unwrap_or_else(|| panic!("{} was not exported", family.name));
        assert_eq!((metric.unit(), metric.description()), (family.unit, family.help));
        let (kind, mut points) = exported(metric);
        points.retain(|(labels, _)| labels.contains(&("device".to_owned(), device.clone())));
        assert_eq!((kind, points), (family.kind, here(family, &device)), "{}", family.name);
    }
    free(&stack, block, 3 * MIB);
}
