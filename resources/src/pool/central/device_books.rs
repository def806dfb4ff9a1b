//! A device's memory as all resources of the process see it that take theirs from it directly.
//!
//! A growth makes several driver calls, one for each handle. So before the first it asks the driver what is
//! free, and is promised what it needs of that: a rival in this process counts the promise as taken. Nothing
//! is taken that cannot suffice, and of two that want the same memory exactly one gets it. Other processes,
//! and allocations past millpond, know no promise: what they make insufficient is given back at once.
//!
//! A promise ends when its driver calls are made. From then on the driver counts what was taken; until then
//! a part may be counted twice, never missed. Who finds too little while others hold promises waits for the
//! end of one and looks again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use millpond_core::driver::{DeviceAttribute, Driver, DriverResult, MemPoolAttribute};
use millpond_core::{DeviceId, MemoryInfo};
use parking_lot::{Condvar, Mutex};

use crate::pool::central::peer_reclaim::PeerPool;

/// One for each device, as long as a resource has it.
static DEVICES: Mutex<Vec<(DeviceId, Weak<Device>)>> = Mutex::new(Vec::new());

/// A growth waits so often for the end of another one's promise.
const MOST_WAITS: u32 = 64;

/// See the module.
pub(crate) struct Device {
    /// Whether memory may be had although the driver counts none as free: the device shares its memory with
    /// the host, or the system moves memory out of the way.
    is_a_hint: bool,
    books: Mutex<Books>,
    /// A promise ended.
    ended: Condvar,
    /// How often memory went back to the driver, or was promised and not taken.
    returned: AtomicU64,
    /// Bytes of driver calls that give memory back and have not returned.
    leaving: AtomicU64,
    peer_pools: Mutex<Vec<Weak<dyn PeerPool>>>,
}

#[derive(Default)]
struct Books {
    /// Bytes of all promises.
    promised: u64,
    /// How many promises were made, and how many ended.
    begun: u64,
    ended: u64,
}

/// What was free at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// What the driver said; `None` where it said nothing.
    pub(crate) info: Option<MemoryInfo>,
    /// Bytes that may be promised.
    pub(crate) available: u64,
    /// Bytes that were promised to others.
    promised: u64,
    begun: u64,
    ended: u64,
    is_a_hint: bool,
}

impl Reading {
    /// The most new bytes that a growth should plan with.
    pub(crate) fn most_new(&self) -> u64 {
        if self.is_a_hint { u64::MAX } else { self.available }
    }

    /// What was free whoever it was promised to, if that is a bound.
    pub(crate) fn free_at_most(&self) -> Option<u64> {
        (!self.is_a_hint).then(|| self.available.saturating_add(self.promised))
    }
}

/// Bytes that a growth may take. It ends when the growth has taken them, or has given back what it took.
pub(crate) struct Promise<'a> {
    device: &'a Device,
    bytes: u64,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        let mut books = self.device.books.lock();
        books.promised -= self.bytes;
        books.ended += 1;
        drop(books);
        self.device.ended.notify_all();
    }
}

/// Bytes that no resource holds any more and the driver does not yet count as free.
pub(crate) struct Leaving<'a> {
    device: &'a Device,
    bytes: u64,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.device.leaving.fetch_sub(self.bytes, Ordering::Release);
    }
}

impl Device {
    /// The books of the driver's device, the same for all who ask while anybody has them.
    pub(crate) fn of(driver: &dyn Driver) -> Arc<Self> {
        let id = driver.device();
        let mut devices = DEVICES.lock();
        devices.retain(|(_, device)| device.strong_count() > 0);
        if let Some(device) = devices.iter().find(|(known, _)| *known == id).and_then(|(_, it)| it.upgrade())
        {
            return device;
        }
        // Windows pages device memory out to the host.
        let is_a_hint = cfg!(windows) || !matches!(driver.attribute(DeviceAttribute::Integrated), Ok(0));
        let device = Arc::new(Self {
            is_a_hint,
            books: Mutex::default(),
            ended: Condvar::new(),
            returned: AtomicU64::new(0),
            leaving: AtomicU64::new(0),
            peer_pools: Mutex::default(),
        });
        devices.push((id, Arc::downgrade(&device)));
        device
    }

