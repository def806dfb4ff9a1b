//! The values of the slow path: the state of a request, its next step, and the step's answer.
//!
//! [`ladder`](crate::pool::central::ladder) turns an answer into the next step, under the pool's lock and
//! without any foreign call; [`act`](crate::pool::central::act) does a step and decides nothing.

use millpond_core::{DeviceId, DevicePtr, Error, StreamRef};

use crate::heap::request::Request;
use crate::pool::central::collect::{Donor, Inquiry, RecordedEvent};
use crate::pool::central::device_books::Reading;
use crate::store::{NoMemory, Task, Try};
use crate::stream_order::{ANY_STREAM, Owner};

/// A request that found no free block, until it is served or refused.
#[derive(Debug)]
pub(crate) struct SlowRequest {
    /// The request with the size that is tried now: first its usual size, then its exact size.
    pub(crate) request: Request,
    pub(crate) usual: Request,
    pub(crate) exact: Request,
    /// Whether the request is for a block. Otherwise it reserves memory for later requests.
    pub(crate) serves: bool,
    pub(crate) stream: StreamRef,
    /// The stream's number. No call forgets the stream while this one is on the slow path.
    pub(crate) owner: Owner,
    /// The pool's idle bytes at the last reading, if they are fewer than the request's bytes. Then the
    /// device's memory decides whether the request is possible.
    pub(crate) idle: Option<u64>,
    pub(crate) rung: Rung,
    /// Whether the stream captures a graph. Then it waits for no other stream, and the pool records no event
    /// on it.
    pub(crate) is_capturing: bool,
    /// The device's recent answer, if it was asked and no memory came or went since.
    pub(crate) reading: Option<Reading>,
    /// How new memory is tried, and how often the call has waited for other growths.
    pub(crate) how: Try,
    pub(crate) waits: u32,
    /// The error with which this growth was refused memory.
    pub(crate) failed: Option<Error>,
    /// Why the last refused growth got no memory.
    pub(crate) refused: NoMemory,
    /// Whether all caches were flushed in this attempt.
    pub(crate) has_flushed: bool,
    /// The bytes to keep while free memory is returned, and whether any was returned.
    pub(crate) keep_bytes: u64,
    pub(crate) has_released: bool,
    /// The free bytes of streams that may be destroyed, counted before the other streams were asked.
    pub(crate) unreachable_bytes: u64,
    /// The streams with a block that fits, the worst fit first.
    pub(crate) donors: Vec<Donor>,
    pub(crate) retries: usize,
    /// Errors that the request no longer needs. Dropping an error may run foreign code, so they are dropped
    /// without the lock.
    pub(crate) discarded: Vec<Error>,
    /// Whether the last look found that no memory could ever serve the request. The pool then stops trying.
    pub(crate) is_impossible: bool,
    /// Why no memory was taken, for the next event.
    pub(crate) told: Option<&'static str>,
    /// The number of blocks flushed from the threads' caches, for the next event.
    pub(crate) flushed: u64,
}

impl SlowRequest {
    pub(crate) fn new(request: Request, exact: Request, serves: bool, stream: StreamRef) -> Self {
        Self {
            request,
            usual: request,
            exact,
            serves,
            stream,
            owner: ANY_STREAM,
            idle: None,
            rung: Rung::Possible,
            is_capturing: false,
            reading: None,
            how: Try::Preferred,
            waits: 0,
            failed: None,
            refused: NoMemory::Below(None),
            has_flushed: false,
            keep_bytes: 0,
            has_released: false,
            unreachable_bytes: 0,
            donors: Vec::new(),
            retries: 0,
            discarded: Vec::new(),
            is_impossible: false,
            told: None,
            flushed: 0,
        }
    }

    /// Starts at a rung, with this request size.
    pub(crate) fn start(&mut self, request: Request, rung: Rung) {
        if self.request != request {
            self.reading = None;
        }
        (self.request, self.rung) = (request, rung);
        (self.retries, self.has_released) = (0, false);
    }

    /// Notes the error of a growth that was refused memory, if there is an error.
    pub(crate) fn set_failed(&mut self, error: Option<Error>) {
        let before = std::mem::replace(&mut self.failed, error);
        self.discarded.extend(before);
    }

    /// Notes why a growth was refused.
    pub(crate) fn set_refused(&mut self, lack: NoMemory) {
        if let NoMemory::Below(Some(before)) = std::mem::replace(&mut self.refused, lack) {
            self.discarded.push(before);
        }
    }

    /// Returns the step that refuses the request, with the reason of the last refused growth.
    pub(crate) fn refuse(&mut self) -> Step {
        Step::Refuse(std::mem::replace(&mut self.refused, NoMemory::Below(None)))
    }
}

