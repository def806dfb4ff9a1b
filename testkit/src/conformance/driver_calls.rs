//! Lets each driver call of `allocate` and of `deallocate` fail in turn, so also the calls that a layer makes
//! itself.

use std::sync::Arc;

use millpond_core::{DeviceMemoryResource, DriverError, Error, ErrorKind, Layout};
use millpond_driver::CallKind;
use millpond_driver::sim::{FaultPlan, SimDevice};

use super::Outcome::{self, Passed, Skipped};
use super::context::{Block, Context, OwnStream, Tested};
use super::misuse::in_use;
use crate::faults::FREES;
use crate::misuse_recorder;

bodies![
    errors_of_driver_calls_name_everything,
    a_failed_call_of_allocate_keeps_no_memory,
    a_failed_call_of_deallocate_keeps_no_memory,
    a_lost_device_is_noticed_in_any_call,
];

const NEEDS_SIM: Outcome = Skipped("only the simulated device fails on request");

/// The call of the resource in which a driver call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Allocate,
    Deallocate,
}

/// If one of these calls fails, or one of [`FREES`], an object may be left, or may be in use.
const ENDS: [CallKind; 4] =
    [CallKind::MemPool, CallKind::EventDestroy, CallKind::StreamDestroy, CallKind::Synchronize];

/// A resource on its own device, and the step in which one of its driver calls failed.
struct Ran<'a> {
    resource: Tested,
    stream: OwnStream,
    layout: Layout,
    block: Option<Block>,
    error: Option<Error>,
    /// The driver calls of the step.
    calls: u64,
    /// The failed call, as text.
    what: String,
    may_keep: bool,
    sim: Arc<SimDevice>,
    context: Context<'a>,
}

/// Runs the step on a new device. `warm`: the resource has served such a request before. `call` is the number
/// of the failing driver call in the step.
fn run<'a>(
    context: &Context<'a>,
    step: Step,
    is_warm: bool,
    call: Option<u64>,
    code: i32,
) -> Option<Ran<'a>> {
    let (context, sim) = context.apart(context.subject.device_bytes)?;
    let stream = context.stream();
    let layout = Layout::new(context.clip(1 << 20));
    let resource = context.build();
    if is_warm {
        resource.put(resource.get_layout(layout, *stream));
    }
    let mut block = (step == Step::Deallocate).then(|| resource.get_layout(layout, *stream));
    let start = sim.driver_calls();
    sim.set_faults(call.map_or_else(FaultPlan::none, |call| FaultPlan::nth_call(call, code)));
    let mut error = None;
    match block.take() {
        // If the driver refuses to free a live block, the resource takes that for a caller's mistake.
        Some(block) => drop(misuse_recorder::record(|| resource.put(block))),
        None => match resource.allocate(layout, *stream) {
            Ok(ptr) => block = Some(resource.block(ptr, layout, *stream)),
            Err(failed) => error = Some(failed),
        },
    }
    let calls = sim.driver_calls() - start;
    let failed = CallKind::ALL.into_iter().find(|kind| sim.failed_calls(*kind) > 0);
    let (what, may_keep) = (
        format!("`{}` of {step:?} failed with code {code}", failed.map_or("nothing", CallKind::name)),
        failed.is_some_and(|kind| FREES.contains(&kind) || ENDS.contains(&kind)),
    );
    if !sim.is_lost() {
        sim.set_faults(FaultPlan::none());
    }
    Some(Ran { resource, stream, layout, block, error, calls, what, may_keep, sim, context })
}

/// Memory that is in use after the step, when the resource has released its free memory.
struct Kept {
    layers: Vec<(String, Option<u64>, Option<[u64; 4]>)>,
    device_bytes: u64,
}

impl Ran<'_> {
    /// Frees the block and releases all free memory.
    fn release(&mut self) -> Kept {
        self.block.take().into_iter().for_each(|block| self.resource.put(block));
        self.resource.trim(0).unwrap_or_else(|error| panic!("{}: trim: {error}", self.what));
        Kept { layers: in_use(self.resource.inner()), device_bytes: self.sim.live_bytes() }
    }

    /// Checks that no more memory is in use than without the failure, and that the resource still works.
    fn check_memory(mut self, usual: &Kept) {
        let kept = self.release();
        let what = &self.what;
        if !self.may_keep {
            let remedy = "after its own failed work, a layer must still free the block";
            for ((layer, _, left), (.., right)) in kept.layers.iter().zip(&usual.layers) {
                // The number of frees differs: a failed `allocate` may have made some.
                let (left, right) = (left.unwrap_or_default(), right.unwrap_or_default());
                let is_more = left[..3].iter().zip(&right[..3]).any(|(left, right)| left > right);
                assert!(!is_more, "{what}, and a block stays in use in `{layer}`: {remedy}");
            }
            let (left, right) = (kept.device_bytes, usual.device_bytes);
            assert!(left <= right, "{what}, and {} bytes of the device are leaked: {remedy}", left - right);
        }
        let block = self.resource.get_layout(self.layout, *self.stream);
        self.context.touch(block, *self.stream);
        self.resource.put(block);
        let Self { resource, stream, context, may_keep, .. } = self;
        drop((resource, stream));
        if !may_keep {
            context.check_at_end();
        }
    }
}

