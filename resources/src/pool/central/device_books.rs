//! Keeps a device's books: the promises to and returns from all resources of this process that take its
//! memory.
//!
//! A growth makes several driver calls, one for each handle. Before the first call it asks the driver how
//! much is free and gets a promise of the bytes it needs. The other resources of this process count these
//! bytes as taken. So no resource takes memory that cannot suffice, and if two need the same memory, exactly
//! one gets it. Other processes, and allocations outside millpond, see no promises: if they leave too little,
//! the growth returns the memory it took.
//!
//! A promise ends after the growth's calls have returned, and after watchers and subscribers were told of
//! them. The driver counts the memory as taken from each call on. So a part may count twice until the promise
//! ends, but no memory is missed. A resource that finds too little plans again with the bytes that are left.
//! If they do not suffice and others hold promises, it waits for one to end and reads again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use millpond_core::driver::{DeviceAttribute, Driver, DriverResult, MemPoolAttribute, call};
use millpond_core::{DeviceId, MemoryInfo};
use parking_lot::{Condvar, Mutex};

use crate::pool::central::peer_pool::PeerPool;
use crate::pool::central::turns;
use crate::store::Try;
use crate::tuning::{RETRIES, TURN_PATIENCE};

/// The books of each device that a resource uses.
static DEVICES: Mutex<Vec<(DeviceId, Weak<Device>)>> = Mutex::new(Vec::new());

/// The books of one device.
pub(crate) struct Device {
    /// Whether an allocation may exceed the free memory that the driver reports, because the device shares
    /// its memory with the host, or the system pages device memory out.
    is_a_hint: bool,
    books: Mutex<Books>,
    /// Signals the end of a promise.
    ended: Condvar,
    /// How often memory was returned to the driver, or a promise was not used.
    returned: AtomicU64,
    peer_pools: Mutex<Vec<Weak<dyn PeerPool>>>,
}

#[derive(Default)]
struct Books {
    /// Bytes of all promises.
    promised: u64,
    /// The number of promises made, and the number of ended promises.
    begun: u64,
    ended: u64,
}

/// The free memory at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// The driver's answer; `None` if it failed.
    pub(crate) info: Option<MemoryInfo>,
    /// Bytes that may be promised.
    pub(crate) available: u64,
    /// Bytes that were promised at that moment.
    promised: u64,
    begun: u64,
    ended: u64,
    is_a_hint: bool,
}

impl Reading {
    #[cfg(test)]
    pub(crate) fn of(available: u64) -> Self {
        Self { info: None, available, promised: 0, begun: 0, ended: 0, is_a_hint: false }
    }

    /// Returns the most new bytes that a growth should plan with. A growth [at once](Try::AtOnce) keeps to
    /// the reading even if it is a hint.
    pub(crate) fn most_new(&self, how: Try) -> u64 {
        if self.is_a_hint && !matches!(how, Try::AtOnce(_)) { u64::MAX } else { self.available }
    }

    /// Returns the free bytes including promised ones; `None` if an allocation may succeed beyond them.
    pub(crate) fn free_at_most(&self) -> Option<u64> {
        (!self.is_a_hint).then(|| self.available.saturating_add(self.promised))
    }
}

/// How often memory was returned to the device up to a moment.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Returns {
    pub(crate) all: u64,
    pub(crate) own: u64,
}

impl Returns {
    /// Returns whether other resources returned memory between this moment and `later`.
    pub(crate) fn others_until(self, later: Self) -> bool {
        later.all - self.all > later.own - self.own
    }
}

/// Bytes that a growth may take. The promise ends when the growth has taken them, or has returned the bytes
/// it took.
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

impl Device {
    /// Returns the books of the driver's device, which all resources on the device share.
    pub(crate) fn of(driver: &dyn Driver) -> Arc<Self> {
        let id = driver.device();
        if let Some(device) = Self::known(&mut DEVICES.lock(), id) {
            return device;
        }
        // Windows pages device memory out to the host.
        let integrated = call(driver, |driver| driver.attribute(DeviceAttribute::Integrated));
        let is_a_hint = cfg!(windows) || !matches!(integrated, Ok(0));
        let device = Arc::new(Self {
            is_a_hint,
            books: Mutex::default(),
            ended: Condvar::new(),
            returned: AtomicU64::new(0),
            peer_pools: Mutex::default(),
        });
        let mut devices = DEVICES.lock();
        // Another thread may have created the books while no lock was held for the driver call.
        Self::known(&mut devices, id).unwrap_or_else(|| {
            devices.push((id, Arc::downgrade(&device)));
            device
        })
    }

    /// Returns a device's books, if a resource has them; forgets those that no resource has.
    fn known(devices: &mut Vec<(DeviceId, Weak<Self>)>, id: DeviceId) -> Option<Arc<Self>> {
        devices.retain(|(_, device)| device.strong_count() > 0);
        devices.iter().find(|(known, _)| *known == id).and_then(|(_, device)| device.upgrade())
    }

