//! The store of pages, as the pool sees it.

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceId};

use crate::block_map::{Block, BlockMap, ChunkId};
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::{Fit, Request, Taken, Whose};
use crate::store::pages::Refused;
use crate::store::pages::handles::{AddressRange, Handle};
use crate::store::pages::state::{Pages, unpack};
use crate::store::{Committed, Need, NewSpan, NoMemory, Purpose, Returning, Store, Task, Totals};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{DEVICE_PAGE, LEAST_PIECE};

impl Pages {
    fn no_memory(&self, refused: &Refused) -> NoMemory {
        if self.is_at_limit(refused) { NoMemory::OwnLimit } else { NoMemory::Below(None) }
    }

    /// Plans access of other devices, if no task is under way.
    pub(crate) fn plan_admission_task(&mut self, devices: &[DeviceId], is_asked: bool) -> Option<Task> {
        let admission = self.plan_admission(devices, is_asked)?;
        (self.under_way, self.admissions) = (self.under_way + 1, self.admissions + 1);
        Some(Task::Admit(admission))
    }

    /// Returns the least bytes at the free end of a handle with which a stitched block may begin or end;
    /// `None` for a request that is never stitched.
    pub(crate) fn least_piece(&self, request: &Request) -> Option<u64> {
        let is_plain =
            request.alignment == ALLOCATION_ALIGNMENT && self.range_of(request) == AddressRange::Large;
        is_plain.then_some(LEAST_PIECE)
    }

    /// Returns whether a stream's chunks join unowned ones when a block next to them is freed. They do in the
    /// heap of large blocks, but not in the heap of spans.
    pub(crate) fn joins_with_unowned(heap: usize) -> bool {
        heap == AddressRange::Large as usize
    }

    /// Returns the bytes of new memory that serve the request without any free bytes.
    pub(crate) fn needed_alone(&self, request: &Request) -> u64 {
        let is_aligned = request.alignment <= self.granularity;
        self.whole_granules(if is_aligned { request.bytes } else { request.padded_bytes() })
    }

    /// Returns whether no task is under way.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.under_way == 0
    }
}

impl Store for Pages {
    fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Fit> {
        let found = self.find_best(Whose::Of(owner, upto), request)?;
        Some(Fit { bytes: found.bytes, epoch: found.epoch })
    }

    fn take(&mut self, whose: Whose, request: &Request) -> Option<Taken> {
        self.take_best(whose, request)
    }

    fn take_span(&mut self, whose: Whose, wanted: u64, request: &Request, anywhere: bool) -> Option<NewSpan> {
        let (chunk, base, bytes, epoch) = match whose {
            Whose::Joined(owner) => {
                let Taken { chunk, addr, epoch, .. } = self.take_with_unowned(owner, request)?;
                (chunk, addr, request.bytes, epoch)
            }
            Whose::Of(owner, upto) => self.cut_span_of(owner, upto, wanted, request, anywhere)?,
            Whose::OwnOrUnowned { .. } => return None,
        };
        // The first small block has the address of the span.
        self.remove_block(chunk);
        Some(NewSpan { chunk, region: 0, base, bytes, epoch })
    }

    fn insert_block(&mut self, block_map: &BlockMap, block: Block, addr: u64) {
        let (range, chunk) = unpack(block.chunk);
        let heap = self.heap_mut(range);
        if heap.chunk(chunk).addr == addr {
            heap.insert_block(block_map, chunk, block);
        } else {
            block_map.insert(addr, Block { is_in_alias: true, ..block });
        }
    }

    fn free(&mut self, block: ChunkId, owner: Owner, epoch: Epoch) {
        self.free_block(block, owner, epoch);
    }

