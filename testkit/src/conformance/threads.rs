//! Checks threads that share a resource through the erased handle.

use std::sync::Mutex;

use millpond_core::{DeviceMemoryResource, StreamRef};

use super::Outcome::{self, Passed};
use super::context::{Block, Context, Tested};
use crate::Rng;
use crate::statistics_check::StatisticsCheck;

bodies![
    four_threads_with_a_stream_each,
    four_threads_on_one_stream,
    four_threads_with_per_thread_streams,
    allocated_here_and_freed_there,
    trimmed_while_others_allocate,
    statistics_are_asked_while_others_allocate,
];

const THREADS: u64 = 4;

/// Runs a function on several threads; if one panics, the body fails.
fn on_threads(work: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                scope.spawn({
                    let work = &work;
                    move || work(index)
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| panic!("a thread failed: {}", crate::text_of(&*panic)));
        }
    });
}

/// Allocates, uses and frees on one stream. It uses few sizes, so blocks move between streams.
fn churn(context: &Context<'_>, resource: &Tested, seed: u64, stream: StreamRef) {
    let mut rng = Rng::new(seed);
    let mut live: Vec<Block> = Vec::new();
    for _ in 0..400 {
        if live.len() < 8 && rng.percent(55) {
            let block = resource.get(context.clip(1000 << rng.below(11)), stream);
            context.touch(block, stream);
            live.push(block);
        } else if !live.is_empty() {
            resource.put(live.swap_remove(rng.below(live.len() as u64) as usize));
        }
    }
    live.into_iter().for_each(|block| resource.put(block));
}

fn four_threads_with_a_stream_each(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    on_threads(|index| {
        let stream = context.stream();
        churn(context, &resource, index, *stream);
    });
    Passed
}

fn four_threads_on_one_stream(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let stream = StreamRef::LEGACY;
    on_threads(|index| {
        churn(context, &resource, index, stream);
    });
    Passed
}

/// The per-thread default stream is a different stream on every thread.
fn four_threads_with_per_thread_streams(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let stream = StreamRef::PER_THREAD;
    on_threads(|index| {
        churn(context, &resource, index, stream);
    });
    Passed
}

fn allocated_here_and_freed_there(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let stream = context.stream();
    let box_of_blocks: Mutex<Vec<Block>> = Mutex::new(Vec::new());
    let blocks = || box_of_blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    on_threads(|index| {
        for round in 0..100 {
            let block = resource.get(context.clip(1000 * (index + round % 10 + 1)), *stream);
            blocks().push(block);
            let other = {
                let mut blocks = blocks();
                if blocks.len() > 8 { Some(blocks.swap_remove(0)) } else { None }
            };
            if let Some(block) = other {
                resource.put(block);
            }
        }
    });
    blocks().drain(..).for_each(|block| resource.put(block));
    Passed
}

fn trimmed_while_others_allocate(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    on_threads(|index| {
        let stream = context.stream();
        if index == 0 {
            for _ in 0..20 {
                resource.trim(0).unwrap_or_else(|error| panic!("{error}"));
            }
            return;
        }
        churn(context, &resource, index, *stream);
    });
    Passed
}

fn statistics_are_asked_while_others_allocate(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    on_threads(|index| {
        let stream = context.stream();
        if index == 0 {
            for _ in 0..50 {
                let own = context.subject.statistics != StatisticsCheck::None;
                if let Some(statistics) = resource.statistics().filter(|_| own) {
                    assert!(statistics.bytes_requested <= statistics.bytes_in_use, "{statistics:?}");
                }
                resource.memory_info().unwrap_or_else(|error| panic!("{error}"));
            }
            return;
        }
        churn(context, &resource, index, *stream);
    });
    Passed
}
