//! The reuse ladder: decides the next step for a request that found no free block.
//!
//! [`State::next`] runs under the pool's lock. It makes no driver call, reads no clock and calls no foreign
//! code. It takes only locks that come after the pool's in the [lock order](crate::pool::central). It notes
//! the answer of the last step, and goes down the rungs until one needs a step. [`State::begin`] does the
//! first two rungs, after each look. Each rung below them is a row of [`State::try_rung`].

use std::cmp::Reverse;

use millpond_core::{ErrorKind, StreamRef};

use crate::heap::request::{Request, Whose};
use crate::pool::central::State;
use crate::pool::central::collect::{Donor, RecordedEvent};
use crate::pool::central::device_books::Reading;
use crate::pool::central::observe::observe;
use crate::pool::central::steps::{Answer, Look, Rung, SlowRequest, Step};
use crate::pool::heaps::Reclaim;
use crate::store::{NoMemory, Returning, Task, Try};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{CALLS_PER_RELEASE, LITTLE, RETRIES};

impl State {
    /// Returns the initial state of a request on the slow path.
    pub(super) fn slow_request(&mut self, request: Request, stream: StreamRef) -> SlowRequest {
        let exact = self.heaps.exact(&request);
        let mut slow = SlowRequest::new(request, exact, true, stream);
        slow.is_impossible = !self.heaps.can_ever_serve(&exact);
        if self.heaps.store.bytes_free() < exact.bytes {
            slow.idle = Some(self.heaps.idle_bytes()).filter(|idle| *idle < exact.bytes);
        }
        slow
    }

    /// Returns the next step for a request, after the last `step` gave this answer.
    pub(crate) fn next(&mut self, slow: &mut SlowRequest, step: Step, answer: Answer) -> Step {
        let mut next = self.note(slow, step, answer);
        loop {
            if let Some(step) = next {
                return step;
            }
            slow.rung = slow.rung.below(slow);
            next = self.try_rung(slow);
        }
    }

    /// Tries the request's rung; returns the step that it needs, or `None` if it does not serve.
    fn try_rung(&mut self, slow: &mut SlowRequest) -> Option<Step> {
        let request = slow.request;
        let may_wait = !slow.is_capturing;
        match slow.rung {
            Rung::Free => self.take(slow).or_else(|| {
                // Counted before new records are requested, because those streams may still call.
                slow.unreachable_bytes = self.unreachable_bytes();
                None
            }),
            Rung::LargeCaches => self.flush_and_take(slow, Reclaim::Large),
            Rung::Others => self.ask_others(slow),
            Rung::AllCaches => self.flush_and_take(slow, Reclaim::All),
            Rung::OthersAgain if slow.has_flushed => self.ask_others(slow),
            Rung::Unreachable if may_wait && self.should_wait_for_unreachable(slow) => {
                Some(Step::Synchronize { may_fail: true })
            }
            Rung::Room if may_wait && self.sets_a_peak(slow) => {
                let may_learn = self.backlog.is_long()
                    || (self.heaps.may_have_free_region() && self.owned_free_bytes(Some(&request)) > 0);
                if may_learn { self.collect(&request, true) } else { None }
            }
            Rung::MakeRoom if may_wait && self.sets_a_peak(slow) && !self.backlog.is_long() => {
                self.release(slow, self.heaps.store.bytes_reserved().saturating_sub(request.bytes))
            }
            Rung::Grow => self.grow(slow),
            Rung::Short => {
                slow.reading = None;
                self.heaps.set_short(true);
                self.reclaim(None, Reclaim::All);
                self.take(slow)
            }
            Rung::Completed if may_wait && self.rules.reuse.completed => self.collect(&request, false),
            Rung::GrowFromCompleted if may_wait && self.rules.reuse.completed && self.rules.maps_pages => {
                self.grow(slow)
            }
            Rung::Wait if may_wait && self.rules.reuse.waited => {
                slow.donors = self.donors_with_fit(slow);
                slow.donors.pop().map(Step::WaitFor)
            }
            Rung::Synchronize if may_wait && self.owned_free_bytes(None) > 0 => {
                Some(Step::Synchronize { may_fail: false })
            }
            Rung::GrowFromAll if self.rules.maps_pages => self.grow(slow),
            Rung::Release => {
                slow.has_released = false;
                self.release(slow, 0)
            }
            Rung::GrowAnew if slow.has_released => self.grow(slow),
            Rung::Retry => self.retry(slow),
            Rung::Exact if slow.request != slow.exact => {
                slow.start(slow.exact, Rung::Free);
                self.try_rung(slow)
            }
            Rung::Peers => {
                let may_help = self.rules.has_peers && matches!(slow.refused, NoMemory::Below(_));
                Some(if may_help { Step::AskPeers } else { slow.refuse() })
            }
            _ => None,
        }
    }

