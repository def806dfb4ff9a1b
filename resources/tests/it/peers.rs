//! Tests other devices that use a pool's memory, on several simulated devices: as on two H200s.

use std::sync::Arc;

use millpond_core::{DeviceMemoryResourceExt, DevicePtr, Driver, ErrorKind, StreamRef, find_trait};
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice, SimMachine};
use millpond_driver::{CallKind, CountingDriver};
use millpond_resources::{CudaMemoryResource, PagesMode, PeerList, Peers, PoolLayer, PoolMemoryResource};
use millpond_testkit::hooked::HookedDriver;

const MIB: u64 = 1 << 20;
const LEGACY: StreamRef = StreamRef::LEGACY;

type Pool = PoolMemoryResource<CudaMemoryResource>;

fn devices<const N: usize>(machine: &SimMachine) -> [Arc<SimDevice>; N] {
    [(); N].map(|()| machine.add_device(SimConfig::with_capacity(8 << 30)))
}

fn pool(device: &Arc<SimDevice>, layer: PoolLayer) -> Pool {
    CudaMemoryResource::new(device.clone()).layer(layer).unwrap()
}

fn take(pool: &Pool, bytes: u64) -> DevicePtr {
    pool.allocate_bytes(bytes, LEGACY).unwrap()
}

/// Returns whether a device may fill the memory.
fn may_fill(device: &SimDevice, ptr: DevicePtr, bytes: u64) -> bool {
    // SAFETY: the block is live, and nothing else uses it. The device refuses memory that it may not use.
    unsafe { device.memset_d8_async(ptr, 7, bytes, LEGACY) }.is_ok()
}

#[test]
fn issue_9_devices_with_an_active_context_use_a_pools_memory_by_default() {
    let machine = SimMachine::new();
    let [first, second, third] = devices(&machine);
    let (p, q) = (pool(&first, PoolLayer::new()), pool(&second, PoolLayer::new()));
    for bytes in [256, 100 << 10, 3 * MIB, 64 * MIB, 700 * MIB] {
        let (a, b) = (take(&p, bytes), take(&q, bytes));
        assert!(may_fill(&second, a, bytes) && may_fill(&third, a, bytes), "{bytes}");
        // SAFETY: both blocks are live. A device refuses memory that it may not use.
        unsafe {
            second.memcpy_dtod_async(b, a, bytes.min(MIB), LEGACY).unwrap();
            first.memcpy_dtod_async(b, a, bytes.min(MIB), LEGACY).unwrap();
        }
        second.copy_peer(b, a, bytes.min(MIB), LEGACY).unwrap();
    }
    assert_eq!(p.peers(), [second.device(), third.device()]);
    let found = find_trait::<dyn millpond_resources::Pool>(&p).expect("a pool is one");
    assert_eq!(found.peers(), p.peers());
    assert_eq!(first.violations(), []);
}

/// Returns blocks of all sizes, in the heap and in views. Some free blocks remain.
fn mixture(pool: &Pool) -> Vec<(DevicePtr, u64)> {
    let mut blocks: Vec<(DevicePtr, u64)> = Vec::new();
    for round in 1..40_u64 {
        let bytes = (round * 3 % 17 + 1) * MIB + round * 4096;
        blocks.push((take(pool, bytes), bytes));
        if round % 3 == 0 {
            let (ptr, bytes) = blocks.remove(round as usize % blocks.len());
            // SAFETY: the block came from this pool with this size, and nothing uses it.
            unsafe { pool.deallocate_bytes(ptr, bytes, LEGACY) };
        }
    }
    blocks.extend([(take(pool, 200 * MIB), 200 * MIB), (take(pool, 300), 300)]);
    blocks
}

