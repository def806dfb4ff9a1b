//! Chooses the memory managers of the process, and keeps one manager for each device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, LazyLock};

use millpond_core::environment::{self, variable};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{DeviceId, DriverHandle, Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::{
    CudaMemoryManager, INTERFACE_VERSION, ManagerFactory, MemoryManager, MillpondMemoryManager, StackBuilder,
};

/// The environment variable that names the stack of the memory manager.
pub const MEMORY_MANAGER_VARIABLE: &str = "MILLPOND_MEMORY_MANAGER";

/// An example of a stack that users can copy. Its pool maps no pages, so that programs can get IPC handles of
/// its memory.
const ADVISED_STACK: &str = "cuda+pool:initial=1GiB,pages=off";

/// Chooses the memory managers of a process, and keeps one manager for each device.
///
/// The process has one registry ([`ManagerRegistry::process`]), which [`set_memory_manager`] and
/// [`get_memory_manager`] use. Tests make their own registries.
///
/// ```
/// use millpond_core::{Driver, stack::LayerTable};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_plugin::ManagerRegistry;
///
/// let layers = LayerTable::new(millpond_resources::LAYERS.iter().copied());
/// let environment = Box::new(|_name: &str| Some("cuda+pool:pages=off".to_owned()));
/// let registry = ManagerRegistry::new(environment, Box::new(millpond_driver::open), layers);
///
/// let device = SimDevice::new(SimConfig::h200());
/// let manager = registry.get(device.device())?;
/// assert_eq!(manager.memalloc(4096)?.device(), device.device());
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct ManagerRegistry {
    environment: Environment,
    open: OpenDevice,
    layers: LayerTable,
    state: Mutex<State>,
}

/// Looks up an environment variable.
pub type Environment = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Opens the driver of a device.
pub type OpenDevice = Box<dyn Fn(DeviceId) -> Result<DriverHandle> + Send + Sync>;

#[derive(Default)]
struct State {
    /// The factory that was set, or that was chosen when the first device was used.
    factory: Option<ManagerFactory>,
    managers: HashMap<DeviceId, Arc<dyn MemoryManager>>,
}

impl ManagerRegistry {
    /// Makes a separate registry. The stack in the environment variable may name the layers in `layers`.
    pub fn new(environment: Environment, open: OpenDevice, layers: LayerTable) -> Self {
        Self { environment, open, layers, state: Mutex::default() }
    }

    /// Returns the registry of the process.
    pub fn process() -> &'static Self {
        static PROCESS: LazyLock<ManagerRegistry> = LazyLock::new(|| {
            let layers =
                LayerTable::new(millpond_resources::LAYERS.iter().chain(millpond_plan::LAYERS).copied())
                    .with(millpond_adaptors::LAYERS.iter().copied());
            // A value that is not Unicode is not a stack, either. It must be refused, not ignored.
            let lossy = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
            let environment = Box::new(move |name: &str| variable(name).map(lossy));
            ManagerRegistry::new(environment, Box::new(millpond_driver::open), layers)
        });
        &PROCESS
    }

    /// Sets the memory managers of the process once, before the first [`get`](Self::get). If
    /// [`MEMORY_MANAGER_VARIABLE`] is set in the environment, the variable takes precedence: the call warns
    /// through `tracing`, returns `Ok` and changes nothing.
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidStack`] if the variable's text is not a stack. Returns
    /// [`ErrorKind::InvalidArgument`] at the second call, or after a device has its manager. Returns
    /// [`ErrorKind::Unsupported`] if the factory's manager implements another version of the interface.
    /// Otherwise returns an error of `factory`.
    pub fn set(&self, factory: ManagerFactory) -> Result<()> {
        if let Some(text) = self.stack_text() {
            self.factory_of(&text)?; // mistakes are reported at the first use, and this is one
            tracing::warn!(
                target: "millpond::plugin",
                "{MEMORY_MANAGER_VARIABLE}={text} chooses the memory manager; set_memory_manager is ignored"
            );
            return Ok(());
        }
        self.state.lock().refuse_change()?;
        // The lock is not held here, because a factory is foreign code.
        let version = factory(None)?.interface_version();
        if version != INTERFACE_VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the memory manager implements version {version} of the plug-in interface; \
                     version {INTERFACE_VERSION} is required"
                ),
            ));
        }
        let mut state = self.state.lock();
        state.refuse_change()?;
        state.factory = Some(factory);
        Ok(())
    }

    /// Returns the initialized manager of a device. The first call for the device makes the manager.
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidStack`] if the text in [`MEMORY_MANAGER_VARIABLE`] is not a stack.
    /// Otherwise returns an error of opening the device, or of making or initializing the manager.
    pub fn get(&self, device: DeviceId) -> Result<Arc<dyn MemoryManager>> {
        let known = self.state.lock().managers.get(&device).cloned();
        let manager = match known {
            Some(manager) => manager,
            None => {
                let chosen = self.stack_text().map(|text| self.factory_of(&text)).transpose()?;
                let driver = (self.open)(device)?;
                let made = self.settle(chosen)(Some(driver))?;
                // Another thread may have been faster. Making a manager touches no device, so this manager is
                // dropped, without the lock.
                let known = match self.state.lock().managers.entry(device) {
                    Entry::Occupied(known) => Some(Arc::clone(known.get())),
                    Entry::Vacant(slot) => {
                        slot.insert(Arc::clone(&made));
                        None
                    }
                };
                known.unwrap_or(made)
            }
        };
        manager.initialize()?;
        Ok(manager)
    }

    /// Resets the managers of all devices; see [`MemoryManager::reset`].
    pub fn reset(&self) {
        let managers: Vec<_> = self.state.lock().managers.values().cloned().collect();
        managers.iter().for_each(|manager| manager.reset());
    }

    /// Returns the factory of managers: the factory from the environment (`chosen`), or else the factory that
    /// was set, or else the default. The first call decides for all later calls.
    fn settle(&self, chosen: Option<ManagerFactory>) -> ManagerFactory {
        // The variable is declared before the lock is taken, so it is dropped after the lock.
        let mut _before = None;
        let mut state = self.state.lock();
        // After the first manager is made, the environment is not read again, so all devices use the same
        // factory.
        if state.managers.is_empty()
            && let Some(chosen) = chosen
        {
            _before = state.factory.replace(chosen);
        }
        Arc::clone(state.factory.get_or_insert_with(CudaMemoryManager::factory))
    }

    fn factory_of(&self, text: &str) -> Result<ManagerFactory> {
        let spec: StackSpec = text.parse().map_err(|error| explain(text, error))?;
        for layer in spec.layers() {
            self.layers.get(&layer.name).map_err(|error| explain(text, error))?;
        }
        let (layers, text) = (self.layers.clone(), text.to_owned());
        // Only building the stack shows whether its layers fit together and whether its parameters are valid.
        let build: StackBuilder =
            Arc::new(move |driver| spec.build(&layers, driver).map_err(|error| explain(&text, error)));
        Ok(Arc::new(move |driver| {
            Ok(Arc::new(MillpondMemoryManager::with_builder(driver, Arc::clone(&build))))
        }))
    }

    fn stack_text(&self) -> Option<String> {
        let text = (self.environment)(MEMORY_MANAGER_VARIABLE).map(Into::into).and_then(environment::set)?;
        Some(text.to_string_lossy().into_owned())
    }
}