    /// Notes the answer of a step. Returns the next step, or `None` to go on with the rung below.
    fn note(&mut self, slow: &mut SlowRequest, step: Step, answer: Answer) -> Option<Step> {
        match (step, answer) {
            (Step::Look, Answer::Looked(look)) => self.begin(slow, look),
            (Step::Run(task), answer) => self.note_task(slow, task, answer),
            (_, Answer::Failed(error)) => Some(Step::Fail(error)),
            (Step::Collect(inquiry), _) => match self.learn(inquiry, Some(&slow.request)) {
                Ok(Some(more)) => Some(Step::Collect(more)),
                Ok(None) if slow.rung == Rung::Room => None,
                Ok(None) => self.take(slow),
                Err(error) => Some(Step::Fail(error)),
            },
            (Step::WaitFor(_), Answer::Ordered { event, is_reached }) => {
                let taken = self.take_ordered(slow, &event, is_reached);
                taken.or_else(|| slow.donors.pop().map(Step::WaitFor))
            }
            (Step::WaitFor(_), _) => slow.donors.pop().map(Step::WaitFor),
            (Step::Synchronize { .. }, Answer::Done) => self.take_synchronized(slow),
            (Step::AwaitRivals(_), Answer::Done) => self.plan(slow, None),
            (Step::AwaitRivals(_), _) => self.lacks(slow, NoMemory::Below(None)),
            (Step::AskPeers, _) => Some(slow.refuse()),
            _ => None,
        }
    }

    /// Begins an attempt: at the top of the ladder, with the request's usual size.
    fn begin(&mut self, slow: &mut SlowRequest, look: Look) -> Option<Step> {
        let Look { reading, is_beyond_device, is_capturing, active_peers, .. } = look;
        let exact = slow.exact;
        (slow.reading, slow.is_capturing) = (reading, is_capturing);
        if slow.serves {
            slow.owner = self.owner_of(slow.stream);
            let is_impossible = !self.heaps.can_ever_serve(&exact);
            if std::mem::replace(&mut slow.is_impossible, is_impossible) && !is_impossible {
                return Some(Step::Look);
            }
            if is_beyond_device && !is_impossible {
                // Threads may have freed memory since the device was asked, so it is asked again.
                let idle = Some(self.heaps.idle_bytes());
                if idle > std::mem::replace(&mut slow.idle, idle) {
                    return Some(Step::Look);
                }
            }
            if is_impossible || is_beyond_device {
                slow.told = Some("the request is larger than the pool can ever be");
                self.reclaim(None, Reclaim::Everything);
                return Some(Step::Refuse(NoMemory::Impossible(reading.and_then(|reading| reading.info))));
            }
        }
        slow.how = Try::Preferred;
        slow.start(slow.usual, Rung::Admit);
        if active_peers.is_empty() || !self.heaps.is_at_rest() {
            return None;
        }
        self.heaps.plan_admission(&active_peers, false).map(Step::Run)
    }

