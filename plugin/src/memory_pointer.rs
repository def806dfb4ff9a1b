//! Pointers that keep their memory alive.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millpond_core::driver::HostPtr;
use millpond_core::{DeviceId, DevicePtr, Error, ErrorKind, Result, format_bytes};
use parking_lot::Mutex;

/// The owner of pinned host memory. It is kept alive until the memory is unpinned, and is never inspected.
pub type Owner = Box<dyn Any + Send + Sync>;

/// The identity of an allocation. Unlike an address, it is unique as long as the process lives. When a late
/// finalizer runs, the address may already belong to another allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(u64);

impl Token {
    /// Makes a new token.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the token as a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Receives the token of an allocation when the last reference to the allocation is dropped.
///
/// The finalizer is called on any thread, with any CUDA context or none, perhaps after a reset or while the
/// process exits. An implementation looks the token up, and ignores a token that it does not know.
pub trait Finalizer: Send + Sync + 'static {
    /// Frees the allocation. This is called at most once per token, and must not panic.
    fn finalize(&self, token: Token);

    /// Returns whether the allocation is still live: it was not finalized, and no reset ended it.
    fn is_live(&self, token: Token) -> bool;
}

/// The state that all pointers into one allocation share. The finalizer runs when the last pointer is
/// dropped.
struct Allocation {
    device: DeviceId,
    token: Token,
    finalizer: Option<Arc<dyn Finalizer>>,
    finalized: AtomicBool,
    /// The owner is dropped after the finalizer ran. So memory is unpinned before its owner can free it.
    _owner: Option<Owner>,
}

impl Allocation {
    fn new(device: DeviceId, token: Token, finalizer: Option<Arc<dyn Finalizer>>) -> Self {
        Self { device, token, finalizer, finalized: AtomicBool::new(false), _owner: None }
    }

    fn is_live(&self) -> bool {
        !self.finalized.load(Ordering::Acquire)
            && self.finalizer.as_ref().is_none_or(|finalizer| finalizer.is_live(self.token))
    }

    /// Runs the finalizer, unless it has already run. Returns whether this call ran it.
    fn finalize(&self) -> bool {
        if self.finalized.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(finalizer) = &self.finalizer {
            // A finalizer runs in `drop`, where a second panic would abort the process.
            let outcome = catch_unwind(AssertUnwindSafe(|| finalizer.finalize(self.token)));
            if outcome.is_err() {
                tracing::error!(target: "millpond::plugin", token = self.token.0, "a finalizer panicked");
            }
        }
        true
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.finalize();
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("device", &self.device)
            .field("token", &self.token.0)
            .field("finalized", &self.finalized)
            .finish_non_exhaustive()
    }
}

/// A finalizer made from a closure.
struct Once(Mutex<Option<OnceClosure>>);

type OnceClosure = Box<dyn FnOnce(Token) + Send>;

impl Finalizer for Once {
    fn finalize(&self, token: Token) {
        let closure = self.0.lock().take();
        if let Some(closure) = closure {
            closure(token);
        }
    }

    fn is_live(&self, _token: Token) -> bool {
        self.0.lock().is_some()
    }
}

/// A counted reference to device memory, or to a part of it.
///
/// Clones, [`own`](Self::own)ed references and [views](Self::view) share one allocation, and keep it alive.
/// When the last of them is dropped, the finalizer runs once. The reference is an address and a length. The
/// host cannot access the memory through it.
///
/// When a manager is reset, it ends its memory even if pointers to the memory remain. These pointers are then
/// not [live](Self::is_live), and dropping them does nothing.
///
/// ```
/// use millpond_core::{DeviceId, DevicePtr};
/// use millpond_plugin::MemoryPointer;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// static FREED: AtomicU32 = AtomicU32::new(0);
///
/// let memory = MemoryPointer::with_finalizer(DeviceId::sim(0), DevicePtr::new(0x1000), 64, |_token| {
///     FREED.fetch_add(1, Ordering::Relaxed);
/// });
/// let tail = memory.view(48..64)?;
/// assert_eq!((tail.device_pointer().address(), tail.bytes()), (0x1030, 16));
/// drop(memory);
/// assert_eq!(FREED.load(Ordering::Relaxed), 0); // the view keeps the allocation alive
/// drop(tail);
/// assert_eq!(FREED.load(Ordering::Relaxed), 1);
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryPointer {
    device_pointer: DevicePtr,
    bytes: u64,
    allocation: Arc<Allocation>,
}

impl MemoryPointer {
    /// Makes the first reference to an allocation. `token` identifies the allocation for `finalizer`.
    pub fn new(
        device: DeviceId,
        device_pointer: DevicePtr,
        bytes: u64,
        token: Token,
        finalizer: Arc<dyn Finalizer>,
    ) -> Self {
        let allocation = Arc::new(Allocation::new(device, token, Some(finalizer)));
        Self { device_pointer, bytes, allocation }
    }