/// A rung of the ladder, in the order in which they are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rung {
    /// Refuses a request that exceeds all memory that could become free.
    Possible,
    /// Gives newly active devices access to the pool's memory.
    Admit,
    /// Takes a free block: another thread may have freed one, or grown the pool, while this one waited.
    Free,
    /// Takes back the large blocks of the threads' caches. Taking back all blocks is expensive.
    LargeCaches,
    /// Asks which work of other streams is done.
    Others,
    /// Takes back all blocks of the threads' caches.
    AllCaches,
    /// Asks again, about the blocks that were in the caches.
    OthersAgain,
    /// Waits for streams that may be destroyed, if they own much.
    Unreachable,
    /// If growth would set a new peak, finds out which regions are free.
    Room,
    /// Returns these regions: one larger region may serve even if several smaller ones did not.
    MakeRoom,
    /// Takes new memory.
    Grow,
    /// Memory is short: takes back all cached blocks of the threads.
    Short,
    /// Asks which work of other streams is done, even if they are far behind.
    Completed,
    /// Grows from the memory that is unowned now.
    GrowFromCompleted,
    /// Makes the stream wait for another one.
    Wait,
    /// Waits for all streams.
    Synchronize,
    /// Grows from the memory that is unowned now.
    GrowFromAll,
    /// Returns free memory.
    Release,
    /// Grows after free memory was returned.
    GrowAnew,
    /// Tries the waits again while some block fits, which another thread may have freed meanwhile.
    Retry,
    /// Tries everything again with the request's exact size.
    Exact,
    /// Asks the device's other pools.
    Peers,
}

impl Rung {
    const ALL: [Self; 22] = [
        Self::Possible,
        Self::Admit,
        Self::Free,
        Self::LargeCaches,
        Self::Others,
        Self::AllCaches,
        Self::OthersAgain,
        Self::Unreachable,
        Self::Room,
        Self::MakeRoom,
        Self::Grow,
        Self::Short,
        Self::Completed,
        Self::GrowFromCompleted,
        Self::Wait,
        Self::Synchronize,
        Self::GrowFromAll,
        Self::Release,
        Self::GrowAnew,
        Self::Retry,
        Self::Exact,
        Self::Peers,
    ];

    /// Returns the rung below.
    pub(crate) fn below(self, slow: &SlowRequest) -> Self {
        match self {
            Self::Synchronize if slow.retries > 0 => Self::Retry,
            rung => Self::ALL[(rung as usize + 1).min(Self::ALL.len() - 1)],
        }
    }
}

/// The next step for a request.
#[derive(Debug)]
pub(crate) enum Step {
    /// Look at the device and the stream.
    Look,
    /// Ask the driver which work of other streams is done.
    Collect(Inquiry),
    /// Make the stream wait for another one, unless the other's work is done.
    WaitFor(Donor),
    /// Wait for all streams that own free blocks. If it `may_fail`, only a lost device is an error.
    Synchronize { may_fail: bool },
    /// Make the calls of a task.
    Run(Task),
    /// Wait for the end of a growth that the reading counted.
    AwaitRivals(Reading),
    /// Ask the device's other pools to release memory.
    AskPeers,
    /// The block, and a task to run after the request is served.
    Served(DevicePtr, Option<Task>),
    /// The pool holds the memory that it was to reserve.
    Reserved,
    /// There is no memory.
    Refuse(NoMemory),
    /// The device is lost, or a call failed otherwise.
    Fail(Error),
}

/// The answer to a step.
#[derive(Debug)]
pub(crate) enum Answer {
    Looked(Look),
    /// The donor's recorded event, and whether the device has reached it. If not, the stream waits for it
    /// now.
    Ordered {
        event: RecordedEvent,
        is_reached: bool,
    },
    /// A growth needs more than the device has. Holds the reading of the device.
    TooLittle(Reading),
    /// The step was done.
    Done,
    /// The step was not done, which is not an error.
    Skipped,
    Failed(Error),
}

/// The driver's answers about the device and the request's stream.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(crate) reading: Option<Reading>,
    /// Whether the request exceeds the device's free memory and all idle memory of the process's pools.
    pub(crate) is_beyond_device: bool,
    pub(crate) is_capturing: bool,
    /// Devices with an active context, if devices get access when they become active.
    pub(crate) active_peers: Vec<DeviceId>,
}

#[cfg(all(test, not(millpond_loom)))]
mod tests {
    use millpond_core::Layout;
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::pool::central::device_books::Device;

    /// The device's answer for one request is none for a request of another size.
    #[test]
    fn a_reading_is_kept_for_the_same_request() {
        let [usual, exact] =
            [2000, 1000].map(|bytes| Request::new(Layout::new(bytes)).expect("not too large"));
        for (request, is_kept) in [(usual, true), (exact, false)] {
            let driver = SimDevice::new(SimConfig::h200());
            let mut slow = SlowRequest::new(usual, exact, true, StreamRef::LEGACY);
            slow.reading = Some(Device::of(&*driver).read(&*driver, 0).expect("the device is there"));
            slow.start(request, Rung::Free);
            assert_eq!((slow.request, slow.reading.is_some()), (request, is_kept));
        }
    }
}
