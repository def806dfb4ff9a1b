use std::convert::Infallible;
use std::fmt::Debug;

use millpond_core::driver::{Driver, DriverResult};
use millpond_core::misuse::MisuseKind;
use millpond_core::{ALLOCATION_ALIGNMENT, DeviceId, DevicePtr, Layout, LiveBlock};

/// Whose free blocks: an index that [`Streams`](super::streams::Streams) gives to each stream.
pub(crate) type Owner = u32;

/// Free blocks that every stream may use at once: all work on them is known to be done.
pub(crate) const ANYONE: Owner = 0;

/// A stream's time, counted in recorded points. A block that was given back in an epoch is covered by the
/// stream's recorded point of that epoch or any later one.
pub(crate) type Epoch = u64;

/// No request and no region is larger; far beyond any device.
pub(crate) const LARGEST_REQUEST: u64 = 1 << 55;

/// A request, rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// As asked for.
    pub(crate) requested: u64,
    /// Rounded up as the store cuts blocks, to a multiple of 256.
    pub(crate) bytes: u64,
    /// A power of two, at least 256.
    pub(crate) alignment: u64,
    /// Which part of the store the calling thread uses first, where a store has parts.
    pub(crate) shard: u8,
}

impl Request {
    /// `None` when no address space holds that much.
    pub(crate) fn new(layout: Layout) -> Option<Self> {
        let bytes = layout.rounded_bytes()?;
        bytes.checked_add(layout.alignment()).filter(|sum| *sum <= LARGEST_REQUEST)?;
        Some(Self { requested: layout.bytes(), bytes, alignment: layout.alignment(), shard: 0 })
    }

    /// The request rounded up to 256 only: what is tried before memory is out.
    pub(crate) fn exact(&self) -> Self {
        Self { bytes: self.requested.next_multiple_of(ALLOCATION_ALIGNMENT), ..*self }
    }

    /// Bytes that are enough wherever a block of base alignment starts.
    pub(crate) fn padded_bytes(&self) -> u64 {
        self.bytes + (self.alignment - ALLOCATION_ALIGNMENT)
    }
}

/// A free block that would serve a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fit {
    /// The block's size in bytes.
    pub(crate) bytes: u64,
    /// When it was given back.
    pub(crate) epoch: Epoch,
}

/// Whose block served a request without a driver call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hit {
    /// The requesting stream's own.
    Own(DevicePtr),
    /// Anyone's.
    Anyones(DevicePtr),
}

impl Hit {
    pub(crate) fn ptr(self) -> DevicePtr {
        match self {
            Self::Own(ptr) | Self::Anyones(ptr) => ptr,
        }
    }
}

/// How much to take back from threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gather {
    /// The few large blocks.
    Large,
    /// All, if it is worth the work.
    All,
    /// All, however little.
    Everything,
}

/// How far a walk over free blocks has come that looks at a few under each lock: blocks that are passed, or
/// come and go meanwhile, may be missed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cursor {
    /// Which part of the store.
    pub(crate) part: usize,
    /// Smaller blocks of that part are passed.
    pub(crate) bytes: u64,
    pub(crate) is_at_end: bool,
}

impl Cursor {
    /// Goes on with the next of so many parts.
    pub(crate) fn end_part(&mut self, parts: usize) {
        *self = Self { part: self.part + 1, bytes: 0, is_at_end: self.part + 1 >= parts };
    }
}

/// How much to take from upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Growth {
    /// Bytes to try first.
    pub(crate) preferred: u64,
    /// Bytes without which it is no use.
    pub(crate) least: u64,
    /// Sizes in between are multiples of this.
    pub(crate) unit: u64,
}

impl Growth {
    /// The next size to try after `bytes` were refused.
    pub(crate) fn after_refusal(&self, bytes: u64) -> Option<u64> {
        (bytes > self.least).then(|| {
            let half = (bytes / 2).next_multiple_of(self.unit);
            if half < bytes { half.max(self.least) } else { self.least }
        })
    }
}

/// Sizes and counts of a store, without the streams.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct StoreTotals {
    pub(crate) bytes_in_use: u64,
    pub(crate) bytes_requested: u64,
    pub(crate) peak_bytes_in_use: u64,
    pub(crate) bytes_reserved: u64,
    pub(crate) peak_bytes_reserved: u64,
    pub(crate) bytes_beyond_slack: u64,
    pub(crate) blocks_in_use: u64,
    pub(crate) blocks_free: u64,
    pub(crate) regions: u64,
    /// Accepted deallocations so far.
    pub(crate) deallocations: u64,
    /// Allocations that were served past the lock, from the stream's own blocks and from anyone's.
    pub(crate) own_stream: u64,
    pub(crate) completed: u64,
}

/// Where a request stood that could not be served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// The stream that asked.
    pub(crate) owner: Owner,
    /// Whether it captures a graph: then nobody waits for other streams.
    pub(crate) is_capturing: bool,
    /// What the device has free, where memory that the store gives back goes there, and comes from there.
    pub(crate) device_free: Option<u64>,
    /// The size of a page, where the store could have mapped some instead of taking regions.
    pub(crate) page_bytes: Option<u64>,
}

