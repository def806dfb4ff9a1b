//! The reuse ladder: decides the next step for a request that found no free block.
//!
//! [`State::next`] runs under the pool's lock. It makes no driver call, reads no clock, calls no foreign
//! code, and takes only the locks of arenas and of the list of threads' caches, one at a time. It notes the
//! answer of the last step, and goes down the rungs until one needs a step. Each rung is a row of
//! [`State::try_rung`]; the rungs are tried from top to bottom.

use std::cmp::Reverse;

use millpond_core::{ErrorKind, StreamRef};

use crate::heap::request::{Request, Whose};
use crate::pool::central::State;
use crate::pool::central::ask::{Answer, Ask, Look, Rung, Step};
use crate::pool::central::collect::{Donor, RecordedEvent};
use crate::pool::central::device_books::Reading;
use crate::pool::heaps::Reclaim;
use crate::store::{NoMemory, Returning, Task, Try};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::{CALLS_PER_RELEASE, LITTLE, RETRIES};

impl State {
    /// Returns the initial state of a request on the slow path.
    pub(super) fn ask(&mut self, request: Request, stream: StreamRef) -> Ask {
        let exact = self.heaps.exact(&request);
        let mut ask = Ask::new(request, exact, true, stream);
        ask.is_impossible = !self.heaps.can_ever_serve(&exact);
        if self.heaps.store.bytes_free() < exact.bytes {
            ask.idle = Some(self.heaps.idle_bytes()).filter(|idle| *idle < exact.bytes);
        }
        ask
    }

    /// Returns the next step for a request, after the last `step` gave this answer.
    pub(crate) fn next(&mut self, ask: &mut Ask, step: Step, answer: Answer) -> Step {
        let mut next = self.note(ask, step, answer);
        loop {
            if let Some(step) = next {
                return step;
            }
            ask.rung = ask.rung.below(ask);
            next = self.try_rung(ask);
        }
    }

    /// Tries the request's rung; returns the step that it needs, or `None` if it does not serve.
    fn try_rung(&mut self, ask: &mut Ask) -> Option<Step> {
        let request = ask.request;
        let may_wait = !ask.is_capturing;
        match ask.rung {
            Rung::Possible | Rung::Admit => None,
            Rung::Free => self.take(ask).or_else(|| {
                // Counted before new records are requested, because those streams may still call.
                ask.unreachable_bytes = self.unreachable_bytes();
                None
            }),
            Rung::LargeCaches => self.flush_and_take(ask, Reclaim::Large),
            Rung::Others => self.ask_others(ask),
            Rung::AllCaches => self.flush_and_take(ask, Reclaim::All),
            Rung::OthersAgain if ask.has_flushed => self.ask_others(ask),
            Rung::Unreachable if may_wait && self.should_wait_for_unreachable(ask) => {
                Some(Step::Synchronize { may_fail: true })
            }
            Rung::Room if may_wait && self.sets_a_peak(ask) => {
                let may_learn = self.backlog.is_long()
                    || (self.heaps.may_have_free_region() && self.owned_free_bytes(Some(&request)) > 0);
                if may_learn { self.collect(&request, true) } else { None }
            }
            Rung::MakeRoom if may_wait && self.sets_a_peak(ask) && !self.backlog.is_long() => {
                self.release(ask, self.heaps.store.bytes_reserved().saturating_sub(request.bytes))
            }
            Rung::Grow => self.grow(ask),
            Rung::Short => {
                ask.reading = None;
                self.heaps.set_short(true);
                self.heaps.reclaim(None, Reclaim::All);
                self.take(ask)
            }
            Rung::Completed if may_wait && self.rules.reuse.completed => self.collect(&request, false),
            Rung::GrowFromCompleted if may_wait && self.rules.reuse.completed && self.rules.maps_pages => {
                self.grow(ask)
            }
            Rung::Wait if may_wait && self.rules.reuse.waited => {
                ask.donors = self.donors_with_fit(ask);
                ask.donors.pop().map(Step::WaitFor)
            }
            Rung::Synchronize if may_wait && self.owned_free_bytes(None) > 0 => {
                Some(Step::Synchronize { may_fail: false })
            }
            Rung::GrowFromAll if self.rules.maps_pages => self.grow(ask),
            Rung::Release => {
                ask.has_released = false;
                self.release(ask, 0)
            }
            Rung::GrowAnew if ask.has_released => self.grow(ask),
            Rung::Retry => self.retry(ask),
            Rung::Exact if ask.request != ask.exact => {
                let exact = ask.exact;
                self.start(ask, exact);
                self.try_rung(ask)
            }
            Rung::Peers => {
                let may_help = self.rules.has_peers && matches!(ask.refused, NoMemory::Below(_));
                Some(if may_help { Step::AskPeers } else { ask.refuse() })
            }
            _ => None,
        }
    }

