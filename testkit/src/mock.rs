//! A scripted resource to put below an adaptor. With it, a test of the adaptor reads like a script.
//!
//! [`resource`] returns the resource, and a [`Handle`] that sets its answers and records its calls, as the
//! crate tower-test does for services. The resource's addresses have no memory behind them.
//!
//! ```
//! use millpond_core::{DeviceMemoryResourceExt, DevicePtr, ErrorKind, Layout, StreamRef};
//! use millpond_driver::sim::{SimConfig, SimDevice};
//! use millpond_testkit::mock::{self, Call};
//!
//! let (resource, handle) = mock::resource(SimDevice::new(SimConfig::h200()));
//! handle.answer_next(DevicePtr::new(0x7000));
//! handle.fail_next(ErrorKind::OutOfMemory);
//!
//! assert_eq!(resource.allocate_bytes(100, StreamRef::LEGACY)?, DevicePtr::new(0x7000));
//! assert!(resource.allocate_bytes(200, StreamRef::LEGACY).unwrap_err().is_out_of_memory());
//!
//! handle.assert_calls([
//!     Call::allocate(Layout::new(100), StreamRef::LEGACY),
//!     Call::allocate(Layout::new(200), StreamRef::LEGACY),
//! ]);
//! # Ok::<(), millpond_core::Error>(())
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use millpond_core::{
    Accessibility, DeviceMemoryResource, DevicePtr, DriverError, DriverHandle, Error, ErrorKind, Layout,
    MemoryInfo, ResourceStatistics, Result, StreamRef, Traits, align_up, is_same,
};
use parking_lot::Mutex;

/// A call that the resource received. Queries that change nothing, like `driver` and `Display`, are not
/// recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Call {
    /// `allocate`.
    Allocate {
        /// The requested layout.
        layout: Layout,
        /// The stream of the call.
        stream: StreamRef,
    },
    /// `deallocate`.
    Deallocate {
        /// The pointer of the call.
        ptr: DevicePtr,
        /// The layout of the call.
        layout: Layout,
        /// The stream of the call.
        stream: StreamRef,
    },
    /// `memory_info`.
    MemoryInfo,
    /// `statistics`.
    Statistics,
    /// `trim`.
    Trim {
        /// The argument of the call, in bytes.
        keep_bytes: u64,
    },
}

impl Call {
    /// Returns an `allocate` call.
    pub const fn allocate(layout: Layout, stream: StreamRef) -> Self {
        Self::Allocate { layout, stream }
    }

    /// Returns a `deallocate` call.
    pub const fn deallocate(ptr: DevicePtr, layout: Layout, stream: StreamRef) -> Self {
        Self::Deallocate { ptr, layout, stream }
    }
}

enum Answer {
    Ptr(DevicePtr),
    Fail(ErrorKind),
}

struct State {
    answers: VecDeque<Answer>,
    calls: Vec<Call>,
    live: BTreeMap<DevicePtr, Layout>,
    next_address: u64,
    memory_info: MemoryInfo,
    statistics: Option<ResourceStatistics>,
    trimmed_bytes: u64,
    trims_fail: Option<ErrorKind>,
}

/// The scripted resource; see the [module](self).
pub struct MockResource {
    driver: DriverHandle,
    state: Arc<Mutex<State>>,
}

/// Sets a [`MockResource`]'s answers and records its calls.
#[derive(Clone)]
pub struct Handle {
    state: Arc<Mutex<State>>,
}

/// Returns a resource that follows a script, and the script's handle.
///
/// Without a script, the resource serves every request with a fresh address, aligned as requested.
pub fn resource(driver: DriverHandle) -> (MockResource, Handle) {
    let state = Arc::new(Mutex::new(State {
        answers: VecDeque::new(),
        calls: Vec::new(),
        live: BTreeMap::new(),
        next_address: 0x10_0000,
        memory_info: MemoryInfo { free: 1 << 30, total: 1 << 30 },
        statistics: None,
        trimmed_bytes: 0,
        trims_fail: None,
    }));
    (MockResource { driver, state: Arc::clone(&state) }, Handle { state })
}

impl Handle {
    /// Makes the next `allocate` without an answer fail with this kind. The errors `Poisoned` and `Driver`
    /// have a driver error as their cause.
    pub fn fail_next(&self, kind: ErrorKind) {
        self.state.lock().answers.push_back(Answer::Fail(kind));
    }

    /// Makes the next `allocate` without an answer return this pointer.
    pub fn answer_next(&self, ptr: DevicePtr) {
        self.state.lock().answers.push_back(Answer::Ptr(ptr));
    }

    /// Sets the result of `memory_info`.
    pub fn set_memory_info(&self, memory_info: MemoryInfo) {
        self.state.lock().memory_info = memory_info;
    }

    /// Sets the result of `statistics`. Without this call, it is `None`.
    pub fn set_statistics(&self, statistics: Option<ResourceStatistics>) {
        self.state.lock().statistics = statistics;
    }

