//! The steps: when an action is possible, and its changes.

use super::{Action, BLOCKS, Call, Id, LEGACY, Mistake, Place, STREAMS, Scale, State, THREADS};

/// Returns every action of this scale, possible or not.
pub(super) fn actions(scale: Scale) -> Vec<Action> {
    let Scale { streams, blocks, threads, .. } = scale;
    let mut all = Vec::new();
    for stream in 0..streams {
        all.extend([
            Action::Destroy { stream },
            Action::BeginCapture { stream },
            Action::EndCapture { stream },
        ]);
        all.extend((0..streams).map(|other| Action::Order { stream, other }));
        for block in 0..blocks {
            all.extend([
                Action::Allocate { block, stream },
                Action::TakeForeign { block, stream },
                Action::WorkAtLarge { block, stream },
            ]);
            for thread in 0..threads {
                for here in [false, true] {
                    all.extend([
                        Action::Use { thread, block, stream, here },
                        Action::Lend { thread, block, stream, here },
                    ]);
                }
            }
        }
        all.extend((0..threads).map(|thread| Action::WorkUnnamed { thread, stream }));
    }
    for block in 0..blocks {
        all.extend([
            Action::WorkNew { block },
            Action::HandOver { block },
            Action::Share { block },
            Action::Release { block, here: false },
            Action::Release { block, here: true },
            Action::WorkOld { block },
            Action::PassOn { block },
        ]);
        all.extend((0..threads).map(|thread| Action::LendUnnamed { thread, block }));
    }
    for thread in 0..threads {
        all.extend([Action::Work { thread }, Action::Fail { thread }]);
        for here in [false, true] {
            all.extend([false, true].map(|there| Action::End { thread, here, there }));
        }
    }
    all
}

impl State {
    pub(super) fn act(&mut self, action: Action, scale: Scale, wrong: Option<Mistake>) -> bool {
        let makes = |mistake| wrong == Some(mistake);
        let other = |stream: Id| (stream + 1) % scale.streams;
        match action {
            Action::Allocate { block, stream } => self.allocate(block, stream, Place::New),
            Action::TakeForeign { block, stream } => self.allocate(block, stream, Place::Held),
            Action::WorkNew { block } => self.work_of_layer(block, Place::New, scale, wrong),
            Action::WorkOld { block } => self.work_of_layer(block, Place::Old, scale, wrong),
            Action::HandOver { block } => {
                let home = &mut self.home[block as usize];
                if makes(Mistake::LayerSaysReady) {
                    *home = other(*home);
                }
                self.passes(block, Place::New, Place::Held)
            }
            Action::Use { thread, block, stream, here } => {
                let possible = self.may_begin(thread, block) && self.may_work(stream);
                self.begin(thread, block, stream, Call::Use, here, scale, wrong);
                possible
            }
            Action::Lend { thread, block, stream, here } => {
                let possible = self.may_begin(thread, block) && self.exists[stream as usize];
                self.begin(thread, block, stream, Call::Loan, here, scale, wrong);
                possible
            }
            Action::LendUnnamed { thread, block } => {
                let possible = self.may_begin(thread, block);
                self.note_call(thread, block, self.home[block as usize], Call::Unnamed);
                possible
            }
            Action::Share { block } => {
                self.at_large[block as usize] = true;
                self.place[block as usize] == Place::Held
            }
            Action::Work { .. } | Action::WorkUnnamed { .. } | Action::WorkAtLarge { .. } => {
                self.work(action, wrong)
            }
            Action::End { thread, here, there } => self.end(thread, here, there, scale, wrong),
            Action::Fail { thread } => {
                self.at_large[self.of[thread as usize] as usize] |= !makes(Mistake::FailureForgotten);
                std::mem::replace(&mut self.call[thread as usize], Call::Idle) != Call::Idle
            }
            Action::Release { block, here } => self.release(block, here, scale, wrong),
            Action::PassOn { block } => {
                self.stray[block as usize] |= makes(Mistake::LayerAfterPassingOn);
                self.passes(block, Place::Old, Place::Pool)
            }
            Action::Order { stream, other } => {
                self.follow(stream, other);
                self.may_work(stream) && self.may_work(other)
            }
            Action::Destroy { stream } => {
                let is_default = stream == LEGACY || self.local[stream as usize];
                let is_home = (0..BLOCKS).any(|it| self.home[it] == stream && self.place[it] != Place::Pool);
                let is_needed = is_default || is_home || self.has_call(stream);
                std::mem::replace(&mut self.exists[stream as usize], false) && !is_needed
            }
            Action::BeginCapture { stream } => {
                let possible = self.may_work(stream) && stream != LEGACY && !self.has_call(stream);
                self.captures[stream as usize] = true;
                possible
            }
            Action::EndCapture { stream } => std::mem::replace(&mut self.captures[stream as usize], false),
        }
    }