    /// Notes the answer of a step. Returns the next step, or `None` to go on with the rung below.
    fn note(&mut self, ask: &mut Ask, step: Step, answer: Answer) -> Option<Step> {
        match (step, answer) {
            (Step::Look, Answer::Looked(look)) => self.begin(ask, look),
            (Step::Run(task), answer) => self.note_task(ask, task, answer),
            (_, Answer::Failed(error)) => Some(Step::Fail(error)),
            (Step::Collect(inquiry), _) => match self.learn(inquiry, Some(&ask.request)) {
                Ok(Some(more)) => Some(Step::Collect(more)),
                Ok(None) if ask.rung == Rung::Room => None,
                Ok(None) => self.take(ask),
                Err(error) => Some(Step::Fail(error)),
            },
            (Step::WaitFor(_), Answer::Ordered { event, is_reached }) => {
                let taken = self.take_ordered(ask, &event, is_reached);
                taken.or_else(|| ask.donors.pop().map(Step::WaitFor))
            }
            (Step::WaitFor(_), _) => ask.donors.pop().map(Step::WaitFor),
            (Step::Synchronize { .. }, Answer::Done) => self.take_synchronized(ask),
            (Step::AwaitRivals(_), Answer::Done) => self.plan(ask, None),
            (Step::AwaitRivals(_), _) => self.lacks(ask, NoMemory::Below(None)),
            (Step::AskPeers, _) => Some(ask.refuse()),
            _ => None,
        }
    }

    /// Begins an attempt: at the top of the ladder, with the request's usual size.
    fn begin(&mut self, ask: &mut Ask, look: Look) -> Option<Step> {
        let Look { reading, is_beyond_device, is_capturing, active_peers, .. } = look;
        let exact = ask.exact;
        (ask.reading, ask.is_capturing) = (reading, is_capturing);
        if ask.serves {
            ask.owner = self.owner_of(ask.stream);
            let is_impossible = !self.heaps.can_ever_serve(&exact);
            if std::mem::replace(&mut ask.is_impossible, is_impossible) && !is_impossible {
                return Some(Step::Look);
            }
            if is_beyond_device && !is_impossible {
                // Threads may have freed memory since the device was asked, so it is asked again.
                let idle = Some(self.heaps.idle_bytes());
                if idle > std::mem::replace(&mut ask.idle, idle) {
                    return Some(Step::Look);
                }
            }
            if is_impossible || is_beyond_device {
                ask.told = Some("the request is larger than the pool can ever be");
                self.heaps.reclaim(None, Reclaim::Everything);
                return Some(Step::Refuse(NoMemory::Impossible(reading.and_then(|reading| reading.info))));
            }
        }
        ask.growth = Try::Preferred;
        let usual = ask.usual;
        self.start(ask, usual);
        ask.rung = Rung::Admit;
        if active_peers.is_empty() || !self.heaps.is_at_rest() {
            return None;
        }
        self.heaps.plan_admission(&active_peers, false).map(Step::Run)
    }

    /// Starts at the first rung that takes blocks, with this request size.
    fn start(&mut self, ask: &mut Ask, request: Request) {
        if ask.request != request {
            ask.reading = None;
        }
        (ask.request, ask.rung) = (request, Rung::Free);
        (ask.retries, ask.has_released) = (0, false);
    }

    /// Takes a block without a driver call.
    fn take(&mut self, ask: &Ask) -> Option<Step> {
        let ptr = self.take_ready(ask.owner, &ask.request).or_else(|| {
            let taken = self.heaps.take(Whose::Joined(ask.owner), &ask.request)?;
            self.ladder.own_stream += 1;
            Some(taken.ptr())
        })?;
        Some(Step::Served(ptr, None))
    }

