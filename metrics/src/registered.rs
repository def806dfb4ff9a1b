//! The stacks that the metrics see.

use std::ptr;
use std::sync::{Arc, Weak};

use millpond_core::{AnyResource, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, Error, Result};
use millpond_resources::registry;
use parking_lot::Mutex;

use crate::catalogue::CATALOGUE;
use crate::family::Family;
use crate::now::{AND, Now};

/// The name of the default resource of each device.
pub const DEFAULT_STACK: &str = "default";

/// No two of them have the same name and device.
#[derive(Clone, Debug)]
struct Registered {
    name: String,
    device: DeviceId,
    stack: Weak<dyn DeviceMemoryResource + Send + Sync>,
}

/// The metrics of stacks, budgets and devices. See [the crate](crate).
///
/// Clones see the same stacks.
#[derive(Clone, Default, Debug)]
pub struct Metrics {
    registered: Arc<Mutex<Vec<Registered>>>,
}

impl Metrics {
    /// Creates metrics that see the default resource of each device, and all budgets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows a stack under a name, the label `stack`, for as long as the stack lives. If the stack already
    /// has a name, this call renames it. If another stack of the device has this name, that stack loses it,
    /// and has no metrics any more.
    ///
    /// A default resource is already seen under the name [`default`](DEFAULT_STACK), unless it is registered.
    ///
    /// Several stacks may share a resource, as two budgets over one pool do. The figures of the shared
    /// resource then appear once, and the label `stack` has the names of all these stacks, as in
    /// `"etl + train"`. So a sum over stacks counts no memory twice. The figures of the layers above keep the
    /// stack's own name.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the name is empty or
    /// [`default`](DEFAULT_STACK), or contains `" + "`, or if no layer of the stack keeps figures, as in
    /// plain CUDA memory.
    pub fn register(&self, stack: &AnyResource, name: &str) -> Result<()> {
        if name.is_empty() || name == DEFAULT_STACK {
            return Err(Error::invalid_argument(format!(
                "a stack cannot have the name {name:?} in metrics; choose another, for example \"train\""
            )));
        }
        if name.contains(AND) {
            return Err(Error::invalid_argument(format!(
                "the name {name:?} of a stack contains {AND:?}, which joins the names of stacks that share \
                 memory; choose another, for example \"train\""
            )));
        }
        if !Now::new(vec![(name.to_owned(), Arc::clone(stack))]).has_figures() {
            return Err(Error::invalid_argument(format!(
                "the stack `{stack}` keeps no figures, so it has no metrics; add the layer `statistics`, as \
                 in `{stack}+statistics`"
            )));
        }
        let (device, mut registered) = (stack.device(), self.registered.lock());
        registered.retain(|known| {
            let is_same_name = known.name == name && known.device == device;
            known.stack.strong_count() > 0
                && !is_same_name
                && !ptr::addr_eq(known.stack.as_ptr(), Arc::as_ptr(stack))
        });
        registered.push(Registered { name: name.to_owned(), device, stack: Arc::downgrade(stack) });
        Ok(())
    }

    /// Returns all metrics with their values now, in a fixed order. A figure that no stack keeps has no
    /// samples. If other threads allocate meanwhile, figures of different layers may come from different
    /// moments.
    pub fn families(&self) -> Vec<Family> {
        let now = Now::new(self.stacks());
        CATALOGUE.iter().map(|metric| now.family(metric)).collect()
    }

    /// Returns one metric with its values now. `name` is the name in OpenTelemetry, for example
    /// `millpond.memory.live`. Returns `None` if there is no such metric.
    pub fn family(&self, name: &str) -> Option<Family> {
        let metric = CATALOGUE.iter().find(|metric| metric.name == name)?;
        Some(Now::new(self.stacks()).family(metric))
    }

    /// Returns the live stacks with their names.
    fn stacks(&self) -> Vec<(String, AnyResource)> {
        let registered = self.registered.lock().clone();
        let live = |known: Registered| Some((known.name, known.stack.upgrade()?));
        let mut stacks: Vec<(String, AnyResource)> = registered.into_iter().filter_map(live).collect();
        for stack in registry::per_device_resources() {
            if !stacks.iter().any(|(_, known)| is_one(known, &stack)) {
                stacks.push((DEFAULT_STACK.to_owned(), stack));
            }
        }
        stacks
    }
}

fn is_one(a: &AnyResource, b: &AnyResource) -> bool {
    ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}