    /// Takes a block without a driver call.
    fn take(&mut self, slow: &SlowRequest) -> Option<Step> {
        let ptr = self.take_ready(slow.owner, &slow.request).or_else(|| {
            let taken = self.heaps.take(Whose::Joined(slow.owner), &slow.request)?;
            self.ladder.own_stream += 1;
            Some(taken.ptr())
        })?;
        Some(Step::Served(ptr, None))
    }

    /// Takes blocks back from the threads' caches, and then takes one that fits.
    fn flush_and_take(&mut self, slow: &mut SlowRequest, how: Reclaim) -> Option<Step> {
        // The driver may refuse to grow during a capture, so all caches are flushed before.
        let only_for = (!slow.is_capturing).then_some(&slow.request);
        slow.has_flushed = self.reclaim(only_for, how);
        if slow.has_flushed { self.take(slow) } else { None }
    }

    /// Takes blocks back from the threads' caches; returns whether there were any.
    fn reclaim(&mut self, request: Option<&Request>, how: Reclaim) -> bool {
        let any = self.heaps.reclaim(request, how);
        observe!(self, freed, self);
        any
    }

    /// Asks which work of other streams is done, if their blocks could serve. It also asks during a backlog,
    /// since only that shows that the backlog has ended.
    fn ask_others(&mut self, slow: &SlowRequest) -> Option<Step> {
        let may_ask = self.rules.reuse.completed && !slow.is_capturing;
        let should_ask =
            may_ask && (self.backlog.is_long() || self.others_could_serve(slow.owner, &slow.request));
        if should_ask { self.collect(&slow.request, true) } else { None }
    }

    /// Asks about the streams whose blocks could serve the request, if there are any. During a backlog it
    /// always asks, to find out whether the backlog has ended.
    fn collect(&mut self, request: &Request, may_stay: bool) -> Option<Step> {
        let inquiry = self.inquire(Some(request), may_stay);
        (!inquiry.is_empty() || self.backlog.is_long()).then_some(Step::Collect(inquiry))
    }

    /// Returns whether the request could be served if all work of the other streams were completed.
    pub(super) fn others_could_serve(&self, taker: Owner, request: &Request) -> bool {
        if self.streams.len() < 2 {
            return false;
        }
        let free_bytes = |owner| self.heaps.free_bytes(Some(request), owner);
        let others = self.streams.iter().map(|(owner, _)| owner).filter(|owner| *owner != taker);
        let others: u64 = others.map(free_bytes).sum();
        others > 0 && others + free_bytes(ANY_STREAM) + free_bytes(taker) >= request.bytes
    }

    /// Returns the free bytes of streams that may be destroyed: those with a requested record and no call
    /// since.
    fn unreachable_bytes(&self) -> u64 {
        let unreachable = self.streams.iter().filter(|(_, slot)| slot.cell.is_record_requested());
        unreachable.map(|(owner, _)| self.heaps.free_bytes(None, owner)).sum()
    }

    /// Returns whether streams that may be destroyed own enough to make waiting for all streams worthwhile.
    /// Counts again, since some may have called or completed their work since the first count.
    fn should_wait_for_unreachable(&self, slow: &SlowRequest) -> bool {
        let are_many = |bytes| bytes > 0 && bytes > self.heaps.store.bytes_reserved() / LITTLE;
        are_many(slow.unreachable_bytes) && are_many(self.unreachable_bytes()) && !self.backlog.is_long()
    }

    /// Returns whether growth would set a new peak of reserved bytes. Before such a growth, free regions
    /// return to upstream, which waits for the device to free them. An upstream in stream order is not asked
    /// to do that.
    pub(super) fn sets_a_peak(&self, slow: &SlowRequest) -> bool {
        if self.rules.maps_pages || self.rules.upstream_is_ordered {
            return false;
        }
        let growth = self.heaps.store.region_sizes(&slow.request).map_or(0, |sizes| sizes.preferred);
        let held = self.heaps.store.totals();
        held.bytes_reserved + growth > held.peak_bytes_reserved
    }

