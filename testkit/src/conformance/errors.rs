//! Checks requests that cannot be served, and the state afterwards.

use millpond_core::{DeviceMemoryResource, Error, ErrorKind, Layout, StreamRef};

use super::Outcome::{self, Passed, Skipped};
use super::context::{Block, Context, Tested};

bodies![
    more_than_the_device_is_out_of_memory,
    two_to_the_63_is_refused,
    the_largest_number_is_refused,
    a_huge_request_is_out_of_memory_at_any_alignment,
    a_huge_alignment_is_refused_or_served,
    errors_name_request_and_stack,
    an_error_changes_nothing,
    an_impossible_request_frees_nothing,
    works_after_an_error,
    full_device_recovers,
    full_device_serves_another_stream,
    memory_info_is_sane,
];

const S: StreamRef = StreamRef::LEGACY;
const PIB: u64 = 1 << 50;

fn refused(resource: &Tested, layout: Layout) -> Error {
    refused_on(resource, layout, S)
}

fn refused_on(resource: &Tested, layout: Layout, stream: StreamRef) -> Error {
    match resource.allocate(layout, stream) {
        Err(error) => error,
        Ok(ptr) => panic!("{layout:?} was served at {ptr} instead of refused"),
    }
}

/// Asserts that the error is out of memory and that its report covers this request.
#[track_caller]
fn is_reported(error: &Error, layout: Layout) {
    assert!(error.is_out_of_memory(), "{layout:?}: {error}");
    let report = error.out_of_memory_report();
    let report = report.unwrap_or_else(|| panic!("{layout:?} has no report: {error}"));
    // A layer may ask for more than the request, to align it.
    assert!(report.requested_bytes >= layout.bytes(), "{layout:?}: {report:?}");
    assert!(error.to_string().contains(&report.to_string()), "the report is not printed: {error}");
    assert_eq!(error.is_impossible(), report.is_impossible, "{error}");
}

/// Tries every power of two from 1 PiB, which RMM's tests request, to the largest one.
fn more_than_the_device_is_out_of_memory(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let other = context.stream();
    for bytes in (50..64).map(|power| 1 << power) {
        for stream in [S, *other] {
            let layout = Layout::new(bytes);
            is_reported(&refused_on(&resource, layout, stream), layout);
        }
    }
    Passed
}

fn two_to_the_63_is_refused(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    for bytes in [1 << 63, (1 << 63) - 1, (1 << 63) + 1] {
        let error = refused(&resource, Layout::new(bytes));
        is_reported(&error, Layout::new(bytes));
    }
    Passed
}

/// Rounding such a size up overflows; RMM then returns a block of 0 bytes.
fn the_largest_number_is_refused(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    for bytes in [u64::MAX, u64::MAX - 1, u64::MAX - 255, u64::MAX - 256, u64::MAX - (2 << 20)] {
        let error = refused(&resource, Layout::new(bytes));
        is_reported(&error, Layout::new(bytes));
        assert!(bytes < u64::MAX - 255 || error.is_impossible(), "{error}");
    }
    Passed
}

/// A large alignment changes nothing, unless the resource refuses that alignment for every size.
fn a_huge_request_is_out_of_memory_at_any_alignment(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    for power in [9, 12, 21, 40, 63] {
        let aligned = |bytes| Layout::with_alignment(bytes, 1 << power).unwrap_or(Layout::new(bytes));
        let layout = aligned(256);
        let refuses = match resource.allocate(layout, S) {
            Ok(ptr) => {
                resource.put(resource.block(ptr, layout, S));
                false
            }
            Err(error) => matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidArgument),
        };
        for bytes in [PIB, 1 << 55, 1 << 60, u64::MAX - (1 << 20), u64::MAX] {
            let error = refused(&resource, aligned(bytes));
            let is_of_alignment = matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidArgument);
            if !(refuses && is_of_alignment) {
                is_reported(&error, aligned(bytes));
            }
        }
    }
    Passed
}

fn a_huge_alignment_is_refused_or_served(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    for (bytes, power) in [(1, 63), (u64::MAX, 63), (1 << 62, 62), (256, 40)] {
        let layout = Layout::with_alignment(bytes, 1 << power).unwrap_or(Layout::new(bytes));
        match resource.allocate(layout, S) {
            Ok(ptr) => resource.put(resource.block(ptr, layout, S)),
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    ErrorKind::OutOfMemory | ErrorKind::InvalidArgument | ErrorKind::Unsupported
                ),
                "{error}"
            ),
        }
    }
    Passed
}

fn errors_name_request_and_stack(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    for bytes in [PIB, u64::MAX] {
        let error = refused(&resource, Layout::new(bytes));
        assert_eq!(error.requested_bytes(), Some(bytes), "{error}");
        assert_eq!(error.stream(), Some(S), "{error}");
        let stack = error.stack().unwrap_or_else(|| panic!("no stack is named: {error}"));
        let whole = resource.to_string();
        assert!(!stack.is_empty() && whole.starts_with(stack), "`{stack}` is not the base of `{whole}`");
        assert!(error.to_string().contains(stack), "{error}");
    }
    Passed
}

