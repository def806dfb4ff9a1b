//! The steps: when an action is possible, and its changes.

use super::{
    Action, BLOCKS, Bits, Block, Call, Epoch, Epochs, Id, Mistake, Place, STREAMS, Scale, Stage, State,
    Stream, THREADS,
};

/// Returns every action of this scale, possible or not.
pub(crate) fn actions(scale: Scale) -> Vec<Action> {
    let mut all = Vec::new();
    for stream in 0..scale.streams {
        all.extend([
            Action::Sweep { stream },
            Action::Meet { stream },
            Action::Skip { stream },
            Action::Destroy { stream },
            Action::Create { stream },
        ]);
        for block in 0..scale.blocks {
            all.extend([Action::Free { block, stream }, Action::Take { block, stream }]);
        }
        for thread in 0..scale.threads {
            all.extend([
                Action::BeginRecord { thread, stream },
                Action::Pick { thread, stream },
                Action::Wait { thread, stream },
            ]);
        }
    }
    all.extend((0..scale.blocks).map(|block| Action::EndFree { block }));
    for thread in 0..scale.threads {
        all.extend([
            Action::MakeRecord { thread },
            Action::Settle { thread },
            Action::Leave { thread },
            Action::Query { thread },
            Action::Complete { thread },
            Action::NoteWait { thread },
            Action::GiveUp { thread },
            Action::BeginDevice { thread },
            Action::MakeDevice { thread },
            Action::EndDevice { thread },
        ]);
        all.extend((0..scale.blocks).map(|block| Action::Disown { thread, block }));
    }
    all
}

fn raise(known: &mut Epochs, stream: Id, epoch: Epoch) {
    let old = &mut known[stream as usize];
    *old = epoch.max(*old);
}

impl State {
    /// All blocks are live and without work, and the pool knows no stream.
    pub(crate) const START: Self =
        Self { streams: [Stream::NEW; STREAMS], calls: [Call::Idle; THREADS], blocks: [Block::NEW; BLOCKS] };

    /// Returns the state after an action, with a mistake in the pool, a layer or the program if one is given.
    /// `None` if the action is not possible.
    pub(crate) fn after(&self, action: Action, scale: Scale, mistake: Option<Mistake>) -> Option<Self> {
        let mut next = *self;
        next.act(action, scale, &|it| mistake == Some(it)).then_some(next)
    }

    /// Returns whether the pool may hand this block to a stream, by its beliefs.
    pub(crate) fn may_take(&self, block: Id, stream: Id) -> bool {
        match self.blocks[block as usize].place {
            Place::Live | Place::Freeing { .. } => false,
            Place::Unowned => true,
            Place::Free { owner, .. } if owner == stream => true,
            Place::Free { owner, epoch } => epoch <= self.streams[stream as usize].seen[owner as usize],
        }
    }