    /// Takes blocks back from the threads' caches, and then takes one that fits.
    fn flush_and_take(&mut self, ask: &mut Ask, how: Reclaim) -> Option<Step> {
        // The driver may refuse to grow during a capture, so all caches are flushed before.
        let only_for = (!ask.is_capturing).then_some(&ask.request);
        ask.has_flushed = self.heaps.reclaim(only_for, how);
        if ask.has_flushed { self.take(ask) } else { None }
    }

    /// Asks which work of other streams is done, if their blocks could serve. It also asks during a backlog,
    /// since only that shows that the backlog has ended.
    fn ask_others(&mut self, ask: &Ask) -> Option<Step> {
        let may_ask = self.rules.reuse.completed && !ask.is_capturing;
        let should_ask =
            may_ask && (self.backlog.is_long() || self.others_could_serve(ask.owner, &ask.request));
        if should_ask { self.collect(&ask.request, true) } else { None }
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
    fn should_wait_for_unreachable(&self, ask: &Ask) -> bool {
        let are_many = |bytes| bytes > 0 && bytes > self.heaps.store.bytes_reserved() / LITTLE;
        are_many(ask.unreachable_bytes) && are_many(self.unreachable_bytes()) && !self.backlog.is_long()
    }

    /// Returns whether growth would set a new peak of reserved bytes. Before such a growth, free regions
    /// return to upstream, which waits for the device to free them. An upstream in stream order is not asked
    /// to do that.
    pub(super) fn sets_a_peak(&self, ask: &Ask) -> bool {
        if self.rules.maps_pages || self.rules.upstream_is_ordered {
            return false;
        }
        let growth = self.heaps.store.growth(&ask.request).map_or(0, |growth| growth.preferred);
        let held = self.heaps.store.totals();
        held.bytes_reserved + growth > held.peak_bytes_reserved
    }

    /// Returns free memory until at most `keep_bytes` are left, one task after the other.
    fn release(&mut self, ask: &mut Ask, keep_bytes: u64) -> Option<Step> {
        ask.keep_bytes = keep_bytes;
        let free = Returning::Free { keep_bytes, most_calls: CALLS_PER_RELEASE };
        self.heaps.store.plan_release(free).map(Step::Run)
    }

    /// Takes new memory, and takes the block from it.
    fn grow(&mut self, ask: &mut Ask) -> Option<Step> {
        (ask.growth, ask.waits) = (Try::Preferred, 0);
        ask.set_failed(None);
        self.plan(ask, None)
    }

    /// Plans a growth within the device's available memory, if it is known.
    fn plan(&mut self, ask: &mut Ask, limit: Option<Reading>) -> Option<Step> {
        let most_new = match (ask.growth, &limit) {
            (Try::FreeOnly, _) => 0,
            (_, None) => u64::MAX,
            (Try::AtOnce(_), Some(reading)) => reading.available,
            (_, Some(reading)) => reading.most_new(),
        };
        match self.heaps.plan_growth(ask.owner, &ask.request, !ask.serves, ask.growth, most_new) {
            Ok(task) => {
                ask.reading = limit.or(ask.reading);
                Some(Step::Run(task))
            }
            Err(lack) => match (lack, limit) {
                (NoMemory::Below(_), Some(reading)) => Some(Step::AwaitRivals(reading)),
                (lack, _) => self.lacks(ask, lack),
            },
        }
    }

    /// Goes on if no growth can be planned. If memory was refused before, smaller plans may still serve;
    /// otherwise the rung fails.
    fn lacks(&mut self, ask: &mut Ask, lack: NoMemory) -> Option<Step> {
        ask.told = Some(match lack {
            NoMemory::OwnLimit => "the pool is at its maximum",
            _ => "the device has too little free memory",
        });
        if ask.failed.is_some() {
            return self.try_again(ask, ask.growth.next_way());
        }
        ask.set_refused(lack);
        None
    }

    /// Plans a growth in another way, if there is one.
    fn try_again(&mut self, ask: &mut Ask, how: Option<Try>) -> Option<Step> {
        if let Some(how) = how {
            (ask.growth, ask.waits) = (how, 0);
            return self.plan(ask, None);
        }
        if ask.failed.is_some() {
            ask.told = Some("upstream has too little free memory");
        }
        let failed = ask.failed.take();
        ask.set_refused(NoMemory::Below(failed));
        None
    }

    /// Commits or aborts a task; returns the next step.
    fn note_task(&mut self, ask: &mut Ask, task: Task, answer: Answer) -> Option<Step> {
        let (is_growth, next) = (task.is_growth(), task.after_refusal(ask.growth));
        match answer {
            Answer::Done if is_growth => self.commit_growth(ask, task),
            Answer::Done => {
                let released = task.released_bytes();
                self.heaps.commit(task);
                if released > 0 {
                    (ask.has_released, ask.reading) = (true, None);
                }
                if ask.rung == Rung::Admit { None } else { self.release(ask, ask.keep_bytes) }
            }
            Answer::TooLittle(reading) => {
                self.heaps.store.abort(task);
                self.plan(ask, Some(reading))
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
                    ask.set_failed(Some(error));
                } else {
                    ask.set_failed(None);
                    ask.discarded.push(error);
                }
                self.try_again(ask, next)
            }
            _ => {
                self.heaps.store.abort(task);
                None
            }
        }
    }

