//! Limits the live bytes by budgets in a tree, which lend each other unused shares.
//!
//! # The tree
//! A budget has a name, a limit in bytes, and, except for the root, a parent. A request counts in its own
//! budget and in all budgets above. Each of them refuses the request if it would exceed that budget's limit.
//! So the limits of a parent's budgets may be larger, in sum, than the parent's limit: a budget may use what
//! its siblings leave.
//!
//! A budget may have a guarantee. Other budgets may borrow the bytes of the guarantee while they are unused.
//! If a request within the guarantee is then refused above, the request calls the bytes back:
//!
//! 1. No budget may borrow the bytes that the request waits for.
//! 2. The request asks the budgets that use more than their own guarantee: the lowest priority first, then
//!    the largest debt. It calls the functions of [`Budget::on_call_back`], of the budget and of those above
//!    that it does not share with the guarantee. Then it trims the stack of the resource above the budget, if
//!    a text built it. So a pool above the budget gives back its free memory, which may wait for the device.
//!    The resources below the budget are not trimmed.
//! 3. The request waits for frees, at most the time [`wait`](BudgetLayer::wait). Then it fails. The error
//!    names the budget that refused, the budgets that hold its bytes, and the budgets that were asked.
//!
//! The bytes of a guarantee are not set aside, because then they would stay unused. Only a request within
//! a guarantee waits; any other request fails at once.
//!
//! # Counting
//! A thread takes more bytes from the budgets than its request needs, as a stock. So most calls change only
//! the stock of their thread, whatever the depth of the tree. If a budget refuses a request, the stocks of
//! the whole tree go back to the budgets first. So the count is exact: a budget refuses only a request that
//! does not fit at that moment, and never exceeds its limit. While a request waits, threads keep no stocks,
//! so a free serves the request at once.
//!
//! # Cleared memory
//! With [`Zero::Handover`], a budget clears each block that it gets from the layer below, on the stream of
//! the request. The budget does not look at addresses to find the earlier owner of a block, because a pool
//! may map the pages of one budget at an address of another. To clear only memory that changes hands, put the
//! pool above the budget (`cuda+budget:…,zero=handover+pool`): then the pool reuses its own blocks as they
//! are.

mod account;
mod handle;
pub(crate) mod layer;
#[cfg(all(test, millpond_loom))]
mod models;
mod names;
mod node;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::call;
use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Error, ErrorKind, FailureKind, FailureTally,
    LayerMemory, Layout, MemoryInfo, OthersBelow, OutOfMemoryReport, Remedy, ReportsMemory, Result, Stack,
    StreamRef, Traits, debug_as_text, format_bytes, forward_to_upstream, is_same, misuse,
};

pub use handle::Budget;
pub use layer::BudgetLayer;
pub use settings::Zero;

use account::{Account, BudgetNode, Member, Refusal, is_calling_back};

/// Charges requests to a budget, and refuses requests that a budget has no room for. See [the module](self).
///
/// The adaptor counts a request before it calls the upstream, and until the upstream has taken the block
/// back. It keeps no list of blocks. When the adaptor is dropped, its live bytes stop to count.
///
/// If a request comes from below a lock ([`thread_safe`](crate::ThreadSafeResourceAdaptor)), the request asks
/// no other budget, and the layer with the lock waits instead. On a stream that captures a graph, a request
/// waits, but asks no other budget.
///
/// ```
/// use std::sync::Arc;
///
/// use millpond_adaptors::BudgetLayer;
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let cuda = Arc::new(CudaMemoryResource::new(SimDevice::new(SimConfig::h200())));
/// let job = BudgetLayer::new("job", 4 << 20).open(&**cuda.driver())?;
/// let etl = Arc::clone(&cuda).layer(BudgetLayer::new("etl", 4 << 20).parent("job"))?;
/// let train = cuda.layer(BudgetLayer::new("train", 4 << 20).parent("job").guaranteed(2 << 20))?;
///
/// let block = etl.allocate_bytes(3 << 20, StreamRef::LEGACY)?; // borrows 1 MiB
/// assert_eq!(job.used_bytes(), 3 << 20);
/// let error = train.allocate_bytes(2 << 20, StreamRef::LEGACY).unwrap_err();
/// assert!(error.to_string().contains("the budget `job` refused the request"), "{error}");
/// # // SAFETY: the block is live, unused, and freed with its layout.
/// # unsafe { etl.deallocate_bytes(block, 3 << 20, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct BudgetResourceAdaptor<R> {
    /// Dropped before the account, so that the upstream has its memory back when the bytes stop to count.
    upstream: R,
    member: Member,
    clears: bool,
    failures: FailureTally,
}