    /// Adds a pool from which other pools may reclaim memory.
    pub(crate) fn add_peer_pool(&self, peer_pool: Weak<dyn PeerPool>) {
        let mut peer_pools = self.peer_pools.lock();
        peer_pools.retain(|peer_pool| peer_pool.strong_count() > 0);
        peer_pools.push(peer_pool);
    }

    /// Returns all resources that hold memory of the device.
    pub(crate) fn peer_pools(&self) -> Vec<Arc<dyn PeerPool>> {
        self.peer_pools.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Reads the device's free memory. If it is less than `wanted`, also counts the free memory of the
    /// driver's default pool, which the driver reclaims before it is out of memory.
    ///
    /// # Errors
    /// If the device is lost. After other errors the reading is a hint.
    pub(crate) fn read(&self, driver: &dyn Driver, wanted: u64) -> DriverResult<Reading> {
        let (promised, begun, ended) = {
            let books = self.books.lock();
            (books.promised, books.begun, books.ended)
        };
        // Read after the books, so memory that is taken in between counts twice and is not missed.
        let info = match driver.mem_get_info() {
            Ok(info) => Some(info),
            Err(error) if error.is_sticky() => return Err(error),
            Err(_) => None,
        };
        let mut free = info.map_or(0, |info| info.free);
        if info.is_some() && free.saturating_sub(promised) < wanted {
            free = free.saturating_add(free_in_default_pool(driver));
        }
        let available = free.saturating_sub(promised);
        let is_a_hint = self.is_a_hint || info.is_none();
        Ok(Reading { info, available, promised, begun, ended, is_a_hint })
    }

    /// Promises bytes of the reading's free memory; `None` if another promise was made since the reading.
    pub(crate) fn promise(&self, bytes: u64, reading: &Reading) -> Option<Promise<'_>> {
        let mut books = self.books.lock();
        if books.begun != reading.begun {
            return None;
        }
        books.begun += 1;
        books.promised += bytes;
        Some(Promise { device: self, bytes })
    }

    /// Waits at most [`TURN_PATIENCE`] until a promise ends that the reading counted. Returns `false` if it
    /// counted none, if the caller has waited often enough, or if the promise may be the thread's own.
    pub(crate) fn wait_for_rivals(&self, reading: &Reading, waits: &mut u32) -> bool {
        *waits += 1;
        if reading.promised == 0 || *waits > RETRIES || turns::is_nested() {
            return false;
        }
        let mut books = self.books.lock();
        let deadline = Instant::now() + TURN_PATIENCE;
        while books.ended == reading.ended {
            if self.ended.wait_until(&mut books, deadline).timed_out() {
                // Foreign code in the other growth may be waiting for this one.
                *waits = RETRIES;
                break;
            }
        }
        true
    }

    /// Notes that memory was returned to the driver, or that promised memory is free again.
    pub(crate) fn note_return(&self) {
        self.returned.fetch_add(1, Ordering::Release);
    }

    /// Returns how often memory was returned so far.
    pub(crate) fn returns(&self) -> u64 {
        self.returned.load(Ordering::Acquire)
    }
}