    fn commit_growth(&mut self, ask: &mut Ask, mut task: Task) -> Option<Step> {
        let next = task.after_refusal(ask.growth);
        if let Task::Region(region) = &mut task
            && self.rules.upstream_is_ordered
        {
            let owner = self.owner_of(ask.stream);
            region.owner = (owner, self.streams.slot(owner).epoch());
        }
        let ptr = self.heaps.commit(task);
        if !ask.serves {
            return Some(Step::Reserved);
        }
        let Some(ptr) = ptr else { return self.try_again(ask, next) };
        match ask.rung {
            Rung::Grow => self.ladder.grow += 1,
            Rung::GrowFromCompleted => self.ladder.completed += 1,
            _ => self.ladder.reclaim += 1,
        }
        Some(Step::Served(ptr, self.heaps.store.plan_release(Returning::Mappings)))
    }

    /// Returns the other streams that have a fitting block, the best fit last.
    fn donors_with_fit(&self, ask: &Ask) -> Vec<Donor> {
        let others = self.streams.iter().filter(|(owner, _)| *owner != ask.owner);
        let mut donors: Vec<Donor> = others
            .filter_map(|(owner, slot)| {
                let fit = self.heaps.find(owner, Epoch::MAX, &ask.request)?;
                Some(Donor { id: slot.id, epoch: fit.epoch, bytes: fit.bytes })
            })
            .collect();
        donors.reverse();
        donors.sort_by_key(|donor| Reverse(donor.bytes));
        donors
    }

    /// Takes a block that a donor's event covers. The device has reached the event, or the stream waits for
    /// it.
    fn take_ordered(&mut self, ask: &Ask, event: &RecordedEvent, is_reached: bool) -> Option<Step> {
        if is_reached {
            self.complete(event, Some(&ask.request));
            return self.take(ask);
        }
        let (donor, _) = self.streams.find_mut(event.donor.id)?;
        self.streams.waited(ask.owner, donor, event.donor.epoch, &event.seen);
        let taken = self.heaps.take(Whose::Of(donor, event.donor.epoch), &ask.request)?;
        self.ladder.waited += 1;
        Some(Step::Served(taken.ptr(), None))
    }

    /// Takes a block after the pool waited for all streams.
    fn take_synchronized(&mut self, ask: &Ask) -> Option<Step> {
        match self.heaps.take(Whose::Of(ANY_STREAM, Epoch::MAX), &ask.request) {
            Some(taken) => {
                self.ladder.reclaim += 1;
                Some(Step::Served(taken.ptr(), None))
            }
            // Another thread may have freed a block on this stream meanwhile.
            None => self.take(ask),
        }
    }

    /// Tries the waits again, a few times, while any stream has a block that fits.
    fn retry(&mut self, ask: &mut Ask) -> Option<Step> {
        self.heaps.reclaim(None, Reclaim::All);
        if ask.retries == RETRIES as usize || ask.is_capturing || !self.any_fits(&ask.request) {
            return None;
        }
        ask.retries += 1;
        ask.rung = Rung::Completed;
        self.try_rung(ask)
    }

    /// Returns whether any stream has a free block that fits.
    pub(super) fn any_fits(&self, request: &Request) -> bool {
        let fits = |owner| self.heaps.find(owner, Epoch::MAX, request).is_some();
        fits(ANY_STREAM) || self.streams.iter().any(|(owner, _)| fits(owner))
    }
}

#[cfg(test)]
mod tests;
