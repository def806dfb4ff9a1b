//! Reports refused calls of [`deallocate`](crate::DeviceMemoryResource::deallocate).
//!
//! `deallocate` cannot return an error, and a resource must not pass a wrong pointer to its upstream. So the
//! resource refuses the call, and counts the refusal in its statistics. Then the resource reports the misuse
//! to the hook, a function that the whole process shares. The default hook emits a `tracing` event. In builds
//! with debug assertions, the default hook also panics.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{DevicePtr, StreamRef};

/// The kind of mistake in an invalid call of `deallocate`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MisuseKind {
    /// No live block of this resource starts at this pointer. The pointer belongs to another resource, points
    /// into a block, or its block was freed before and is no longer known.
    ForeignPointer,
    /// The block at this pointer is already free.
    DoubleFree,
    /// The passed size differs from the size of the allocation.
    WrongSize {
        /// The size of the allocation in bytes.
        allocated_bytes: u64,
    },
    /// The block belongs to the memory of another device.
    WrongDevice,
    /// The stream was destroyed before the call. The resource does not refuse this call. The block becomes
    /// free after all work on the device has ended.
    DeadStream,
}

/// Describes one invalid call of `deallocate`. The resource has refused the call, unless the kind is
/// [`DeadStream`](MisuseKind::DeadStream).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Misuse {
    /// The kind of mistake.
    pub kind: MisuseKind,
    /// The pointer that the caller passed.
    pub ptr: DevicePtr,
    /// The size in bytes that the caller passed.
    pub bytes: u64,
    /// The stream that the caller passed.
    pub stream: StreamRef,
    /// The text of the stack that received the call.
    pub resource: String,
}

impl Misuse {
    /// Creates the description of an invalid call. `resource` is the stack that received the call. The other
    /// arguments are the arguments of the call.
    pub fn new(
        kind: MisuseKind,
        ptr: DevicePtr,
        bytes: u64,
        stream: StreamRef,
        resource: impl fmt::Display,
    ) -> Self {
        Self { kind, ptr, bytes, stream, resource: resource.to_string() }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, ptr, bytes, stream, resource } = self;
        let what = if *kind == MisuseKind::DeadStream { "deallocated" } else { "refused to deallocate" };
        write!(f, "{what} {ptr} ({bytes} bytes, stream {stream}) in `{resource}`: ")?;
        match kind {
            MisuseKind::DeadStream => f.write_str(
                "the stream was destroyed before the call, so the block becomes free only after all work on \
                 the device has ended; pass a stream that is alive and is ordered after the block's uses",
            ),
            MisuseKind::ForeignPointer => f.write_str(
                "no live block of this resource starts there: the block is another resource's, or was freed \
                 before; free each block once, on the resource that allocated it",
            ),
            MisuseKind::DoubleFree => f.write_str("the block is free already; deallocate each block once"),
            MisuseKind::WrongSize { allocated_bytes } => write!(
                f,
                "the block was allocated with {allocated_bytes} bytes; pass the same layout to both calls"
            ),
            MisuseKind::WrongDevice => {
                f.write_str("the block belongs to another device; free it on the resource that allocated it")
            }
        }
    }
}

/// A function that receives each misuse in this process.
pub type Hook = Arc<dyn Fn(&Misuse) + Send + Sync>;

static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

/// Installs `hook` instead of the present hook. `None` restores the default hook. Returns the previously
/// installed hook; `None` if that was the default hook.
pub fn set_hook(hook: Option<Hook>) -> Option<Hook> {
    std::mem::replace(&mut *HOOK.write(), hook)
}

/// A `deallocate` whose outcome a layer watches.
#[derive(Clone, Copy)]
struct Free {
    ptr: DevicePtr,
    /// How often the block was refused since the watch began.
    refusals: u64,
}

thread_local! {
    /// The innermost watched call of this thread.
    static WATCHED: Cell<Free> = const { Cell::new(Free { ptr: DevicePtr::NULL, refusals: 0 }) };
}