#[test]
fn issue_9_a_device_that_comes_later_uses_what_is_mapped_already() {
    for asked in [false, true] {
        let machine = SimMachine::new();
        let [first, second] = devices(&machine);
        let layer = if asked { PoolLayer::new().peers(Peers::None) } else { PoolLayer::new() };
        let pool = pool(&first, layer);
        let blocks = mixture(&pool);
        let [late] = devices(&machine);
        assert!(blocks.iter().all(|(ptr, bytes)| !may_fill(&late, *ptr, *bytes)));
        assert_eq!(blocks.iter().all(|(ptr, bytes)| may_fill(&second, *ptr, *bytes)), !asked);
        if asked {
            pool.add_peer(late.device()).unwrap();
            pool.add_peer(late.device()).unwrap();
            pool.add_peer(first.device()).unwrap();
            assert_eq!(pool.peers(), [late.device()]);
        } else {
            take(&pool, 600 * MIB); // the reserved memory is too small, so the pool asks the driver
            assert_eq!(pool.peers(), [second.device(), late.device()]);
        }
        for (ptr, bytes) in blocks {
            assert!(may_fill(&late, ptr, bytes), "{ptr} {bytes}, asked {asked}");
        }
        let new = take(&pool, 800 * MIB);
        assert!(may_fill(&late, new, 800 * MIB));
        pool.validate();
        drop(pool);
        assert_eq!(first.violations(), []);
        assert_eq!(first.live_allocations(), 0);
    }
}

#[test]
fn issue_9_peers_say_otherwise() {
    let machine = SimMachine::new();
    let [first, second, third] = devices(&machine);
    let none = pool(&first, PoolLayer::new().peers(Peers::None));
    let a = take(&none, 5 * MIB);
    assert!(!may_fill(&second, a, 5 * MIB) && none.peers().is_empty());

    let only = [first.device().ordinal(), third.device().ordinal()];
    let layer = PoolLayer::new().peers(Peers::Only(PeerList::new(&only).unwrap()));
    let some = pool(&first, layer);
    let a = take(&some, 5 * MIB);
    assert!(may_fill(&third, a, 5 * MIB) && !may_fill(&second, a, 5 * MIB));
    assert_eq!(some.to_string(), format!("cuda+pool:peers={}/{}", only[0], only[1]));

    let far = machine.add_device(SimConfig::with_capacity(1 << 30).without_peer_access());
    for ordinal in [far.device().ordinal(), u32::MAX] {
        let layer = PoolLayer::new().peers(Peers::Only(PeerList::new(&[ordinal]).unwrap()));
        let error = CudaMemoryResource::new(first.clone()).layer(layer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("cuMemcpyPeer"), "{error}");
    }
    let error = none.add_peer(far.device()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let regions = pool(&first, PoolLayer::new().pages(PagesMode::Off));
    let error = regions.add_peer(second.device()).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("PeerAccess"), "{error}");
    // Plain memory needs only CUDA's functions.
    let a = take(&regions, 5 * MIB);
    second.enable_peer_access(&first);
    assert!(may_fill(&second, a, 5 * MIB));
}

#[test]
fn issue_9_peers_are_read_and_printed() {
    for text in ["peers=none", "peers=0/1", "peers=3"] {
        let text = text.strip_prefix("peers=").unwrap();
        assert_eq!(text.parse::<Peers>().unwrap().to_string(), text);
    }
    assert_eq!("auto".parse::<Peers>().unwrap(), Peers::Auto);
    for wrong in ["", "all", "0/", "-1", "0,1", "0/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16"] {
        assert!(wrong.parse::<Peers>().is_err(), "{wrong}");
    }
}

/// If the driver refuses peers, the pool loses only its peers, unless the caller requested them.
#[test]
fn issue_9_a_peer_that_the_driver_refuses_is_no_reason_to_fail() {
    let machine = SimMachine::new();
    let [first, second] = devices(&machine);
    let no_peers = |nth, persistent| {
        let plan = FaultPlan::nth_of(CallKind::MemSetAccess, nth, 217);
        if persistent { plan.persistent() } else { plan }
    };
    let auto = pool(&first, PoolLayer::new());
    // The call for both devices, and the call for the second alone.
    first.set_faults(no_peers(0, false).and(no_peers(2, false)));
    let a = take(&auto, 5 * MIB);
    assert!(may_fill(&first, a, 5 * MIB) && !may_fill(&second, a, 5 * MIB));
    assert!(auto.peers().is_empty());
    first.set_faults(FaultPlan::none());
    take(&auto, 500 * MIB);
    assert!(auto.peers().is_empty(), "it is not tried again …");
    auto.add_peer(second.device()).unwrap();
    assert!(may_fill(&second, a, 5 * MIB), "… unless a query asks");

    let named = PeerList::new(&[second.device().ordinal()]).unwrap();
    let named = pool(&first, PoolLayer::new().peers(Peers::Only(named)));
    first.set_faults(no_peers(0, true));
    assert!(named.allocate_bytes(5 * MIB, LEGACY).is_err());
    first.set_faults(FaultPlan::none());
    named.allocate_bytes(5 * MIB, LEGACY).unwrap();
    assert_eq!(first.violations(), []);
}