    fn plan(&mut self, need: &Need) -> Result<Task, NoMemory> {
        let Need { owner, mut purpose, most_new, live_bytes, operations, .. } = *need;
        let plan = match purpose {
            Purpose::Reserve { bytes } => self.plan_reserve(bytes, most_new),
            Purpose::Block(request) => {
                self.note_operations(operations);
                self.plan_block(owner, &request, false, live_bytes, most_new)
            }
            Purpose::Span(request, bytes) => {
                self.note_operations(operations);
                let mut span_of = |bytes| {
                    let span = Request { bytes, ..request };
                    self.plan_block(ANY_STREAM, &span, true, live_bytes, most_new)
                };
                let plan = span_of(bytes);
                // Contending threads want larger spans, for which there may be no room.
                if plan.is_err() && bytes > DEVICE_PAGE {
                    purpose = Purpose::Span(request, DEVICE_PAGE);
                    span_of(DEVICE_PAGE)
                } else {
                    plan
                }
            }
        };
        let plan = plan.map_err(|refused| self.no_memory(&refused))?;
        self.under_way += 1;
        Ok(Task::Map { plan, purpose })
    }

    fn plan_release(&mut self, which: Returning<'_>) -> Option<Task> {
        if self.admissions > 0 {
            if let Returning::Step { at, .. } = which {
                at.is_at_end = true;
            }
            return None;
        }
        let release = match which {
            Returning::Free { keep_bytes, most_calls } => self.plan_release_of(keep_bytes, most_calls, false),
            Returning::Step { keep_bytes, at } => self.plan_release_step(keep_bytes, at),
            Returning::Excess { calls_of_look } => self.plan_excess(calls_of_look),
            Returning::Mappings => self.plan_tidying(),
        }?;
        self.under_way += 1;
        Some(Task::Release(release))
    }

    fn plan_shutdown(&mut self) -> Task {
        // Counted until the pool's parts are gone.
        self.returning = self.bytes_reserved();
        Task::Release(self.release_all())
    }

    fn commit(&mut self, task: Task) -> Committed {
        match task {
            Task::Map { plan, purpose } => {
                self.under_way -= 1;
                match purpose {
                    Purpose::Block(request) => {
                        let (chunk, addr) = self.commit_block(plan);
                        Committed::Block { chunk, addr, request }
                    }
                    Purpose::Span(request, bytes) => {
                        let (chunk, base) = self.commit_block(plan);
                        self.remove_block(chunk);
                        Committed::Span(NewSpan { chunk, region: 0, base, bytes, epoch: 0 }, request)
                    }
                    Purpose::Reserve { .. } => {
                        self.add_handles(&plan);
                        Committed::Nothing
                    }
                }
            }
            Task::Admit(admission) => {
                (self.under_way, self.admissions) = (self.under_way - 1, self.admissions - 1);
                self.commit_admission(&admission);
                Committed::Nothing
            }
            task => {
                self.abort(task);
                Committed::Nothing
            }
        }
    }

    fn abort(&mut self, task: Task) {
        self.under_way -= 1;
        match task {
            Task::Map { plan, .. } => self.abort_plan(plan),
            Task::Release(release) => self.commit_release(release),
            Task::Admit(admission) => {
                self.admissions -= 1;
                self.abort_admission(&admission);
            }
            Task::Region(_) | Task::Return(_) => unreachable!("pages have no regions"),
        }
    }

    fn heaps(&self) -> &[Heap] {
        &self.heaps
    }

    fn heaps_mut(&mut self) -> &mut [Heap] {
        &mut self.heaps
    }

    fn bytes_reserved(&self) -> u64 {
        self.held()
    }

    fn totals(&self) -> Totals {
        let sum = |of: fn(&Heap) -> u64| self.heaps.iter().map(of).sum::<u64>();
        Totals {
            bytes_reserved: self.bytes_reserved(),
            peak_bytes_reserved: self.peak_bytes_reserved,
            bytes_returning: self.returning,
            bytes_free: sum(|heap| heap.bytes_free),
            blocks_free: sum(|heap| heap.blocks_free),
            blocks_in_use: sum(|heap| heap.blocks_in_use) - self.extra_pieces,
            regions: self.handles.len(),
            mappings: self.aliases.mappings,
            beyond_slack: self.beyond_slack,
        }
    }

