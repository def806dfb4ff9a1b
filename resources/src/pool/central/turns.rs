//! Orders the calls on a pool's slow path: one at a time, unless that would take long.
//!
//! Threads that grow one after the other take less memory than threads that grow at once. But a call on the
//! slow path runs foreign code: the driver, upstream, a failure callback, a subscriber of `tracing`. Such
//! code may call the pool again, on the same thread or on another one that it waits for.
//!
//! So a turn is a mutex that guards no data, and no call waits for it without end. A call that a thread makes
//! from inside its own other call goes on at once, and any call goes on without a turn after
//! [`TURN_PATIENCE`]. The pool stays correct with any number of calls at once: the plans of each call are in
//! the pool's tables, under the pool's lock, until they are committed or aborted. A mutex suits better than a
//! flag with a condition variable, because it can hand the turn to the thread that has waited longest.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::tuning::TURN_PATIENCE;

/// How long [`Turns::wait_for_end`] sleeps between two looks.
const PAUSE: Duration = Duration::from_micros(50);

thread_local! {
    /// The pools whose slow path this thread is on, by the address of their turns; the innermost last.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The turns of one pool.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Held while foreign code runs. It guards no data, and each wait for it is bounded.
    turn: Mutex<()>,
    /// The number of calls on the slow path, with and without a turn.
    calls: AtomicU32,
}

/// A call on the slow path, until it is dropped.
#[must_use]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    guard: Option<MutexGuard<'a, ()>>,
}

impl Turns {
    /// Begins a call. First waits for other threads' calls, if they end soon.
    pub(crate) fn enter(&self) -> Turn<'_> {
        let guard = if self.is_inside() { None } else { self.turn.try_lock_for(TURN_PATIENCE) };
        self.begin(guard)
    }

    /// Begins a call if no other has the turn.
    pub(crate) fn try_enter(&self) -> Option<Turn<'_>> {
        self.turn.try_lock().map(|guard| self.begin(Some(guard)))
    }

    fn begin<'a>(&'a self, guard: Option<MutexGuard<'a, ()>>) -> Turn<'a> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        // After the thread's locals are destroyed, none of its calls counts as an inner one.
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().push(self.id()));
        Turn { turns: self, guard }
    }

    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns whether this thread is in a call on this slow path already.
    pub(crate) fn is_inside(&self) -> bool {
        INSIDE.try_with(|inside| inside.borrow().contains(&self.id())).unwrap_or(false)
    }

    /// Returns whether the caller's call is the only one. Under the pool's lock, this also means that no
    /// other call holds values that it read earlier.
    pub(crate) fn is_alone(&self) -> bool {
        self.calls.load(Ordering::SeqCst) == 1
    }

    /// Waits until no call is left, when the pool ends; new calls must leave at once. Returns `false` if this
    /// thread is inside such a call itself, since it cannot wait for its own call.
    pub(crate) fn wait_for_end(&self) -> bool {
        while self.calls.load(Ordering::SeqCst) > 0 {
            if self.is_inside() {
                return false;
            }
            thread::sleep(PAUSE);
        }
        true
    }
}

/// Returns whether this thread is in more than one call on the slow paths of any pools. Then a call may wait
/// for an outer call of its own thread.
pub(crate) fn is_nested() -> bool {
    INSIDE.try_with(|inside| inside.borrow().len() > 1).unwrap_or(false)
}

impl Turn<'_> {
    /// Returns whether the call has the turn. Then no other call has it at the same time.
    pub(crate) fn is_mine(&self) -> bool {
        self.guard.is_some()
    }

    /// Lets a waiting call go first. If that takes long, this call goes on without a turn.
    pub(crate) fn let_others_pass(&mut self) {
        if let Some(guard) = self.guard.take() {
            MutexGuard::unlock_fair(guard);
            // Not `MutexGuard::bump`, which waits without end.
            self.guard = self.turns.turn.try_lock_for(TURN_PATIENCE);
        }
    }

    /// Ends the call, and hands the turn to the call that has waited longest.
    pub(crate) fn hand_on(mut self) {
        if let Some(guard) = self.guard.take() {
            MutexGuard::unlock_fair(guard);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let id = self.turns.id();
        let _ = INSIDE.try_with(|inside| {
            let mut inside = inside.borrow_mut();
            if let Some(last) = inside.iter().rposition(|other| *other == id) {
                inside.remove(last);
            }
        });
        self.turns.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An inner call goes on at once and without a turn, whatever other calls are under way.
    #[test]
    fn a_call_from_inside_waits_for_nothing() {
        let turns = Turns::default();
        let outer = turns.enter();
        assert!(outer.is_mine() && turns.is_alone() && !is_nested());
        let inner = turns.enter();
        assert!(!inner.is_mine() && !turns.is_alone() && is_nested());
        assert!(turns.try_enter().is_none() && !turns.wait_for_end());
        drop(inner);
        assert!(turns.is_alone() && !is_nested() && turns.is_inside());
        drop(outer);
        assert!(!turns.is_inside() && turns.wait_for_end());
    }

    /// If each waited for its turn, together they would take longer than a minute and a half.
    #[test]
    fn calls_from_inside_do_not_even_wait_for_a_moment() {
        let (done, all_done) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let turns = Turns::default();
            let _outer = turns.enter();
            (0..1000).for_each(|_| drop(turns.enter()));
            done.send(()).ok();
        });
        assert!(all_done.recv_timeout(Duration::from_secs(60)).is_ok(), "they wait");
    }

    /// A call of another thread goes on without a turn if it gets none in time.
    #[test]
    fn a_turn_that_does_not_end_is_not_waited_for() {
        let turns = Turns::default();
        let other_has_it = || {
            thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let at_once = turns.try_enter().is_some();
                    (at_once, turns.enter().is_mine())
                });
                other.join().expect("it does not panic")
            })
        };
        let mine = turns.enter();
        assert_eq!(other_has_it(), (false, false));
        mine.hand_on();
        assert_eq!(other_has_it(), (true, true));
    }

    /// A call that let others pass goes on without a turn if it gets none back in time.
    #[test]
    fn a_turn_that_was_passed_on_is_not_waited_for() {
        let (done, all_done) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let turns = Turns::default();
            thread::scope(|scope| {
                let (goes_on, has_gone_on) = std::sync::mpsc::channel::<()>();
                let mut mine = turns.enter();
                let turns = &turns;
                scope.spawn(move || {
                    let turn = std::iter::repeat_with(|| turns.enter()).find(Turn::is_mine);
                    has_gone_on.recv().expect_err("the other call ends");
                    drop(turn);
                });
                while mine.is_mine() {
                    mine.let_others_pass();
                }
                drop(goes_on);
            });
            done.send(()).ok();
        });
        assert!(all_done.recv_timeout(Duration::from_secs(60)).is_ok(), "it waits");
    }

    /// The calls of one thread on two pools are told apart.
    #[test]
    fn a_call_on_another_pool_takes_its_turn() {
        let (first, second) = (Turns::default(), Turns::default());
        let outer = first.enter();
        let inner = second.enter();
        assert!(inner.is_mine() && is_nested() && first.is_inside() && second.is_inside());
        drop(outer);
        assert!(!first.is_inside() && second.is_inside() && !is_nested());
    }
}
