//! Tests owned and borrowed streams, pools of streams, and allocators that name a stream.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond_core::{DeviceMemoryResourceExt, StreamId};

use super::*;
use crate::{BorrowedStream, StreamAllocator, StreamPool};

#[test]
fn a_borrow_is_the_stream_and_does_not_destroy_it() {
    let bench = Bench::new(SimConfig::h200());
    let (stream, other) = (bench.stream(), bench.stream());
    let borrowed = stream.borrow();
    assert_eq!((borrowed.as_ref(), StreamRef::from(&borrowed)), (stream.as_ref(), StreamRef::from(&stream)));
    assert!(borrowed == stream.borrow() && borrowed == borrowed.clone() && borrowed != other.borrow());
    assert_eq!(borrowed.to_string(), stream.as_ref().to_string());
    assert!(format!("{borrowed:?}").contains("StreamRef"));
    drop(borrowed);
    stream.synchronize().unwrap();
    assert_eq!(bench.device.live_streams(), 2);
    drop((stream, other));
    assert_eq!(bench.device.live_streams(), 0);
}

#[test]
fn default_streams_and_raw_handles_are_borrowed() {
    let bench = Bench::new(SimConfig::h200());
    let driver: DriverHandle = bench.device.clone();
    let (legacy, own) = (BorrowedStream::legacy(driver.clone()), BorrowedStream::per_thread(driver.clone()));
    assert_eq!((legacy.as_ref(), own.as_ref()), (StreamRef::LEGACY, StreamRef::PER_THREAD));
    assert_eq!((legacy.to_string(), own.to_string()), ("0".to_owned(), "0x2".to_owned()));
    assert!(legacy != own && legacy != BorrowedStream::legacy(SimDevice::new(SimConfig::h200())));
    let stream = bench.stream();
    // SAFETY: the handle names the stream, which stays alive.
    let raw = unsafe { BorrowedStream::from_raw(driver.clone(), stream.as_ref().handle()) }.unwrap();
    assert_eq!(raw, stream.borrow());
    let event = Event::new(driver.clone(), EventFlags::default()).unwrap();
    event.record(StreamRef::LEGACY).unwrap();
    for stream in [&legacy, &own, &raw] {
        stream.wait(&event).unwrap();
        stream.synchronize().unwrap();
        assert!(stream.query().unwrap());
    }
    // SAFETY: the device refuses an invalid handle.
    assert!(unsafe { BorrowedStream::from_raw(driver, 0xDEAD_0000) }.is_err());
    bench.device.take_violations();
}

/// A kernel on the legacy default stream is ordered with the kernels of blocking streams.
#[test]
fn flags_say_whether_a_stream_follows_the_legacy_one() {
    for (flags, is_ordered) in [(StreamFlags::BLOCKING, true), (StreamFlags::NON_BLOCKING, false)] {
        let out_of_order = (0..50).any(|seed| {
            let bench = Bench::seeded(seed);
            let stream = Stream::new(bench.device.clone(), flags).unwrap();
            let ptr = bench.device.mem_alloc(4096).unwrap();
            bench.device.launch(StreamRef::LEGACY, &[Access::write(ptr, 4096, 7)]);
            bench.device.launch(stream.as_ref(), &[Access::check(ptr, 4096, 7)]);
            bench.device.synchronize().unwrap();
            !bench.device.take_violations().is_empty()
        });
        assert_eq!(out_of_order, !is_ordered, "{flags:?}");
    }
}

#[test]
fn a_pool_hands_its_streams_out_in_turn() {
    let device = SimDevice::new(SimConfig::h200());
    for flags in [StreamFlags::BLOCKING, StreamFlags::NON_BLOCKING] {
        let pool = StreamPool::new(device.clone(), 3, flags).unwrap();
        assert_eq!((pool.len(), device.live_streams()), (3, 3));
        let turn: Vec<StreamRef> = (0..7).map(|_| pool.get().as_ref()).collect();
        assert_eq!(turn[..3].iter().collect::<HashSet<_>>().len(), 3, "all differ");
        assert_eq!((&turn[..3], turn[6]), (&turn[3..6], turn[0]));
        for number in 0..10 {
            assert_eq!(pool.get_at(number).as_ref(), pool.get_at(number % 3).as_ref());
            assert_eq!(pool.get_at(number).as_ref(), turn[number % 3]);
        }
        assert!(turn.iter().all(|stream| !stream.is_legacy() && !stream.is_per_thread()));
        pool.get_at(usize::MAX).synchronize().unwrap();
        drop(pool);
        assert_eq!(device.live_streams(), 0);
    }
}

#[test]
fn a_pool_has_a_stream_at_least() {
    let device = SimDevice::new(SimConfig::h200());
    let error = StreamPool::new(device.clone(), 0, StreamFlags::NON_BLOCKING).unwrap_err();
    let message = "a pool of 0 streams cannot lend a stream; use 1 or more";
    assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidArgument, message));
    let one = StreamPool::new(device.clone(), 1, StreamFlags::NON_BLOCKING).unwrap();
    assert_eq!(one.get().as_ref(), one.get().as_ref());
    device.set_faults(FaultPlan::nth_of(CallKind::StreamCreate, 2, DriverError::OUT_OF_MEMORY));
    let failed = StreamPool::new(device.clone(), StreamPool::DEFAULT_LEN, StreamFlags::NON_BLOCKING);
    assert!(failed.is_err());
    drop(one);
    assert_eq!(device.live_streams(), 0, "those that were made are destroyed");
}