    fn bytes_of(&self, block: ChunkId) -> u64 {
        self.each_piece_of(block).map(|piece| piece.bytes).sum()
    }

    fn pieces_of(&self, block: ChunkId) -> Vec<&Chunk> {
        self.each_piece_of(block).collect()
    }

    fn first_piece(&self, block: ChunkId) -> Option<&Chunk> {
        let (range, chunk) = unpack(block);
        self.heap(range).get(chunk)
    }

    fn chunk_at(&self, addr: u64) -> Option<&Chunk> {
        let primary = match self.aliases.at(addr) {
            Some((handle, start)) => self.handles.get(handle).primary + (addr - start),
            None => addr,
        };
        self.heaps.iter().find_map(|heap| heap.chunk_at(primary))
    }

    fn parts(&self) -> Vec<(u64, u64, bool)> {
        let part = |(_, it): (_, &Handle)| (it.primary, it.bytes, it.range == AddressRange::Large);
        self.handles.iter().map(part).collect()
    }

    fn needed(&mut self, owner: Owner, request: &Request, is_span: bool) -> u64 {
        match self.plan_block(owner, request, is_span, 0, 0) {
            Ok(plan) => {
                self.abort_plan(plan);
                0
            }
            Err(Refused(needed)) => needed,
        }
    }

    fn set_short(&mut self, is_short: bool) {
        self.is_short = is_short;
    }

    fn validate(&self) {
        self.validate_all();
    }

    #[cfg(test)]
    fn raise_maximum(&mut self, bytes: u64) {
        self.maximum_bytes += bytes;
    }

    fn pages(&self) -> Option<&Pages> {
        Some(self)
    }

    fn pages_mut(&mut self) -> Option<&mut Pages> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::request::Cursor;
    use crate::store::Try;
    use crate::tuning::Policy;

    const MIB: u64 = 1 << 20;

    fn pages() -> Pages {
        Pages::new(2 * MIB, 1 << 30, u64::MAX, Policy::default())
    }

    /// A task is under way from its plan to its commit or abort.
    #[test]
    fn tasks_are_under_way_until_they_end() {
        let mut pages = pages();
        assert!(pages.is_at_rest());
        let purpose = Purpose::Reserve { bytes: 8 * MIB };
        let (owner, how) = (ANY_STREAM, Try::Preferred);
        let need = Need { owner, purpose, how, most_new: u64::MAX, live_bytes: 0, operations: 0 };
        let tasks = [(); 2].map(|()| pages.plan(&need).expect("no maximum"));
        assert!(!pages.is_at_rest() && pages.bytes_reserved() == 16 * MIB);
        for task in tasks {
            assert!(!pages.is_at_rest());
            pages.abort(task);
        }
        assert!(pages.is_at_rest() && pages.bytes_reserved() == 0);
        pages.validate();
    }

    /// Nothing is unmapped while an admission is under way.
    #[test]
    fn an_admission_keeps_releases_away() {
        let mut pages = pages();
        pages.admissions = 1;
        let all = Returning::Free { keep_bytes: 0, most_calls: 64 };
        assert!(pages.plan_release(all).is_none() && pages.plan_release(Returning::Mappings).is_none());
        let mut at = Cursor::default();
        let step = Returning::Step { keep_bytes: 0, at: &mut at };
        assert!(pages.plan_release(step).is_none() && at.is_at_end);
    }

    /// `validate()` looks at the heaps.
    #[test]
    #[should_panic(expected = "left")]
    fn validate_looks_at_all_heaps() {
        let mut pages = pages();
        pages.validate();
        pages.heaps_mut()[0].bytes_free += 256;
        pages.validate();
    }
}