fn watched() -> Free {
    WATCHED.try_with(Cell::get).unwrap_or(Free { ptr: DevicePtr::NULL, refusals: 0 })
}

/// Watches the free of one block until it is dropped. Code that runs inside a free, such as a hook, a
/// subscriber or an upstream, may free other blocks. The outcome of these does not count here.
struct Watch {
    ptr: DevicePtr,
    before: Free,
}

impl Watch {
    fn begin(ptr: DevicePtr) -> Self {
        let before = watched();
        if before.ptr != ptr {
            let _ = WATCHED.try_with(|watched| watched.set(Free { ptr, refusals: 0 }));
        }
        Self { ptr, before }
    }

    fn is_refused(&self) -> bool {
        // An outer watch of the same block also learns of the refusal.
        let known = if self.before.ptr == self.ptr { self.before.refusals } else { 0 };
        watched().refusals != known
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.before.ptr != self.ptr {
            let _ = WATCHED.try_with(|watched| watched.set(self.before));
        }
    }
}

/// Runs `free`, which calls `deallocate` on the upstream with `ptr`. Returns whether the upstream accepted
/// the block. A layer that counts frees uses this function, because a refused block stays live.
#[inline]
pub fn is_taken(ptr: DevicePtr, free: impl FnOnce()) -> bool {
    let watch = Watch::begin(ptr);
    free();
    !watch.is_refused()
}

/// Runs `free` as [`is_taken`] does. If the upstream refuses the block, also runs `undo`, even if the misuse
/// hook panics. A layer uses this function if it must count the free before the call.
#[inline]
pub fn undo_if_refused(ptr: DevicePtr, free: impl FnOnce(), undo: impl FnOnce()) {
    let _undo = AtEnd { watch: Watch::begin(ptr), runs_if_refused: true, then: Some(undo) };
    free();
}

/// Runs `free` as [`is_taken`] does. If the upstream accepts the block, also runs `then`, even if the misuse
/// hook panics. (The hook may panic for an accepted block if the block's stream was destroyed.) A layer uses
/// this function if it counts the free after the call.
#[inline]
pub fn if_taken(ptr: DevicePtr, free: impl FnOnce(), then: impl FnOnce()) {
    let _then = AtEnd { watch: Watch::begin(ptr), runs_if_refused: false, then: Some(then) };
    free();
}

/// Runs a layer's last step when the layers below have finished with a block, or have panicked.
struct AtEnd<F: FnOnce()> {
    watch: Watch,
    runs_if_refused: bool,
    then: Option<F>,
}

impl<F: FnOnce()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        if self.watch.is_refused() == self.runs_if_refused
            && let Some(then) = self.then.take()
        {
            then();
        }
    }
}

/// Runs `free`, which calls `deallocate` on the upstream with the address `below`. A layer uses this function
/// if its caller knows the same block by another address, `ptr`. If the upstream refuses `below`, the
/// function tells the layers above that `ptr` was refused.
pub fn renamed(ptr: DevicePtr, below: DevicePtr, free: impl FnOnce()) {
    let is_refused = Cell::new(false);
    struct Tell<'a>(DevicePtr, &'a Cell<bool>);
    impl Drop for Tell<'_> {
        fn drop(&mut self) {
            if self.1.get() {
                note_refusal(self.0);
            }
        }
    }
    let _tell = Tell(ptr, &is_refused);
    undo_if_refused(below, free, || is_refused.set(true));
}

fn note_refusal(ptr: DevicePtr) {
    let _ = WATCHED.try_with(|watched| {
        let now = watched.get();
        if now.ptr == ptr {
            watched.set(Free { refusals: now.refusals + 1, ..now });
        }
    });
}

