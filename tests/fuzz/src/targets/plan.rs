//! Plans: as text, and as parts that a layer then follows.

use crate::World;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use millpond::plan::PlanLayer;
use millpond::resources::{CudaMemoryResource, PoolLayer};
use millpond::{DeviceMemoryResource, DeviceMemoryResourceExt};
use millpond_planning::{LogHash, PlanParts, PlannedAllocation, PlannedSlot, ProgramPlan};

/// The most allocations that are made.
const MOST: usize = 256;

pub(super) fn run(bytes: &[u8]) {
    let text = [&b"millpond plan 1\nlog sha256:"[..], &[b'0'; 64], b"\nalignment 256\n", bytes].concat();
    if let Ok(plan) = ProgramPlan::read(&*text) {
        let again = ProgramPlan::read(plan.to_string().as_bytes());
        assert_eq!(again.as_ref(), Ok(&plan), "a plan that was written can be read");
        follow(&plan, &mut Unstructured::new(&[]));
    }
    let mut bytes = Unstructured::new(bytes);
    if let Some(plan) = parts(&mut bytes).ok().and_then(|parts| ProgramPlan::new(parts).ok()) {
        follow(&plan, &mut bytes);
    }
}

fn parts(bytes: &mut Unstructured<'_>) -> Result<PlanParts> {
    let mut kilobytes = |most: u8| Ok(u64::from(bytes.arbitrary::<u8>()? % most) << 10);
    let lanes = [kilobytes(255)?, kilobytes(255)?, kilobytes(255)?];
    let mut allocations = Vec::new();
    for _ in 0..bytes.arbitrary::<u8>()? % 32 {
        let [size, stream, life, offset] = bytes.arbitrary::<[u8; 4]>()?;
        let slot = u32::from(life).try_into().ok();
        allocations.push(PlannedAllocation {
            bytes: u64::from(size) << 10,
            stream: u32::from(stream) % 3,
            slot: slot.map(|life| PlannedSlot { life, offset: u64::from(offset) << 10 }),
        });
    }
    let lanes = lanes[..1 + usize::from(bytes.arbitrary::<u8>()? % 3)].to_vec();
    let bound = u64::from(bytes.arbitrary::<u16>()?);
    Ok(PlanParts { log: LogHash([0; 32]), alignment: 256, lanes, bound, beside: 0, allocations })
}

/// Makes the plan's calls twice. The bytes say which of them differ from the plan.
fn follow(plan: &ProgramPlan, bytes: &mut Unstructured<'_>) {
    let mut world = World::new(64 << 20);
    let pool = CudaMemoryResource::new(world.device.clone()).layer(PoolLayer::new());
    let stack = pool.and_then(|pool| pool.layer(PlanLayer::from_plan(plan.clone())));
    let Ok(stack) = stack.map(DeviceMemoryResourceExt::into_any) else { return };
    let allocations = &plan.parts().allocations;
    let mut ends: Vec<(usize, millpond::DevicePtr)> = Vec::new();
    for number in 0..(2 * allocations.len()).min(MOST) {
        let of = allocations[number % allocations.len()];
        let (gone, live) = ends.into_iter().partition(|(end, _)| *end <= number);
        ends = live;
        let gone: Vec<_> = gone;
        gone.into_iter().for_each(|(_, ptr)| world.free_at(&stack, ptr));
        let differs = bytes.arbitrary::<u8>().unwrap_or(0);
        let size = if differs & 1 == 0 { of.bytes } else { of.bytes.saturating_sub(256) };
        let stream = of.stream as usize + usize::from(differs >> 6);
        if let Some(ptr) = world.allocate(&stack, size, world.stream(stream)).filter(|ptr| !ptr.is_null()) {
            let life = of.slot.map_or(1, |slot| slot.life.get() as usize);
            ends.push((number + life + usize::from(differs >> 1 & 3), ptr));
        }
    }
    let _ = stack.trim(0);
    world.end(stack);
}