/// Lets each driver call of the step fail with this code. `check` gets the memory in use without a failure.
fn for_each_call<'a>(
    context: &Context<'a>,
    step: Step,
    code: i32,
    check: impl Fn(Ran<'a>, &Kept),
) -> Outcome {
    for is_warm in [false, true] {
        let Some(mut usual) = run(context, step, is_warm, None, code) else { return NEEDS_SIM };
        let (calls, kept) = (usual.calls, usual.release());
        drop(usual);
        for call in 0..calls {
            run(context, step, is_warm, Some(call), code).into_iter().for_each(|ran| check(ran, &kept));
        }
    }
    Passed
}

/// Duty 10, for errors of the driver: the kind, the request, the stack and the device.
fn errors_of_driver_calls_name_everything(context: &Context<'_>) -> Outcome {
    let codes = [
        (DriverError::INVALID_VALUE, ErrorKind::Driver),
        (DriverError::OUT_OF_MEMORY, ErrorKind::OutOfMemory),
        (DriverError::ILLEGAL_ADDRESS, ErrorKind::Poisoned),
    ];
    for (code, kind) in codes {
        let outcome = for_each_call(context, Step::Allocate, code, |mut ran, _| {
            ran.block.take().into_iter().for_each(|block| ran.resource.put(block));
            let (what, Some(error)) = (&ran.what, &ran.error) else { return };
            assert_eq!(error.kind(), kind, "{what}: the kind of: {error}");
            let request = (Some(ran.layout.bytes()), Some(*ran.stream));
            let named = (error.requested_bytes(), error.stream());
            assert_eq!(named, request, "{what}; add the request with `Error::for_request`: {error}");
            let (whole, stack) = (ran.resource.to_string(), error.stack().unwrap_or_default());
            // A layer with a second upstream may name the stack of that one.
            let base = |text: &str| text.split(['+', ':']).next().map(ToOwned::to_owned);
            assert!(
                !stack.is_empty() && base(stack) == base(&whole),
                "{what}, and the error does not name the stack; add it with `Error::in_stack(self)`: {error}"
            );
            let device = ran.context.driver.device();
            assert_eq!(
                error.device(),
                Some(device),
                "{what}, and the error does not name the device; make the call through \
                 `millpond::driver::call`: {error}"
            );
        });
        if outcome != Passed {
            return outcome;
        }
    }
    Passed
}

fn a_failed_call_of_allocate_keeps_no_memory(context: &Context<'_>) -> Outcome {
    for_each_call(context, Step::Allocate, DriverError::INVALID_VALUE, Ran::check_memory)
}

/// A free cannot fail: the block is free even if the work of a layer failed.
fn a_failed_call_of_deallocate_keeps_no_memory(context: &Context<'_>) -> Outcome {
    for_each_call(context, Step::Deallocate, DriverError::INVALID_VALUE, Ran::check_memory)
}

/// Duty 7, for each driver call: the call that loses the device records that.
fn a_lost_device_is_noticed_in_any_call(context: &Context<'_>) -> Outcome {
    for step in [Step::Allocate, Step::Deallocate] {
        let outcome = for_each_call(context, step, DriverError::ILLEGAL_ADDRESS, |mut ran, _| {
            let what = &ran.what;
            assert!(
                ran.context.driver.health().is_lost(),
                "{what}, and nothing recorded that the device is lost; make the call through \
                 `millpond::driver::call`"
            );
            let again = ran.resource.allocate(ran.layout, *ran.stream);
            let kind = again.as_ref().map_err(Error::kind).err();
            assert_eq!(kind, Some(ErrorKind::Poisoned), "{what}, and a later request got {again:?}");
            let calls = ran.sim.driver_calls();
            ran.block.take().into_iter().for_each(|block| ran.resource.put(block));
            drop(ran.resource);
            assert_eq!(ran.sim.driver_calls(), calls, "{what}, and the drop calls the driver");
        });
        if outcome != Passed {
            return outcome;
        }
    }
    Passed
}
