//! The figures that metrics read at one moment. Each kind of figure is read when a metric first needs it.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use millpond_adaptors::Budget;
use millpond_core::driver::call;
use millpond_core::{
    AnyResource, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, LadderCounts, LayerMemory,
    MemoryInfo, ResourceStatistics,
};

use crate::catalogue::{Metric, Source};
use crate::family::{Family, Sample};

type Labels = Vec<(&'static str, String)>;

pub(crate) struct Now {
    stacks: Vec<(Labels, AnyResource)>,
    statistics: OnceCell<Vec<(Labels, ResourceStatistics)>>,
    layers: OnceCell<Vec<(Labels, LayerMemory)>>,
    budgets: OnceCell<Vec<(Labels, Budget)>>,
    devices: OnceCell<Vec<(Labels, MemoryInfo)>>,
}

impl Now {
    /// Reads nothing yet. No two stacks of a device have the same name.
    pub(crate) fn new(stacks: Vec<(String, AnyResource)>) -> Self {
        let label = |(name, stack): (String, AnyResource)| {
            (vec![("device", stack.device().to_string()), ("stack", name)], stack)
        };
        Self {
            stacks: stacks.into_iter().map(label).collect(),
            statistics: OnceCell::new(),
            layers: OnceCell::new(),
            budgets: OnceCell::new(),
            devices: OnceCell::new(),
        }
    }

    pub(crate) fn family(&self, metric: &Metric) -> Family {
        let samples = match metric.source {
            Source::Stack(value) => samples(self.statistics(), value),
            Source::Steps => self.statistics().iter().flat_map(steps).collect(),
            Source::Layer(value) => samples(self.layers(), value),
            Source::Budget(value) => samples(self.budgets(), |budget| Some(value(budget))),
            Source::Device(value) => samples(self.devices(), |info| Some(value(*info))),
        };
        Family::new(metric, samples)
    }

    fn statistics(&self) -> &[(Labels, ResourceStatistics)] {
        let read = |(labels, stack): &(Labels, AnyResource)| Some((labels.clone(), stack.statistics()?));
        self.statistics.get_or_init(|| self.stacks.iter().filter_map(read).collect())
    }

    fn layers(&self) -> &[(Labels, LayerMemory)] {
        self.layers.get_or_init(|| self.stacks.iter().flat_map(layers).collect())
    }

    fn budgets(&self) -> &[(Labels, Budget)] {
        let label = |(device, budget): (DeviceId, Budget)| {
            let parent = budget.parent().map(|parent| parent.name().to_owned());
            let labels = vec![
                ("device", device.to_string()),
                ("budget", budget.name().to_owned()),
                ("parent", parent.unwrap_or_default()),
            ];
            (labels, budget)
        };
        self.budgets.get_or_init(|| Budget::all().into_iter().map(label).collect())
    }

    fn devices(&self) -> &[(Labels, MemoryInfo)] {
        self.devices.get_or_init(|| {
            let stacks: BTreeMap<DeviceId, &AnyResource> =
                self.stacks.iter().map(|(_, stack)| (stack.device(), stack)).collect();
            let read = |(device, stack): (DeviceId, &AnyResource)| {
                let info = call(&**stack.driver(), |driver| driver.mem_get_info()).ok()?;
                Some((vec![("device", device.to_string()), ("hw.id", device.to_string())], info))
            };
            stacks.into_iter().filter_map(read).collect()
        })
    }
}

/// The layers of a stack. If several have the same name, numbers tell them apart.
fn layers((labels, stack): &(Labels, AnyResource)) -> Vec<(Labels, LayerMemory)> {
    let mut known: BTreeMap<String, u32> = BTreeMap::new();
    // From the base up, so that a number stays if a layer is added on top.
    let of_stack = stack.memory_figures().layers.into_iter().rev().map(|memory| {
        let name = memory.layer.split(':').next().unwrap_or_default().to_owned();
        let number = known.entry(name.clone()).and_modify(|number| *number += 1).or_insert(1);
        let name = if *number == 1 { name } else { format!("{name}#{number}") };
        (with(labels, "layer", name), memory)
    });
    of_stack.collect()
}

fn with(labels: &Labels, name: &'static str, value: String) -> Labels {
    labels.iter().cloned().chain([(name, value)]).collect()
}

fn samples<T>(read: &[(Labels, T)], value: impl Fn(&T) -> Option<u64>) -> Vec<Sample> {
    let sample = |(labels, of): &(Labels, T)| Some(Sample { labels: labels.clone(), value: value(of)? });
    read.iter().filter_map(sample).collect()
}

/// The served requests of a stack, by step.
fn steps((labels, of): &(Labels, ResourceStatistics)) -> Vec<Sample> {
    let LadderCounts { own_stream, ordered, completed, waited, grow, reclaim, .. } = of.ladder;
    let steps = [
        ("own_stream", own_stream),
        ("ordered", ordered),
        ("completed", completed),
        ("waited", waited),
        ("grow", grow),
        ("reclaim", reclaim),
    ];
    let sample = |(step, value): (&str, u64)| Sample { labels: with(labels, "step", step.to_owned()), value };
    if of.are_of_resource() { steps.map(sample).into() } else { Vec::new() }
}