    /// Says which block the pool may hand to a stream that does not come after all work on the block.
    pub(crate) fn breaks_rule(&self, scale: Scale) -> Option<&'static str> {
        let streams = (0..scale.streams).filter(|it| self.streams[*it as usize].exists);
        let mut takes = streams.flat_map(|stream| (0..scale.blocks).map(move |block| (block, stream)));
        let is_race = takes.any(|(block, stream)| {
            self.may_take(block, stream) && !self.blocks[block as usize].is_before(stream)
        });
        is_race.then_some("a stream may take a block before the work on it is ordered")
    }

    /// Returns whether a thread is idle, and no block is in its hands.
    fn is_idle(&self, thread: Id, scale: Scale) -> bool {
        let frees = self.blocks.iter().filter(|block| matches!(block.place, Place::Freeing { .. })).count();
        let calls = self.calls.iter().filter(|call| **call != Call::Idle).count();
        self.calls[thread as usize] == Call::Idle && frees + calls < scale.threads as usize
    }

    fn act(&mut self, action: Action, scale: Scale, makes: &dyn Fn(Mistake) -> bool) -> bool {
        match action {
            Action::Meet { stream } => {
                let it = &mut self.streams[stream as usize];
                it.exists && !std::mem::replace(&mut it.is_known, true)
            }
            Action::Free { block, stream } => self.free(block, stream, scale, makes),
            Action::EndFree { block } => {
                let block = &mut self.blocks[block as usize];
                let Place::Freeing { owner, epoch } = block.place else { return false };
                block.place = Place::Free { owner, epoch };
                if makes(Mistake::WorkAfterFree) {
                    block.submit(owner);
                }
                true
            }
            Action::Take { block, stream } => {
                let may = self.may_take(block, stream) && self.streams[stream as usize].exists;
                self.blocks[block as usize].place = Place::Live;
                self.add(stream);
                may
            }
            Action::BeginRecord { thread, stream } => self.begin_record(thread, stream, scale, makes),
            Action::MakeRecord { thread } => self.make_record(thread, makes),
            Action::Settle { thread } => self.settle(thread, makes),
            Action::Leave { thread } => self.leave(thread),
            Action::Pick { thread, stream } => {
                let donor = &self.streams[stream as usize];
                let may = self.is_idle(thread, scale) && donor.is_known && donor.recorded > 0;
                let seen = if makes(Mistake::Merge2489) { donor.seen } else { donor.recorded_seen };
                self.calls[thread as usize] =
                    Call::Event { stream, epoch: donor.recorded, seen, stage: Stage::Picked };
                may
            }
            Action::Query { .. } | Action::Wait { .. } => self.use_event(action),
            Action::Complete { thread } => self.complete(thread, makes),
            Action::Disown { thread, block } => {
                let Call::Event { stream, epoch, stage: Stage::Reached, .. } = self.calls[thread as usize]
                else {
                    return false;
                };
                let is_known = self.streams[stream as usize].is_known;
                is_known && self.blocks[block as usize].disown(stream, epoch)
            }
            Action::NoteWait { thread } => self.note_wait(thread, makes),
            Action::GiveUp { thread } => {
                let was = std::mem::replace(&mut self.calls[thread as usize], Call::Idle);
                matches!(was, Call::Event { .. } | Call::Device { is_made: false, .. })
            }
            Action::BeginDevice { thread } => self.begin_device(thread, scale),
            Action::MakeDevice { thread } => {
                let Call::Device { is_made, .. } = &mut self.calls[thread as usize] else { return false };
                self.blocks.iter_mut().for_each(|block| block.held |= 1 << thread);
                !std::mem::replace(is_made, true)
            }
            Action::EndDevice { thread } => self.end_device(thread, makes),
            Action::Skip { stream } => std::mem::replace(&mut self.streams[stream as usize].recorded, 0) > 0,
            Action::Sweep { stream } => self.sweep(stream, makes),
            Action::Destroy { stream } => std::mem::replace(&mut self.streams[stream as usize].exists, false),
            Action::Create { stream } => {
                self.blocks.iter_mut().for_each(|block| block.before &= !(1 << stream));
                let it = &mut self.streams[stream as usize];
                !it.is_known && !std::mem::replace(&mut it.exists, true)
            }
        }
    }

    /// Adds a stream to the table.
    fn add(&mut self, stream: Id) {
        self.streams[stream as usize].is_known = true;
    }

    fn free(&mut self, block: Id, stream: Id, scale: Scale, makes: &dyn Fn(Mistake) -> bool) -> bool {
        let may = (0..scale.threads).any(|thread| self.is_idle(thread, scale));
        let Stream { exists, epoch, .. } = self.streams[stream as usize];
        self.add(stream);
        let is_unordered = makes(Mistake::FreeWithoutOrder);
        let block = &mut self.blocks[block as usize];
        let was_live = block.place == Place::Live;
        block.place = Place::Freeing { owner: stream, epoch };
        block.submit(if is_unordered { (stream + 1) % scale.streams } else { stream });
        may && exists && was_live
    }

    fn begin_record(
        &mut self,
        thread: Id,
        stream: Id,
        scale: Scale,
        makes: &dyn Fn(Mistake) -> bool,
    ) -> bool {
        let is_idle = self.is_idle(thread, scale);
        let it = &mut self.streams[stream as usize];
        let may = is_idle && it.is_known && it.epoch < scale.epochs;
        let (epoch, seen) = (it.epoch, it.seen);
        if !makes(Mistake::RecordBeforeEpochEnds) {
            it.epoch += 1;
        }
        self.calls[thread as usize] =
            Call::Record { stream, epoch, seen, is_first: !it.has_event, is_made: false, is_reached: false };
        may
    }

    fn make_record(&mut self, thread: Id, makes: &dyn Fn(Mistake) -> bool) -> bool {
        let Call::Record { stream, is_first, is_made, epoch, .. } = &mut self.calls[thread as usize] else {
            return false;
        };
        let (stream, is_first) = (*stream, *is_first);
        for block in &mut self.blocks {
            let (set, bit) = if is_first { (&mut block.held, thread) } else { (&mut block.covered, stream) };
            *set = *set & !(1 << bit) | Bits::from(block.before & (1 << stream) != 0 || block.is_done) << bit;
        }
        if makes(Mistake::RecordBeforeEpochEnds) {
            *epoch = self.streams[stream as usize].epoch;
        }
        !std::mem::replace(is_made, true) && self.streams[stream as usize].exists
    }

    fn settle(&mut self, thread: Id, makes: &dyn Fn(Mistake) -> bool) -> bool {
        let Call::Record { stream, epoch, mut seen, is_first, is_made, is_reached } =
            self.calls[thread as usize]
        else {
            return false;
        };
        let becomes_its_event = is_first && is_made && !self.streams[stream as usize].has_event;
        let counts = is_made && (!is_first || becomes_its_event || makes(Mistake::SecondEventCounts));
        self.end_record(thread, stream, becomes_its_event);
        let it = &mut self.streams[stream as usize];
        if makes(Mistake::RecordBeforeEpochEnds) {
            it.epoch = it.epoch.max(epoch + 1);
        }
        if makes(Mistake::SeenAtSettle) {
            seen = it.seen;
        }
        if counts && it.recorded < epoch {
            (it.recorded, it.recorded_seen) = (epoch, seen);
        }
        let stage = if is_reached { Stage::Reached } else { Stage::Picked };
        let holds = Call::Event { stream, epoch, seen, stage };
        self.calls[thread as usize] = if counts || is_reached { holds } else { Call::Idle };
        true
    }

    fn leave(&mut self, thread: Id) -> bool {
        let call = std::mem::replace(&mut self.calls[thread as usize], Call::Idle);
        let Call::Record { stream, is_first, .. } = call else { return false };
        let becomes_its_event = is_first && !self.streams[stream as usize].has_event;
        self.end_record(thread, stream, becomes_its_event);
        true
    }

    /// Ends the use of the event of a record. It becomes the stream's event, or serves another stream.
    fn end_record(&mut self, thread: Id, stream: Id, becomes_its_event: bool) {
        for block in &mut self.blocks {
            if becomes_its_event {
                block.covered = block.covered & !(1 << stream) | (block.held >> thread & 1) << stream;
            }
            block.held &= !(1 << thread);
        }
        self.streams[stream as usize].has_event |= becomes_its_event;
    }

    /// A call of the driver with the event that a thread holds.
    fn use_event(&mut self, action: Action) -> bool {
        let (Action::Query { thread } | Action::Wait { thread, .. }) = action else { return false };
        if let Call::Record { stream, is_first, is_made: true, is_reached, .. } =
            &mut self.calls[thread as usize]
        {
            for block in &mut self.blocks {
                let (set, bit) = if *is_first { (block.held, thread) } else { (block.covered, *stream) };
                block.is_done |= set & (1 << bit) != 0;
            }
            return matches!(action, Action::Query { .. }) && !std::mem::replace(is_reached, true);
        }
        let Call::Event { stream: donor, stage, .. } = &mut self.calls[thread as usize] else { return false };
        let (donor, was) = (*donor, *stage);
        let mut may = was == Stage::Picked;
        *stage = Stage::Reached;
        if let Action::Wait { stream, .. } = action {
            *stage = Stage::Waits(stream);
            let waiter = &self.streams[stream as usize];
            may &= waiter.exists && waiter.is_known && stream != donor;
        }
        for block in self.blocks.iter_mut().filter(|block| block.covered & (1 << donor) != 0) {
            match action {
                Action::Wait { stream, .. } => block.before |= 1 << stream,
                _ => block.is_done = true,
            }
        }
        may
    }

    /// Makes the blocks that a stream freed in this epoch or before unowned.
    fn disown(&mut self, stream: Id, upto: Epoch) {
        self.blocks.iter_mut().for_each(|block| _ = block.disown(stream, upto));
    }

    fn complete(&mut self, thread: Id, makes: &dyn Fn(Mistake) -> bool) -> bool {
        let call = std::mem::replace(&mut self.calls[thread as usize], Call::Idle);
        let Call::Event { stream, mut epoch, stage: Stage::Reached, .. } = call else { return false };
        let it = &mut self.streams[stream as usize];
        if makes(Mistake::QueryKeptOverRecord) {
            epoch = epoch.max(it.recorded);
        }
        if it.is_known {
            if it.recorded == epoch {
                it.recorded = 0;
            }
            self.disown(stream, epoch);
        }
        true
    }

    fn note_wait(&mut self, thread: Id, makes: &dyn Fn(Mistake) -> bool) -> bool {
        let call = &mut self.calls[thread as usize];
        let Call::Event { stream: donor, epoch, seen, stage } = *call else { return false };
        *call = Call::Idle;
        let waiter = match stage {
            Stage::Waits(waiter) => waiter,
            // The stream with the lowest number that may wait: the checker tries all orders of streams.
            Stage::Picked if makes(Mistake::WaitNotedEarly) => {
                let others = (0..).zip(&self.streams).filter(|(id, it)| *id != donor && it.is_known);
                let Some((waiter, _)) = others.min_by_key(|(id, _)| *id) else { return false };
                self.calls[thread as usize] = Call::Event { stream: donor, epoch, seen, stage };
                waiter
            }
            _ => return false,
        };
        if self.streams[donor as usize].is_known && self.streams[waiter as usize].is_known {
            let epoch = if makes(Mistake::WaitCoversLater) { Epoch::MAX } else { epoch };
            let known = &mut self.streams[waiter as usize].seen;
            raise(known, donor, epoch);
            for (stream, epoch) in (0..).zip(seen) {
                if stream != waiter {
                    raise(known, stream, epoch);
                }
            }
        }
        true
    }

    fn begin_device(&mut self, thread: Id, scale: Scale) -> bool {
        let may = self.is_idle(thread, scale);
        let mut epochs = [0; STREAMS];
        for (it, ended) in self.streams.iter_mut().zip(&mut epochs).filter(|(it, _)| it.is_known) {
            *ended = it.epoch;
            it.epoch += 1;
        }
        self.calls[thread as usize] = Call::Device { epochs, is_made: false };
        may && self.streams.iter().all(|it| it.epoch <= scale.epochs)
    }

    fn end_device(&mut self, thread: Id, makes: &dyn Fn(Mistake) -> bool) -> bool {
        let call = std::mem::replace(&mut self.calls[thread as usize], Call::Idle);
        let Call::Device { epochs, is_made: true } = call else { return false };
        for block in &mut self.blocks {
            block.is_done |= block.held & (1 << thread) != 0;
            block.held &= !(1 << thread);
        }
        for (stream, mut epoch) in (0..).zip(epochs) {
            if makes(Mistake::DeviceCoversLater) {
                epoch = Epoch::MAX;
            }
            let it = &mut self.streams[stream as usize];
            if epoch > 0 && it.is_known {
                if it.recorded <= epoch {
                    it.recorded = 0;
                }
                self.disown(stream, epoch);
            }
        }
        true
    }

    fn sweep(&mut self, gone: Id, makes: &dyn Fn(Mistake) -> bool) -> bool {
        let owns = |block: &Block| match block.place {
            Place::Freeing { owner, .. } => owner == gone && !makes(Mistake::SweepDuringFree),
            Place::Free { owner, .. } => owner == gone,
            Place::Live | Place::Unowned => false,
        };
        let is_alone = self.calls.iter().all(|call| *call == Call::Idle) || makes(Mistake::SweepDuringCalls);
        let is_idle = !self.blocks.iter().any(owns);
        let it = &mut self.streams[gone as usize];
        let was_known = it.is_known;
        *it = Stream { exists: it.exists, ..Stream::NEW };
        self.blocks.iter_mut().for_each(|block| block.covered &= !(1 << gone));
        if !makes(Mistake::SweepKeepsSeen) {
            for other in &mut self.streams {
                (other.seen[gone as usize], other.recorded_seen[gone as usize]) = (0, 0);
            }
        }
        was_known && is_idle && is_alone
    }
}

impl Block {
    /// Makes the block unowned if a stream freed it in this epoch or before; returns whether it did.
    fn disown(&mut self, stream: Id, upto: Epoch) -> bool {
        let is_free = matches!(self.place, Place::Free { owner, epoch } if owner == stream && epoch <= upto);
        if is_free {
            self.place = Place::Unowned;
        }
        is_free
    }

    /// Submits work on the block to a stream that comes after all earlier work. No other stream, event or
    /// thread comes after the new work.
    fn submit(&mut self, stream: Id) {
        (self.before, self.covered, self.held, self.is_done) = (1 << stream, 0, 0, false);
    }
}
