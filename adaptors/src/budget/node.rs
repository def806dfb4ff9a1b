//! One budget of a tree: its limit, its guarantee, and the bytes that count against both.

use std::fmt;
use std::iter;
use std::mem;
use std::sync::Arc;
// The tree's lock orders the sums, so models need not interleave them.
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::{Error, Result, format_bytes};

use super::settings::{Settings, Zero};
use crate::panicked::caught;
use crate::sync::{Mistake, Mutex, has_failed, makes};

/// A holder's function. The argument is the number of bytes that another budget needs back.
pub(crate) type CallBack = dyn Fn(u64) + Send + Sync;

/// A budget. All budgets of a tree share one `T`.
pub(crate) struct Node<T> {
    pub(crate) settings: Settings,
    pub(crate) limit: u64,
    pub(crate) guaranteed: u64,
    pub(crate) parent: Option<Arc<Self>>,
    pub(crate) tree: Arc<T>,
    /// The bytes that this budget and the budgets below have taken: live bytes and the accounts' stocks.
    /// Changes only under the tree's lock.
    charged: AtomicU64,
    /// The bytes that waiting requests have a guarantee for, from budgets below. Only other guaranteed
    /// requests may take them. Changes only under the tree's lock.
    claimed: AtomicU64,
    /// The bytes of the waiting requests that this budget's guarantee covers. Changes only under the tree's
    /// lock.
    wanted: AtomicU64,
    /// The sum of the guarantees of the budgets directly below.
    promised: AtomicU64,
    on_call_back: Mutex<Option<Arc<CallBack>>>,
}

/// The budget that refuses a request.
pub(crate) struct Refusing<'a, T> {
    pub(crate) node: &'a Arc<Node<T>>,
    /// The nearest budget below `node` whose guarantee covers the request.
    pub(crate) guarantor: Option<&'a Arc<Node<T>>>,
    /// The bytes of `node` that are kept from this request, for requests that wait.
    pub(crate) claimed: u64,
}

impl<T: Default> Node<T> {
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the guarantee is larger than the
    /// limit, or larger than the rest of the parent's guarantee.
    pub(crate) fn new(
        settings: Settings,
        limit: u64,
        guaranteed: u64,
        parent: Option<Arc<Self>>,
    ) -> Result<Arc<Self>> {
        let wrong = |why: String| Error::invalid_argument(format!("the budget `{}`: {why}", settings.name));
        if guaranteed > limit {
            let (guaranteed, limit) = (format_bytes(guaranteed), format_bytes(limit));
            return Err(wrong(format!("it guarantees {guaranteed}, more than its limit of {limit}")));
        }
        match &parent {
            Some(parent) if !parent.promise(guaranteed) => {
                let (name, bytes) = (&parent.settings.name, format_bytes(parent.may_promise()));
                let promised = format_bytes(parent.promised.load(Ordering::Relaxed));
                return Err(wrong(format!(
                    "it guarantees {}, and the other budgets below `{name}` {promised}; `{name}` can \
                     guarantee {bytes} in all",
                    format_bytes(guaranteed)
                )));
            }
            None if guaranteed > 0 => {
                return Err(wrong("it has no parent to guarantee it a share; add `parent`".to_owned()));
            }
            _ => {}
        }
        let tree = parent.as_ref().map_or_else(Arc::default, |parent| Arc::clone(&parent.tree));
        Ok(Arc::new(Self {
            settings,
            limit,
            guaranteed,
            parent,
            tree,
            charged: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            on_call_back: Mutex::default(),
        }))
    }
}

impl<T> Node<T> {
    /// Returns the most bytes that the budgets directly below may guarantee. A budget below another one
    /// passes on its own guarantee, so that each guarantee holds up to the root.
    fn may_promise(&self) -> u64 {
        if self.parent.is_none() { self.limit } else { self.guaranteed }
    }

