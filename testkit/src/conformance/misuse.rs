//! Checks that an invalid `deallocate` is refused, counted and reported, and changes nothing.

use millpond_core::misuse::{Misuse, MisuseKind};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef,
};

use super::Outcome::{self, Passed, Skipped};
use super::context::Context;
use crate::misuse_recorder::record;

bodies![
    a_foreign_pointer_is_refused,
    a_pointer_into_a_block_is_refused,
    a_second_free_is_refused,
    a_wrong_size_is_refused,
    misuse_changes_nothing,
];

const S: StreamRef = StreamRef::LEGACY;
const CANNOT_TELL: Outcome = Skipped("the subject does not declare it; see Subject::refuses");

/// Makes an invalid `deallocate` call and returns the reports.
fn misuse(resource: &AnyResource, ptr: DevicePtr, bytes: u64) -> Vec<Misuse> {
    let counted = || resource.statistics().map_or(0, |statistics| statistics.misuses);
    let before = counted();
    let ((), reports) = record(|| {
        // SAFETY: this breaks the caller's promises. Bodies do it only to resources that declare to refuse
        // it, and use none of the memory.
        unsafe { resource.deallocate(ptr, Layout::new(bytes), S) }
    });
    for report in &reports {
        assert_eq!((report.ptr, report.bytes), (ptr, bytes), "{report}");
        let (stack, base) = (resource.to_string(), report.resource.split('+').next().unwrap_or_default());
        assert!(stack.starts_with(base), "`{stack}` refused as `{}`", report.resource);
    }
    if resource.statistics().is_some() {
        assert_eq!(counted(), before + reports.len() as u64, "misuses counted");
    }
    reports
}

fn build(context: &Context<'_>) -> AnyResource {
    context.subject.build(&context.driver).unwrap_or_else(|error| panic!("{error}"))
}

fn get(resource: &AnyResource, bytes: u64) -> DevicePtr {
    resource.allocate(Layout::new(bytes), S).unwrap_or_else(|error| panic!("{error}"))
}

fn put(resource: &AnyResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the block came from `get` of this resource with these bytes, and nothing uses it.
    unsafe { resource.deallocate(ptr, Layout::new(bytes), S) }
}

fn kinds(reports: &[Misuse]) -> Vec<MisuseKind> {
    reports.iter().map(|report| report.kind).collect()
}

fn a_foreign_pointer_is_refused(context: &Context<'_>) -> Outcome {
    if !context.subject.refusals.foreign_pointer {
        return CANNOT_TELL;
    }
    let resource = build(context);
    let ptr = get(&resource, 1000);
    for foreign in [DevicePtr::new(256), DevicePtr::new(u64::MAX - 255), ptr.offset(1 << 45)] {
        assert_eq!(kinds(&misuse(&resource, foreign, 1000)), [MisuseKind::ForeignPointer], "{foreign}");
    }
    put(&resource, ptr, 1000);
    Passed
}

fn a_pointer_into_a_block_is_refused(context: &Context<'_>) -> Outcome {
    if !context.subject.refusals.foreign_pointer {
        return CANNOT_TELL;
    }
    let resource = build(context);
    let bytes = context.clip(4096);
    let ptr = get(&resource, bytes);
    for offset in [1, 256] {
        assert_eq!(
            kinds(&misuse(&resource, ptr.offset(offset), 256)),
            [MisuseKind::ForeignPointer],
            "{offset}"
        );
    }
    put(&resource, ptr, bytes);
    Passed
}

fn a_second_free_is_refused(context: &Context<'_>) -> Outcome {
    if !context.subject.refusals.double_free {
        return CANNOT_TELL;
    }
    let resource = build(context);
    let (first, second) = (get(&resource, 1000), get(&resource, 1000));
    put(&resource, first, 1000);
    let reports = misuse(&resource, first, 1000);
    assert!(
        matches!(kinds(&reports)[..], [MisuseKind::DoubleFree | MisuseKind::ForeignPointer]),
        "reports: {reports:?}"
    );
    put(&resource, second, 1000);
    assert_eq!(misuse(&resource, second, 1000).len(), 1, "with everything free");
    Passed
}

fn a_wrong_size_is_refused(context: &Context<'_>) -> Outcome {
    if !context.subject.refusals.wrong_size {
        return CANNOT_TELL;
    }
    let resource = build(context);
    let bytes = context.clip(5000);
    let ptr = get(&resource, bytes);
    for wrong in [1, bytes - 1, bytes + 1, bytes * 2, u64::MAX] {
        let expected = MisuseKind::WrongSize { allocated_bytes: bytes };
        assert_eq!(kinds(&misuse(&resource, ptr, wrong)), [expected], "{wrong} bytes");
    }
    put(&resource, ptr, bytes);
    Passed
}

/// The bytes and blocks that each layer counts as in use. If one layer refuses a free, no layer may count it.
pub(super) fn in_use(resource: &AnyResource) -> Vec<(String, Option<u64>, Option<[u64; 4]>)> {
    let layers = resource.memory_report().layers.into_iter().map(|layer| {
        let counts = layer
            .statistics
            .map(|it| [it.bytes_in_use, it.bytes_requested, it.blocks_in_use, it.deallocations]);
        (layer.layer, layer.limit_used_bytes, counts)
    });
    layers.collect()
}

/// After all kinds of misuse, every layer's counts are unchanged, blocks still do not overlap, and all memory
/// is returned.
fn misuse_changes_nothing(context: &Context<'_>) -> Outcome {
    let refusals = context.subject.refusals;
    let tested = context.build();
    let resource = tested.inner();
    let kept = tested.get(context.clip(3000), S);
    let freed = tested.get(context.clip(3000), S);
    tested.put(freed);
    let counted = in_use(resource);
    if refusals.foreign_pointer {
        drop(misuse(resource, kept.ptr.offset(256), 256));
    }
    if refusals.double_free {
        drop(misuse(resource, freed.ptr, freed.layout.bytes()));
    }
    if refusals.wrong_size {
        drop(misuse(resource, kept.ptr, kept.layout.bytes() + 1));
    }
    assert_eq!(in_use(resource), counted, "memory in use, by layer");
    let blocks: Vec<_> = (0..32).map(|index| tested.get(context.clip(500 * index + 1), S)).collect();
    blocks.into_iter().for_each(|block| tested.put(block));
    tested.put(kept);
    Passed
}
