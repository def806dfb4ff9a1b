//! Tests the events of a `CudaBuffer` without a GPU, against the stand-in for libcuda. The stand-in finds
//! each use that does not wait for another, so these programs only have to run.
#![cfg(all(feature = "cudarc", target_os = "linux"))]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, sys};
use millpond_containers::{AdoptedSlice, CudaBuffer};

use crate::cudarc_fake::{Bench, launch, look, run_with_fake, twice};

/// Memory that cudarc frees in stream order. The driver waits for all work when it frees plain memory.
fn adopted(bench: &Bench) -> CudaBuffer<f32, AdoptedSlice<f32>> {
    CudaBuffer::adopt(bench.stream.clone_htod(&[1.0_f32; 8]).unwrap()).unwrap()
}

fn with_fake(test: &str, body: impl FnOnce(&Bench)) {
    run_with_fake(&format!("cuda_streams_fake::{test}"), body);
}

#[test]
fn kernels_on_two_streams_are_ordered() {
    with_fake("kernels_on_two_streams_are_ordered", |bench| {
        let [other, third] = bench.new_streams();
        let mut values = adopted(bench);
        let before = bench.host_waits();
        twice!(bench, other, &mut values, 8);
        twice!(bench, bench.stream, &mut values, 8);
        look!(bench, third, &values, 8);
        twice!(bench, other, &mut values, 8);
        look!(bench, third, &values, 8);
        assert_eq!((bench.frees(), bench.host_waits()), (0, before));
        assert_eq!(other.clone_dtoh(&values).unwrap(), [8.0; 8]);
        look!(bench, third, &values, 8);
        drop(values);
        assert_eq!(bench.frees(), 1);
        assert_eq!(bench.host_waits(), before);
    });
}

