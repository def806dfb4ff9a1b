//! Tests buffers on one thread's per-thread stream, which other threads use meanwhile.

use super::*;
use crate::HostStaging;

/// A use of a buffer by a thread other than its owner; returns the values it read, once they have arrived.
type Use = fn(&Bench, &DeviceBuffer<Pool>) -> Box<dyn FnOnce() -> Vec<u64> + Send>;

const USES: &[(&str, Use)] = &[
    ("copied to the host", |bench, buffer| {
        let copy = buffer.copy_to_host_async(&HostStaging::new(bench.device.clone())).unwrap();
        Box::new(move || copy.wait().unwrap())
    }),
    ("copied to a buffer", |bench, buffer| {
        let stream = bench.stream();
        let copy = DeviceBuffer::copy_of(buffer, stream.as_ref(), bench.pool.clone()).unwrap();
        Box::new(move || {
            let values = copy.to_host().unwrap();
            drop((copy, stream));
            values
        })
    }),
];

/// The owner's next work on its own stream comes after, even without a call of the buffer.
#[test]
fn what_another_thread_reads_comes_before_the_owners_next_work() {
    for (name, read) in USES {
        for seed in 0..50 {
            let bench = Bench::seeded(seed);
            let buffer = DeviceBuffer::new(4096, StreamRef::PER_THREAD, bench.pool.clone()).unwrap();
            let write = |value| {
                bench.device.launch(StreamRef::PER_THREAD, &[Access::write(buffer.as_ptr(), 4096, value)]);
            };
            write(42);
            let values = std::thread::scope(|scope| {
                let reads = scope.spawn(|| read(&bench, &buffer)).join().unwrap();
                write(7);
                reads()
            });
            assert_eq!(values, [42; 512], "{name}, seed {seed}");
            drop(buffer);
            bench.assert_clean();
        }
    }
}

/// Even after an error, the device does not touch the host's memory once the caller has it back: copies to
/// pinned memory continue after the call that submits them.
#[test]
fn a_copy_whose_stream_cannot_be_waited_for_is_done_when_the_call_returns() {
    for seed in 0..50 {
        let bench = Bench::seeded(seed);
        let stream = bench.stream();
        let buffer = bench.filled(5000, stream.as_ref());
        let pinned = bench.device.mem_host_alloc(5000, Default::default()).unwrap();
        // SAFETY: the block has that many bytes, and is freed after the last use of the slice.
        let values = unsafe {
            pinned.as_mut_ptr().write_bytes(0, 5000);
            std::slice::from_raw_parts_mut(pinned.as_mut_ptr(), 5000)
        };
        let refused = FaultPlan::nth_of(CallKind::StreamSynchronize, 0, DriverError::NOT_PERMITTED);
        bench.device.set_faults(refused);
        assert!(buffer.copy_to_host(values).is_err());
        bench.device.set_faults(FaultPlan::none());
        assert!(*values == pattern(5000), "seed {seed}: the copy goes on");
        // SAFETY: the block came from this device, and its last copy is done.
        unsafe { bench.device.mem_free_host(pinned) }.unwrap();
        drop(buffer);
        bench.assert_clean();
    }
}
