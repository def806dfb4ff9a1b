//! Measures `millpond_malloc` and `millpond_free`, next to the pool that serves them, and with a history of
//! events.
//!
//! `cargo bench -p millpond-capi --bench malloc [-- DEVICE]`; DEVICE as in `millpond_device_open`.

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::time::Instant;

use millpond_c::cached::{
    millpond_allocate_cached, millpond_deallocate_cached, millpond_free_unlocked, millpond_malloc_unlocked,
};
use millpond_c::device::{millpond_device_open, millpond_device_ordinal, millpond_stream_create};
use millpond_c::framework::{millpond_free, millpond_malloc};
use millpond_c::history::{millpond_record_history, millpond_stop_history};
use millpond_c::registry::millpond_set_per_device_resource;
use millpond_c::resource::{millpond_allocate, millpond_deallocate, millpond_resource_new};
use millpond_c::status::Status;

const CALLS: u32 = 100_000;
const ROUNDS: usize = 11;

/// Returns the median time of a call in nanoseconds.
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    let mut round = || {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// The benchmark has no lock to release.
extern "C" fn leave() -> *mut c_void {
    null_mut()
}

extern "C" fn enter(_: *mut c_void) {}

fn main() {
    let name = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let name = name.map(|name| CString::new(name).expect("a name has no NUL"));
    let (mut device, mut pool, mut own) = (null_mut(), null_mut(), null_mut());
    // SAFETY: all arguments are valid.
    let ordinal = unsafe {
        let name = name.as_ref().map_or(null(), |name| name.as_ptr());
        assert_eq!(millpond_device_open(name, &raw mut device), Status::Ok);
        assert_eq!(millpond_resource_new(device, c"cuda+pool".as_ptr(), &raw mut pool), Status::Ok);
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        assert_eq!(millpond_stream_create(device, true, &raw mut own), Status::Ok);
        millpond_device_ordinal(device)
    };
    println!("{:>9} {:<17}{:>12}{:>14}", "bytes", "ns for a pair", "default", "own stream");
    for bytes in [256_usize, 64 << 10, 1 << 20, 64 << 20] {
        let size = bytes as u64;
        // SAFETY: the handles and the streams are live, and each block is freed once.
        let pair = |stream: *mut c_void| unsafe {
            let ptr = millpond_malloc(bytes, ordinal, stream);
            millpond_free(ptr, bytes, ordinal, stream);
        };
        // SAFETY: as above.
        let unlocked = |stream: *mut c_void| unsafe {
            let ptr = millpond_malloc_unlocked(bytes, ordinal, stream, leave, enter);
            millpond_free_unlocked(ptr, leave, enter);
        };
        // SAFETY: as above.
        let of_pool = |stream: *mut c_void| unsafe {
            let mut ptr = null_mut();
            let _ = millpond_allocate(pool, size, 0, stream, &raw mut ptr);
            let _ = millpond_deallocate(pool, ptr, size, 0, stream);
        };
        // SAFETY: as above; a block that the cache does not take goes back to the pool.
        let cached = || unsafe {
            let mut ptr = null_mut();
            if millpond_allocate_cached(pool, true, size, null_mut(), &raw mut ptr) {
                if !millpond_deallocate_cached(pool, ptr, size, null_mut()) {
                    let _ = millpond_deallocate(pool, ptr, size, 0, null_mut());
                }
            } else {
                of_pool(null_mut());
            }
        };
        let pairs: [(&str, &dyn Fn(*mut c_void)); 3] =
            [("millpond_malloc", &pair), ("unlocked", &unlocked), ("millpond_allocate", &of_pool)];
        for (name, pair) in pairs {
            let [default, own] = [null_mut(), own].map(|stream| nanoseconds(|| pair(stream)));
            println!("{:>9} {name:<17}{default:>12.1}{own:>14.1}", bytes);
        }
        println!("{:>9} {:<17}{:>12.1}", bytes, "cached", nanoseconds(cached));
        for (name, stacks) in [("recorded", 0), ("with stacks", 2)] {
            assert_eq!(millpond_record_history(100_000, stacks, 0, true), Status::Ok);
            let [default, own] = [null_mut(), own].map(|stream| nanoseconds(|| pair(stream)));
            println!("{:>9} {name:<17}{default:>12.1}{own:>14.1}", bytes);
        }
        assert_eq!(millpond_stop_history(), Status::Ok);
    }
}