    /// Makes the first reference to an allocation that `finalizer` ends. `finalizer` is called at most once,
    /// on any thread.
    pub fn with_finalizer(
        device: DeviceId,
        device_pointer: DevicePtr,
        bytes: u64,
        finalizer: impl FnOnce(Token) + Send + 'static,
    ) -> Self {
        let finalizer = Arc::new(Once(Mutex::new(Some(Box::new(finalizer)))));
        Self::new(device, device_pointer, bytes, Token::next(), finalizer)
    }

    /// Makes a pointer to memory that another owner keeps alive and frees.
    pub fn unowned(device: DeviceId, device_pointer: DevicePtr, bytes: u64) -> Self {
        let allocation = Arc::new(Allocation::new(device, Token::next(), None));
        Self { device_pointer, bytes, allocation }
    }

    /// Returns the null pointer, which is the result of a request for zero bytes.
    pub fn null(device: DeviceId) -> Self {
        Self::unowned(device, DevicePtr::NULL, 0)
    }

    /// Returns the device that owns the memory.
    pub fn device(&self) -> DeviceId {
        self.allocation.device
    }

    /// Returns the address on the device.
    pub fn device_pointer(&self) -> DevicePtr {
        self.device_pointer
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the identity of the allocation.
    pub fn token(&self) -> Token {
        self.allocation.token
    }

    /// Returns the number of references to the allocation: this reference, its clones and all views.
    pub fn references(&self) -> usize {
        Arc::strong_count(&self.allocation)
    }

    /// Returns whether the memory is still live: it was not freed, and no reset of its manager ended it.
    pub fn is_live(&self) -> bool {
        self.allocation.is_live()
    }

    /// Returns another reference to the allocation, under NBEP 7's name.
    #[must_use]
    pub fn own(&self) -> Self {
        self.clone()
    }

    /// Returns a reference to the bytes `range` of this reference. It keeps the whole allocation alive.
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidArgument`] if the range is reversed, or if it reaches beyond the end.
    pub fn view(&self, range: Range<u64>) -> Result<Self> {
        if range.start > range.end || range.end > self.bytes {
            return Err(Error::invalid_argument(format!(
                "a view of bytes {}..{} does not fit into {}; choose a range within 0..{}",
                range.start,
                range.end,
                format_bytes(self.bytes),
                self.bytes
            )));
        }
        Ok(Self {
            device_pointer: self.device_pointer.offset(range.start),
            bytes: range.end - range.start,
            allocation: Arc::clone(&self.allocation),
        })
    }

    /// Runs the finalizer now, even if references remain. After that, the references are not live.
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidArgument`] if the memory is already free.
    pub fn free(&self) -> Result<()> {
        if self.is_live() && self.allocation.finalize() { Ok(()) } else { Err(self.gone("free")) }
    }

    /// Returns the error for a use of this pointer after its memory was freed.
    pub(crate) fn gone(&self, what: &str) -> Error {
        Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "cannot {what} the memory at {}: it is already free, or its manager was reset; use an \
                 allocation only while it is live",
                self.device_pointer
            ),
        )
        .on_device(self.device())
    }
}

/// Pinned host memory that has no address on the device. The driver allocated it, or pinned existing memory.
///
/// Clones share the allocation. The memory is valid while a clone exists and [`is_live`](Self::is_live)
/// returns `true`.
#[derive(Clone, Debug)]
pub struct PinnedMemory {
    host_pointer: HostPtr,
    bytes: u64,
    allocation: Arc<Allocation>,
}

impl PinnedMemory {
    /// Makes the first reference to memory, which `token` identifies for `finalizer`. If the memory existed
    /// before it was pinned, `owner` is the memory's owner.
    pub fn new(
        device: DeviceId,
        host_pointer: HostPtr,
        bytes: u64,
        owner: Option<Owner>,
        token: Token,
        finalizer: Arc<dyn Finalizer>,
    ) -> Self {
        let mut allocation = Allocation::new(device, token, Some(finalizer));
        allocation._owner = owner;
        Self { host_pointer, bytes, allocation: Arc::new(allocation) }
    }

    /// Returns the address on the host.
    pub fn host_pointer(&self) -> HostPtr {
        self.host_pointer
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the identity of the allocation.
    pub fn token(&self) -> Token {
        self.allocation.token
    }

    /// Returns whether this reference still pins the memory.
    pub fn is_live(&self) -> bool {
        self.allocation.is_live()
    }

    /// Returns another reference to the allocation, under NBEP 7's name.
    #[must_use]
    pub fn own(&self) -> Self {
        self.clone()
    }
}

/// Pinned host memory that the device can also access. It has an address on the host and an address on the
/// device.
#[derive(Clone, Debug)]
pub struct MappedMemory {
    host_pointer: HostPtr,
    memory: MemoryPointer,
}

impl MappedMemory {
    /// Makes the first reference to memory, which `token` identifies for `finalizer`. The memory is at
    /// `host_pointer` for the host, and at `device_pointer` for the device. If the memory existed before it
    /// was pinned, `owner` is the memory's owner.
    pub fn new(
        device: DeviceId,
        (host_pointer, device_pointer): (HostPtr, DevicePtr),
        bytes: u64,
        owner: Option<Owner>,
        token: Token,
        finalizer: Arc<dyn Finalizer>,
    ) -> Self {
        let mut allocation = Allocation::new(device, token, Some(finalizer));
        allocation._owner = owner;
        let memory = MemoryPointer { device_pointer, bytes, allocation: Arc::new(allocation) };
        Self { host_pointer, memory }
    }

