//! Before memory is out, the other resources of the device are asked for what they have free.
//!
//! Resources whose memory comes from the device directly are listed in its
//! [books](crate::pool::central::device_books::Device), weakly. Who finds too little asks them, one after the
//! other, with none of its own locks held; each takes its own. So two that ask each other at one moment wait
//! for nothing but each other's driver calls.

use millpond_core::{DeviceMemoryResource, Result, StreamRef};

use crate::heap::request::Request;
use crate::pool::central::grow::Returns;
use crate::pool::central::trace::event;
use crate::pool::central::{Central, CentralCore};
use crate::pool::protocol::Reclaim;

/// A resource that has memory of a device.
pub(crate) trait PeerPool: Send + Sync {
    /// Gives free memory back until it was so many bytes.
    fn release(&self, bytes: u64, how: CompletionCheck) -> Released;
    /// Bytes that it holds and nobody uses: at least as many as there are.
    fn idle_bytes(&self) -> u64;
    /// Which one it is.
    fn id(&self) -> *const ();
}

/// How a holder may learn that work on its blocks is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompletionCheck {
    /// Not at all: the request is for a stream that captures a graph, and neither asks nor waits.
    No,
    /// The driver is asked.
    Ask,
    /// Their streams are waited for, and for those of streams from elsewhere the device.
    Wait,
}

/// What a holder gave back, and whether more is free but not known to be done.
#[derive(Clone, Copy, Default)]
pub(crate) struct Released {
    bytes: u64,
    is_waiting: bool,
}

/// How far one request has come in asking.
#[derive(Default)]
pub(crate) struct PeerReclaim {
    rounds: u32,
    has_waited: bool,
}

/// Others' free memory comes in pieces of their sizes, and somebody else may take it first: so many times a
/// request asks again.
const ROUNDS: u32 = 32;

impl CentralCore {
    /// Frees memory of the device that other resources hold; whether any was.
    fn reclaim_from_peers(&self, bytes: u64, how: CompletionCheck) -> Released {
        let me = std::ptr::from_ref(self).cast::<()>();
        let others = self.device.as_ref().map_or(Vec::new(), |device| device.peer_pools());
        let mut all = Released::default();
        for other in others.iter().filter(|other| other.id() != me) {
            if all.bytes >= bytes {
                break;
            }
            let released = other.release(bytes - all.bytes, how);
            all.bytes += released.bytes;
            all.is_waiting |= released.is_waiting;
        }
        all
    }

    fn release_completed(
        &self,
        bytes: u64,
        how: CompletionCheck,
        upstream: &dyn DeviceMemoryResource,
    ) -> Result<Released> {
        let _slow = self.slow.lock();
        if self.health.is_lost() || self.state.lock().is_over {
            return Ok(Released::default());
        }
        self.state.lock().heaps.reclaim(Reclaim::Everything);
        let may_ask = how != CompletionCheck::No && self.owned_free_bytes(None) > 0;
        if may_ask {
            match how {
                CompletionCheck::Wait => self.wait_for_owners(None)?,
                _ => self.collect_completed(None, None, false)?,
            }
        }
        let keep = self.bytes_reserved().saturating_sub(bytes);
        let released = self.release_free(keep, upstream, StreamRef::LEGACY);
        event!(self, DEBUG, "another resource asked for memory", asked = bytes, bytes = released);
        Ok(Released { bytes: released, is_waiting: self.owned_free_bytes(None) > 0 })
    }
}

impl PeerPool for CentralCore {
    fn release(&self, bytes: u64, how: CompletionCheck) -> Released {
        let Some(upstream) = &self.device_memory else { return Released::default() };
        // An error of the driver here is no reason for another's request to fail: it asks the driver itself.
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
    /// Asks the device's other resources for memory, for a request for which there was none; whether there
    /// may be some now. At first they give what is done; where that is nothing, the device is waited for,
    /// once.
    ///
    /// `returns` is how often memory had gone back to the device before the request was tried: if others
    /// returned some since, the request may have missed it.
    #[cold]
    pub(crate) fn ask_peer_pools(
        &self,
        peer_reclaim: &mut PeerReclaim,
        returns: Returns,
        request: &Request,
        stream: StreamRef,
    ) -> Result<bool> {
        peer_reclaim.rounds += 1;
        if self.device_memory.is_none() || peer_reclaim.rounds > ROUNDS {
            return Ok(false);
        }
        let is_capturing = self.is_capturing(stream)?;
        // Twice that much at first, since what is freed comes in other pieces; then all there is.
        let wanted =
            if peer_reclaim.rounds == 1 { request.padded_bytes().saturating_mul(2) } else { u64::MAX };
        let reclaim_from_peers = |how| match self.reclaim_from_peers(wanted, how) {
            // What there is may be one piece that is larger.
            Released { bytes: 0, .. } => self.reclaim_from_peers(u64::MAX, how),
            released => released,
        };
        let released =
            reclaim_from_peers(if is_capturing { CompletionCheck::No } else { CompletionCheck::Ask });
        if released.bytes > 0 || !released.is_waiting || peer_reclaim.has_waited || is_capturing {
            return Ok(released.bytes > 0 || returns.others_until(self.returns()));
        }
        peer_reclaim.has_waited = true;
        let released = reclaim_from_peers(CompletionCheck::Wait);
        if self.health.is_lost() {
            return Err(self.health.error());
        }
        Ok(released.bytes > 0 || returns.others_until(self.returns()))
    }
}