    /// The work of a use, of an export, or of a library whose streams are unknown.
    fn work(&mut self, action: Action, wrong: Option<Mistake>) -> bool {
        match action {
            Action::Work { thread } => {
                let (block, stream) = (self.of[thread as usize], self.on[thread as usize]);
                let is_named = matches!(self.call[thread as usize], Call::Use | Call::Loan);
                self.submit(block, stream);
                is_named && self.may_work(stream)
            }
            Action::WorkUnnamed { thread, stream } => {
                let block = self.of[thread as usize];
                self.submit(block, stream);
                self.call[thread as usize] == Call::Unnamed && self.may_work_ready(block, stream)
            }
            Action::WorkAtLarge { block, stream } => {
                self.submit(block, stream);
                let is_shared = self.at_large[block as usize] || wrong == Some(Mistake::SourceNotUsed);
                let is_held = self.place[block as usize] == Place::Held;
                is_held && is_shared && self.may_work_ready(block, stream)
            }
            _ => false,
        }
    }

    fn allocate(&mut self, block: Id, stream: Id, to: Place) -> bool {
        let at = block as usize;
        let possible = self.place[at] == Place::Pool && self.exists[stream as usize];
        (self.place[at], self.home[at]) = (to, stream);
        (self.foreign[at], self.at_large[at]) = (to == Place::Held, false);
        self.ready[at] = self.all_that_gain(stream);
        self.after[at] = [[true; STREAMS]; STREAMS];
        possible
    }

    fn passes(&mut self, block: Id, from: Place, to: Place) -> bool {
        std::mem::replace(&mut self.place[block as usize], to) == from
    }

    fn work_of_layer(&mut self, block: Id, place: Place, scale: Scale, wrong: Option<Mistake>) -> bool {
        let at = block as usize;
        let home = self.home[at];
        let worker = if wrong == Some(Mistake::LayerOnOwnStream) { (home + 1) % scale.streams } else { home };
        let captures = self.captures[home as usize];
        let may_capture = wrong == Some(Mistake::LayerInCapture);
        if captures {
            self.stray[at] |= may_capture;
        } else {
            self.submit(block, worker);
        }
        self.place[at] == place && !self.foreign[at] && (!captures || may_capture)
    }

    fn end(&mut self, thread: Id, here: bool, there: bool, scale: Scale, wrong: Option<Mistake>) -> bool {
        let makes = |mistake| wrong == Some(mistake);
        let call = std::mem::replace(&mut self.call[thread as usize], Call::Idle);
        let (mut home, on) = (self.home[self.of[thread as usize] as usize], self.on[thread as usize]);
        if makes(Mistake::ImportHasOwnOrder) {
            home = (home + 1) % scale.streams;
        }
        let own = self.name(home, here, scale, wrong);
        let stream = if call == Call::Use { on } else { self.name(on, there, scale, wrong) };
        let are_local = self.local[home as usize] && self.local[on as usize];
        let are_two = own == stream && are_local && home != on && !makes(Mistake::LegacyStandsForTwo);
        match call {
            Call::Idle => return false,
            Call::Use if makes(Mistake::UseNotFollowed) => {}
            Call::Loan | Call::Unnamed if makes(Mistake::ExportNotFollowed) => {}
            Call::Unnamed => self.wait_for_device(),
            _ if self.exists[on as usize] && are_two => self.wait_for_device(),
            _ if self.exists[on as usize] => self.order(own, stream, wrong),
            _ if makes(Mistake::DeadStreamSkipped) => {}
            _ => self.wait_for_device(),
        }
        true
    }

    fn release(&mut self, block: Id, here: bool, scale: Scale, wrong: Option<Mistake>) -> bool {
        let at = block as usize;
        let is_used = (0..THREADS).any(|it| self.call[it] != Call::Idle && self.of[it] == block);
        let own = self.name(self.home[at], here, scale, wrong);
        self.home[at] = own;
        if self.at_large[at] && wrong != Some(Mistake::UnknownNotAwaited) {
            self.wait_for_device();
        } else if self.foreign[at] && !self.captures[own as usize] {
            self.wait_for_stream(own);
        } else if self.foreign[at] && wrong != Some(Mistake::ForeignEndsInCapture) {
            self.wait_for_device();
        }
        let may = !is_used || wrong == Some(Mistake::ReleaseDuringUse);
        self.passes(block, Place::Held, Place::Old) && may
    }