impl<R: DeviceMemoryResource> BudgetResourceAdaptor<R> {
    fn new(upstream: R, budget: &Budget) -> Result<Self> {
        let node = &budget.0;
        if let Some(below) = charged_below(upstream.stack(), node) {
            return Err(Error::invalid_argument(format!(
                "a layer below already charges the budget `{}` of the same tree, so the budget `{}` would \
                 count each request twice; build both on the resource below that layer",
                below.name(),
                budget.name()
            )));
        }
        let clears = node.clears();
        if clears && !upstream.accessibility().device {
            return Err(Error::invalid_argument(format!(
                "the budget `{}` clears memory (`zero=handover`), and the device cannot access the memory of \
                 `{upstream}`; leave `zero` out",
                budget.name()
            )));
        }
        Ok(Self {
            upstream,
            member: Member::new(Arc::clone(node)),
            clears,
            failures: FailureTally::default(),
        })
    }

    /// Refuses to allocate on a stream on which no block can be cleared: each launch of the graph would clear
    /// the block again, even when it belongs to another caller.
    fn check_clearing(&self, bytes: u64, stream: StreamRef) -> Result<()> {
        if !self.clears || bytes == 0 || !self.is_capturing(stream)? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            "the stream captures a graph, so the budget cannot clear the block (`zero=handover`); allocate \
             before the capture, or leave `zero` out",
        ))
    }

    fn is_capturing(&self, stream: StreamRef) -> Result<bool> {
        call(&**self.driver(), |driver| driver.stream_is_capturing(stream))
    }

    fn clear(&self, block: &Uncleared<'_, R>) -> Result<()> {
        let Uncleared { ptr, layout, stream, .. } = *block;
        // SAFETY: the block is live, holds that many bytes, and is ordered for this stream.
        call(&**self.driver(), |driver| unsafe { driver.memset_d8_async(ptr, 0, layout.bytes(), stream) })
    }

    #[cold]
    fn refused(&self, refusal: &Refusal, bytes: u64, layout: Layout, stream: StreamRef) -> Error {
        let (name, limit) = (&refusal.node.settings.name, refusal.node.limit);
        let is_impossible = bytes > limit;
        let holder = |(node, bytes): &(Arc<BudgetNode>, u64)| match node.guaranteed {
            0 => format!("`{}` {}", node.settings.name, format_bytes(*bytes)),
            guaranteed => format!(
                "`{}` {} ({} guaranteed)",
                node.settings.name,
                format_bytes(*bytes),
                format_bytes(guaranteed)
            ),
        };
        let held: Vec<String> = refusal.holders.iter().filter(|(_, bytes)| *bytes > 0).map(holder).collect();
        let by = if held.is_empty() { String::new() } else { format!(" by {}", held.join(", ")) };
        let asked = if refusal.asked.is_empty() {
            String::new()
        } else {
            let wait = self.member.node.settings.wait;
            format!("; {} did not give back enough within {wait:?}", refusal.asked.join(", "))
        };
        let kept = match refusal.claimed {
            0 => String::new(),
            claimed => format!(", and {} are kept for requests that wait", format_bytes(claimed)),
        };
        let message = if is_impossible {
            format!(
                "the budget `{name}` refused the request, which is larger than the limit of {}; raise it, or \
                 request less; the layer below was not asked",
                format_bytes(limit)
            )
        } else {
            format!(
                "the budget `{name}` refused the request: its limit is {}, and {} are in use{by}{kept}\
                 {asked}; free blocks, or raise the limit; the layer below was not asked",
                format_bytes(limit),
                format_bytes(refusal.used)
            )
        };
        let mut report = OutOfMemoryReport::new(layout, stream);
        let taken = u128::from(refusal.used) + u128::from(refusal.claimed);
        let short = (taken + u128::from(bytes)).saturating_sub(u128::from(limit));
        let short = u64::try_from(short).unwrap_or(u64::MAX);
        report.kind = FailureKind::Budget;
        report.is_impossible = is_impossible;
        report.short_bytes = Some(short);
        (report.held_bytes, report.live_bytes) = (refusal.used, refusal.used);
        report.maximum_bytes = Some(limit);
        report.remedies = vec![Remedy::raise_maximum(short, false)];
        Error::out_of_memory(layout, stream).context(message).with_report(report)
    }
}

/// Returns a budget of the node's tree that a layer of the stack charges.
fn charged_below(stack: Stack<'_>, node: &BudgetNode) -> Option<Budget> {
    let mut budgets = stack.clone().with::<dyn crate::AllocationBudget>().map(|layer| layer.budget());
    budgets.find(|budget| Arc::ptr_eq(&budget.0.tree, &node.tree)).or_else(|| {
        let mut others = stack.with::<dyn OthersBelow>().flat_map(|layer| layer.others_below());
        others.find_map(|other| charged_below(other, node))
    })
}

