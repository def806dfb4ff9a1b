//! Random stacks of any layers, with random options, for programs and races over them.
//!
//! [`Stacks`] draws the text of a stack from a seed, and decides which checks hold for this stack. It builds
//! the stack with a [watched](crate::watch) layer above each of its layers. If a layer takes another stack in
//! parentheses, that stack is drawn from a few simple stacks.

mod knows;
mod options;

use millpond_core::driver::DriverHandle;
use millpond_core::stack::{LayerKind, LayerTable, StackSpec};
use millpond_core::{AnyResource, Result};

use crate::Rng;
use crate::program::{Config, NewScope, StatisticsCheck};
use crate::watch::Watched;

/// The layers from which stacks are drawn.
#[derive(Clone, Debug)]
pub struct Stacks {
    table: LayerTable,
    bases: Vec<&'static str>,
    layers: Vec<&'static str>,
    /// The layer that every stack contains.
    always: Option<&'static str>,
}

impl Stacks {
    /// Creates a source of stacks that have three to six of the table's layers.
    pub fn new(table: LayerTable) -> Self {
        let names = |base: bool| {
            let entries = table.entries().iter();
            let entries = entries.filter(move |entry| matches!(entry.kind, LayerKind::Base(_)) == base);
            entries.map(|entry| entry.name).collect::<Vec<_>>()
        };
        Self { bases: names(true), layers: names(false), always: None, table }
    }

    /// Puts this layer of the table into every stack.
    #[must_use]
    pub fn always(mut self, layer: &'static str) -> Self {
        self.layers.retain(|known| *known != layer);
        self.always = Some(layer);
        self
    }

    /// Returns the table.
    pub fn table(&self) -> &LayerTable {
        &self.table
    }

    /// Draws the stack of a seed.
    ///
    /// # Errors
    /// Returns an error if the text of an option is wrong.
    pub fn draw(&self, seed: u64) -> Result<StackSpec> {
        let mut rng = Rng::new(seed ^ 0x7374_6163_6b73);
        let base = match rng.percent(40) {
            true if self.bases.contains(&"cuda") => "cuda",
            _ => rng.pick(&self.bases).copied().unwrap_or("cuda"),
        };
        let mut names = vec![base];
        let layers = rng.between(2, 5);
        while names.len() as u64 <= layers {
            let likely = ["pool", "capture_scopes", "failure_callback"];
            let name = match rng.percent(35) {
                true => rng.pick(&likely).copied().filter(|name| self.layers.contains(name)),
                false => None,
            };
            names.extend(name.or_else(|| rng.pick(&self.layers).copied()));
        }
        // Prefetching has an effect only if the host can reach the memory.
        let is_of_host = ["managed", "system", "cuda_async_managed", "sam_headroom"].contains(&base);
        if is_of_host && self.layers.contains(&"prefetch") && rng.percent(40) {
            let at = rng.between(1, names.len() as u64 - 1) as usize;
            names[at] = "prefetch";
        }
        if let Some(always) = self.always {
            let at = rng.between(1, names.len() as u64) as usize;
            names.insert(at, always);
        }
        // A second budget would have the same name.
        let first = names.iter().position(|name| *name == "budget");
        let mut at = 0..;
        names.retain(|name| (at.next() == first) || *name != "budget");
        let texts = names.iter().map(|name| options::text(name, &mut rng));
        let text = texts.collect::<Vec<_>>().join("+");
        // Host-only memory is freed at once, despite unfinished work, because no work can use it.
        if base == "host" { text.replace("(cuda_async)", "(host)") } else { text }.parse()
    }

    /// Builds a stack with a watched layer above each of its layers. There is none above plain device memory,
    /// because some layers check whether plain device memory is directly below them.
    ///
    /// # Errors
    /// Returns an error if the stack cannot be built.
    pub fn build(&self, stack: &StackSpec, driver: &DriverHandle) -> Result<AnyResource> {
        let mut built: Option<AnyResource> = None;
        for layer in stack.layers() {
            let alone = StackSpec::new(vec![layer.clone()])?;
            let resource = match built.take() {
                None => alone.build(&self.table, driver)?,
                Some(upstream) => alone.build_on(upstream, &self.table)?,
            };
            let name = self.table.get(&layer.name)?.name;
            built = Some(match name {
                "cuda" => resource,
                _ => Watched::new(name, resource).into_any(),
            });
        }
        built.map_or_else(|| stack.build(&self.table, driver), Ok)
    }

    /// Returns the shape of a seed's program over a stack, and the checks that hold for it.
    pub fn config(&self, seed: u64, stack: &StackSpec, new_scope: NewScope) -> Config {
        let mut rng = Rng::new(seed ^ 0x0073_6861_7065);
        let layers = stack.layers();
        let usual = Config::new(stack.to_string());
        let has_scopes = knows::named(layers, "capture_scopes") && rng.percent(70);
        let endings = rng.percent(25);
        Config {
            largest_bytes: usual.largest_bytes.min(knows::largest_bytes(layers)),
            largest_alignment: 64 << 10,
            streams: if rng.percent(20) { 24 } else { usual.streams },
            faults: !endings && rng.percent(20),
            statistics: if has_scopes { StatisticsCheck::None } else { knows::statistics(layers) },
            verify_out_of_memory: knows::is_out_of_memory_for_good(layers),
            reports: true,
            captures: rng.percent(50),
            new_scope: has_scopes.then_some(new_scope),
            direct_scopes: knows::has_direct_scopes(layers),
            refuses: knows::refusals(layers),
            guests: rng.percent(50),
            devices: if rng.percent(20) { 2 } else { 1 },
            threads: if rng.percent(25) { 3 } else { 1 },
            endings,
            ..usual
        }
    }
}

/// Returns whether a layer or one of its options is drawn, by name; for a test of the lists.
pub fn is_drawn(layer: &str, option: Option<&str>) -> bool {
    options::is_drawn(layer, option)
}