#[test]
fn parts_on_several_streams_are_ordered() {
    with_fake("parts_on_several_streams_are_ordered", |bench| {
        let [other, third] = bench.new_streams();
        let mut values = bench.buffer(&[1.0; 8]);
        let before = bench.host_waits();
        let mut whole = values.as_view_mut();
        let (mut first, mut second) = whole.try_split_at_mut(4).unwrap();
        twice!(bench, other, &mut first, 4);
        twice!(bench, third, &mut second.try_slice_mut(1..).unwrap(), 3);
        look!(bench, bench.stream, &second.as_view(), 4);
        third.memset_zeros(&mut second).unwrap();
        look!(bench, other, &values.as_view().clone().try_slice(2..6).unwrap(), 4);
        twice!(bench, third, &mut values.as_view_mut(), 8);
        assert_eq!(bench.host_waits(), before);
        let text = other.clone_dtoh(&values.as_view()).unwrap();
        assert_eq!(text, [4.0, 4.0, 4.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    });
}

#[test]
fn copies_between_streams_wait_on_the_device() {
    with_fake("copies_between_streams_wait_on_the_device", |bench| {
        let [other, third] = bench.new_streams();
        let values = adopted(bench);
        let mut copy = CudaBuffer::<f32, _>::zeroed(8, &other, bench.cuda.clone()).unwrap();
        let before = bench.host_waits();
        third.memcpy_dtod(&values, &mut copy).unwrap();
        let mut again = CudaBuffer::<f32, _>::zeroed(8, &third, bench.cuda.clone()).unwrap();
        bench.stream.memcpy_dtod(&copy.as_view(), &mut again.as_view_mut()).unwrap();
        other.memset_zeros(&mut copy).unwrap();
        drop((values, copy, again));
        assert_eq!(bench.host_waits(), before);
    });
}

/// cudarc's own slice remembers only the last of two copies that read it.
#[test]
fn no_copy_that_reads_is_forgotten() {
    with_fake("no_copy_that_reads_is_forgotten", |bench| {
        let streams: [_; 3] = bench.new_streams();
        let mut slice = bench.stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let copies = streams.each_ref().map(|stream| stream.clone_dtod(&slice).unwrap());
        bench.stream.memset_zeros(&mut slice).unwrap();
        assert!(bench.problems().contains("without waiting"));

        let mut values = adopted(bench);
        let before = bench.host_waits();
        let again = streams.each_ref().map(|stream| stream.clone_dtod(&values).unwrap());
        twice!(bench, streams[0], &mut values, 8);
        let more = streams.each_ref().map(|stream| stream.clone_dtod(&values.as_view()).unwrap());
        bench.stream.memset_zeros(&mut values).unwrap();
        let last = streams.each_ref().map(|stream| stream.clone_dtod(&values).unwrap());
        drop(values);
        assert_eq!(bench.host_waits(), before);
        drop((copies, again, more, last));
    });
}

/// cudarc tells a buffer of no kernel's stream, so the buffer remembers only the last kernel that reads.
#[test]
fn joins_replace_the_forgotten_kernels() {
    with_fake("joins_replace_the_forgotten_kernels", |bench| {
        let [first, second, writer] = bench.new_streams();
        let read = || {
            let values = adopted(bench);
            look!(bench, first, &values, 8);
            look!(bench, second, &values, 8);
            values
        };
        let join =
            |stream: &CudaStream| [&first, &second].iter().for_each(|other| stream.join(other).unwrap());

        let mut values = read();
        join(values.stream());
        twice!(bench, writer, &mut values, 8);
        assert!(bench.problems().contains("without waiting"));
        drop(values);

        let mut values = read();
        join(&writer);
        twice!(bench, writer, &mut values, 8);
        let mut filled = read();
        join(&writer);
        writer.memset_zeros(&mut filled).unwrap();
        let dropped = read();
        join(dropped.stream());
        let mut moved = read();
        join(moved.stream());
        moved.set_stream(&writer).unwrap();
        twice!(bench, writer, &mut moved, 8);
        drop((values, filled, dropped, moved));
    });
}

/// A lent slice is cudarc's own, which remembers only the last of two copies that read it.
#[test]
fn joins_replace_the_forgotten_reads_of_a_lent_slice() {
    with_fake("joins_replace_the_forgotten_reads_of_a_lent_slice", |bench| {
        let streams: [_; 2] = bench.new_streams();
        let copy = |slice: &_| streams.each_ref().map(|stream| stream.clone_dtod(slice).unwrap());
        let values = adopted(bench);
        let copies = values.lend_as_cuda_slice(copy).unwrap();
        drop(values);
        assert!(bench.problems().contains("without waiting"));

        let (values, before) = (adopted(bench), bench.host_waits());
        let lent = |slice: &CudaSlice<f32>| {
            let copies = copy(slice);
            streams.iter().for_each(|stream| slice.stream().join(stream).unwrap());
            copies
        };
        let again = values.lend_as_cuda_slice(lent).unwrap();
        drop(values);
        assert_eq!(bench.host_waits(), before);
        drop((copies, again));
    });
}

#[test]
fn a_borrowed_stream_has_events_while_the_context_has_a_new_one() {
    with_fake("a_borrowed_stream_has_events_while_the_context_has_a_new_one", |bench| {
        // SAFETY: the bench keeps its stream.
        let own = unsafe { bench.context.wrap_borrowed_stream(bench.own.as_ref().handle() as _) };
        let mut values = CudaBuffer::<f32, _>::zeroed(8, &own, bench.cuda.clone()).unwrap();
        let before = bench.host_waits();
        twice!(bench, own, &mut values, 8);
        let copy = bench.stream.clone_dtod(&values).unwrap();
        twice!(bench, own, &mut values, 8);
        twice!(bench, bench.stream, &mut values, 8);
        assert_eq!(bench.host_waits(), before);

        let alone = CudaContext::new(0).unwrap();
        let [first, second] = [alone.default_stream(), alone.per_thread_stream()];
        let values = CudaBuffer::<f32, _>::zeroed(8, &first, bench.cuda.clone()).unwrap();
        let before = bench.host_waits();
        assert_eq!(second.clone_dtod(&values).unwrap().len(), 8);
        assert!(bench.host_waits() > before);
        drop(copy);
    });
}

#[test]
fn reads_run_side_by_side() {
    with_fake("reads_run_side_by_side", |bench| {
        let [other, third] = bench.new_streams();
        let values = adopted(bench);
        look!(bench, other, &values, 8);
        let copy = other.clone_dtod(&values).unwrap();
        look!(bench, third, &values, 8);
        let second = third.clone_dtod(&values).unwrap();
        look!(bench, bench.stream, &values, 8);
        for (first, then) in [(&other, &third), (&other, &bench.stream), (&third, &other)] {
            assert!(!bench.is_ordered(first, then));
        }
        drop(values);
        assert!(bench.is_ordered(&other, &bench.stream) && bench.is_ordered(&third, &bench.stream));
        drop((copy, second));
    });
}

#[test]
fn the_buffer_passes_on_and_stays_ordered() {
    with_fake("the_buffer_passes_on_and_stays_ordered", |bench| {
        let [other, third] = bench.new_streams();
        let slice = bench.stream.clone_htod(&[1.0_f32; 8]).unwrap();
        let mut values = CudaBuffer::adopt(slice).unwrap();
        let before = bench.host_waits();
        twice!(bench, other, &mut values, 8);
        values.set_stream(&third).unwrap();
        twice!(bench, third, &mut values, 8);
        look!(bench, other, &values, 8);
        let copy = values.lend_as_cuda_slice(|slice| other.clone_dtod(slice)).unwrap().unwrap();
        twice!(bench, bench.stream, &mut values, 8);
        values
            .lend_as_cuda_view_mut(|mut view| other.memset_zeros(&mut view.slice_mut(4..)))
            .unwrap()
            .unwrap();
        look!(bench, bench.stream, &values, 8);
        let vec = values.into_vec(bench.own.as_ref()).unwrap();
        let mut values = CudaBuffer::from_vec(vec, &other).unwrap();
        twice!(bench, third, &mut values, 8);
        let slice = values.give_back().unwrap();
        assert_eq!(bench.host_waits(), before);
        assert_eq!(bench.stream.clone_dtoh(&slice).unwrap(), [16.0, 16.0, 16.0, 16.0, 0.0, 0.0, 0.0, 0.0]);
        let mut values = CudaBuffer::adopt(slice).unwrap();
        twice!(bench, other, &mut values, 8);
        // SAFETY: the stream outlives the buffer.
        let (mut buffer, stream) = unsafe { values.into_buffer() };
        stream.memset_zeros(&mut buffer.cuda_view_mut(&stream).unwrap()).unwrap();
        drop((buffer, copy));
    });
}

/// cudarc records no more events when the last stream is gone, although its work may still run.
#[test]
fn work_of_streams_that_are_gone_is_waited_for() {
    with_fake("work_of_streams_that_are_gone_is_waited_for", |bench| {
        let context = CudaContext::new(0).unwrap();
        let own = context.default_stream();
        let new = || CudaBuffer::from_host(&[1.0_f32; 8], &own, bench.cuda.clone()).unwrap();
        let (mut values, dropped) = (new(), new());
        for _ in 0..2 {
            let other = context.new_stream().unwrap();
            twice!(bench, other, &mut values, 8);
            look!(bench, other, &dropped, 8);
            drop(other);
            twice!(bench, own, &mut values, 8);
            own.memset_zeros(&mut values.as_view_mut()).unwrap();
        }
        let other = context.new_stream().unwrap();
        let copy = other.clone_dtod(&dropped).unwrap();
        drop((copy, other));
        drop(dropped);
    });
}

#[test]
fn a_buffer_of_a_threads_stream_is_ordered_on_others() {
    with_fake("a_buffer_of_a_threads_stream_is_ordered_on_others", |bench| {
        let stream = bench.context.per_thread_stream();
        let new = || CudaBuffer::from_host(&[1.0_f32; 8], &stream, bench.cuda.clone()).unwrap();
        let (mut values, mut used) = (new(), new());
        twice!(bench, stream, &mut used, 8);
        let work = || {
            twice!(bench, stream, &mut values, 8);
            stream.memset_zeros(&mut used).unwrap();
            look!(bench, bench.stream, &used, 8);
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
        twice!(bench, stream, &mut values, 8);
        assert_eq!(stream.clone_dtoh(&values).unwrap(), [4.0; 8]);
        std::thread::spawn(|| drop((values, used))).join().unwrap();
    });
}

/// Threads use one buffer at the same time, each on its stream.
#[test]
fn threads_share_a_buffer() {
    with_fake("threads_share_a_buffer", |bench| {
        let streams: [_; 4] = bench.new_streams();
        for _ in 0..20 {
            let mut values = bench.buffer(&[1.0; 8]);
            let mut copies = Vec::new();
            std::thread::scope(|scope| {
                let values = &values;
                let copy = |stream: &'_ Arc<CudaStream>| {
                    let stream = Arc::clone(stream);
                    scope.spawn(move || stream.clone_dtod(values).unwrap())
                };
                let threads: Vec<_> = streams.iter().map(copy).collect();
                copies.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
            });
            bench.stream.memset_zeros(&mut values).unwrap();
        }
    });
}

#[test]
fn without_tracking_a_copy_still_waits() {
    with_fake("without_tracking_a_copy_still_waits", |bench| {
        // SAFETY: the launches below are on the buffer's own stream.
        unsafe { bench.context.disable_event_tracking() };
        let [other] = bench.new_streams();
        let mut values = bench.buffer(&[1.0; 8]);
        twice!(bench, bench.stream, &mut values, 8);
        let copy = other.clone_dtod(&values).unwrap();
        other.memset_zeros(&mut values.as_view_mut()).unwrap();
        twice!(bench, bench.stream, &mut values.as_view_mut(), 8);
        drop((values, copy));
        assert_eq!(bench.frees(), 1);
    });
}

/// If cudarc cannot make the events, the launch fails instead of racing, and a copy makes the host wait.
#[test]
fn a_launch_without_events_is_an_error() {
    with_fake("a_launch_without_events_is_an_error", |bench| {
        let [other] = bench.new_streams();
        let mut values = bench.buffer(&[1.0; 8]);
        bench.fail_events(1);
        launch!("twice", bench, other, &mut values, 8).unwrap_err();
        bench.fail_events(1);
        other.clone_dtoh(&values.as_view()).unwrap_err();
        twice!(bench, other, &mut values, 8);
        // The event of a read cannot be made.
        bench.fail_events(1);
        let mut copy = CudaBuffer::<f32, _>::zeroed(8, &other, bench.cuda.clone()).unwrap();
        let before = bench.host_waits();
        other.memcpy_dtod(&values, &mut copy).unwrap();
        assert_eq!(bench.host_waits(), before + 1);
        twice!(bench, bench.stream, &mut values, 8);
        // A stored error of cudarc does not keep the buffer from its end.
        twice!(bench, other, &mut values, 8);
        bench.context.record_err::<()>(Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)));
        drop(values);
        bench.context.check_err().unwrap_err();
    });
}

/// The events ended with the context.
#[test]
fn a_buffer_is_dropped_after_a_reset() {
    with_fake("a_buffer_is_dropped_after_a_reset", |bench| {
        let [other] = bench.new_streams();
        let mut values = bench.buffer(&[1.0; 8]);
        twice!(bench, other, &mut values, 8);
        bench.reset();
        drop(values);
    });
}

#[test]
fn a_buffer_is_dropped_on_a_thread_without_a_context() {
    with_fake("a_buffer_is_dropped_on_a_thread_without_a_context", |bench| {
        let [other] = bench.new_streams();
        let mut values = adopted(bench);
        twice!(bench, other, &mut values, 8);
        let copy = other.clone_dtod(&values).unwrap();
        let before = bench.host_waits();
        std::thread::spawn(move || drop(values)).join().unwrap();
        assert_eq!(bench.host_waits(), before);
        drop(copy);
    });
}
