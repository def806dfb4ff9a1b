//! The figures that metrics read at one moment. Each kind of figure is read when a metric first needs it.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

use millpond_adaptors::Budget;
use millpond_core::driver::call;
use millpond_core::{
    AnyResource, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, FailureCounts, FailureKind,
    FailureTally, LadderCounts, LayerMemory, MemoryInfo, ReportsMemory, ResourceId, ResourceStatistics,
};

use crate::catalogue::{CATALOGUE, Metric, Source};
use crate::family::{Family, Sample};
use crate::pool_figures::PoolFigures;

type Labels = Vec<(&'static str, String)>;

/// Between the names of stacks that share memory.
pub(crate) const AND: &str = " + ";

pub(crate) struct Now {
    stacks: Vec<(String, AnyResource)>,
    statistics: OnceCell<Vec<(Labels, ResourceStatistics)>>,
    pools: OnceCell<Vec<(Labels, PoolFigures)>>,
    failures: OnceCell<Vec<(Labels, FailureCounts)>>,
    layers: OnceCell<Vec<(Labels, LayerMemory)>>,
    budgets: OnceCell<Vec<(Labels, Budget)>>,
    devices: OnceCell<Vec<(Labels, MemoryInfo)>>,
}

/// A layer that has figures, with all stacks that it belongs to.
struct Part<'a, T> {
    stacks: Vec<&'a str>,
    layer: &'a dyn DeviceMemoryResource,
    /// The facts about the layer, one for each stack.
    said: Vec<T>,
}

impl<T> Part<'_, T> {
    fn labels(&self) -> Labels {
        let mut stacks = self.stacks.clone();
        stacks.sort_unstable();
        vec![("device", self.layer.driver().device().to_string()), ("stack", stacks.join(AND))]
    }
}

impl Now {
    /// Reads nothing yet. No two stacks of a device have the same name.
    pub(crate) fn new(stacks: Vec<(String, AnyResource)>) -> Self {
        Self {
            stacks,
            statistics: OnceCell::new(),
            pools: OnceCell::new(),
            failures: OnceCell::new(),
            layers: OnceCell::new(),
            budgets: OnceCell::new(),
            devices: OnceCell::new(),
        }
    }

    pub(crate) fn family(&self, metric: &Metric) -> Family {
        let samples = match metric.source {
            Source::Stack(value) => samples(self.statistics(), value),
            Source::StackOrPool(value, of_pool) => {
                let mut all = samples(self.statistics(), value);
                all.extend(samples(self.pools(), of_pool));
                all
            }
            Source::Steps => self.statistics().iter().flat_map(steps).collect(),
            Source::Failures => self.failures().iter().flat_map(kinds).collect(),
            Source::Layer(value) => samples(self.layers(), value),
            Source::Budget(value) => samples(self.budgets(), |budget| Some(value(budget))),
            Source::Device(value) => samples(self.devices(), |info| Some(value(*info))),
        };
        Family::new(metric, samples)
    }

    /// Returns whether a stack has figures of memory: its own, or of a layer.
    pub(crate) fn has_figures(&self) -> bool {
        let of_stacks = ["device", "stack"];
        let mut metrics = CATALOGUE.iter().filter(|metric| {
            metric.source.labels().starts_with(&of_stacks) && !matches!(metric.source, Source::Failures)
        });
        metrics.any(|metric| !self.family(metric).samples.is_empty())
    }