    fn promise(&self, bytes: u64) -> bool {
        let most = self.may_promise();
        let more = |promised: u64| promised.checked_add(bytes).filter(|sum| *sum <= most);
        self.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Returns this budget and all budgets above, up to the root.
    pub(crate) fn path(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        iter::successors(Some(self), |node| node.parent.as_ref())
    }

    pub(crate) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Returns the bytes beyond the guarantee.
    pub(crate) fn borrowed(&self) -> u64 {
        self.charged().saturating_sub(self.guaranteed)
    }

    /// Returns the nearest budget on the path that has no room for a request; `None` if the request fits. If
    /// no request of this size ever fits, returns the budget with the least limit. The caller has withdrawn
    /// the request's own claim.
    pub(crate) fn refusing(self: &Arc<Self>, bytes: u64) -> Option<Refusing<'_, T>> {
        let mut guarantor = None;
        for node in self.path() {
            let is_free = guarantor.is_some() || makes(Mistake::BorrowsClaimed);
            let claimed = if is_free { 0 } else { node.claimed.load(Ordering::Relaxed) };
            let with = node.charged().checked_add(bytes);
            if with.and_then(|sum| sum.checked_add(claimed)).is_none_or(|sum| sum > node.limit) {
                let tightest = self.path().min_by_key(|node| node.limit).filter(|node| bytes > node.limit);
                return Some(Refusing { node: tightest.unwrap_or(node), guarantor, claimed });
            }
            if guarantor.is_none() && with.is_some_and(|sum| sum <= node.guaranteed) {
                guarantor = Some(node);
            }
        }
        None
    }

    /// Returns the bytes that fit, on the whole path.
    pub(crate) fn room(self: &Arc<Self>) -> u64 {
        let room = |node: &Arc<Self>| {
            node.limit.saturating_sub(node.charged()).saturating_sub(node.claimed.load(Ordering::Relaxed))
        };
        self.path().map(room).min().unwrap_or(0)
    }

    #[cfg(test)]
    pub(crate) fn wanted_bytes(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Adds bytes that fit, or that are negative. The caller holds the tree's lock.
    pub(crate) fn add(self: &Arc<Self>, bytes: i128) {
        self.change(bytes, 0);
    }

    /// Keeps bytes, or fewer of them if the number is negative, for a request that this budget guarantees, in
    /// every budget above. Several requests together keep no more than is left of the guarantee. The caller
    /// holds the tree's lock.
    pub(crate) fn claim(self: &Arc<Self>, bytes: i128) {
        self.change(0, bytes);
    }

    /// Changes the live bytes on the path, the bytes that this budget's waiting requests want, and the
    /// bytes that the budgets above keep for them.
    fn change(self: &Arc<Self>, charged: i128, mut wanted: i128) {
        let mut claimed = 0;
        for node in self.path() {
            let before = node.kept_above();
            add(&node.charged, charged);
            add(&node.wanted, mem::take(&mut wanted));
            add(&node.claimed, claimed);
            claimed = i128::from(node.kept_above()) - i128::from(before);
        }
    }

    /// Returns the bytes that the parent keeps for requests of this budget and of the budgets below.
    fn kept_above(&self) -> u64 {
        let below = self.claimed.load(Ordering::Relaxed);
        let left = self.guaranteed.saturating_sub(self.charged()).saturating_sub(below);
        below.saturating_add(self.wanted.load(Ordering::Relaxed).min(left))
    }

    /// Returns whether this budget or one above clears memory.
    pub(crate) fn clears(self: &Arc<Self>) -> bool {
        self.path().any(|node| node.settings.zero == Zero::Handover)
    }

    /// Sets the function, and returns the earlier one. The caller drops it, because that may run code of the
    /// program.
    pub(crate) fn set_on_call_back(&self, call_back: Option<Arc<CallBack>>) -> Option<Arc<CallBack>> {
        mem::replace(&mut *self.on_call_back.lock(), call_back)
    }

    pub(crate) fn on_call_back(&self) -> Option<Arc<CallBack>> {
        self.on_call_back.lock().clone()
    }
}

/// Adds to a sum that changes only under the tree's lock.
pub(crate) fn add(sum: &AtomicU64, bytes: i128) {
    let after = i128::from(sum.load(Ordering::Relaxed)) + bytes;
    sum.store(u64::try_from(after.max(0)).unwrap_or(u64::MAX), Ordering::Relaxed);
}

impl<T> Drop for Node<T> {
    fn drop(&mut self) {
        if has_failed() {
            return;
        }
        if let Some(parent) = &self.parent {
            parent.promised.fetch_sub(self.guaranteed, Ordering::Relaxed);
        }
        // The last handle may be a request's of another budget, which a panic of this one is no matter of.
        let on_call_back = mem::take(&mut self.on_call_back);
        let _ = caught(|| drop(on_call_back));
    }
}

impl<T> fmt::Debug for Node<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("name", &self.settings.name).finish_non_exhaustive()
    }
}
