//! A simulated device, and the table of all living ones.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use millpond_core::DeviceId;
use millpond_core::driver::Health;
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::config::SimConfig;
use super::state::State;

/// A simulated device. The [module](super) describes how it works.
///
/// Any number of threads may use the device. The device treats all threads as one host. If several threads
/// make calls, the result of [`trace_hash`](Self::trace_hash) depends on the order of their calls.
pub struct SimDevice {
    pub(super) health: Arc<Health>,
    /// Which of the device's contexts this is, counted over its life.
    pub(super) generation: u64,
    pub(super) shared: Arc<Shared>,
}

/// The state that all drivers of one device share.
pub(crate) struct Shared {
    pub(super) id: DeviceId,
    pub(super) name: String,
    pub(super) state: Mutex<State>,
    /// The most recently opened driver.
    pub(super) newest: Mutex<Weak<SimDevice>>,
    /// The device's machine and its index there, if the machine has several devices.
    pub(super) machine: Option<(Devices, usize)>,
    /// Whether this device and the others can use each other's memory.
    pub(super) has_peers: bool,
    /// The observer called before each call, and whether one is set.
    pub(super) observer: RwLock<Option<Observer>>,
    pub(super) is_observed: AtomicBool,
}

/// A callback that receives the name of each driver call just before the device makes the call.
pub type Observer = Arc<dyn Fn(&'static str) + Send + Sync>;

/// The devices of one machine, in the order in which they were added.
pub(super) type Devices = Arc<Mutex<Vec<Weak<Shared>>>>;

impl SimDevice {
    /// Creates a device. The device gets the next unused number of the process.
    pub fn new(config: SimConfig) -> Arc<Self> {
        Self::build(config, None).open()
    }

    pub(super) fn build(config: SimConfig, machine: Option<(Devices, usize)>) -> Arc<Shared> {
        let slice = machine.as_ref().map(|(_, index)| *index);
        register(|id| Shared {
            id,
            name: config.profile().name().to_owned(),
            has_peers: config.peer_access,
            state: Mutex::new(State::new(config, id, slice)),
            newest: Mutex::default(),
            observer: RwLock::default(),
            is_observed: AtomicBool::new(false),
            machine,
        })
    }

    /// Returns the simulated device with this id, as in `SimDevice::find(driver.device())`. Returns `None` if
    /// the device was dropped, or if the id is not a simulated device's id.
    pub fn find(id: DeviceId) -> Option<Arc<Self>> {
        find(id)
    }

    /// Makes this device the calling thread's current device, which [`crate::current`] returns. To make the
    /// device current only for some time, use [`CurrentDeviceGuard`](crate::CurrentDeviceGuard).
    pub fn make_current(&self) {
        crate::thread_device::replace(Some(self.shared.id));
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }
}

impl Shared {
    /// The driver of the present context: the same one each time, while a caller keeps it.
    pub(crate) fn open(self: &Arc<Self>) -> Arc<SimDevice> {
        let mut newest = self.newest.lock();
        let generation = {
            let mut state = self.state.lock();
            state.is_context_active = true;
            state.generation
        };
        if let Some(device) = newest.upgrade().filter(|device| device.generation == generation) {
            return device;
        }
        let device = Arc::new(SimDevice { health: Arc::default(), generation, shared: Arc::clone(self) });
        *newest = Arc::downgrade(&device);
        device
    }
}

/// The simulated devices of this process, numbered from 0. No number is reused.
struct SimTable {
    next: u32,
    devices: BTreeMap<DeviceId, Weak<Shared>>,
}

static SIM_DEVICES: Mutex<SimTable> = Mutex::new(SimTable { next: 0, devices: BTreeMap::new() });

/// Builds a simulated device under the next free number, so [`open`](crate::open) finds it while it lives.
fn register(build: impl FnOnce(DeviceId) -> Shared) -> Arc<Shared> {
    let id = {
        let mut table = SIM_DEVICES.lock();
        table.next += 1;
        DeviceId::sim(table.next - 1)
    };
    let device = Arc::new(build(id)); // outside the lock: building may be slow, or panic
    let mut table = SIM_DEVICES.lock();
    table.devices.retain(|_, device| device.strong_count() > 0);
    table.devices.insert(id, Arc::downgrade(&device));
    device
}

/// The living simulated device with the lowest number.
pub(crate) fn first() -> Option<DeviceId> {
    let table = SIM_DEVICES.lock();
    table.devices.iter().find(|(_, device)| device.strong_count() > 0).map(|(id, _)| *id)
}

/// The simulated device with this number, while it lives.
pub(crate) fn find(device: DeviceId) -> Option<Arc<SimDevice>> {
    let shared = SIM_DEVICES.lock().devices.get(&device).and_then(Weak::upgrade);
    shared.map(|shared| shared.open())
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice")
            .field("id", &self.shared.id)
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}
