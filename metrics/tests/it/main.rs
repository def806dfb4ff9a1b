//! Tests the metrics of stacks on simulated devices.

mod catalogue;
mod opentelemetry;
mod prometheus;
mod scrapes;
mod stacks;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_metrics::{Family, Metrics};

const S: StreamRef = StreamRef::LEGACY;
const MIB: u64 = 1 << 20;

fn device() -> DriverHandle {
    SimDevice::new(SimConfig::h200())
}

fn build(text: &str, device: &DriverHandle) -> AnyResource {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied())
        .with(millpond_adaptors::LAYERS.iter().copied());
    text.parse::<StackSpec>().unwrap().build(&table, device).unwrap()
}

fn free(resource: &AnyResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: every caller has the block from this resource with this size, and uses it no more.
    unsafe { resource.deallocate_bytes(ptr, bytes, S) }
}

/// The values of a family that have these labels, with the others. Other tests have other devices.
fn values(family: &Family, labels: &[(&str, &str)]) -> Vec<u64> {
    let has = |known: &[(&'static str, String)], (name, value): &(&str, &str)| {
        known.iter().any(|(is, known)| is == name && known == value)
    };
    let fits = |known: &[(&'static str, String)]| labels.iter().all(|label| has(known, label));
    family.samples.iter().filter(|sample| fits(&sample.labels)).map(|sample| sample.value).collect()
}

/// Returns the values of a metric on the device of a stack.
fn of(metrics: &Metrics, name: &str, stack: &AnyResource, labels: &[(&str, &str)]) -> Vec<u64> {
    let device = stack.device().to_string();
    let labels: Vec<_> = labels.iter().copied().chain([("device", device.as_str())]).collect();
    values(&metrics.family(name).unwrap_or_else(|| panic!("there is no {name}")), &labels)
}
