//! Before memory is out, the other resources of the device are asked for what they have free.
//!
//! Resources whose memory comes from the device directly are listed in its
//! [books](super::device::Device), weakly. Who finds too little asks them, one after the other, with none of
//! its own locks held; each takes its own. So two that ask each other at one moment wait for nothing but each
//! other's driver calls.

use millpond_core::{DeviceMemoryResource, Result, StreamRef};

use super::grow::Returns;
use super::store::{Gather, Request};
use super::trace::event;
use super::{Core, Ordered};

/// A resource that has memory of a device.
pub(super) trait Holder: Send + Sync {
    /// Gives free memory back until it was so many bytes.
    fn give_back(&self, bytes: u64, how: Learn) -> Given;
    /// Bytes that it holds and nobody uses: at least as many as there are.
    fn idle_bytes(&self) -> u64;
    /// Which one it is.
    fn id(&self) -> *const ();
}

/// How a holder may learn that work on its blocks is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Learn {
    /// Not at all: the request is for a stream that captures a graph, and neither asks nor waits.
    No,
    /// The driver is asked.
    Ask,
    /// Their streams are waited for, and for those of streams from elsewhere the device.
    Wait,
}

/// What a holder gave back, and whether more is free but not known to be done.
#[derive(Clone, Copy, Default)]
pub(super) struct Given {
    bytes: u64,
    is_waiting: bool,
}

/// How far one request has come in asking.
#[derive(Default)]
pub(super) struct Pressure {
    rounds: u32,
    has_waited: bool,
}

/// Others' free memory comes in pieces of their sizes, and somebody else may take it first: so many times a
/// request asks again.
const ROUNDS: u32 = 32;

impl Core {
    /// Frees memory of the device that other resources hold; whether any was.
    fn relieve(&self, bytes: u64, how: Learn) -> Given {
        let me = std::ptr::from_ref(self).cast::<()>();
        let others = self.device.as_ref().map_or(Vec::new(), |device| device.holders());
        let mut all = Given::default();
        for other in others.iter().filter(|other| other.id() != me) {
            if all.bytes >= bytes {
                break;
            }
            let given = other.give_back(bytes - all.bytes, how);
            all.bytes += given.bytes;
            all.is_waiting |= given.is_waiting;
        }
        all
    }

    fn give_back_what_is_done(
        &self,
        bytes: u64,
        how: Learn,
        upstream: &dyn DeviceMemoryResource,
    ) -> Result<Given> {
        let _slow = self.slow.lock();
        if self.health.is_lost() || self.state.lock().is_over {
            return Ok(Given::default());
        }
        self.state.lock().store.gather(Gather::Everything);
        let may_ask = how != Learn::No && self.owned_free_bytes(None) > 0;
        if may_ask {
            match how {
                Learn::Wait => self.wait_for_owners(None)?,
                _ => self.collect_completed(None, None, false)?,
            }
        }
        let keep = self.bytes_reserved().saturating_sub(bytes);
        let given = self.release_free(keep, upstream, StreamRef::LEGACY);
        event!(self, DEBUG, "another resource asked for memory", asked = bytes, bytes = given);
        Ok(Given { bytes: given, is_waiting: self.owned_free_bytes(None) > 0 })
    }
}

impl Holder for Core {
    fn give_back(&self, bytes: u64, how: Learn) -> Given {
        let Some(upstream) = &self.device_memory else { return Given::default() };
        // An error of the driver here is no reason for another's request to fail: it asks the driver itself.
        self.give_back_what_is_done(bytes, how, upstream).unwrap_or_default()
    }

    fn idle_bytes(&self) -> u64 {
        self.state.lock().store.idle_bytes()
    }

    fn id(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

impl<R: DeviceMemoryResource> Ordered<R> {
    /// Asks the device's other resources for memory, for a request for which there was none; whether there
    /// may be some now. At first they give what is done; where that is nothing, the device is waited for,
    /// once.
    ///
    /// `returns` is how often memory had gone back to the device before the request was tried: if others
    /// returned some since, the request may have missed it.
    #[cold]
    pub(super) fn ask_others(
        &self,
        pressure: &mut Pressure,
        returns: Returns,
        request: &Request,
        stream: StreamRef,
    ) -> Result<bool> {
        pressure.rounds += 1;
        if self.device_memory.is_none() || pressure.rounds > ROUNDS {
            return Ok(false);
        }
        let is_capturing = self.is_capturing(stream)?;
        // Twice that much at first, since what is freed comes in other pieces; then all there is.
        let wanted = if pressure.rounds == 1 { request.padded_bytes().saturating_mul(2) } else { u64::MAX };
        let relieve = |how| match self.relieve(wanted, how) {
            // What there is may be one piece that is larger.
            Given { bytes: 0, .. } => self.relieve(u64::MAX, how),
            given => given,
        };
        let given = relieve(if is_capturing { Learn::No } else { Learn::Ask });
        if given.bytes > 0 || !given.is_waiting || pressure.has_waited || is_capturing {
            return Ok(given.bytes > 0 || returns.others_until(self.returns()));
        }
        pressure.has_waited = true;
        let given = relieve(Learn::Wait);
        if self.health.is_lost() {
            return Err(self.health.error());
        }
        Ok(given.bytes > 0 || returns.others_until(self.returns()))
    }
}