    /// Others may ask this one for memory from here on.
    pub(crate) fn add_peer_pool(&self, peer_pool: Weak<dyn PeerPool>) {
        let mut peer_pools = self.peer_pools.lock();
        peer_pools.retain(|peer_pool| peer_pool.strong_count() > 0);
        peer_pools.push(peer_pool);
    }

    /// All resources that have memory of the device.
    pub(crate) fn peer_pools(&self) -> Vec<Arc<dyn PeerPool>> {
        self.peer_pools.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Asks what is free; where that is less than `wanted`, what the driver's own default pool keeps counts,
    /// too, since the driver takes that back before memory is out.
    ///
    /// # Errors
    /// Where the device is lost. Of other errors a reading comes that rules nothing out.
    pub(crate) fn read(&self, driver: &dyn Driver, wanted: u64) -> DriverResult<Reading> {
        let (promised, begun, ended) = {
            let books = self.books.lock();
            (books.promised, books.begun, books.ended)
        };
        // After the books: what was taken in between counts twice, and is not missed.
        let info = match driver.mem_get_info() {
            Ok(info) => Some(info),
            Err(error) if error.is_sticky() => return Err(error),
            Err(_) => None,
        };
        let mut free = info.map_or(0, |info| info.free);
        if info.is_some() && free.saturating_sub(promised) < wanted {
            free = free.saturating_add(kept_by_driver(driver));
        }
        let available = free.saturating_sub(promised);
        let is_a_hint = self.is_a_hint || info.is_none();
        Ok(Reading { info, available, promised, begun, ended, is_a_hint })
    }

    /// Promises bytes of what was free; `None` where others were promised some since.
    pub(crate) fn promise(&self, bytes: u64, reading: &Reading) -> Option<Promise<'_>> {
        let mut books = self.books.lock();
        if books.begun != reading.begun {
            return None;
        }
        books.begun += 1;
        books.promised += bytes;
        Some(Promise { device: self, bytes })
    }

    /// Waits until a promise ends that the reading counted; `false` where it counted none.
    pub(crate) fn wait_for_rivals(&self, reading: &Reading, waits: &mut u32) -> bool {
        *waits += 1;
        if reading.promised == 0 || *waits > MOST_WAITS {
            return false;
        }
        let mut books = self.books.lock();
        while books.ended == reading.ended {
            self.ended.wait(&mut books);
        }
        true
    }

    /// Counts bytes as leaving. The caller holds the lock of the resource that held them until now, and drops
    /// the result after the driver call.
    pub(crate) fn remove_block(&self, bytes: u64) -> Leaving<'_> {
        self.leaving.fetch_add(bytes, Ordering::Relaxed);
        Leaving { device: self, bytes }
    }

    /// Bytes on their way back to the driver. To miss none, ask after the resources and before the driver.
    pub(crate) fn leaving_bytes(&self) -> u64 {
        self.leaving.load(Ordering::Acquire)
    }

    /// Notes that memory went back to the driver, or was promised and is free again.
    pub(crate) fn note_return(&self) {
        self.returned.fetch_add(1, Ordering::Release);
    }

    /// How often memory was returned so far.
    pub(crate) fn returns(&self) -> u64 {
        self.returned.load(Ordering::Acquire)
    }
}

/// Bytes that the driver's default pool keeps and nobody uses.
fn kept_by_driver(driver: &dyn Driver) -> u64 {
    let kept = || {
        let pool = driver.device_get_default_mem_pool()?;
        let attribute = |attribute| driver.mem_pool_get_attribute(pool, attribute);
        let reserved = attribute(MemPoolAttribute::ReservedMemCurrent)?;
        DriverResult::Ok(reserved.saturating_sub(attribute(MemPoolAttribute::UsedMemCurrent)?))
    };
    kept().unwrap_or(0)
}