    /// Returns free memory until at most `keep_bytes` are left, one task after the other.
    fn release(&mut self, slow: &mut SlowRequest, keep_bytes: u64) -> Option<Step> {
        slow.keep_bytes = keep_bytes;
        let free = Returning::Free { keep_bytes, most_calls: CALLS_PER_RELEASE };
        self.heaps.store.plan_release(free).map(Step::Run)
    }

    /// Takes new memory, and takes the block from it.
    fn grow(&mut self, slow: &mut SlowRequest) -> Option<Step> {
        (slow.how, slow.waits) = (Try::Preferred, 0);
        slow.set_failed(None);
        self.plan(slow, None)
    }

    /// Plans a growth within the device's available memory, if it is known.
    fn plan(&mut self, slow: &mut SlowRequest, limit: Option<Reading>) -> Option<Step> {
        let most_new = match &limit {
            _ if slow.how == Try::FreeOnly => 0,
            None => u64::MAX,
            Some(reading) => reading.most_new(slow.how),
        };
        match self.heaps.plan_growth(slow.owner, &slow.request, !slow.serves, slow.how, most_new) {
            Ok(task) => {
                slow.reading = limit.or(slow.reading);
                Some(Step::Run(task))
            }
            Err(lack) => match (lack, limit) {
                (NoMemory::Below(_), Some(reading)) => Some(Step::AwaitRivals(reading)),
                (lack, _) => self.lacks(slow, lack),
            },
        }
    }

    /// Goes on if no growth can be planned. If memory was refused before, smaller plans may still serve;
    /// otherwise the rung fails.
    fn lacks(&mut self, slow: &mut SlowRequest, lack: NoMemory) -> Option<Step> {
        slow.told = Some(match lack {
            NoMemory::OwnLimit => "the pool has reached its maximum",
            _ => "the device has too little free memory",
        });
        if slow.failed.is_some() {
            return self.try_again(slow, slow.how.next_way());
        }
        slow.set_refused(lack);
        None
    }

    /// Plans a growth in another way, if there is one.
    fn try_again(&mut self, slow: &mut SlowRequest, how: Option<Try>) -> Option<Step> {
        if let Some(how) = how {
            (slow.how, slow.waits) = (how, 0);
            return self.plan(slow, None);
        }
        if slow.failed.is_some() {
            slow.told = Some("upstream has too little free memory");
        }
        let failed = slow.failed.take();
        slow.set_refused(NoMemory::Below(failed));
        None
    }

    /// Commits or aborts a task; returns the next step.
    fn note_task(&mut self, slow: &mut SlowRequest, task: Task, answer: Answer) -> Option<Step> {
        let (is_growth, next) = (task.is_growth(), task.after_refusal(slow.how));
        match answer {
            Answer::Done if is_growth => self.commit_growth(slow, task),
            Answer::Done => {
                let released = task.released_bytes();
                self.heaps.commit(task);
                if released > 0 {
                    (slow.has_released, slow.reading) = (true, None);
                }
                if slow.rung == Rung::Admit { None } else { self.release(slow, slow.keep_bytes) }
            }
            Answer::TooLittle(reading) => {
                self.heaps.store.abort(task);
                self.plan(slow, Some(reading))
            }
            Answer::Failed(error) => {
                // An upstream with a maximum request size reports an invalid argument for larger requests.
                let is_too_large =
                    task.is_region() && next.is_some() && error.kind() == ErrorKind::InvalidArgument;
                self.heaps.store.abort(task);
                if !is_growth || !(error.is_out_of_memory() || is_too_large) {
                    return Some(Step::Fail(error));
                }
                if error.is_out_of_memory() {
                    slow.set_failed(Some(error));
                } else {
                    slow.set_failed(None);
                    slow.discarded.push(error);
                }
                self.try_again(slow, next)
            }
            _ => {
                self.heaps.store.abort(task);
                None
            }
        }
    }