/// Adds to an error that the stack came from the environment. Also adds an example of a valid stack.
fn explain(text: &str, error: Error) -> Error {
    if matches!(error.kind(), ErrorKind::InvalidStack | ErrorKind::InvalidArgument) {
        error.context(format_args!(
            "{MEMORY_MANAGER_VARIABLE}={text} is not a stack; set it to a stack such as `{ADVISED_STACK}`, \
             or unset it"
        ))
    } else {
        error.context(format_args!("{MEMORY_MANAGER_VARIABLE}={text}"))
    }
}

impl State {
    fn refuse_change(&self) -> Result<()> {
        let why = if !self.managers.is_empty() {
            "a device already has its memory manager; call set_memory_manager before anything uses a device"
        } else if self.factory.is_some() {
            "the memory manager is already set; call set_memory_manager once per process, before any use"
        } else {
            return Ok(());
        };
        Err(Error::invalid_argument(why))
    }
}

impl fmt::Debug for ManagerRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (is_set, managers) = {
            let state = self.state.lock();
            (state.factory.is_some(), state.managers.clone())
        };
        f.debug_struct("ManagerRegistry")
            .field("set", &is_set)
            .field("managers", &managers)
            .finish_non_exhaustive()
    }
}

/// Sets the memory managers of the process once, before a device is used. If [`MEMORY_MANAGER_VARIABLE`]
/// (`MILLPOND_MEMORY_MANAGER`) is set in the environment, the variable takes precedence: the call warns
/// through `tracing`, returns `Ok` and changes nothing.
///
/// # Errors
/// Returns the errors of [`ManagerRegistry::set`].
pub fn set_memory_manager(factory: ManagerFactory) -> Result<()> {
    ManagerRegistry::process().set(factory)
}

/// Returns the initialized memory manager of a device in this process; see [`ManagerRegistry::get`].
///
/// # Errors
/// Returns the errors of [`ManagerRegistry::get`].
pub fn get_memory_manager(device: DeviceId) -> Result<Arc<dyn MemoryManager>> {
    ManagerRegistry::process().get(device)
}
