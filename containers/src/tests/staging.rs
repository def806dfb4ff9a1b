//! Tests copies through staging memory, under schedules that run them as late as CUDA may.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use millpond_core::driver::CaptureMode;

use super::*;
use crate::{HostCopy, HostStaging};

#[test]
fn the_slice_may_change_and_go_at_once() {
    for seed in 0..100 {
        let bench = Bench::seeded(seed);
        let (stream, staging) = (bench.stream(), HostStaging::new(bench.device.clone()));
        let mut buffer = DeviceBuffer::new(4096, stream.as_ref(), bench.pool.clone()).unwrap();
        let mut data = pattern(4096);
        buffer.copy_from_host_async(&data, &staging).unwrap();
        data.fill(0xAA);
        drop(data);
        let copy = buffer.copy_to_host_async::<u8>(&staging).unwrap();
        buffer.copy_from_host_async(&[0xBB_u8; 4096], &staging).unwrap();
        let last = buffer.copy_to_host_async::<u8>(&staging).unwrap();
        drop(buffer);
        overwrite(&bench, 4096, stream.as_ref());
        assert_eq!(copy.wait().unwrap(), pattern(4096), "seed {seed}");
        assert_eq!(last.wait().unwrap(), [0xBB; 4096], "seed {seed}");
        drop(staging);
        bench.assert_clean();
    }
}

/// The canary of the test above: pinned memory that changes too early changes the copy.
#[test]
fn the_device_reads_pinned_memory_late() {
    let found = (0..100).any(|seed| {
        let bench = Bench::seeded(seed);
        let stream = bench.stream();
        let pinned = bench.device.mem_host_alloc(4096, Default::default()).unwrap();
        let ptr = pinned.as_mut_ptr();
        let buffer = DeviceBuffer::new(4096, stream.as_ref(), bench.pool.clone()).unwrap();
        // SAFETY: the pinned block has 4096 bytes, and the buffer, too.
        unsafe {
            ptr.write_bytes(1, 4096);
            bench.device.memcpy_htod_async(buffer.as_ptr(), ptr, 4096, stream.as_ref()).unwrap();
            ptr.write_bytes(2, 4096);
        }
        let copied = buffer.to_host::<u8>().unwrap();
        // SAFETY: the block came from this device, and its last copy is done.
        unsafe { bench.device.mem_free_host(pinned) }.unwrap();
        copied.contains(&2)
    });
    assert!(found);
}

