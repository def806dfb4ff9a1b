//! Reclaims free memory from the device's other pools before a request fails.
//!
//! The device's [books](crate::pool::central::device_books::Device) list all pools whose memory comes from
//! the device directly. A pool that finds too little memory asks the others one after the other. It holds
//! none of its own locks meanwhile, and each other pool takes its own. So two pools that ask each other at
//! once wait only for each other's driver calls.

use millpond_core::{DeviceMemoryResource, Result, StreamRef};

use crate::heap::request::Request;
use crate::pool::central::device_books::Returns;
use crate::pool::central::peer_pool::{CompletionCheck, PeerPool, Released};
use crate::pool::central::release::Below;
use crate::pool::central::trace::event;
use crate::pool::central::{Central, CentralCore};
use crate::tuning::RETRIES;

/// The progress of one request's calls to the peer pools.
#[derive(Default)]
pub(crate) struct PeerReclaim {
    rounds: u32,
    has_waited: bool,
}

impl CentralCore {
    /// Asks the peer pools to release `bytes` of the device's memory.
    fn reclaim_from_peers(&self, bytes: u64, how: CompletionCheck) -> Released {
        let peer_pools = self.device.as_ref().map_or(Vec::new(), |device| device.peer_pools());
        let mut all = Released::default();
        for other in peer_pools.iter().filter(|other| other.id() != self.id()) {
            if all.bytes >= bytes {
                break;
            }
            let released = other.release(bytes - all.bytes, how);
            all.bytes += released.bytes;
            all.has_pending |= released.has_pending;
        }
        all
    }

    /// Releases free memory for another pool's request.
    fn release_completed(
        &self,
        bytes: u64,
        how: CompletionCheck,
        upstream: &dyn DeviceMemoryResource,
    ) -> Result<Released> {
        let _turn = self.turns.enter();
        if self.health.is_lost() || self.state.lock().is_closed {
            return Ok(Released::default());
        }
        self.flush_caches();
        match how {
            CompletionCheck::No => {}
            CompletionCheck::Ask => self.collect_completed(None, false)?,
            CompletionCheck::Wait => self.wait_for_owners(None)?,
        }
        let keep = self.bytes_reserved().saturating_sub(bytes);
        let released = self.release_free(keep, Below { upstream, stream: StreamRef::LEGACY });
        event!(self, DEBUG, "another resource asked for memory", asked = bytes, bytes = released);
        Ok(Released { bytes: released, has_pending: self.owned_free_bytes() > 0 })
    }
}

impl PeerPool for CentralCore {
    fn release(&self, bytes: u64, how: CompletionCheck) -> Released {
        let Some(upstream) = &self.device_memory else { return Released::default() };
        // A driver error here must not fail the other pool's request, which asks the driver itself.
        self.release_completed(bytes, how, upstream).unwrap_or_default()
    }

    fn idle_bytes(&self) -> u64 {
        self.state.lock().heaps.idle_bytes()
    }