/// Returns the free bytes of the driver's default pool.
fn free_in_default_pool(driver: &dyn Driver) -> u64 {
    let kept = || {
        let pool = driver.device_get_default_mem_pool()?;
        let attribute = |attribute| driver.mem_pool_get_attribute(pool, attribute);
        let reserved = attribute(MemPoolAttribute::ReservedMemCurrent)?;
        DriverResult::Ok(reserved.saturating_sub(attribute(MemPoolAttribute::UsedMemCurrent)?))
    };
    kept().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use millpond_core::DriverError;
    use millpond_driver::CallKind;
    use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};

    use super::*;

    const CAPACITY: u64 = 1 << 30;

    /// A growth waits for the end of each promise that its reading counted, but not for ever.
    #[test]
    fn a_growth_waits_for_others_a_number_of_times() {
        let driver = SimDevice::new(SimConfig::with_capacity(CAPACITY));
        let device = Device::of(&*driver);
        let read = || device.read(&*driver, 0).expect("the device is there");
        let waits_of = |reading: &Reading| {
            let mut waits = 0;
            (0..2 * RETRIES).filter(|_| device.wait_for_rivals(reading, &mut waits)).count()
        };
        let before = read();
        assert_eq!(waits_of(&before), 0, "nothing is promised");
        let promise = device.promise(1 << 20, &before);
        let during = read();
        drop(promise);
        assert_eq!(waits_of(&during), RETRIES as usize);
        assert_eq!(waits_of(&read()), 0, "the promise has ended");
    }

    /// The promise may belong to an outer call of the same thread, so a wait would be useless.
    #[test]
    fn a_growth_inside_of_another_call_waits_for_no_promise() {
        let driver = SimDevice::new(SimConfig::with_capacity(CAPACITY));
        let device = Device::of(&*driver);
        let read = || device.read(&*driver, 0).expect("the device is there");
        let _promise = device.promise(1 << 20, &read());
        let during = read();
        let [outer, inner] = [(); 2].map(|()| turns::Turns::default());
        let _outer = outer.enter();
        assert!(device.wait_for_rivals(&during, &mut 0));
        let _inner = inner.enter();
        assert!(!device.wait_for_rivals(&during, &mut 0));
    }

    /// If two growths read the same, one gets a promise, and the other reads again.
    #[test]
    fn promised_memory_is_not_promised_again() {
        let driver = SimDevice::new(SimConfig::with_capacity(CAPACITY));
        let device = Device::of(&*driver);
        let read = || device.read(&*driver, CAPACITY).expect("the device is there");
        let before = read();
        let free = before.available;
        let first = device.promise(300, &before).expect("no other promise was made");
        assert!(device.promise(300, &before).is_none(), "another promise was made since");
        let second = device.promise(500, &read()).expect("no other promise was made");
        assert_eq!(read().most_new(Try::Preferred), free - 800);
        assert_eq!(read().free_at_most(), Some(free), "promised bytes are still free");
        drop(first);
        assert_eq!(read().most_new(Try::Preferred), free - 500);
        drop(second);
        assert_eq!(read().most_new(Try::Preferred), free);
        assert!(device.promise(300, &read()).is_some());
    }

    /// If the driver's answer is missing or too low, an allocation may succeed beyond it.
    #[test]
    fn a_reading_bounds_a_growth_only_if_the_driver_answers_for_all_memory() {
        let driver = SimDevice::new(SimConfig::with_capacity(CAPACITY));
        let device = Device::of(&*driver);
        let mut reading = device.read(&*driver, 0).expect("the device is there");
        assert!(
            reading.most_new(Try::Preferred) <= CAPACITY && reading.free_at_most() == Some(reading.available)
        );
        driver.set_faults(FaultPlan::nth_of(CallKind::MemGetInfo, 0, DriverError::NOT_SUPPORTED));
        reading = device.read(&*driver, 0).expect("the device is there");
        assert_eq!((reading.most_new(Try::Preferred), reading.free_at_most()), (u64::MAX, None));
        assert_eq!(reading.most_new(Try::AtOnce(0)), reading.available);
        driver.set_faults(FaultPlan::none());
        let shares = Device {
            is_a_hint: true,
            books: Mutex::default(),
            ended: Condvar::new(),
            returned: AtomicU64::new(0),
            peer_pools: Mutex::default(),
        };
        reading = shares.read(&*driver, 0).expect("the device is there");
        assert_eq!((reading.most_new(Try::Preferred), reading.free_at_most()), (u64::MAX, None));
    }

    /// Only memory that others returned since is a reason to try again.
    #[test]
    fn own_returns_are_not_those_of_others() {
        let returns = |all, own| Returns { all, own };
        assert!(!returns(5, 2).others_until(returns(5, 2)));
        assert!(!returns(5, 2).others_until(returns(7, 4)));
        assert!(returns(5, 2).others_until(returns(8, 4)));
    }

    /// All resources on a device share its books, from the first that uses it to the last.
    #[test]
    fn a_device_has_one_set_of_books() {
        let driver = SimDevice::new(SimConfig::with_capacity(CAPACITY));
        let other = SimDevice::new(SimConfig::with_capacity(CAPACITY));
        for _ in 0..2 {
            let first = Device::of(&*driver);
            assert!(Arc::ptr_eq(&first, &Device::of(&*driver)));
            assert!(!Arc::ptr_eq(&first, &Device::of(&*other)));
        }
        let known = |driver: &SimDevice| {
            let devices = DEVICES.lock();
            devices.iter().filter(|(id, _)| *id == driver.device()).count()
        };
        let _first = Device::of(&*driver);
        assert_eq!((known(&driver), known(&other)), (1, 0), "the books of the other device are gone");
    }

    /// Memory in the driver's default pool counts as free only if the device alone has too little.
    #[test]
    fn free_memory_of_the_default_pool_counts_if_it_is_needed() {
        let driver = SimDevice::new(SimConfig::with_capacity(CAPACITY));
        let device = Device::of(&*driver);
        let stream = millpond_core::StreamRef::LEGACY;
        let pool = driver.device_get_default_mem_pool().expect("a device has one");
        driver
            .mem_pool_set_attribute(pool, MemPoolAttribute::ReleaseThreshold, u64::MAX)
            .expect("it has one");
        let ptr = driver.mem_alloc_async(CAPACITY / 2, stream).expect("there is room");
        // SAFETY: the block came from the device and is freed once.
        unsafe { driver.mem_free_async(ptr, stream) }.expect("it is there");
        let kept = free_in_default_pool(&*driver);
        assert!(kept >= CAPACITY / 2, "{kept}");
        let available = |wanted| device.read(&*driver, wanted).expect("the device is there").available;
        let free = available(0);
        assert!(free <= CAPACITY / 2, "{free}");
        assert_eq!(available(free), free);
        assert_eq!(available(free + 1), free + kept);
    }
}