/// What is free for an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeOf {
    pub(crate) owner: Owner,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) largest: u64,
}

/// Why a store could not serve a request, and what would have helped.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// New memory with which the request would be served, beside what is free for its stream.
    pub(crate) needed: u64,
    /// The most that the store may hold.
    pub(crate) maximum_bytes: Option<u64>,
    pub(crate) free: Vec<FreeOf>,
    /// Whether what is free would serve the request if it were all anyone's.
    pub(crate) merging_suffices: bool,
    /// Blocks in use without which the request would be served; none if there are no such.
    pub(crate) in_the_way: Vec<LiveBlock>,
    /// Free pages that would have served it together: how many are needed.
    pub(crate) pages: Option<u64>,
    /// See [`OutOfMemoryReport::map`](millpond_core::OutOfMemoryReport::map).
    pub(crate) map: Option<String>,
}

/// Why a store has no errand that would bring a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// The store may not hold as much as it would need.
    OwnLimit,
    /// It would need more new memory than it was told to plan with.
    NewMemory,
}

/// Memory that a store gets or gives back by itself, past upstream: made and ended under the lock, carried
/// out without it.
pub(crate) trait Errand<S>: Debug + Send {
    /// Bytes of new memory that it takes from the driver.
    fn new_bytes(&self) -> u64;
    /// From now on the new memory is taken in one driver call: all of it, or none.
    fn take_at_once(&mut self);
    /// Makes the driver calls. What was done before an error is undone, or kept for another time.
    fn carry_out(&mut self, driver: &dyn Driver) -> DriverResult<()>;
    /// Ends an errand that was carried out; where it was to bring a block, that block.
    fn finish(self, store: &mut S) -> Option<DevicePtr>;
    /// Ends an errand that failed.
    fn abandon(self, store: &mut S);
    /// Bytes that went back to the driver.
    fn released_bytes(&self) -> u64;
}

/// Of stores that run none.
impl<S> Errand<S> for Infallible {
    fn new_bytes(&self) -> u64 {
        match *self {}
    }

    fn take_at_once(&mut self) {
        match *self {}
    }

    fn carry_out(&mut self, _driver: &dyn Driver) -> DriverResult<()> {
        match *self {}
    }

    fn finish(self, _store: &mut S) -> Option<DevicePtr> {
        match self {}
    }

    fn abandon(self, _store: &mut S) {
        match self {}
    }

    fn released_bytes(&self) -> u64 {
        match *self {}
    }
}