    // --- Calls ---

    fn may_begin(&self, thread: Id, block: Id) -> bool {
        self.call[thread as usize] == Call::Idle && self.place[block as usize] == Place::Held
    }

    /// The stream waits for the block's stream, and the call is noted.
    #[allow(clippy::too_many_arguments, reason = "each is a part of the step")]
    fn begin(
        &mut self,
        thread: Id,
        block: Id,
        stream: Id,
        call: Call,
        here: bool,
        scale: Scale,
        wrong: Option<Mistake>,
    ) {
        let own = self.name(self.home[block as usize], here, scale, wrong);
        let are_captured = self.captures[stream as usize] && self.captures[own as usize];
        let is_left_out = match call {
            Call::Use => wrong == Some(Mistake::UseWithoutWait),
            _ => wrong == Some(Mistake::LendInCapture) && are_captured,
        };
        if !is_left_out {
            self.order(stream, own, wrong);
        }
        self.note_call(thread, block, stream, call);
    }

    fn note_call(&mut self, thread: Id, block: Id, stream: Id, call: Call) {
        let at = thread as usize;
        (self.call[at], self.of[at], self.on[at]) = (call, block, stream);
    }

    /// Returns whether work on the stream runs at once.
    pub(super) fn may_work(&self, stream: Id) -> bool {
        self.exists[stream as usize] && !self.captures[stream as usize]
    }

    pub(super) fn may_work_ready(&self, block: Id, stream: Id) -> bool {
        self.may_work(stream) && self.ready[block as usize][stream as usize]
    }

    /// Returns whether a method uses the stream now. The stream then is alive, and captures nothing.
    fn has_call(&self, stream: Id) -> bool {
        (0..THREADS).any(|it| self.call[it] == Call::Use && self.on[it] == stream)
    }

    /// Returns the stream that a stored handle means, on the thread of the stream or on another one.
    fn name(&self, stream: Id, is_here: bool, scale: Scale, wrong: Option<Mistake>) -> Id {
        match wrong {
            _ if is_here || !self.local[stream as usize] => stream,
            Some(Mistake::OtherThreadsStream) => (stream + 1) % scale.streams,
            _ => LEGACY,
        }
    }

    /// Makes a stream wait for another. If one of them captures, the host waits for the device instead.
    fn order(&mut self, stream: Id, other: Id, wrong: Option<Mistake>) {
        match self.captures[stream as usize] || self.captures[other as usize] {
            _ if stream == other => {}
            false => self.follow(stream, other),
            true if wrong == Some(Mistake::OrderInCapture) => {}
            true => self.wait_for_device(),
        }
    }

    // --- The truth ---

    /// Returns whether the order of a stream also holds for another: the legacy stream and the default
    /// streams of threads wait for each other.
    pub(super) fn gains(&self, stream: Id, other: Id) -> bool {
        let with_legacy = |one: Id, legacy: Id| self.local[one as usize] && legacy == LEGACY;
        other == stream || with_legacy(stream, other) || with_legacy(other, stream)
    }

    fn all_that_gain(&self, stream: Id) -> [bool; STREAMS] {
        std::array::from_fn(|other| self.gains(stream, other as Id))
    }

    fn submit(&mut self, block: Id, stream: Id) {
        self.after[block as usize][stream as usize] = self.all_that_gain(stream);
    }

    fn follow(&mut self, stream: Id, other: Id) {
        let gain = self.all_that_gain(stream);
        self.each_order(|order| {
            let is_after = order[other as usize];
            (0..STREAMS).for_each(|it| order[it] |= gain[it] && is_after);
        });
    }

    fn wait_for_stream(&mut self, stream: Id) {
        self.each_order(|order| *order = order.map(|it| it || order[stream as usize]));
    }

    fn wait_for_device(&mut self) {
        self.each_order(|order| *order = [true; STREAMS]);
    }

    /// Changes each set of streams that come after some work.
    fn each_order(&mut self, mut change: impl FnMut(&mut [bool; STREAMS])) {
        self.ready.iter_mut().chain(self.after.iter_mut().flatten()).for_each(&mut change);
    }
}