    /// Returns the address on the host.
    pub fn host_pointer(&self) -> HostPtr {
        self.host_pointer
    }

    /// Returns the address on the device.
    pub fn device_pointer(&self) -> DevicePtr {
        self.memory.device_pointer
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// Returns the memory as the device sees it. The returned reference also keeps the memory alive.
    pub fn memory(&self) -> &MemoryPointer {
        &self.memory
    }

    /// Returns whether this reference still maps the memory.
    pub fn is_live(&self) -> bool {
        self.memory.is_live()
    }

    /// Returns another reference to the allocation, under NBEP 7's name.
    #[must_use]
    pub fn own(&self) -> Self {
        self.clone()
    }
}

/// Host memory from `memhostalloc` or `mempin`. It may be mapped into the device's address space.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum HostMemory {
    /// The memory is pinned, but not mapped.
    Pinned(PinnedMemory),
    /// The memory is pinned, and mapped into the device's address space.
    Mapped(MappedMemory),
}

impl HostMemory {
    /// Returns the address on the host.
    pub fn host_pointer(&self) -> HostPtr {
        match self {
            Self::Pinned(memory) => memory.host_pointer(),
            Self::Mapped(memory) => memory.host_pointer(),
        }
    }

    /// Returns the address on the device; `None` if the memory is not mapped.
    pub fn device_pointer(&self) -> Option<DevicePtr> {
        match self {
            Self::Pinned(_) => None,
            Self::Mapped(memory) => Some(memory.device_pointer()),
        }
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Pinned(memory) => memory.bytes(),
            Self::Mapped(memory) => memory.bytes(),
        }
    }

    /// Returns whether this reference still pins the memory.
    pub fn is_live(&self) -> bool {
        match self {
            Self::Pinned(memory) => memory.is_live(),
            Self::Mapped(memory) => memory.is_live(),
        }
    }

    /// Returns the memory, if it is mapped.
    pub fn mapped(&self) -> Option<&MappedMemory> {
        match self {
            Self::Pinned(_) => None,
            Self::Mapped(memory) => Some(memory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(bytes: u64) -> (MemoryPointer, Arc<AtomicU64>) {
        let runs = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&runs);
        let memory =
            MemoryPointer::with_finalizer(DeviceId::sim(7), DevicePtr::new(4096), bytes, move |_| {
                seen.fetch_add(1, Ordering::Relaxed);
            });
        (memory, runs)
    }

    #[test]
    fn views_and_owned_references_keep_the_allocation_alive() {
        let (memory, runs) = counted(100);
        assert_eq!(memory.references(), 1);
        let view = memory.view(10..20).unwrap();
        assert_eq!(memory.references(), 2);
        let nested = view.view(5..10).unwrap();
        let owned = memory.own();
        assert_eq!(nested.device_pointer(), DevicePtr::new(4096 + 15));
        assert_eq!(nested.token(), memory.token());
        drop((memory, view, owned));
        assert!(nested.is_live());
        assert_eq!(runs.load(Ordering::Relaxed), 0);
        drop(nested);
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn free_runs_the_finalizer_once_and_then_refuses() {
        let (memory, runs) = counted(100);
        let view = memory.view(0..1).unwrap();
        memory.free().unwrap();
        assert!(!memory.is_live() && !view.is_live());
        let error = view.free().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("0x1000"), "{error}");
        drop((memory, view));
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn views_are_checked() {
        let (memory, _) = counted(100);
        assert_eq!(memory.view(100..100).unwrap().bytes(), 0);
        assert_eq!(memory.view(0..101).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(memory.view(u64::MAX..u64::MAX).unwrap_err().kind(), ErrorKind::InvalidArgument);
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = memory.view(50..10);
        assert_eq!(reversed.unwrap_err().kind(), ErrorKind::InvalidArgument);
        let null = MemoryPointer::null(DeviceId::sim(7));
        assert!(null.view(0..0).unwrap().device_pointer().is_null());
        assert!(null.view(0..1).is_err());
    }

    #[test]
    fn a_panicking_finalizer_does_not_leave_drop() {
        let memory =
            MemoryPointer::with_finalizer(DeviceId::sim(7), DevicePtr::new(4096), 1, |_| panic!("expected"));
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(memory)));
        assert!(dropped.is_ok());
    }

    #[test]
    fn tokens_differ() {
        let (a, _) = counted(1);
        let (b, _) = counted(1);
        assert_eq!(a.device_pointer(), b.device_pointer());
        assert_ne!(a.token(), b.token());
    }
}
