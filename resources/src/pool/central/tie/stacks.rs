//! Follows every pool of every stack, in the programs of `tests/it/order.rs`.

use std::time::Duration;

use millpond_core::environment::variable;
use millpond_core::stack::LayerTable;
use millpond_core::{AnyResource, DeviceMemoryResourceExt, Result, downcast};
use millpond_testkit::canary::ZeroingLayer;
use millpond_testkit::conformance::Subject;
use millpond_testkit::hooked::HookedDriver;
use millpond_testkit::program::{self, Config};
use millpond_testkit::size;
use millpond_testkit::stacks::{self, Builder};
use parking_lot::Mutex;

use super::calls::followed;
use super::seen::Seen;
use crate::PoolMemoryResource;

fn pools(resource: &AnyResource) -> impl Iterator<Item = &PoolMemoryResource<AnyResource>> {
    resource.stack().filter_map(downcast::<PoolMemoryResource<AnyResource>>)
}

fn validate(resource: &AnyResource) {
    pools(resource).for_each(PoolMemoryResource::validate);
}

fn decay(resource: &AnyResource, now: Duration) -> Result<()> {
    pools(resource).try_for_each(|pool| {
        let _call = pool.central.core().begins(None);
        pool.decay_step(now).map(|_| ())
    })
}

/// Runs programs over a stack, with at least this number of operations. Returns the sums of its followers.
fn follow(
    subject: &Subject,
    config: &Config,
    first: u64,
    operations: u64,
) -> std::result::Result<Seen, String> {
    let mut seen = Seen::default();
    let only = size::named("MILLPOND_SEED");
    let seeds = only.map_or(first..u64::MAX, |seed| seed..seed + 1);
    for seed in seeds {
        if seen.operations >= operations {
            break;
        }
        let found = Mutex::new(Vec::new());
        let run = program::run(seed, config, &|driver| {
            let hooked = HookedDriver::new(driver.clone());
            let (built, followers) = followed(|| subject.build(&(hooked.clone() as _)));
            let of_pools = built.as_ref().map_or(0, |built| pools(built).count());
            assert!(followers.len() >= of_pools, "each pool has a follower");
            found.lock().clone_from(&followers);
            hooked.watch_order(move |call| {
                followers.iter().for_each(|follower| follower.lock().called(call));
            });
            built
        });
        for follower in found.into_inner() {
            seen.note(&follower).map_err(|why| format!("`{}`, seed {seed}: {why}", subject.name()))?;
        }
        seen.operations += run.map_err(|failure| failure.to_string())?.operations;
        seen.programs += 1;
    }
    Ok(seen)
}

/// Every step of every pool in every stack is a step of the model, and leads to equal beliefs. The seeds are
/// the ones of `tests/it/order.rs`, and its variables choose the programs.
#[test]
fn the_model_follows_every_pool_of_every_stack() {
    let wanted = size::named("MILLPOND_ORDER_OPS").unwrap_or(size::of(70_000, 2_000_000));
    let first = size::named("MILLPOND_ORDER_FROM").unwrap_or(0);
    let layers = crate::LAYERS.iter().chain(millpond_plan::LAYERS).chain(millpond_adaptors::LAYERS);
    let table = LayerTable::new(layers.copied()).with([ZeroingLayer::ENTRY]);
    let builder = Builder::new(table, validate, decay);
    let only = variable("MILLPOND_SUBJECT");
    let is_wanted = |subject: &Subject| only.as_deref().is_none_or(|only| only == subject.name());
    let subjects = builder.all(u64::MAX);
    let shares: u64 = subjects.iter().map(stacks::share).sum();
    let of_list = subjects.iter().zip(0..).filter(|(subject, _)| is_wanted(subject));
    let programs = of_list.map(|(subject, index)| {
        let operations = (wanted * stacks::share(subject)).div_ceil(shares);
        follow(subject, &Config::for_subject(subject), first + index * 10_000_000, operations)
    });
    let subjects = builder.with_submitted_work();
    let of_list = subjects.iter().zip(0..).filter(|(subject, _)| is_wanted(subject));
    let with_work = of_list.map(|(subject, index)| {
        let config = Config::for_subject(subject).verify_out_of_memory(false);
        follow(
            subject,
            &config,
            index * 1_000_000,
            size::of(250, 500) * stacks::share(subject) / size::of(20, 1),
        )
    });
    let (mut total, mut failed, mut stacks, mut with_pools) = (Seen::default(), Vec::new(), 0_u64, 0_u64);
    for seen in programs.chain(with_work) {
        match seen {
            Ok(seen) => {
                (stacks, with_pools) = (stacks + 1, with_pools + u64::from(seen.pools > 0));
                total += seen;
            }
            Err(why) => failed.push(why),
        }
    }
    assert!(failed.is_empty(), "{} stacks:\n{}", failed.len(), failed.join("\n\n"));
    println!("{stacks} stacks, {with_pools} with pools: {total}: {:?}", total.taken);
    if only.is_some() || size::named("MILLPOND_SEED").is_some() {
        return;
    }
    assert_eq!(total.stopped, 0, "the model has as many streams as these programs");
    // Three are not certain: a skipped record, a forgotten stream, and blocks that decay disowns one by one.
    assert!(total.taken.len() >= 19, "most of the model's 22 actions are taken");
}