    /// Sets the result of `trim`, in bytes.
    pub fn set_trimmed_bytes(&self, bytes: u64) {
        self.state.lock().trimmed_bytes = bytes;
    }

    /// From now on, `trim` fails with this kind, as in [`fail_next`](Self::fail_next). `None` ends this.
    pub fn fail_trims(&self, kind: Option<ErrorKind>) {
        self.state.lock().trims_fail = kind;
    }

    /// Returns the calls so far. They stay in the record.
    pub fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.clone()
    }

    /// Returns the calls so far, and removes them from the record.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state.lock().calls)
    }

    /// Checks that exactly these calls were made since the last check. Removes them from the record.
    ///
    /// # Panics
    /// If other calls were made.
    #[track_caller]
    pub fn assert_calls(&self, expected: impl IntoIterator<Item = Call>) {
        assert_eq!(self.take_calls(), expected.into_iter().collect::<Vec<_>>());
    }

    /// Returns the blocks that were allocated and not freed, by address.
    pub fn live(&self) -> Vec<(DevicePtr, Layout)> {
        self.state.lock().live.iter().map(|(&ptr, &layout)| (ptr, layout)).collect()
    }
}

impl State {
    fn allocate(&mut self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.calls.push(Call::Allocate { layout, stream });
        let ptr = match self.answers.pop_front() {
            Some(Answer::Fail(kind)) => return Err(scripted(kind).for_request(layout, stream)),
            Some(Answer::Ptr(ptr)) => ptr,
            None if layout.bytes() == 0 => DevicePtr::NULL,
            None => self.fresh(layout).ok_or_else(|| Error::request_too_large(layout, stream))?,
        };
        if !ptr.is_null() {
            self.live.insert(ptr, layout);
        }
        Ok(ptr)
    }

    fn fresh(&mut self, layout: Layout) -> Option<DevicePtr> {
        let address = align_up(self.next_address, layout.alignment())?;
        self.next_address = address.checked_add(layout.rounded_bytes()?)?;
        Some(DevicePtr::new(address))
    }
}

fn scripted(kind: ErrorKind) -> Error {
    let message = "scripted by a test";
    match kind {
        ErrorKind::Poisoned => DriverError::new(DriverError::ILLEGAL_ADDRESS, "mock").into(),
        ErrorKind::Driver => DriverError::new(DriverError::INVALID_VALUE, "mock").into(),
        other => Error::new(other, message),
    }
}

// SAFETY: fresh addresses never overlap and are aligned; they stand for memory that is never touched. A
// script may break the contract on purpose.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for MockResource {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.state.lock().allocate(layout, stream).map_err(|error| error.in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let mut state = self.state.lock();
        state.calls.push(Call::Deallocate { ptr, layout, stream });
        state.live.remove(&ptr);
    }

    fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let mut state = self.state.lock();
        state.calls.push(Call::MemoryInfo);
        Ok(state.memory_info)
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn accessibility(&self) -> Accessibility {
        Accessibility::DEVICE
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        let mut state = self.state.lock();
        state.calls.push(Call::Statistics);
        state.statistics
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let mut state = self.state.lock();
        state.calls.push(Call::Trim { keep_bytes });
        state.trims_fail.map_or(Ok(state.trimmed_bytes), |kind| Err(scripted(kind)))
    }

    fn provide(&self, _traits: &mut Traits) {}
}

impl fmt::Display for MockResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mock")
    }
}

impl fmt::Debug for MockResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockResource").field("live", &self.state.lock().live).finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("calls", &self.state.lock().calls).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_driver::sim::{SimConfig, SimDevice};

    const S: StreamRef = StreamRef::LEGACY;

    #[test]
    fn answers_come_in_the_order_of_the_script() {
        let (resource, handle) = resource(SimDevice::new(SimConfig::h200()));
        handle.fail_next(ErrorKind::OutOfMemory);
        handle.fail_next(ErrorKind::Poisoned);
        let page = Layout::with_alignment(10, 4096).unwrap();
        assert!(resource.allocate(page, S).unwrap_err().is_out_of_memory());
        let error = resource.allocate(page, S).unwrap_err();
        assert!(error.is_sticky() && error.stack() == Some("mock"), "{error}");
        let ptr = resource.allocate(page, S).unwrap();
        assert!(ptr.is_aligned_to(4096));
        assert_eq!(handle.live(), [(ptr, page)]);
        // SAFETY: the block came from the mock and is live and unused.
        unsafe { resource.deallocate(ptr, page, S) };
        assert_eq!(handle.live(), []);
        let asked = Call::allocate(page, S);
        handle.assert_calls([asked, asked, asked, Call::deallocate(ptr, page, S)]);
        handle.assert_calls([]);
    }

    #[test]
    fn requests_beyond_the_address_space_are_refused() {
        let (resource, _handle) = resource(SimDevice::new(SimConfig::h200()));
        let error = resource.allocate(Layout::new(u64::MAX), S).unwrap_err();
        assert!(error.is_out_of_memory() && error.is_impossible(), "{error}");
    }
}