/// The blocks of a stream-ordered resource: which there are, and which are free for whom. Knows no driver and
/// no stream; makes no decision about order.
pub(crate) trait Store: Debug + Send + Sized + 'static {
    /// What the store does past upstream.
    type Errand: Errand<Self>;

    /// Whether any state of memory could serve the request.
    fn can_ever_serve(&self, _request: &Request) -> bool {
        true
    }
    /// Whether the store gets its memory by itself.
    fn runs_errands(&self) -> bool {
        false
    }
    /// An errand that brings a block for `owner`, with at most `most_new` bytes of new memory.
    fn errand_for(
        &mut self,
        _owner: Owner,
        _request: &Request,
        _most_new: u64,
    ) -> Result<Self::Errand, Lack> {
        Err(Lack::OwnLimit)
    }
    /// An errand that brings so many bytes of free memory, with at most `most_new` of new memory.
    fn errand_to_reserve(&mut self, _bytes: u64, _most_new: u64) -> Result<Self::Errand, Lack> {
        Err(Lack::OwnLimit)
    }
    /// An errand that gives memory back which is free for [`ANYONE`], of about so many driver calls, as long
    /// as at least `keep_bytes` are held.
    fn errand_to_release(&mut self, _keep_bytes: u64, _most_calls: usize) -> Option<Self::Errand> {
        None
    }
    /// An errand that gives back one piece of such memory, found within a few looks from the cursor on, as
    /// long as at least `keep_bytes` are held. `None` where nothing was found so far.
    fn errand_for_bite(&mut self, _keep_bytes: u64, _at: &mut Cursor) -> Option<Self::Errand> {
        None
    }
    /// Whether the store holds more than it aims to, and this is a time to give some back: a quick look.
    fn has_excess(&mut self) -> bool {
        false
    }
    /// An errand of some driver calls that gives a part of that back.
    fn errand_to_release_excess(&mut self) -> Option<Self::Errand> {
        None
    }
    /// After growth: an errand of some driver calls that undoes what makes the store slow, if there is much.
    fn errand_to_tidy(&mut self) -> Option<Self::Errand> {
        None
    }
    /// Whether other devices get access by themselves.
    fn admits_peers(&self) -> bool {
        false
    }
    /// An errand that gives other devices access to all memory that the store has; where nobody asked for it
    /// (`is_asked`), to those of them that were not refused it. `None` where there is nothing to do.
    fn errand_to_admit(&mut self, _devices: &[DeviceId], _is_asked: bool) -> Option<Self::Errand> {
        None
    }
    /// An errand that gives everything back, whatever is in use.
    fn errand_to_end(&mut self) -> Option<Self::Errand> {
        None
    }
    /// The request as blocks are cut for it, or `None` when no address space holds that much.
    fn request(&self, layout: Layout) -> Option<Request> {
        Request::new(layout)
    }
    /// Makes room for the free blocks of this owner.
    fn add_owner(&mut self, owner: Owner);
    /// Ends an owner that has no free blocks.
    fn remove_owner(&mut self, owner: Owner);
    /// The best free block of `owner` for `request`, among those given back in epoch `upto` or before. Where
    /// other threads come in between, it may be gone when it is taken.
    fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Fit>;
    /// Hands the best such block out; what is left over stays with its owner.
    fn take(&mut self, owner: Owner, upto: Epoch, request: &Request) -> Option<DevicePtr>;
    /// Hands out the better of the best block of `owner` and the best of anyone's, or any of the owner's
    /// first (`is_own_first`).
    fn hit(&mut self, owner: Owner, request: &Request, is_own_first: bool) -> Option<Hit> {
        let own = self.find(owner, Epoch::MAX, request);
        let anyones = self.find(ANYONE, Epoch::MAX, request);
        let prefers_anyones = match (own, anyones) {
            (Some(own), Some(free)) => !is_own_first && free.bytes < own.bytes,
            (own, _) => own.is_none(),
        };
        if prefers_anyones {
            anyones.and_then(|_| self.take(ANYONE, Epoch::MAX, request)).map(Hit::Anyones)
        } else {
            self.take(owner, Epoch::MAX, request).map(Hit::Own)
        }
    }
    /// Takes back what threads keep for themselves, or what is quickly taken back; says whether there was
    /// anything.
    fn gather(&mut self, _how: Gather) -> bool {
        false
    }
    /// The same, where there is a request perhaps without threads that use another part of the store.
    fn gather_for(&mut self, _request: Option<&Request>, how: Gather) -> bool {
        self.gather(how)
    }
    /// Takes a block back for `owner`, or says why not.
    fn give(&mut self, ptr: DevicePtr, layout: Layout, owner: Owner, epoch: Epoch) -> Result<(), MisuseKind>;
    /// Moves free blocks given back in epoch `upto` or before to another owner, as given back in `epoch`.
    fn migrate(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch);
    /// The same for those that could serve `request`, if there is one and they were the requester's: all,
    /// unless the store has parts, and the request is not served from some. Says whether it was all.
    fn migrate_for(
        &mut self,
        _request: Option<&Request>,
        from: Owner,
        upto: Epoch,
        to: Owner,
        epoch: Epoch,
    ) -> bool {
        self.migrate(from, upto, to, epoch);
        true
    }
    /// As [`migrate`](Self::migrate), for a few of them, from the cursor on.
    fn migrate_bite(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch, at: &mut Cursor) {
        self.migrate(from, upto, to, epoch);
        at.is_at_end = true;
    }
    /// Hands out a block that reaches over neighbours, some of `owner` and some that are anyone's.
    fn take_with_anyones(&mut self, owner: Owner, request: &Request) -> Option<DevicePtr>;
    /// Bytes in the free blocks of an owner.
    fn free_bytes(&self, owner: Owner) -> u64;
    /// Bytes in those that could serve `request`, if there is one and they were the requester's.
    fn free_bytes_for(&self, _request: Option<&Request>, owner: Owner) -> u64 {
        self.free_bytes(owner)
    }
    /// The size of the largest free block, of whatever owner.
    fn largest_free_block(&self) -> u64;
    /// What to take from upstream to serve `request`, or `None` if nothing would.
    fn growth(&self, request: &Request) -> Option<Growth>;
    /// Upstream refused memory, or the store's own limit does: from here on, none is spared.
    fn refused(&mut self) {}
    /// Adds memory from upstream as one free block (or several) of `owner`.
    fn add_region(&mut self, base: DevicePtr, bytes: u64, owner: Owner, epoch: Epoch);
    /// Removes a region that is free for [`ANYONE`] from end to end.
    fn remove_free_region(&mut self) -> Option<(DevicePtr, u64)>;
    /// Removes all regions, whatever is in use.
    fn remove_all_regions(&mut self) -> Vec<(DevicePtr, u64)>;
    /// Sizes and counts.
    fn totals(&self) -> StoreTotals;
    /// Bytes that are held and not handed out: at least as many as there are, where threads go on meanwhile.
    fn idle_bytes(&self) -> u64 {
        let totals = self.totals();
        totals.bytes_reserved.saturating_sub(totals.bytes_in_use)
    }
    /// Whether what is held idle is so much that a request of these bytes may be served from it: a quick
    /// look.
    fn has_idle(&self, bytes: u64) -> bool {
        self.idle_bytes() >= bytes
    }
    /// What a report says of a request that could not be served, and what would have helped.
    fn shortage(&mut self, request: &Request, room: &Room) -> Shortage;
    /// Walks the whole structure and panics where an invariant does not hold.
    fn validate(&self);
}