/// Code that the driver calls may use the staging memory, even from another thread for which it waits.
#[test]
fn the_driver_is_asked_without_a_lock() {
    let bench = Bench::new(SimConfig::h200());
    let (stream, staging) = (bench.stream(), HostStaging::new(bench.device.clone()));
    let mut buffer = DeviceBuffer::new(10_000, stream.as_ref(), bench.pool.clone()).unwrap();
    let (inside, asked) = (staging.clone(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&asked);
    let observer = move |name: &'static str| {
        if name == "cuEventQuery" {
            let (other, (done, ended)) = (inside.clone(), mpsc::channel());
            std::thread::spawn(move || done.send(other.idle_bytes()));
            ended.recv_timeout(Duration::from_secs(60)).expect("the lock is held during a query");
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    bench.device.observe_calls(Some(Arc::new(observer)));
    for _ in 0..3 {
        buffer.copy_from_host_async(&pattern(10_000), &staging).unwrap();
    }
    stream.synchronize().unwrap();
    assert!(staging.trim().unwrap() > 0);
    bench.device.observe_calls(None);
    assert!(asked.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_block_is_used_again_once_the_device_has_passed_it() {
    let bench = Bench::new(SimConfig::h200());
    let (stream, staging) = (bench.stream(), HostStaging::new(bench.device.clone()));
    let mut buffer = DeviceBuffer::new(10_000, stream.as_ref(), bench.pool.clone()).unwrap();
    for _ in 0..10 {
        buffer.copy_from_host_async(&pattern(10_000), &staging).unwrap();
        stream.synchronize().unwrap();
    }
    assert_eq!(staging.idle_bytes(), 16384, "one block, of the next power of two");
    bench.device.launch_for(stream.as_ref(), &[], 1_000_000_000_000);
    for _ in 0..3 {
        buffer.copy_from_host_async(&pattern(10_000), &staging).unwrap();
    }
    assert_eq!(staging.idle_bytes(), 3 * 16384, "the device has passed none of them");
    assert_eq!(staging.trim().unwrap(), 0);
    stream.synchronize().unwrap();
    assert_eq!(staging.trim().unwrap(), 3 * 16384);
    assert_eq!((staging.idle_bytes(), staging.device()), (0, bench.device.device()));
    buffer.copy_from_host_async(&[1_u8], &staging).unwrap();
    assert_eq!(staging.idle_bytes(), 4096, "the smallest block");
    drop((buffer, staging));
    bench.assert_clean();
}

#[test]
fn a_copy_may_be_dropped_and_outlive_what_it_came_from() {
    for seed in 0..50 {
        let bench = Bench::seeded(seed);
        let (stream, staging) = (bench.stream(), HostStaging::new(bench.device.clone()));
        let buffer = bench.filled(4096, stream.as_ref());
        for _ in 0..3 {
            drop(buffer.copy_to_host_async::<u8>(&staging).unwrap());
        }
        let kept: HostCopy<u8> = buffer.copy_to_host_async(&staging).unwrap();
        drop((buffer, staging));
        overwrite(&bench, 4096, stream.as_ref());
        let kept = std::thread::spawn(move || kept.wait()).join().unwrap();
        assert_eq!(kept.unwrap(), pattern(4096), "seed {seed}");
        bench.assert_clean();
    }
}

#[test]
fn a_copy_says_when_it_is_done_and_how_long_it_is() {
    let bench = Bench::new(SimConfig::h200());
    let (stream, staging) = (bench.stream(), HostStaging::new(bench.device.clone()));
    let buffer = bench.filled(12, stream.as_ref());
    bench.device.launch_for(stream.as_ref(), &[], 1_000_000_000_000);
    let copy = buffer.copy_to_host_async::<u32>(&staging).unwrap();
    assert!(!copy.is_done().unwrap());
    stream.synchronize().unwrap();
    assert!(copy.is_done().unwrap());
    let error = copy.wait_into(&mut [0; 2]).unwrap_err();
    let message =
        "the copy has length 3, but the slice has length 2; pass a slice of the same length as the copy";
    assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, message));
    let odd = buffer.copy_to_host_async::<[u8; 5]>(&staging).map(drop).unwrap_err();
    let message = "12 bytes are not a whole number of values of 5 bytes; resize the buffer, or read values \
                   of another type";
    assert_eq!(odd.message(), message);
    let empty = DeviceBuffer::new(0, stream.as_ref(), bench.pool.clone()).unwrap();
    let nothing = empty.copy_to_host_async::<u32>(&staging).unwrap();
    assert!(nothing.is_empty() && nothing.is_done().unwrap());
    assert!(nothing.wait().unwrap().is_empty());
}

#[test]
fn copies_that_cannot_go_through_it_are_refused() {
    let bench = Bench::new(SimConfig::h200());
    let (stream, staging) = (bench.stream(), HostStaging::new(bench.device.clone()));
    let elsewhere = HostStaging::new(SimDevice::new(SimConfig::h200()));
    let mut buffer = bench.filled(100, stream.as_ref());
    let too_much = buffer.copy_from_host_async(&[0_u8; 101], &staging).unwrap_err();
    assert_eq!(
        too_much.message(),
        "a copy of 101 bytes at offset 0 does not fit into a buffer of 100 bytes; resize the buffer first"
    );
    let (own, other) = (bench.device.device(), elsewhere.device());
    let message = format!(
        "the staging memory belongs to {other}, but the buffer is on {own}; make staging memory for that \
         device"
    );
    let wrong = buffer.copy_to_host_async::<u8>(&elsewhere).map(drop).unwrap_err();
    assert_eq!((wrong.kind(), wrong.message()), (ErrorKind::InvalidArgument, message.as_str()));

    bench.device.begin_capture(stream.as_ref(), CaptureMode::Global).unwrap();
    let captured = [
        buffer.copy_from_host_async(&[1_u8], &staging).unwrap_err(),
        buffer.copy_to_host_async::<u8>(&staging).map(drop).unwrap_err(),
    ];
    for error in captured {
        assert!(error.message().starts_with("a copy through staging memory cannot be a part of a graph"));
    }
    // Copies on another stream do not harm the capture.
    let aside = bench.stream();
    let mut second = DeviceBuffer::new(100, aside.as_ref(), bench.pool.clone()).unwrap();
    for _ in 0..2 {
        second.copy_from_host_async(&pattern(100), &staging).unwrap();
    }
    bench.device.end_capture(stream.as_ref()).unwrap();
    assert_eq!(second.to_host::<u8>().unwrap(), pattern(100));
    drop((buffer, second, staging));
    bench.assert_clean();
}

#[test]
fn a_failing_driver_call_leaks_nothing() {
    let mut failures = 0;
    for n in 0..40 {
        let bench = Bench::new(SimConfig::h200());
        let (stream, staging) = (bench.stream(), HostStaging::new(bench.device.clone()));
        let mut buffer = bench.filled(100, stream.as_ref());
        bench.device.set_faults(FaultPlan::nth_call(n, DriverError::NOT_PERMITTED));
        let result = buffer
            .copy_from_host_async(&pattern(100), &staging)
            .and_then(|()| buffer.copy_to_host_async::<u8>(&staging))
            .and_then(HostCopy::wait);
        bench.device.set_faults(FaultPlan::none());
        match result {
            Ok(values) => assert_eq!(values, pattern(100)),
            Err(_) => failures += 1,
        }
        let copy = buffer.copy_to_host_async::<u8>(&staging).unwrap();
        assert_eq!(copy.wait().unwrap().len(), 100, "call {n}");
        drop((buffer, staging));
        bench.assert_clean();
        let Bench { device, pool } = bench;
        drop((pool, stream));
        assert_eq!((device.live_allocations(), device.live_events()), (0, 0), "call {n}");
    }
    assert!(failures >= 5, "only {failures} of the faults hit");
}

/// The block may still be in use if the end of its work can be neither recorded nor waited for.
#[test]
fn a_block_whose_end_cannot_be_marked_is_given_back_later() {
    type Copies = fn(&mut DeviceBuffer<Pool>, &HostStaging) -> millpond_core::Result<()>;
    let from_host: Copies = |buffer, staging| buffer.copy_from_host_async(&pattern(100), staging);
    let to_host: Copies = |buffer, staging| buffer.copy_to_host_async::<u8>(staging).map(drop);
    for (copy, trims) in [(from_host, true), (from_host, false), (to_host, true), (to_host, false)] {
        let bench = Bench::new(SimConfig::h200());
        let (stream, staging) = (bench.stream(), HostStaging::new(bench.device.clone()));
        let mut buffer = bench.filled(100, stream.as_ref());
        let refuse = |kind| FaultPlan::nth_of(kind, 0, DriverError::NOT_PERMITTED).persistent();
        bench.device.set_faults(refuse(CallKind::EventRecord).and(refuse(CallKind::StreamSynchronize)));
        copy(&mut buffer, &staging).unwrap_err();
        bench.device.set_faults(FaultPlan::none());
        assert_eq!(staging.idle_bytes(), 4096);
        if trims {
            assert_eq!((staging.trim().unwrap(), staging.idle_bytes()), (4096, 0));
        }
        drop((buffer, staging));
        bench.assert_clean();
        let Bench { device, pool } = bench;
        drop((pool, stream));
        assert_eq!((device.live_allocations(), device.live_events()), (0, 0), "trims: {trims}");
    }
}

/// The device may not have passed the last copy through a block if the driver does not tell.
#[test]
fn a_block_that_cannot_be_asked_about_is_not_used_again() {
    for seed in 0..50 {
        let bench = Bench::seeded(seed);
        let (stream, staging) = (bench.stream(), HostStaging::new(bench.device.clone()));
        let buffer = || DeviceBuffer::new(4096, stream.as_ref(), bench.pool.clone()).unwrap();
        let (mut first, mut second) = (buffer(), buffer());
        first.copy_from_host_async(&[1_u8; 4096], &staging).unwrap();
        bench.device.set_faults(FaultPlan::nth_of(CallKind::EventQuery, 0, DriverError::NOT_PERMITTED));
        second.copy_from_host_async(&[2_u8; 4096], &staging).unwrap();
        bench.device.set_faults(FaultPlan::none());
        let all = |buffer: &DeviceBuffer<Pool>, value| buffer.to_host::<u8>().unwrap() == [value; 4096];
        assert!(all(&first, 1) && all(&second, 2), "seed {seed}");
        drop((first, second, staging));
        bench.assert_clean();
    }
}

#[test]
fn copies_of_another_threads_stream_wait() {
    for seed in 0..50 {
        let bench = Bench::seeded(seed);
        let staging = HostStaging::new(bench.device.clone());
        let buffer = DeviceBuffer::new(4096, StreamRef::PER_THREAD, bench.pool.clone()).unwrap();
        bench.device.launch(StreamRef::PER_THREAD, &[Access::write(buffer.as_ptr(), 4096, 42)]);
        std::thread::scope(|scope| {
            let copy = scope.spawn(|| buffer.copy_to_host_async::<u64>(&staging)).join().unwrap();
            assert_eq!(copy.unwrap().wait().unwrap(), [42; 512], "seed {seed}");
        });
        drop((buffer, staging));
        bench.assert_clean();
    }
}

#[test]
fn threads_share_staging_memory() {
    let bench = Bench::new(SimConfig::h200());
    let staging = HostStaging::new(bench.device.clone());
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (bench, staging) = (&bench, staging.clone());
            scope.spawn(move || {
                let stream = bench.stream();
                let mut vec = DeviceVec::<u8, _>::zeroed(500, stream.as_ref(), bench.pool.clone()).unwrap();
                for round in 0..50 {
                    let value = thread * 50 + round;
                    vec.copy_from_host_async(&[value; 500], &staging).unwrap();
                    assert_eq!(vec.copy_to_host_async(&staging).unwrap().wait().unwrap(), [value; 500]);
                }
            });
        }
    });
    drop(staging);
    bench.assert_clean();
}