/// Several devices come later, and the driver refuses one. The others still get access. A call that failed
/// for lack of memory is not a refusal.
#[test]
fn issue_9_a_refused_newcomer_does_not_keep_others_out() {
    let machine = SimMachine::new();
    let [first] = devices(&machine);
    let pool = pool(&first, PoolLayer::new());
    let a = take(&pool, 5 * MIB);
    let [second, third, fourth] = devices(&machine);
    let fails = |nth, code| FaultPlan::nth_of(CallKind::MemSetAccess, nth, code);
    // The call for all three devices, and the call for the third alone.
    first.set_faults(fails(0, 217).and(fails(2, 217)));
    let b = take(&pool, 500 * MIB);
    assert_eq!(pool.peers(), [second.device(), fourth.device()]);
    for (device, may) in [(&second, true), (&third, false), (&fourth, true)] {
        assert_eq!((may_fill(device, a, 5 * MIB), may_fill(device, b, 500 * MIB)), (may, may));
    }
    let [fifth, sixth] = devices(&machine);
    let out_of_memory = millpond_core::DriverError::OUT_OF_MEMORY;
    first.set_faults(fails(0, 217).and(fails(1, out_of_memory)));
    take(&pool, 600 * MIB);
    assert!(!may_fill(&fifth, a, 5 * MIB) && may_fill(&sixth, a, 5 * MIB));
    assert_eq!(pool.peers(), [second.device(), fourth.device(), sixth.device()]);
    take(&pool, 700 * MIB);
    assert!(may_fill(&fifth, a, 5 * MIB), "it is tried again");
    assert!(!may_fill(&third, a, 5 * MIB), "what was refused is not");
    pool.validate();
    assert_eq!(first.violations(), []);
}

/// Another thread maps memory while a device is added. The device gets access to this memory, too.
#[test]
fn a_device_that_is_added_during_a_growth_uses_the_new_memory() {
    let machine = SimMachine::new();
    let [first, second] = devices(&machine);
    let hooks = HookedDriver::new(first.clone());
    let layer = PoolLayer::new().peers(Peers::None);
    let pool = Arc::new(CudaMemoryResource::new(hooks.clone()).layer(layer).unwrap());
    let (added, added_here) = std::sync::mpsc::channel();
    let (other, device) = (Arc::clone(&pool), second.device());
    hooks.after_set_access(move || {
        std::thread::spawn(move || added.send(other.add_peer(device)));
        // The other thread begins meanwhile. It waits at most a second for the end of the growth.
        std::thread::sleep(std::time::Duration::from_millis(20));
    });
    let ptr = pool.allocate_bytes(5 * MIB, LEGACY).unwrap();
    added_here.recv().unwrap().unwrap();
    assert!(may_fill(&second, ptr, 5 * MIB));
    assert_eq!(pool.peers(), [device]);
    assert_eq!(first.violations(), []);
}

/// The cost of access for more devices: only mapping costs more, and with one device nothing does. `cargo
/// test -p millpond-resources --test it issue_9_the_cost -- --nocapture` prints it.
#[test]
fn issue_9_the_cost_of_1_2_and_8_devices() {
    let mut access = Vec::new();
    for count in [1, 2, 8] {
        let machine = SimMachine::new();
        let devices: Vec<_> = (0..count).map(|_| machine.add_device(SimConfig::h200())).collect();
        let counting = CountingDriver::new(devices[0].clone());
        let pool = CudaMemoryResource::new(counting.clone()).layer(PoolLayer::new()).unwrap();
        let start = devices[0].virtual_time_ns();
        let blocks: Vec<_> = (0..1000).map(|_| pool.allocate_bytes(10 * MIB, LEGACY).unwrap()).collect();
        let taken = devices[0].virtual_time_ns() - start;
        let calls = counting.counts().get(CallKind::MemSetAccess).calls;
        println!(
            "{count} devices: 1000 blocks of 10 MiB took {} µs of driver time, {calls} calls of \
                  cuMemSetAccess",
            taken / 1000
        );
        access.push((taken, calls));
        drop(blocks);
    }
    assert!(access.iter().all(|(_, calls)| *calls == access[0].1), "one call for all devices: {access:?}");
    assert!(access[0].0 < access[1].0 && access[1].0 < access[2].0, "{access:?}");
}