    fn id(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Asks the device's other pools to release memory for a request that found none; returns whether the
    /// request should try again. The other pools first release completed memory; if there is none, they wait
    /// for their streams, once.
    ///
    /// `returns` was read before the request was tried. If other pools have returned memory since then, the
    /// request may have missed it.
    #[cold]
    pub(crate) fn ask_peer_pools(
        &self,
        peer_reclaim: &mut PeerReclaim,
        returns: Returns,
        request: &Request,
        stream: StreamRef,
    ) -> Result<bool> {
        peer_reclaim.rounds += 1;
        if self.device_memory.is_none() || peer_reclaim.rounds > RETRIES {
            return Ok(false);
        }
        let is_capturing = self.is_capturing(stream)?;
        // First ask for twice the request, since the other pools' extents have other sizes; then for
        // everything.
        let wanted =
            if peer_reclaim.rounds == 1 { request.padded_bytes().saturating_mul(2) } else { u64::MAX };
        let reclaim_from_peers = |how| match self.reclaim_from_peers(wanted, how) {
            // The only free region may be larger than `wanted`.
            Released { bytes: 0, .. } => self.reclaim_from_peers(u64::MAX, how),
            released => released,
        };
        let released =
            reclaim_from_peers(if is_capturing { CompletionCheck::No } else { CompletionCheck::Ask });
        if released.bytes > 0 || !released.has_pending || peer_reclaim.has_waited || is_capturing {
            return Ok(released.bytes > 0 || returns.others_until(self.returns()));
        }
        peer_reclaim.has_waited = true;
        let released = reclaim_from_peers(CompletionCheck::Wait);
        if self.health.is_lost() {
            return Err(self.lost_error());
        }
        Ok(released.bytes > 0 || returns.others_until(self.returns()))
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::driver::{Driver, StreamFlags};
    use millpond_core::{DeviceMemoryResourceExt, DriverError};
    use std::sync::Arc;

    use millpond_driver::sim::{Access, SimConfig, SimDevice};
    use millpond_testkit::hooked::HookedDriver;

    use super::*;
    use crate::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource};

    const MIB: u64 = 1 << 20;

    /// A request asks the other pools at most [`RETRIES`] times, and each time may serve it.
    #[test]
    fn other_pools_are_asked_in_a_number_of_rounds() {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let pool = || CudaMemoryResource::new(device.clone()).layer(PoolLayer::new()).expect("an empty pool");
        let (asks, has_idle) = (pool(), pool());
        let request = Request::new(millpond_core::Layout::new(8 * MIB)).expect("not too large");
        for (rounds, asked) in [(0, true), (RETRIES - 1, true), (RETRIES, false)] {
            let ptr = has_idle.allocate_bytes(8 * MIB, StreamRef::LEGACY).expect("there is room");
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { has_idle.deallocate_bytes(ptr, 8 * MIB, StreamRef::LEGACY) };
            let mut peer_reclaim = PeerReclaim { rounds, has_waited: false };
            let returns = asks.central.returns();
            let again = asks.central.ask_peer_pools(&mut peer_reclaim, returns, &request, StreamRef::LEGACY);
            assert_eq!(again.expect("the device is there"), asked, "after {rounds} rounds");
            assert_eq!(has_idle.pool_bytes() == 0, asked, "after {rounds} rounds");
        }
    }

    /// The next pool is asked only for bytes that the earlier pools did not release.
    #[test]
    fn other_pools_release_no_more_than_is_missing() {
        let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
        let pool = || CudaMemoryResource::new(device.clone()).layer(PoolLayer::new().pages(PagesMode::On));
        let [asks, first, second] = [(); 3].map(|()| pool().expect("an empty pool"));
        for (pool, blocks) in [(&first, 2), (&second, 2), (&second, 8)] {
            let taken: Vec<_> = (0..blocks)
                .map(|_| pool.allocate_bytes(4 * MIB, StreamRef::LEGACY).expect("there is room"))
                .collect();
            for ptr in taken {
                // SAFETY: the block came from the pool with this size and is freed once.
                unsafe { pool.deallocate_bytes(ptr, 4 * MIB, StreamRef::LEGACY) };
            }
        }
        let held = first.pool_bytes() + second.pool_bytes();
        let released = asks.central.reclaim_from_peers(12 * MIB, CompletionCheck::Wait).bytes;
        assert_eq!(first.pool_bytes() + second.pool_bytes(), held - released);
        assert!((12 * MIB..18 * MIB).contains(&released), "{released} bytes came back");
    }

    /// A pool gives up its turn while it asks, since the other pool may be asking it at the same time.
    #[test]
    fn a_pool_that_asks_others_has_no_turn() {
        let hooks = HookedDriver::new(SimDevice::new(SimConfig::with_capacity(64 * MIB)));
        let pool = || CudaMemoryResource::new(hooks.clone()).layer(PoolLayer::new().pages(PagesMode::On));
        let [asks, has_idle] = [(); 2].map(|()| Arc::new(pool().expect("an empty pool")));
        let take_and_give = |pool: &PoolMemoryResource<CudaMemoryResource>| {
            let ptr = pool.allocate_bytes(48 * MIB, StreamRef::LEGACY).expect("there is room");
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, 48 * MIB, StreamRef::LEGACY) };
        };
        take_and_give(&has_idle);
        let same = Arc::clone(&asks);
        hooks.before_unmap(move || {
            let elsewhere = std::thread::spawn(move || same.central.turns.try_enter().is_some());
            assert!(elsewhere.join().expect("it does not panic"), "the pool that asks has its turn");
        });
        take_and_give(&asks);
        assert_eq!(hooks.hooks_left(), 0, "the other pool was not asked");
    }

    /// If other pools have nothing free, and returned nothing meanwhile, it is useless to try again.
    #[test]
    fn a_request_is_tried_again_only_if_memory_came_back() {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let pool = || CudaMemoryResource::new(device.clone()).layer(PoolLayer::new()).expect("an empty pool");
        let (asks, other) = (pool(), pool());
        let ptr = other.allocate_bytes(8 * MIB, StreamRef::LEGACY).expect("there is room");
        let request = Request::new(millpond_core::Layout::new(8 * MIB)).expect("not too large");
        let ask = |returns| {
            let mut peer_reclaim = PeerReclaim::default();
            let again = asks.central.ask_peer_pools(&mut peer_reclaim, returns, &request, StreamRef::LEGACY);
            again.expect("the device is there")
        };
        let returns = asks.central.returns();
        assert!(!ask(returns), "all is in use");
        // SAFETY: the block came from the pool with this size and is freed once.
        unsafe { other.deallocate_bytes(ptr, 8 * MIB, StreamRef::LEGACY) };
        other.trim(0).expect("the device is there");
        assert!(ask(returns), "memory came back since");
        assert!(!ask(asks.central.returns()), "none came back since");
    }

    /// If another pool releases memory whose work is done, it need not wait for the rest.
    #[test]
    fn no_pool_waits_for_a_busy_stream_after_it_released_memory() {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let pool = || CudaMemoryResource::new(device.clone()).layer(PoolLayer::new().pages(PagesMode::On));
        let [asks, other] = [(); 2].map(|()| pool().expect("an empty pool"));
        let busy = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        let blocks = [busy, StreamRef::LEGACY].map(|stream| {
            let ptr = other.allocate_bytes(8 * MIB, stream).expect("there is room");
            (ptr, stream)
        });
        device.launch_for(busy, &[], 1 << 50);
        for (ptr, stream) in blocks {
            // SAFETY: the blocks came from the pool with this size and are freed once.
            unsafe { other.deallocate_bytes(ptr, 8 * MIB, stream) };
        }
        let request = Request::new(millpond_core::Layout::new(8 * MIB)).expect("not too large");
        let mut peer_reclaim = PeerReclaim::default();
        let returns = asks.central.returns();
        let again = asks.central.ask_peer_pools(&mut peer_reclaim, returns, &request, StreamRef::LEGACY);
        assert!(again.expect("the device is there"));
        assert!(!peer_reclaim.has_waited);
        assert_eq!(other.pool_bytes(), 8 * MIB, "the block of the busy stream is left");
    }

    /// A pool whose device is lost, or that was dropped, releases nothing for another pool, and makes no
    /// driver call for it.
    #[test]
    fn a_lost_pool_and_a_dropped_one_release_nothing() {
        for is_dropped in [false, true] {
            let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
            let cuda = CudaMemoryResource::new(device.clone());
            let pool = cuda.layer(PoolLayer::new()).expect("an empty pool");
            let ptr = pool.allocate_bytes(8 * MIB, StreamRef::LEGACY).expect("there is room");
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, 8 * MIB, StreamRef::LEGACY) };
            let core = std::sync::Arc::clone(pool.central.core());
            let kept = if is_dropped {
                drop(pool);
                None
            } else {
                core.health.note(&DriverError::new(DriverError::ECC_UNCORRECTABLE, "cuCtxSynchronize"));
                Some(pool)
            };
            let calls = device.driver_calls();
            for how in [CompletionCheck::No, CompletionCheck::Ask, CompletionCheck::Wait] {
                let released = core.release(u64::MAX, how);
                assert_eq!((released.bytes, released.has_pending), (0, false), "dropped: {is_dropped}");
            }
            assert_eq!(device.driver_calls(), calls, "dropped: {is_dropped}");
            assert!(kept.is_none_or(|pool| pool.pool_bytes() >= 8 * MIB));
        }
    }

    /// More memory may come back after a wait only if streams own free blocks.
    #[test]
    fn free_blocks_of_a_busy_stream_are_pending() {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let pool = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new()).expect("an empty pool");
        let stream = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        let ptr = pool.allocate_bytes(8 * MIB, stream).expect("there is room");
        let is_pending = |how| pool.central.core().release(u64::MAX, how).has_pending;
        assert!(!is_pending(CompletionCheck::No), "all is in use");
        device.launch_for(stream, &[Access::write(ptr, 8 * MIB, 1)], 1_000_000_000);
        // SAFETY: the block came from the pool with this size and is freed once.
        unsafe { pool.deallocate_bytes(ptr, 8 * MIB, stream) };
        assert!(is_pending(CompletionCheck::No) && is_pending(CompletionCheck::Ask));
        assert!(!is_pending(CompletionCheck::Wait), "the work is done");
        assert_eq!(pool.pool_bytes(), 0);
    }
}