    fn commit_growth(&mut self, slow: &mut SlowRequest, mut task: Task) -> Option<Step> {
        let next = task.after_refusal(slow.how);
        if let Task::Region(region) = &mut task
            && self.rules.upstream_is_ordered
        {
            let owner = self.owner_of(slow.stream);
            region.owner = (owner, self.streams.slot(owner).epoch());
        }
        let ptr = self.heaps.commit(task);
        if !slow.serves {
            return Some(Step::Reserved);
        }
        let Some(ptr) = ptr else { return self.try_again(slow, next) };
        match slow.rung {
            Rung::Grow => self.ladder.grow += 1,
            Rung::GrowFromCompleted => self.ladder.completed += 1,
            _ => self.ladder.reclaim += 1,
        }
        Some(Step::Served(ptr, self.heaps.store.plan_release(Returning::Mappings)))
    }

    /// Returns the other streams that have a fitting block, the best fit last.
    fn donors_with_fit(&self, slow: &SlowRequest) -> Vec<Donor> {
        let others = self.streams.iter().filter(|(owner, _)| *owner != slow.owner);
        let mut donors: Vec<Donor> = others
            .filter_map(|(owner, slot)| {
                let fit = self.heaps.find(owner, Epoch::MAX, &slow.request)?;
                Some(Donor { id: slot.id, epoch: fit.epoch, bytes: fit.bytes })
            })
            .collect();
        donors.reverse();
        donors.sort_by_key(|donor| Reverse(donor.bytes));
        donors
    }

    /// Takes a block that a donor's event covers. The device has reached the event, or the stream waits for
    /// it.
    fn take_ordered(&mut self, slow: &SlowRequest, event: &RecordedEvent, is_reached: bool) -> Option<Step> {
        if is_reached {
            self.complete(event, Some(&slow.request));
            return self.take(slow);
        }
        let donor = self.note_wait(slow.owner, event)?;
        let taken = self.heaps.take(Whose::Of(donor, event.donor.epoch), &slow.request)?;
        self.ladder.waited += 1;
        Some(Step::Served(taken.ptr(), None))
    }

    /// Notes that a stream waits for a recorded event. Returns the event's stream, unless it is forgotten.
    pub(super) fn note_wait(&mut self, waiter: Owner, event: &RecordedEvent) -> Option<Owner> {
        let (donor, _) = self.streams.find_mut(event.donor.id)?;
        self.streams.waited(waiter, donor, event.donor.epoch, &event.seen);
        observe!(self, noted_wait, self, event);
        Some(donor)
    }

    /// Takes a block after the pool waited for all streams.
    fn take_synchronized(&mut self, slow: &SlowRequest) -> Option<Step> {
        match self.heaps.take(Whose::Of(ANY_STREAM, Epoch::MAX), &slow.request) {
            Some(taken) => {
                self.ladder.reclaim += 1;
                Some(Step::Served(taken.ptr(), None))
            }
            // Another thread may have freed a block on this stream meanwhile.
            None => self.take(slow),
        }
    }

    /// Tries the waits again, a few times, while any stream has a block that fits.
    fn retry(&mut self, slow: &mut SlowRequest) -> Option<Step> {
        self.reclaim(None, Reclaim::All);
        if slow.retries == RETRIES as usize || slow.is_capturing || !self.any_fits(&slow.request) {
            return None;
        }
        slow.retries += 1;
        slow.rung = Rung::Completed;
        self.try_rung(slow)
    }

    /// Returns whether any stream has a free block that fits.
    pub(super) fn any_fits(&self, request: &Request) -> bool {
        let fits = |owner| self.heaps.find(owner, Epoch::MAX, request).is_some();
        fits(ANY_STREAM) || self.streams.iter().any(|(owner, _)| fits(owner))
    }
}

#[cfg(test)]
mod tests;