fn an_error_changes_nothing(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let block = resource.get(context.clip(1000), S);
    let (statistics, device) = (resource.statistics(), context.used_bytes());
    for bytes in [PIB, 1 << 63, u64::MAX] {
        drop(refused(&resource, Layout::new(bytes)));
    }
    assert_eq!(context.used_bytes(), device, "bytes of the device");
    let in_use = |statistics: Option<millpond_core::ResourceStatistics>| {
        statistics.map(|s| (s.bytes_in_use, s.bytes_requested, s.blocks_in_use, s.allocations))
    };
    assert_eq!(in_use(resource.statistics()), in_use(statistics));
    resource.put(block);
    Passed
}

/// Duty 4: no memory can serve such a request, so the free memory stays where it is.
fn an_impossible_request_frees_nothing(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    resource.put(resource.get(context.clip(8 << 20), S));
    let device = context.used_bytes();
    drop(refused(&resource, Layout::new(u64::MAX)));
    assert_eq!(context.used_bytes(), device, "bytes of the device; see `Error::is_impossible`");
    Passed
}

fn works_after_an_error(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    for _ in 0..3 {
        drop(refused(&resource, Layout::new(PIB)));
        let blocks = [resource.get(1, S), resource.get(context.clip(1 << 20), S)];
        blocks.into_iter().for_each(|block| resource.put(block));
    }
    Passed
}

/// Allocates blocks until memory is out, or until their number shows that the resource has no limit.
fn fill(resource: &Tested, bytes: u64) -> (Vec<Block>, Option<Error>) {
    let layout = Layout::new(bytes);
    let mut blocks = Vec::new();
    while blocks.len() < 4096 {
        match resource.allocate(layout, S) {
            Ok(ptr) => blocks.push(resource.block(ptr, layout, S)),
            Err(error) => return (blocks, Some(error)),
        }
    }
    (blocks, None)
}

const TOO_MUCH: Outcome = Skipped("it would fill the device; see Subject::alone");

/// A device that the body may fill with a few hundred blocks, and the size of these blocks.
fn to_fill<'a>(context: &Context<'a>) -> Option<(Context<'a>, u64)> {
    let (context, total) = match (&context.sim, context.used_bytes()) {
        (Some(_), _) => {
            let total = context.subject.device_bytes.min(256 << 20);
            (context.apart(total)?.0, total)
        }
        (None, Some(_)) => {
            let memory = context.driver.mem_get_info().unwrap_or_else(|error| panic!("{error}"));
            (Context::on_driver(context.subject, &context.driver), memory.total)
        }
        (None, None) => return None,
    };
    let bytes = context.clip((total / 256).max(1 << 20));
    Some((context, bytes))
}

fn full_device_recovers(context: &Context<'_>) -> Outcome {
    let Some((context, bytes)) = to_fill(context) else { return TOO_MUCH };
    let resource = context.build();
    let (blocks, error) = fill(&resource, bytes);
    let Some(error) = error else {
        blocks.into_iter().for_each(|block| resource.put(block));
        return Skipped("the resource hands out more than the device has");
    };
    is_reported(&error, Layout::new(bytes));
    let count = blocks.len();
    assert!(count > 16, "only {count} blocks of {bytes} bytes were allocated");
    blocks.into_iter().for_each(|block| resource.put(block));
    let (again, _) = fill(&resource, bytes);
    assert_eq!(again.len(), count, "the second time, a different number of blocks fits");
    again.into_iter().for_each(|block| resource.put(block));
    drop(resource);
    context.check_at_end();
    Passed
}

/// All memory was freed on one stream with unfinished work; another stream then allocates it.
fn full_device_serves_another_stream(context: &Context<'_>) -> Outcome {
    let Some((context, bytes)) = to_fill(context) else { return TOO_MUCH };
    let resource = context.build();
    let other = context.stream();
    let (blocks, _) = fill(&resource, bytes);
    let count = blocks.len();
    blocks.into_iter().for_each(|block| resource.put(block));
    let again: Vec<Block> = (0..count).map(|_| resource.get(bytes, *other)).collect();
    again.into_iter().for_each(|block| resource.put(block));
    drop(resource);
    drop(other);
    context.check_at_end();
    Passed
}

fn memory_info_is_sane(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let info = || resource.memory_info().unwrap_or_else(|error| panic!("{error}"));
    let before = info();
    assert!(before.total > 0 && before.free <= before.total, "{before:?}");
    let block = resource.get(context.clip(8 << 20), S);
    let during = info();
    resource.put(block);
    let after = info();
    assert!(during.total == before.total && after.free <= after.total, "{before:?}, {during:?}, {after:?}");
    // On a real device or host, other programs also change the free memory.
    if context.sim.is_some() {
        assert!(during.free <= before.free && after.free >= during.free, "{before:?}, {during:?}, {after:?}");
    }
    Passed
}
