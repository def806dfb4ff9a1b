//! Finds a layer that hangs when code that it calls uses the stack.
//!
//! A resource calls code that it does not know: its upstream, the driver, the misuse hook, `tracing`
//! subscribers. All of this code may use the stack, or wait for another thread that does. So a resource must
//! hold no lock while such code runs. [`check`] runs a program over the layers. A probe stands for all this
//! code. The probe calls every layer, on the same thread, and on another thread for which it waits.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use millpond_testkit::reentrancy::{Case, HoldsLock, check};
//!
//! // A layer that holds a lock while its upstream runs.
//! let case = Case::new("holds a lock", |upstream| Ok(Arc::new(HoldsLock::new(upstream))));
//! let findings = check(&case.patience(Duration::from_secs(1)));
//! assert_eq!(findings[0].layer, "cuda+holds_lock");
//! ```

mod canary;
mod hooks;
mod plain;
mod probe;
mod resource;
mod scenario;
#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DriverHandle, Error, Result};
use millpond_driver::sim::{SimConfig, SimDevice};

pub use canary::HoldsLock;
pub use probe::{Finding, Probe};

use plain::Plain;
use probe::Doing;
use resource::Probed;

/// A call that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The simulated device's memory: enough for the scenario, but soon exhausted.
const DEVICE_BYTES: u64 = 64 << 20;

/// Builds the layers above an upstream or a driver, the lowest first.
type Build = dyn Fn(&Probe, &DriverHandle) -> Result<Vec<AnyResource>> + Send + Sync;

/// A stack to check.
#[derive(Clone)]
pub struct Case {
    name: String,
    build: Arc<Build>,
    patience: Duration,
}

impl Case {
    /// Creates a case from one layer. `build` puts it on an upstream: a probe over the simulated device's
    /// plain memory.
    pub fn new(
        name: impl Into<String>,
        build: impl Fn(AnyResource) -> Result<AnyResource> + Send + Sync + 'static,
    ) -> Self {
        Self::with_probe(name, move |upstream, _| build(upstream))
    }

    /// Works like [`new`](Self::new), for a layer that calls code of the program, such as a function or a
    /// writer. That code must call the [probe](Probe::call).
    pub fn with_probe(
        name: impl Into<String>,
        build: impl Fn(AnyResource, &Probe) -> Result<AnyResource> + Send + Sync + 'static,
    ) -> Self {
        Self::of(name.into(), move |probe, driver| {
            let plain = Arc::new(Plain(DriverHandle::clone(driver)));
            let probed: AnyResource = Arc::new(Probed { upstream: plain, probe: probe.clone() });
            Ok(vec![build(probed, probe)?])
        })
    }

    /// Creates a case from a stack's text, base first. Each layer has a probe below it, and all layers are
    /// called back, so a finding names the layer that hangs.
    pub fn from_text(text: &str, table: &LayerTable) -> Self {
        let (owned, table) = (text.to_owned(), table.clone());
        Self::of(text.to_owned(), move |probe, driver| {
            let spec: StackSpec = owned.parse()?;
            let mut layers: Vec<AnyResource> = Vec::new();
            for layer in spec.layers() {
                let one = StackSpec::new(vec![layer.clone()])?;
                layers.push(match layers.last() {
                    None => one.build(&table, driver)?,
                    Some(below) => {
                        let (upstream, probe) = (Arc::clone(below), probe.clone());
                        one.build_on(Arc::new(Probed { upstream, probe }), &table)?
                    }
                });
            }
            Ok(layers)
        })
    }

    fn of(
        name: String,
        build: impl Fn(&Probe, &DriverHandle) -> Result<Vec<AnyResource>> + Send + Sync + 'static,
    ) -> Self {
        Self { name, build: Arc::new(build), patience: PATIENCE }
    }

    /// Sets the time after which a call counts as hanging. Without this call, it is 30 seconds.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Returns the name for people.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Runs a program over the stack, and calls the stack from the probes during the program. Returns the calls
/// that hung or panicked. The list is empty if there is no such call. A hanging thread keeps running.
///
/// # Panics
/// If the stack cannot be built, or if the probe is never called, so that nothing was checked.
pub fn check(case: &Case) -> Vec<Finding> {
    hooks::install();
    let probe = Probe::new(case.patience);
    let (done, ended) = mpsc::channel();
    let (build, inside) = (Arc::clone(&case.build), probe.clone());
    thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&build, &inside)));
        // The check may have ended without this thread.
        let _ = done.send(outcome);
    });
    let name = &case.name;
    let mut seen = u64::MAX;
    loop {
        // A call on another thread is given up sooner than this.
        match ended.recv_timeout(2 * case.patience) {
            Ok(Ok(Ok(()))) => break,
            Ok(Ok(Err(error))) => panic!("`{name}` cannot be built: {error}"),
            Ok(Err(panic)) => {
                let outcome = format!("panics: {}", crate::text_of(&*panic));
                probe.find(of_scenario(name).found(&outcome));
                break;
            }
            Err(RecvTimeoutError::Timeout) if probe.calls() != seen => seen = probe.calls(),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                probe.find(probe.doing().unwrap_or_else(|| of_scenario(name)).found("hangs"));
                break;
            }
        }
    }
    assert!(probe.calls() > 0, "`{name}` was built, but nothing called the probe");
    probe.findings()
}

/// A call that the program itself makes.
fn of_scenario(name: &str) -> Doing {
    let (caller, layer) = ("the program".to_owned(), name.to_owned());
    Doing { caller, layer, call: "a call", is_on_another_thread: false }
}

fn run(build: &Arc<Build>, probe: &Probe) -> Result<()> {
    let device = SimDevice::new(SimConfig::with_capacity(DEVICE_BYTES));
    let driver = Arc::clone(&device) as DriverHandle;
    let layers = build(probe, &driver)?;
    layers.iter().for_each(|layer| probe.add_layer(layer));
    let Some(stack) = layers.last() else { return Err(Error::invalid_stack("the stack has no layer")) };
    let observer = probe.clone();
    device.observe_calls(Some(Arc::new(move |name| observer.call(name))));
    probe.on_this_thread(|| {
        crate::events::heard_by(hooks::ProbeSubscriber, || scenario::run(stack, probe));
    });
    // The last handles are dropped here, when no layer is left to call back.
    device.observe_calls(None);
    Ok(())
}
