//! The values of the slow path: what a request knows, what is to be done for it next, and what came of that.
//!
//! [`ladder`](crate::pool::central::ladder) turns an answer into the next step, under the pool's lock and
//! without any call; [`act`](crate::pool::central::act) does a step and decides nothing.

use millpond_core::{DeviceId, DevicePtr, Error, StreamRef};

use crate::heap::request::Request;
use crate::pool::central::collect::{Donor, Inquiry, RecordedEvent};
use crate::pool::central::device_books::Reading;
use crate::pool::central::ladder::Rung;
use crate::store::{NoMemory, Task, Try};
use crate::stream_order::{ANY_STREAM, Owner};

/// A request that found no free block: it lives until it is served or refused.
#[derive(Debug)]
pub(crate) struct Ask {
    /// The request in the size that is tried now: in its usual size first, and then in its exact one.
    pub(crate) request: Request,
    pub(crate) usual: Request,
    pub(crate) exact: Request,
    /// Whether it is for a block, and not to hold memory for later requests.
    pub(crate) serves: bool,
    pub(crate) stream: StreamRef,
    /// The stream's number. No call forgets the stream while this one is on the slow path.
    pub(crate) owner: Owner,
    /// The pool's idle bytes when it was read last, if they are fewer than the request's: then the device
    /// decides whether the request is possible.
    pub(crate) idle: Option<u64>,
    pub(crate) rung: Rung,
    /// Whether the stream captures a graph: then it waits for no other stream, and no record is made on it.
    pub(crate) is_capturing: bool,
    /// The device's answer of a moment ago, if it was asked and no memory came or went since.
    pub(crate) reading: Option<Reading>,
    /// How new memory is tried, and how often the call has waited for other growths.
    pub(crate) growth: Try,
    pub(crate) waits: u32,
    /// The error of the memory that this growth was refused.
    pub(crate) failed: Option<Error>,
    /// What the last growth that was refused lacked.
    pub(crate) refused: NoMemory,
    /// Whether all caches were flushed in this attempt.
    pub(crate) has_flushed: bool,
    /// The bytes to keep while free memory is returned, and whether any was.
    pub(crate) keep_bytes: u64,
    pub(crate) has_released: bool,
    /// The bytes of streams that may be destroyed, before other streams were asked.
    pub(crate) unreachable_bytes: u64,
    /// The streams with a block that fits, the worst fit first.
    pub(crate) donors: Vec<Donor>,
    pub(crate) retries: usize,
    /// Why no memory was taken, for the next event.
    pub(crate) told: Option<&'static str>,
}

impl Ask {
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
            growth: Try::Preferred,
            waits: 0,
            failed: None,
            refused: NoMemory::Below(None),
            has_flushed: false,
            keep_bytes: 0,
            has_released: false,
            unreachable_bytes: 0,
            donors: Vec::new(),
            retries: 0,
            told: None,
        }
    }
}

/// What is to be done next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Look at the device and the stream.
    Look,
    /// Ask the driver which work of other streams is done.
    Collect(Inquiry),
    /// Make the stream wait for another one, unless that one's work is done.
    WaitFor(Donor),
    /// Wait for all streams that own free blocks. If it `may_fail`, only a lost device is an error.
    Synchronize { may_fail: bool },
    /// Make the calls of a task.
    Run(Task),
    /// Wait for the end of a growth that the reading counted.
    AwaitRivals(Reading),
    /// Ask the device's other pools to release memory.
    AskPeers,
    /// The block; and a task that is to be run beside it.
    Served(DevicePtr, Option<Task>),
    /// The pool holds the memory that it was to reserve.
    Reserved,
    /// There is no memory.
    Refuse(NoMemory),
    /// The device is lost, or a call failed otherwise.
    Fail(Error),
}

/// What came of a step.
#[derive(Debug)]
pub(crate) enum Answer {
    Looked(Look),
    /// The donor's recorded event, and whether the device has reached it; else the stream waits for it now.
    Ordered {
        event: RecordedEvent,
        is_reached: bool,
    },
    /// A growth needs more than the device has: what that is.
    TooLittle(Reading),
    /// What the step was for was done.
    Done,
    /// It was not done, which is no error.
    Skipped,
    Failed(Error),
}

/// What the driver says of the device and of the request's stream.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(crate) reading: Option<Reading>,
    /// Whether the request exceeds the device's free memory and all idle memory of the process's pools.
    pub(crate) is_beyond_device: bool,
    pub(crate) is_capturing: bool,
    /// Devices with an active context, if they get access as they come.
    pub(crate) active_peers: Vec<DeviceId>,
}
