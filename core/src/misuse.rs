//! Reports refused calls of [`deallocate`](crate::DeviceMemoryResource::deallocate).
//!
//! `deallocate` cannot return an error, and a resource must not hand a wrong pointer on. So misuse is
//! refused, counted in the resource's statistics, and reported here, once, through one hook of the
//! process. The default hook writes an event to `tracing` and, in builds with debug assertions, panics.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{DevicePtr, StreamRef};

/// The kind of an invalid `deallocate`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MisuseKind {
    /// The pointer was never handed out by this resource, or not as the start of a block.
    ForeignPointer,
    /// The block is free already.
    DoubleFree,
    /// The layout has another size than the one that was allocated.
    WrongSize {
        /// The size in bytes that was allocated.
        allocated_bytes: u64,
    },
    /// The block belongs to another device.
    WrongDevice,
    /// The stream was destroyed before. The block is taken back all the same, after all work of the device.
    DeadStream,
}

/// One refused call, or one that was a mistake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misuse {
    /// The kind of misuse.
    pub kind: MisuseKind,
    /// The pointer as passed in.
    pub ptr: DevicePtr,
    /// The size in bytes as passed in.
    pub bytes: u64,
    /// The stream as passed in.
    pub stream: StreamRef,
    /// The stack that refused, as text.
    pub resource: String,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, ptr, bytes, stream, resource } = self;
        let what = if *kind == MisuseKind::DeadStream { "took back" } else { "refused to deallocate" };
        write!(f, "{what} {ptr} ({bytes} bytes, stream {stream}) in `{resource}`: ")?;
        match kind {
            MisuseKind::DeadStream => f.write_str(
                "the stream was destroyed before, so the block waits for all work of the device; pass a \
                 living stream that comes after the block's uses",
            ),
            MisuseKind::ForeignPointer => f.write_str(
                "no block in use starts there: it is another resource's, or it was freed before; give each \
                 block back once, to the resource that allocated it",
            ),
            MisuseKind::DoubleFree => f.write_str("the block is free already; deallocate each block once"),
            MisuseKind::WrongSize { allocated_bytes } => write!(
                f,
                "the block was allocated with {allocated_bytes} bytes; pass the same layout to both calls"
            ),
            MisuseKind::WrongDevice => f.write_str(
                "the block belongs to another device; give it back to the resource that allocated it",
            ),
        }
    }
}

/// The process-wide hook's type.
pub type Hook = Arc<dyn Fn(&Misuse) + Send + Sync>;

static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

/// Installs `hook` in place of the default one and returns the one installed before, if any.
/// `None` restores the default.
pub fn set_hook(hook: Option<Hook>) -> Option<Hook> {
    std::mem::replace(&mut *HOOK.write(), hook)
}

thread_local! {
    /// How many calls were refused on this thread.
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

fn refused() -> u64 {
    REFUSED.try_with(Cell::get).unwrap_or_default()
}

/// Runs `free`, a call of `deallocate` on what is below, and returns whether that took the block back. A
/// layer that counts calls this, so that it does not count a block that stays in use.
#[inline]
pub fn is_taken(free: impl FnOnce()) -> bool {
    let before = refused();
    free();
    refused() == before
}

/// Runs `free` as [`is_taken`] does, and `undo` if the block was refused: also if the hook panics. For a
/// layer that has to count before the call.
#[inline]
pub fn undo_if_refused(free: impl FnOnce(), undo: impl FnOnce()) {
    struct Undo<F: FnOnce()> {
        undo: Option<F>,
        before: u64,
    }
    impl<F: FnOnce()> Drop for Undo<F> {
        fn drop(&mut self) {
            if refused() != self.before
                && let Some(undo) = self.undo.take()
            {
                undo();
            }
        }
    }
    let _undo = Undo { undo: Some(undo), before: refused() };
    free();
}

/// Called by resources that refuse a `deallocate`.
///
/// # Panics
/// In builds with debug assertions, if no hook is installed: misuse is a bug of the caller.
pub fn report(misuse: &Misuse) {
    if misuse.kind != MisuseKind::DeadStream {
        let _ = REFUSED.try_with(|refused| refused.set(refused.get() + 1));
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

    fn refuse(kind: MisuseKind) {
        let (ptr, stream) = (DevicePtr::new(256), StreamRef::LEGACY);
        report(&Misuse { kind, ptr, bytes: 1, stream, resource: "test".to_owned() });
    }

    /// The hook is the process's, so that all is in one test.
    #[test]
    fn a_layer_learns_whether_a_block_was_taken_back() {
        let undone = Cell::new(0);
        let undo = || undone.set(undone.get() + 1);
        // Without a hook, a report panics in builds with debug assertions.
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            undo_if_refused(|| refuse(MisuseKind::DoubleFree), undo);
        }));
        assert_eq!((panics.is_err(), undone.get()), (cfg!(debug_assertions), 1));
        set_hook(Some(Arc::new(|_| {})));
        assert!(is_taken(|| {}) && !is_taken(|| refuse(MisuseKind::DoubleFree)));
        assert!(!is_taken(|| refuse(MisuseKind::ForeignPointer)));
        assert!(is_taken(|| refuse(MisuseKind::DeadStream)), "such a block is taken back all the same");
        let inner = || assert!(!is_taken(|| refuse(MisuseKind::WrongDevice)));
        assert!(!is_taken(inner), "a refusal below counts for each layer above");
        let on_another_thread = || std::thread::spawn(|| refuse(MisuseKind::DoubleFree)).join().unwrap();
        assert!(is_taken(on_another_thread));
        undo_if_refused(|| {}, undo);
        assert_eq!(undone.get(), 1);
        undo_if_refused(|| refuse(MisuseKind::DoubleFree), undo);
        assert_eq!(undone.get(), 2);
        set_hook(None);
    }
}