impl<R> BudgetResourceAdaptor<R> {
    fn account(&self) -> &Arc<Account> {
        self.member.account()
    }

    /// Returns the budget that the adaptor charges.
    pub fn budget(&self) -> Budget {
        Budget(Arc::clone(&self.member.node))
    }
}

/// The bytes of a charged request. They are given back if the request fails, or panics.
struct Charged<'a> {
    account: &'a Account,
    bytes: u64,
}

impl Drop for Charged<'_> {
    fn drop(&mut self) {
        self.account.release(self.bytes);
    }
}

/// A new block, before the caller gets it. It goes back if it cannot be cleared, or if that panics.
struct Uncleared<'a, R: DeviceMemoryResource> {
    upstream: &'a R,
    ptr: DevicePtr,
    layout: Layout,
    stream: StreamRef,
}

impl<R: DeviceMemoryResource> Drop for Uncleared<'_, R> {
    fn drop(&mut self) {
        // SAFETY: the block came from upstream with this layout and stream, and only the fill may use it.
        unsafe { self.upstream.deallocate(self.ptr, self.layout, self.stream) }
    }
}

// SAFETY: every call that is not refused goes to the upstream with the same arguments, so its contract holds.
// A refused request allocates nothing. A new block is cleared on the stream of the call, as
// `is_stream_ordered` says.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for BudgetResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let here = |error| self.failures.noted(error).on_device(self.driver().device()).in_stack(self);
        let Some(bytes) = layout.rounded_bytes() else {
            return Err(here(Error::request_too_large(layout, stream)));
        };
        self.check_clearing(bytes, stream).map_err(|error| here(error.for_request(layout, stream)))?;
        // An error of the question means that asking others is not safe either.
        let is_capturing = || !matches!(self.is_capturing(stream), Ok(false));
        self.member
            .charge(bytes, is_capturing)
            .map_err(|refusal| here(self.refused(&refusal, bytes, layout, stream)))?;
        let charged = Charged { account: &self.member, bytes };
        let ptr = self.upstream.allocate(layout, stream).map_err(here)?;
        if self.clears && !ptr.is_null() {
            let block = Uncleared { upstream: &self.upstream, ptr, layout, stream };
            self.clear(&block).map_err(|error| here(error.for_request(layout, stream)))?;
            std::mem::forget(block);
        }
        std::mem::forget(charged);
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // SAFETY: the caller's promises hold for the upstream too: the block came from there.
        let free = || unsafe { self.upstream.deallocate(ptr, layout, stream) };
        let bytes = if ptr.is_null() { 0 } else { layout.rounded_bytes().unwrap_or(0) };
        misuse::if_taken(ptr, free, || self.member.release(bytes));
    }

    /// Returns the upstream's memory. `free` is at most the room in each budget.
    fn memory_info(&self) -> Result<MemoryInfo> {
        let info = self.upstream.memory_info().map_err(|error| error.in_stack(self))?;
        let (_, room) = self.member.node.used_and_room();
        Ok(MemoryInfo { free: info.free.min(room), ..info })
    }

    /// An adaptor is equal only to itself. If another adaptor freed a block of this adaptor, the count of
    /// live bytes would stay too high.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        self.clears || self.upstream.is_stream_ordered()
    }

    /// Trims the upstream, except while a budget calls back: the memory below belongs to others, too.
    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        if is_calling_back() {
            Ok(0)
        } else {
            self.upstream.trim(keep_bytes).map_err(|error| error.in_stack(self))
        }
    }

    fn provide(&self, traits: &mut Traits) {
        traits
            .add::<Self, dyn crate::AllocationBudget>(|it| it)
            .add::<Self, dyn crate::AllocationLimit>(|it| it)
            .add::<Self, FailureTally>(|it| &it.failures)
            .add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(
        except allocate, deallocate, memory_info, is_equal, is_stream_ordered, trim, provide
    );
}

impl<R: fmt::Display> fmt::Display for BudgetResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.upstream, self.member.node.settings)
    }
}

debug_as_text!(BudgetResourceAdaptor<R: fmt::Display>);

impl<R> crate::AllocationBudget for BudgetResourceAdaptor<R> {
    fn budget(&self) -> Budget {
        self.budget()
    }
}

impl<R> crate::AllocationLimit for BudgetResourceAdaptor<R> {
    fn limit_bytes(&self) -> u64 {
        self.member.node.limit
    }

    fn allocated_bytes(&self) -> u64 {
        self.budget().used_bytes()
    }
}

impl<R: DeviceMemoryResource> ReportsMemory for BudgetResourceAdaptor<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.limit_bytes = Some(self.member.node.limit);
        memory.limit_used_bytes = Some(self.budget().used_bytes());
        memory
    }
}