#[test]
fn threads_share_a_pool_of_streams() {
    let bench = Bench::new(SimConfig::h200());
    let pool = StreamPool::new(bench.device.clone(), 4, StreamFlags::NON_BLOCKING).unwrap();
    let counts = std::sync::Mutex::new(std::collections::BTreeMap::<StreamId, u32>::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let stream = pool.get();
                    drop(bench.filled(100, stream.as_ref()));
                    *counts.lock().unwrap().entry(stream.as_ref().id()).or_default() += 1;
                }
            });
        }
    });
    assert_eq!(counts.into_inner().unwrap().into_values().collect::<Vec<_>>(), [100; 4]);
    bench.assert_clean();
}

#[test]
fn an_allocator_uses_its_stream() {
    let device = SimDevice::new(SimConfig::h200());
    let (resource, script) = mock::resource(device.clone());
    let resource = resource.into_any();
    let stream = Stream::new(device, StreamFlags::NON_BLOCKING).unwrap();
    let memory = StreamAllocator::new(resource.clone(), stream.as_ref());
    let layout = Layout::with_alignment(100, 4096).unwrap();
    let ptr = memory.allocate(layout).unwrap();
    // SAFETY: the block is live, unused, and freed with its layout.
    unsafe { memory.deallocate(ptr, layout) };
    drop(memory.buffer(7).unwrap());
    let calls = script.take_calls();
    assert_eq!(
        calls[..2],
        [Call::allocate(layout, stream.as_ref()), Call::deallocate(ptr, layout, stream.as_ref())]
    );
    assert_eq!(calls[2], Call::allocate(Layout::new(7), stream.as_ref()));
    assert!(memory == memory.clone() && memory == StreamAllocator::new(resource.clone(), stream.as_ref()));
    assert!(memory != memory.clone().on(StreamRef::LEGACY));
    let other = mock::resource(SimDevice::new(SimConfig::h200())).0;
    assert!(memory != StreamAllocator::new(other, stream.as_ref()), "another resource, of another type");
    assert!(memory.resource().is_equal(&*resource) && memory.stream() == stream.as_ref());
    script.fail_next(ErrorKind::OutOfMemory);
    assert!(memory.allocate(layout).unwrap_err().is_out_of_memory());
}

#[test]
fn the_per_thread_streams_of_two_threads_are_two() {
    let device = SimDevice::new(SimConfig::h200());
    let resource = mock::resource(device.clone()).0.into_any();
    let borrow = || BorrowedStream::per_thread(device.clone());
    let allocator = |stream| StreamAllocator::new(resource.clone(), stream);
    let theirs = std::thread::scope(|scope| {
        let made = scope.spawn(|| (borrow(), allocator(StreamRef::PER_THREAD)));
        made.join().unwrap()
    });
    assert!(borrow() == borrow() && borrow() != theirs.0, "a borrowed stream");
    let mine = allocator(StreamRef::PER_THREAD);
    assert!(mine == mine.clone() && mine != theirs.1, "an allocator");
    assert!(allocator(StreamRef::LEGACY).on(StreamRef::PER_THREAD) == mine, "one that moved to the stream");
    assert!(theirs.1.clone().on(StreamRef::PER_THREAD) == mine, "one that moved to the thread's stream");
}

/// A function uses a caller's buffer on a stream of its own, and fails or panics after that. The caller
/// writes and frees the buffer at once.
#[test]
fn a_use_on_another_stream_is_between_the_uses_on_the_buffers_own() {
    for seed in 0..30 {
        let bench = Bench::seeded(seed);
        let (own, other) = (bench.stream(), bench.stream());
        let mut buffer = DeviceBuffer::new(4096, &own, bench.pool.clone()).unwrap();
        let address = buffer.as_ptr();
        bench.device.launch(own.as_ref(), &[Access::write(address, 4096, 1)]);
        let work = |ptr| -> millpond_core::Result<()> {
            assert_eq!(ptr, address);
            bench.device.launch(other.as_ref(), &[Access::check(ptr, 4096, 1), Access::write(ptr, 4096, 2)]);
            Ok(())
        };
        match seed % 3 {
            0 => buffer.use_on(&other, work).unwrap(),
            1 => {
                let failing = |ptr| -> millpond_core::Result<()> {
                    work(ptr)?;
                    Err(millpond_core::Error::invalid_argument("the work is wrong"))
                };
                let error = buffer.use_on(&other, failing).unwrap_err();
                assert!(error.to_string().contains("the work is wrong"), "{error}");
            }
            _ => {
                let panicking = |ptr| -> millpond_core::Result<()> {
                    work(ptr)?;
                    panic!("in the work")
                };
                let panicked = catch_unwind(AssertUnwindSafe(|| buffer.use_on(&other, panicking)));
                assert!(panicked.is_err());
            }
        }
        assert_eq!(buffer.stream(), own.as_ref());
        bench.device.launch(own.as_ref(), &[Access::check(address, 4096, 2)]);
        buffer.copy_from_host(&[7_u8; 4096]).unwrap();
        assert_eq!(buffer.to_host::<u8>().unwrap(), [7; 4096]);
        drop(buffer);
        bench.assert_clean();
    }
}
