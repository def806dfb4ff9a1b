//! Tests that the count is exact: against a model of one thread, and with many threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use millpond_core::{DeviceMemoryResource, DevicePtr, Layout, Result, StreamRef, forward_to_upstream};
use millpond_testkit::{Rng, size};

use super::{House, MIB, S, free, take};
use crate::budget::{Budget, BudgetLayer};

/// A tree of three levels. The guarantees of a level are all that its parent may give.
const TREE: [(&str, u64, Option<&str>, u64); 7] = [
    ("node", 64 * 256, None, 0),
    ("left", 48 * 256, Some("node"), 32 * 256),
    ("right", 40 * 256, Some("node"), 16 * 256),
    ("left.a", 40 * 256, Some("left"), 16 * 256),
    ("left.b", 40 * 256, Some("left"), 0),
    ("right.a", 32 * 256, Some("right"), 16 * 256),
    ("right.b", 40 * 256, Some("right"), 0),
];

fn layers(scale: u64, wait: Duration) -> [BudgetLayer; 7] {
    TREE.map(|(name, limit, parent, guaranteed)| {
        let layer = BudgetLayer::new(name, limit * scale).guaranteed(guaranteed * scale).wait(wait);
        parent.map_or(layer.clone(), |parent| layer.parent(parent))
    })
}

fn parent_of(at: usize) -> Option<usize> {
    TREE[at].2.map(|parent| TREE.iter().position(|(name, ..)| *name == parent).unwrap())
}

fn path(at: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(at), |at| parent_of(*at))
}

/// Whatever threads made the requests before, a request is refused only if it does not fit.
#[test]
fn a_tree_counts_as_its_model_does() {
    for seed in 0..20 {
        let (house, mut rng) = (House::new(), Rng::new(seed));
        let tenants = layers(1, Duration::ZERO).map(|layer| house.tenant(layer));
        let (mut live, mut used) = (Vec::new(), [0_u64; TREE.len()]);
        for step in 0..300 {
            let on_some_thread = |call: &mut (dyn FnMut() + Send)| {
                thread::scope(|scope| drop(scope.spawn(call)));
            };
            if rng.percent(60) || live.is_empty() {
                let at = rng.below(TREE.len() as u64) as usize;
                let bytes = 256 * (1 + rng.below(24));
                let mut result = None;
                on_some_thread(&mut || result = take(&tenants[at], bytes).ok());
                let fits = path(at).all(|node| used[node] + bytes <= TREE[node].1);
                assert_eq!(result.is_some(), fits, "seed {seed}, step {step}");
                if let Some(ptr) = result {
                    live.push((at, ptr, bytes));
                    path(at).for_each(|node| used[node] += bytes);
                }
            } else {
                let (at, ptr, bytes) = live.swap_remove(rng.below(live.len() as u64) as usize);
                on_some_thread(&mut || free(&tenants[at], ptr, bytes));
                path(at).for_each(|node| used[node] -= bytes);
            }
            if rng.percent(20) {
                let counted = tenants.each_ref().map(|tenant| tenant.budget().used_bytes());
                assert_eq!(counted, used, "seed {seed}, step {step}");
            }
        }
    }
}

/// The live bytes of each budget, as an upstream sees them that charges nothing.
type Seen = [AtomicU64; TREE.len()];

/// An upstream below one tenant, which counts the tenant's bytes up to the root.
#[derive(Debug)]
struct Counting {
    upstream: Arc<millpond_testkit::mock::MockResource>,
    at: usize,
    limits: [u64; TREE.len()],
    seen: Arc<Seen>,
    next: AtomicU64,
}

// SAFETY: each address is returned once, is aligned, and stands for memory that is never touched.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Counting {
    fn allocate(&self, layout: Layout, _: StreamRef) -> Result<DevicePtr> {
        let bytes = layout.rounded_bytes().unwrap();
        for node in path(self.at) {
            let sum = self.seen[node].fetch_add(bytes, Ordering::SeqCst) + bytes;
            assert!(sum <= self.limits[node], "{} has {sum} of {}", TREE[node].0, self.limits[node]);
        }
        Ok(DevicePtr::new((self.next.fetch_add(1, Ordering::Relaxed) + 1) << 8))
    }

    unsafe fn deallocate(&self, _: DevicePtr, layout: Layout, _: StreamRef) {
        let bytes = layout.rounded_bytes().unwrap();
        path(self.at).for_each(|node| _ = self.seen[node].fetch_sub(bytes, Ordering::SeqCst));
    }

    forward_to_upstream!(except allocate, deallocate);
}

impl std::fmt::Display for Counting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("counting")
    }
}

/// 16 threads fill a tree that is too small for them. Some wait for their guarantees, and all waits end.
#[test]
fn no_limit_is_exceeded_by_a_byte() {
    const THREADS: u64 = 16;
    let operations = size::of(200_000, 10_000_000);
    let scale = MIB / 256;
    let (house, seen) = (House::new(), Arc::new(Seen::default()));
    let limits = TREE.map(|(_, limit, ..)| limit * scale);
    let mut at = 0;
    let tenants = layers(scale, Duration::from_micros(200)).map(|layer| {
        let upstream = Arc::clone(&house.upstream);
        let next = AtomicU64::new(0);
        let counting = Counting { upstream, at, limits, seen: Arc::clone(&seen), next };
        at += 1;
        millpond_core::DeviceMemoryResourceExt::layer(counting, layer).unwrap()
    });
    let served = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (tenants, served) = (&tenants, &served);
            scope.spawn(move || {
                let tenant = &tenants[3 + number as usize % 4];
                let (mut rng, mut live) = (Rng::new(number), Vec::new());
                for _ in 0..operations / THREADS {
                    if rng.percent(55) {
                        let bytes = 1 + rng.below(2 * MIB);
                        if let Ok(ptr) = take(tenant, bytes) {
                            live.push((ptr, bytes));
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                    } else if !live.is_empty() {
                        let (ptr, bytes) = live.swap_remove(rng.below(live.len() as u64) as usize);
                        free(tenant, ptr, bytes);
                    }
                    if live.len() > 8 {
                        live.drain(..).for_each(|(ptr, bytes)| free(tenant, ptr, bytes));
                    }
                }
                live.drain(..).for_each(|(ptr, bytes)| free(tenant, ptr, bytes));
            });
        }
    });
    assert!(served.into_inner() > operations / 10);
    let used = tenants.map(|tenant| Budget::used_bytes(&tenant.budget()));
    assert_eq!((used, S.handle()), ([0; TREE.len()], 0));
}