/// Reports a misuse to the hook. A resource calls this function when it refuses a call of `deallocate`.
///
/// # Panics
/// In builds with debug assertions, panics if no hook is installed, because misuse is a bug of the caller.
pub fn report(misuse: &Misuse) {
    if misuse.kind != MisuseKind::DeadStream {
        note_refusal(misuse.ptr);
    }
    let hook = HOOK.read().clone();
    if let Some(hook) = hook {
        hook(misuse);
        return;
    }
    tracing::error!(target: "millpond::misuse", ptr = %misuse.ptr, bytes = misuse.bytes, "{misuse}");
    if cfg!(debug_assertions) && !std::thread::panicking() {
        panic!("{misuse}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTR: DevicePtr = DevicePtr::new(256);
    const OTHER: DevicePtr = DevicePtr::new(512);

    fn refuse_at(ptr: DevicePtr, kind: MisuseKind) {
        report(&Misuse { kind, ptr, bytes: 1, stream: StreamRef::LEGACY, resource: "test".to_owned() });
    }

    fn refuse(kind: MisuseKind) {
        refuse_at(PTR, kind);
    }

    /// The hook belongs to the process, so one test does everything.
    #[test]
    fn a_layer_learns_whether_a_block_was_taken_back() {
        let undone = Cell::new(0);
        let undo = || undone.set(undone.get() + 1);
        // Without a hook, a report panics in builds with debug assertions.
        let panics = |call: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err();
        let refused = panics(&|| undo_if_refused(PTR, || refuse(MisuseKind::DoubleFree), undo));
        assert_eq!((refused, undone.get()), (cfg!(debug_assertions), 1));
        let counted = Cell::new(0);
        let count = || counted.set(counted.get() + 1);
        let taken = panics(&|| if_taken(PTR, || refuse(MisuseKind::DeadStream), count));
        assert_eq!((taken, counted.get()), (cfg!(debug_assertions), 1));
        panics(&|| if_taken(PTR, || refuse(MisuseKind::DoubleFree), count));
        if_taken(PTR, || {}, count);
        assert_eq!(counted.get(), 2, "a refused block is not counted");
        set_hook(Some(Arc::new(|_| {})));
        assert!(is_taken(PTR, || {}) && !is_taken(PTR, || refuse(MisuseKind::DoubleFree)));
        assert!(!is_taken(PTR, || refuse(MisuseKind::ForeignPointer)));
        let dead = || refuse(MisuseKind::DeadStream);
        assert!(is_taken(PTR, dead), "such a block is taken back all the same");
        let inner = || assert!(!is_taken(PTR, || refuse(MisuseKind::WrongDevice)));
        assert!(!is_taken(PTR, inner), "a refusal below counts for each layer above");
        let on_another_thread = || std::thread::spawn(|| refuse(MisuseKind::DoubleFree)).join().unwrap();
        assert!(is_taken(PTR, on_another_thread));
        undo_if_refused(PTR, || {}, undo);
        assert_eq!(undone.get(), 1);
        undo_if_refused(PTR, || refuse(MisuseKind::DoubleFree), undo);
        assert_eq!(undone.get(), 2);

        // A layer that changes addresses.
        let moved = || renamed(PTR, OTHER, || refuse_at(OTHER, MisuseKind::DoubleFree));
        assert!(!is_taken(PTR, moved), "a layer above learns of a refusal under another address");
        assert!(is_taken(PTR, || renamed(PTR, OTHER, || {})));

        // Code inside a free that frees other blocks wrongly: first a subscriber or an upstream.
        let other = || refuse_at(OTHER, MisuseKind::DoubleFree);
        assert!(is_taken(PTR, other), "another block was refused");
        assert!(is_taken(PTR, || assert!(!is_taken(OTHER, other))));
        let both = || {
            assert!(!is_taken(OTHER, other));
            refuse(MisuseKind::DoubleFree);
        };
        assert!(!is_taken(PTR, both), "this one was refused as well");
        // Then the hook, which itself frees a block wrongly while it hears of one.
        set_hook(Some(Arc::new(|misuse| {
            if misuse.ptr == OTHER {
                assert!(!is_taken(PTR, || refuse(MisuseKind::DoubleFree)));
            }
        })));
        assert!(!is_taken(OTHER, other), "the hook's own refusals change nothing");
        set_hook(None);
    }
}
