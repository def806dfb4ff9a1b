//! The simulated device of a process, and its contexts.
//!
//! The device is always simulated, so that nothing here looks for CUDA: this library may itself be the one
//! that a process finds as `libcuda.so.1`. All contexts share the device's memory. A context that a program
//! creates is only another name for the device: destroying it frees nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use millpond_core::driver::DriverResult;
use millpond_core::environment::variable;
use millpond_core::{DriverError, DriverHandle, Error, Result};
use millpond_driver::DeviceSpec;
use millpond_driver::sim::{SimConfig, SimDevice};
use parking_lot::Mutex;

use crate::error::refusal;

/// `CUcontext` as a number.
pub(crate) type ContextHandle = u64;

/// The context of a driver that the thread entered.
pub(crate) const ENTERED: ContextHandle = 1 << 11;

/// The device's primary context, which keeps its handle after a reset.
pub(crate) const PRIMARY: ContextHandle = 1 << 12;

/// The first handle of the contexts that programs create.
const FIRST_CREATED: ContextHandle = 1 << 13;

/// The device and its contexts.
pub(crate) struct Contexts(Mutex<State>);

struct State {
    /// The driver of the newest context.
    newest: Arc<SimDevice>,
    living: BTreeMap<ContextHandle, Context>,
    retained: u32,
    flags: u32,
    /// The number of contexts so far, which numbers them.
    made: u64,
}

struct Context {
    id: u64,
    driver: Arc<SimDevice>,
}

static CONTEXTS: OnceLock<DriverResult<Contexts>> = OnceLock::new();

/// Opens the device on the first call (`cuInit`).
pub(crate) fn initialise() -> DriverResult<&'static Contexts> {
    CONTEXTS.get_or_init(Contexts::open).as_ref().map_err(Clone::clone)
}

/// The device, if a program has called `cuInit`.
pub(crate) fn initialised() -> DriverResult<&'static Contexts> {
    let contexts = CONTEXTS.get().ok_or_else(|| refusal(DriverError::NOT_INITIALIZED))?;
    contexts.as_ref().map_err(Clone::clone)
}

/// The device that `MILLPOND_DEVICE` names if it is simulated, and otherwise an H200: a program that runs
/// over this library as CUDA's driver may itself name `cuda:0`.
fn simulated_device() -> Result<Arc<SimDevice>> {
    let named = variable("MILLPOND_DEVICE").map(|name| name.to_string_lossy().trim().parse::<DeviceSpec>());
    let spec = named.transpose()?.filter(DeviceSpec::is_sim).unwrap_or(DeviceSpec::SimH200);
    let profile = spec.profile()?.ok_or_else(|| Error::invalid_argument("the device has no profile"))?;
    Ok(SimDevice::new(SimConfig::new(profile)))
}

impl Contexts {
    fn open() -> DriverResult<Self> {
        let newest = simulated_device().map_err(|error| {
            DriverError::new(DriverError::NO_DEVICE, "cuInit").with_detail(error.to_string())
        })?;
        let living = BTreeMap::new();
        Ok(Self(Mutex::new(State { newest, living, retained: 0, flags: 0, made: 0 })))
    }

    /// The driver of the device. After a reset it frees only the objects that outlive a context.
    pub(crate) fn device(&self) -> DriverHandle {
        Arc::clone(&self.0.lock().newest) as DriverHandle
    }

    /// The driver of a context.
    pub(crate) fn driver(&self, context: ContextHandle) -> DriverResult<DriverHandle> {
        let state = self.0.lock();
        match state.living.get(&context) {
            Some(context) => Ok(Arc::clone(&context.driver) as DriverHandle),
            None => Err(refusal(DriverError::CONTEXT_IS_DESTROYED)),
        }
    }

    /// The number of a context, which is never used again.
    pub(crate) fn id(&self, context: ContextHandle) -> Option<u64> {
        self.0.lock().living.get(&context).map(|context| context.id)
    }

    /// Whether the handle may be made current: the primary context has it also before it is active.
    pub(crate) fn may_be_current(&self, context: ContextHandle) -> bool {
        context == PRIMARY || self.id(context).is_some()
    }

    /// Creates the primary context if there is none, and counts a use of it.
    pub(crate) fn retain_primary(&self) {
        let mut state = self.0.lock();
        state.retained += 1;
        if !state.living.contains_key(&PRIMARY) {
            state.add(PRIMARY);
        }
    }

    /// Creates the primary context, and counts one use of it, if there is none.
    pub(crate) fn activate_primary(&self) {
        if self.id(PRIMARY).is_none() {
            self.retain_primary();
        }
    }

    /// Ends a use of the primary context; the last one ends the context.
    pub(crate) fn release_primary(&self) -> DriverResult<()> {
        let is_last = {
            let mut state = self.0.lock();
            let left = state.retained.checked_sub(1);
            state.retained = left.ok_or_else(|| refusal(DriverError::INVALID_CONTEXT))?;
            state.retained == 0
        };
        if is_last {
            self.reset_primary();
        }
        Ok(())
    }

    /// Ends the primary context and everything in it.
    pub(crate) fn reset_primary(&self) {
        let ended = self.0.lock().living.remove(&PRIMARY);
        if let Some(context) = ended {
            context.driver.reset_context();
        }
    }

    /// The flags of the primary context, and whether it is active.
    pub(crate) fn primary_state(&self) -> (u32, bool) {
        let state = self.0.lock();
        (state.flags, state.living.contains_key(&PRIMARY))
    }

    pub(crate) fn set_primary_flags(&self, flags: u32) {
        self.0.lock().flags = flags;
    }

    /// Creates another context.
    pub(crate) fn create(&self) -> ContextHandle {
        let mut state = self.0.lock();
        let handle = FIRST_CREATED + (state.made << 4);
        state.add(handle);
        handle
    }

    /// Ends a context that [`create`](Self::create) returned.
    pub(crate) fn destroy(&self, context: ContextHandle) -> DriverResult<()> {
        let ended = if context == PRIMARY { None } else { self.0.lock().living.remove(&context) };
        ended.map(drop).ok_or_else(|| refusal(DriverError::INVALID_CONTEXT))
    }
}

impl State {
    fn add(&mut self, context: ContextHandle) {
        self.made += 1;
        self.newest = self.newest.open_again();
        self.living.insert(context, Context { id: self.made, driver: Arc::clone(&self.newest) });
    }
}
