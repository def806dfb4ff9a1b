//! Checks trimming, dropping and moving.

use millpond_core::{DeviceMemoryResource, Layout, StreamRef};

use super::Outcome::{self, Passed, Skipped};
use super::context::{Block, Context};

bodies![
    works_after_trim,
    trim_says_how_much_it_gave_back,
    trim_keeps_what_it_may,
    built_and_dropped_unused,
    drop_gives_back_what_is_handed_out,
    drop_waits_for_pending_work,
    dropped_on_another_thread,
    built_many_times,
    the_current_device_stays,
];

const S: StreamRef = StreamRef::LEGACY;

fn works_after_trim(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    for round in 0..3 {
        let kept = resource.get(context.clip(100_000), S);
        let blocks: Vec<Block> = (0..10).map(|_| resource.get(context.clip(1 << 20), S)).collect();
        blocks.into_iter().for_each(|block| resource.put(block));
        resource.trim(0).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let again = resource.get(context.clip(1 << 20), S);
        resource.put(again);
        resource.put(kept);
    }
    Passed
}

fn trim_says_how_much_it_gave_back(context: &Context<'_>) -> Outcome {
    if context.used_bytes().is_none() {
        return Skipped("other programs may use the device; see Subject::alone");
    }
    let used = || context.used_bytes().unwrap_or(0);
    let resource = context.build();
    let blocks: Vec<Block> = (0..40).map(|_| resource.get(context.clip(2 << 20), S)).collect();
    blocks.iter().for_each(|block| resource.put(*block));
    let before = used();
    let trimmed = resource.trim(0).unwrap_or_else(|error| panic!("{error}"));
    let given_back = before - used();
    let rounding = 512 * blocks.len() as u64; // The device rounds every region up.
    assert!(
        trimmed <= given_back && given_back <= trimmed + rounding,
        "{trimmed} bytes are reported, {given_back} went back to the device"
    );
    assert_eq!(resource.trim(0).unwrap_or_else(|error| panic!("{error}")), 0, "a second time");
    Passed
}

fn trim_keeps_what_it_may(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    resource.put(resource.get(context.clip(8 << 20), S));
    assert_eq!(resource.trim(u64::MAX).unwrap_or_else(|error| panic!("{error}")), 0);
    Passed
}

fn built_and_dropped_unused(context: &Context<'_>) -> Outcome {
    drop(context.build());
    context.check_at_end();
    Passed
}

fn drop_gives_back_what_is_handed_out(context: &Context<'_>) -> Outcome {
    let apart = context.apart(context.subject.device_bytes).map(|(context, _)| context);
    let is_measured = context.used_bytes().is_some() && !context.subject.hands_on;
    let Some(context) = apart.as_ref().or(is_measured.then_some(context)) else {
        return Skipped("other programs may use the device, or blocks would stay; see Subject::alone");
    };
    let used = || context.used_bytes().unwrap_or(0);
    let before = used();
    let resource = context.subject.build(&context.driver).unwrap_or_else(|error| panic!("{error}"));
    for bytes in [1, 100_000, 4 << 20].map(|bytes| context.clip(bytes)) {
        let allocated = resource.allocate(Layout::new(bytes), S);
        allocated.unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(used() > before, "nothing was allocated");
    drop(resource);
    if context.subject.hands_on {
        assert!(used() > before, "it freed blocks that it does not own");
    } else {
        let left = if context.subject.shares_pools { 0 } else { used() - before };
        assert_eq!(
            left, 0,
            "bytes left; if the resource hands on blocks, as `cuda` does, see Subject::hands_on"
        );
        context.check_at_end();
    }
    Passed
}

fn drop_waits_for_pending_work(context: &Context<'_>) -> Outcome {
    if context.sim.is_none() {
        return Skipped("only the simulated device can check this");
    }
    let stream = context.stream();
    let resource = context.build();
    for _ in 0..4 {
        let block = resource.get(context.clip(1 << 20), *stream);
        context.touch(block, *stream);
        resource.put(block);
    }
    drop(resource);
    Passed
}

fn dropped_on_another_thread(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let block = resource.get(context.clip(5000), StreamRef::PER_THREAD);
    resource.put(block);
    std::thread::scope(|scope| {
        let dropped = scope.spawn(move || drop(resource)).join();
        dropped.unwrap_or_else(|panic| panic!("{}", crate::text_of(&*panic)));
    });
    Passed
}

fn built_many_times(context: &Context<'_>) -> Outcome {
    for _ in 0..10 {
        let resource = context.build();
        resource.put(resource.get(context.clip(1 << 20), S));
        drop(resource);
        context.check_at_end();
    }
    Passed
}

/// Duty 9 of the contract: every call leaves the thread's current context unchanged.
fn the_current_device_stays(context: &Context<'_>) -> Outcome {
    // If no device is chosen and there is no GPU, other tests' devices could become current.
    let simulated = || millpond_driver::CurrentDeviceGuard::new(context.driver.device()).ok();
    let _chosen = context.driver.device().is_sim().then(simulated);
    let current = || millpond_driver::current_device().ok();
    let before = current();
    let resource = context.build();
    assert_eq!(current(), before, "building");
    let block = resource.get(context.clip(10_000), S);
    assert_eq!(current(), before, "allocate");
    resource.put(block);
    assert_eq!(current(), before, "deallocate");
    drop(resource.trim(0));
    assert_eq!(current(), before, "trim");
    drop(resource);
    assert_eq!(current(), before, "drop");
    Passed
}