    /// Returns the parts of all stacks, with the facts that `parts` gives. A part that several stacks share
    /// appears once: so a sum over stacks counts it once.
    fn parts<'a, T>(
        &'a self,
        parts: impl Fn(&'a AnyResource) -> Vec<(&'a dyn DeviceMemoryResource, T)>,
    ) -> Vec<Part<'a, T>> {
        let mut known: HashMap<ResourceId, Part<'a, T>> = HashMap::new();
        for (name, stack) in &self.stacks {
            for (layer, said) in parts(stack) {
                let new = || Part { stacks: Vec::new(), layer, said: Vec::new() };
                let part = known.entry(ResourceId::of(layer)).or_insert_with(new);
                part.stacks.push(name);
                part.said.push(said);
            }
        }
        known.into_values().collect()
    }

    fn statistics(&self) -> &[(Labels, ResourceStatistics)] {
        self.statistics.get_or_init(|| {
            let parts = self.parts(|stack| {
                let statistics = stack.statistics();
                statistics.map(|statistics| (keeper_of(stack), statistics)).into_iter().collect()
            });
            let one = |part: Part<'_, ResourceStatistics>| {
                let [first, _, ..] = *part.said else { return (part.labels(), part.said[0]) };
                // The layers above the shared part may have refused frees, too.
                let shared = part.layer.statistics().unwrap_or(first);
                let above = part.said.iter().map(|each| each.misuses.saturating_sub(shared.misuses)).sum();
                (part.labels(), shared.with_more_misuses(above))
            };
            parts.into_iter().map(one).collect()
        })
    }

    fn pools(&self) -> &[(Labels, PoolFigures)] {
        self.pools.get_or_init(|| {
            let parts = self.parts(|stack| {
                let statistics = stack.statistics().filter(|it| !it.knows_only_misuses());
                let base = stack.stack().last().filter(|_| statistics.is_none_or(|it| it.is_counted_above));
                base.map(|base| (base, statistics.is_some())).into_iter().collect()
            });
            let read = |part: Part<'_, bool>| {
                let figures = PoolFigures::of(part.layer, part.said.contains(&true))?;
                Some((part.labels(), figures))
            };
            parts.into_iter().filter_map(read).collect()
        })
    }

    fn failures(&self) -> &[(Labels, FailureCounts)] {
        self.failures.get_or_init(|| {
            let parts = self.parts(|stack| stack.stack().with_layers::<FailureTally>().take(1).collect());
            parts.into_iter().map(|part| (part.labels(), part.said[0].counts())).collect()
        })
    }

    fn layers(&self) -> &[(Labels, LayerMemory)] {
        self.layers.get_or_init(|| {
            let with_name = |mut part: Part<'_, (String, LayerMemory)>| {
                let (name, memory) = part.said.swap_remove(0);
                (with(&part.labels(), "layer", name), memory)
            };
            self.parts(layers).into_iter().map(with_name).collect()
        })
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
fn layers(stack: &AnyResource) -> Vec<(&dyn DeviceMemoryResource, (String, LayerMemory))> {
    let mut known: BTreeMap<String, u32> = BTreeMap::new();
    let layers: Vec<_> = stack.stack().with_layers::<dyn ReportsMemory>().map(|(layer, _)| layer).collect();
    // From the base up, so that a number stays if a layer is added on top.
    let of_stack = layers.into_iter().zip(stack.memory_figures().layers).rev().map(|(layer, memory)| {
        let name = memory.layer.split(':').next().unwrap_or_default().to_owned();
        let number = known.entry(name.clone()).and_modify(|number| *number += 1).or_insert(1);
        let name = if *number == 1 { name } else { format!("{name}#{number}") };
        (layer, (name, memory))
    });
    of_stack.collect()
}

/// Returns the layer that keeps the statistics of a stack.
fn keeper_of(stack: &AnyResource) -> &dyn DeviceMemoryResource {
    let layers: Vec<_> = stack
        .stack()
        .with_layers::<dyn ReportsMemory>()
        .filter_map(|(layer, memory)| Some((layer, memory.layer_figures().statistics?.is_counted_above)))
        .collect();
    let keeper = layers.iter().find(|(_, is_counted_above)| !is_counted_above).or(layers.first());
    keeper.map_or(&**stack, |(layer, _)| *layer)
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

/// The failed requests of a stack, by kind.
fn kinds((labels, counts): &(Labels, FailureCounts)) -> [Sample; FailureKind::ALL.len()] {
    FailureKind::ALL
        .map(|kind| Sample { labels: with(labels, "kind", kind.name().to_owned()), value: counts.of(kind) })
}
