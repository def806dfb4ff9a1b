//! Streams, events, kernels and contexts of a real device, `cuda:0`. To run:
//! `cargo test -p millpond-driver --test it cuda_ -- --ignored`.
#![cfg(target_os = "linux")]

use std::ffi::c_void;

use libloading::Library;
use millpond_core::driver::{CaptureMode, EventFlags, StreamFlags};
use millpond_core::{Driver, ErrorKind, StreamRef};
use millpond_driver::cuda;

use crate::gpu::{MIB, destroy, device, fill, free, read};

/// A driver function that millpond itself does not use.
fn symbol<F: Copy>(name: &str) -> F {
    // SAFETY: the driver is already loaded; every caller states the type that CUDA documents for the name.
    unsafe {
        let library = Box::leak(Box::new(Library::new("libcuda.so.1").unwrap()));
        *library.get::<F>(name).unwrap()
    }
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn streams_have_identities_and_order_work_by_events() {
    let driver = device();
    let first = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let second = driver.stream_create(StreamFlags::NON_BLOCKING.priority(-1)).unwrap();
    let blocking = driver.stream_create(StreamFlags::BLOCKING).unwrap();
    assert!(first.id() != second.id() && second.id() != blocking.id());
    for stream in [first, second, blocking, StreamRef::LEGACY, StreamRef::PER_THREAD] {
        // SAFETY: the stream is alive.
        assert_eq!(unsafe { driver.stream_ref(stream.handle()) }, Ok(stream));
    }
    assert_ne!(first.id(), StreamRef::LEGACY.id(), "a stream's identity must not be the default stream's");
    let event = driver.event_create(EventFlags::default().timing(true).blocking_sync(true)).unwrap();
    assert_eq!(driver.event_query(event), Ok(true), "never recorded: nothing to wait for");
    let ptr = driver.mem_alloc(64 * MIB).unwrap();
    for round in 0..16 {
        // SAFETY: the block is living; the event orders the read on the second stream after the fill.
        unsafe { driver.memset_d8_async(ptr, round, 64 * MIB, first) }.unwrap();
        driver.event_record(event, first).unwrap();
        driver.stream_wait_event(second, event).unwrap();
        let seen = read(&*driver, ptr.offset(63 * MIB), MIB, second);
        assert!(seen.iter().all(|&byte| byte == round), "round {round}");
    }
    driver.event_synchronize(event).unwrap();
    assert_eq!((driver.event_query(event), driver.stream_query(first)), (Ok(true), Ok(true)));
    // SAFETY: nothing waits for the event any more.
    unsafe { driver.event_destroy(event) }.unwrap();
    free(&*driver, ptr);
    for stream in [first, second, blocking] {
        destroy(&*driver, stream);
    }
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn events_are_recorded_on_living_streams_only() {
    let driver = device();
    let event = driver.event_create(EventFlags::default()).unwrap();
    assert_eq!(driver.event_record_if_alive(event, StreamRef::LEGACY), Ok(true));
    assert_eq!(driver.event_record_if_alive(event, StreamRef::PER_THREAD), Ok(false));
    let mut dead = Vec::new();
    for _ in 0..32 {
        let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        assert_eq!(driver.event_record_if_alive(event, stream), Ok(true));
        assert!(!dead.contains(&stream), "an identity was used twice");
        destroy(&*driver, stream);
        dead.push(stream);
        for stream in &dead {
            assert_eq!(driver.event_record_if_alive(event, *stream), Ok(false));
        }
    }
    // By now the handles are most likely in use again, but the streams are different.
    let living: Vec<_> = (0..32).map(|_| driver.stream_create(StreamFlags::NON_BLOCKING).unwrap()).collect();
    for stream in &dead {
        assert_eq!(driver.event_record_if_alive(event, *stream), Ok(false));
    }
    for stream in living {
        assert_eq!(driver.event_record_if_alive(event, stream), Ok(true));
        destroy(&*driver, stream);
    }
    // SAFETY: nothing waits for the event any more.
    unsafe { driver.event_destroy(event) }.unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn destruction_never_passes_between_check_and_record() {
    let driver = device();
    let event = driver.event_create(EventFlags::default()).unwrap();
    for _ in 0..200 {
        let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        std::thread::scope(|scope| {
            let recorder = scope.spawn(|| while driver.event_record_if_alive(event, stream).unwrap() {});
            scope.spawn(|| destroy(&*driver, stream));
            recorder.join().unwrap(); // recording on a destroyed stream would fail or crash
        });
    }
    // SAFETY: nothing waits for the event any more.
    unsafe { driver.event_destroy(event) }.unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_capturing_stream_says_so() {
    let driver = device();
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    assert_eq!(driver.stream_is_capturing(stream), Ok(false));
    driver.begin_capture(stream, CaptureMode::Relaxed).unwrap();
    assert_eq!(driver.stream_is_capturing(stream), Ok(true));
    assert_ne!(driver.end_capture(stream).unwrap().handle(), 0);
    assert_eq!(driver.stream_is_capturing(stream), Ok(false));
    destroy(&*driver, stream);
}

#[cfg(feature = "cudarc")]
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn streams_of_cudarc_are_known() {
    let driver = device();
    let theirs = cuda::cudarc::driver::CudaContext::new(0).unwrap().new_stream().unwrap();
    // SAFETY: the stream lives until the end of the test.
    let stream = unsafe { cuda::stream_ref_of(&theirs) }.unwrap();
    // SAFETY: as above.
    assert_eq!(Ok(stream), unsafe { driver.stream_ref(stream.handle()) });
    assert!(stream.is_foreign());
    let event = driver.event_create(EventFlags::default()).unwrap();
    assert_eq!(driver.event_record_if_alive(event, stream), Ok(false), "the driver did not make it");
    driver.event_record(event, stream).unwrap();
    driver.event_synchronize(event).unwrap();
    // SAFETY: nothing waits for the event any more.
    unsafe { driver.event_destroy(event) }.unwrap();
}

/// Writes a 64-bit tag into `words` words at `base`.
const WRITE_TAG: &str = r"
.version 6.4
.target sm_75
.address_size 64

.visible .entry write_tag(.param .u64 base, .param .u64 words, .param .u64 tag)
{
    .reg .pred %p1;
    .reg .b32 %r<4>;
    .reg .b64 %rd<5>;

    ld.param.u64 %rd1, [base];
    ld.param.u64 %rd2, [words];
    ld.param.u64 %rd3, [tag];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r1, %r1, %r2, %r3;
    cvt.u64.u32 %rd4, %r1;
    setp.ge.u64 %p1, %rd4, %rd2;
    @%p1 bra done;
    shl.b64 %rd4, %rd4, 3;
    add.s64 %rd1, %rd1, %rd4;
    st.global.u64 [%rd1], %rd3;
done:
    ret;
}
";

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_kernel_from_ptx_writes_its_tag() {
    let driver = device();
    let kernel = driver.load_ptx(WRITE_TAG).unwrap().function("write_tag").unwrap();
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let (mut words, mut tag) = (1000_u64, 0x0123_4567_89AB_CDEF_u64);
    let ptr = driver.mem_alloc(1024 * 8).unwrap();
    fill(&*driver, ptr, 0, 1024 * 8);
    let mut base = ptr.address();
    let mut args: [*mut c_void; 3] = [(&raw mut base).cast(), (&raw mut words).cast(), (&raw mut tag).cast()];
    // SAFETY: the kernel has these three parameters and writes 1000 words into a block of 1024.
    unsafe { kernel.launch([8, 1, 1], [128, 1, 1], 0, stream, &mut args) }.unwrap();
    let host = read(&*driver, ptr, 1024 * 8, stream);
    for (i, word) in host.chunks_exact(8).enumerate() {
        let expected = if i < 1000 { tag } else { 0 };
        assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), expected, "word {i}");
    }
    free(&*driver, ptr);
    destroy(&*driver, stream);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_wrong_kernel_is_an_error_with_the_compilers_words() {
    let driver = device();
    let module = driver.load_ptx(WRITE_TAG).unwrap();
    let error = module.function("read_tag").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("read_tag"), "{error}");
    let error = driver.load_ptx(&WRITE_TAG.replace("ret;", "retire;")).unwrap_err();
    assert_eq!(error.driver_error().unwrap().code(), 218, "{error}");
    assert!(error.to_string().contains("retire"), "the compiler's log is missing: {error}");
    assert_eq!(driver.load_ptx("a\0b").unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn the_callers_context_stays_current() {
    let driver = device();
    let get: unsafe extern "C" fn(*mut u64) -> i32 = symbol("cuCtxGetCurrent");
    let create: unsafe extern "C" fn(*mut u64, u32, i32) -> i32 = symbol("cuCtxCreate_v2");
    let destroy_context: unsafe extern "C" fn(u64) -> i32 = symbol("cuCtxDestroy_v2");
    let current = move || {
        let mut context = 0;
        // SAFETY: `context` takes the result.
        assert_eq!(unsafe { get(&raw mut context) }, 0);
        context
    };
    std::thread::spawn(move || {
        assert_eq!(current(), 0, "a new thread has no context");
        assert_eq!(cuda::current_ordinal(), None);
        let ptr = driver.mem_alloc(MIB).unwrap();
        fill(&*driver, ptr, 1, MIB);
        assert_eq!(current(), 0);

        let mut mine = 0;
        // SAFETY: `mine` takes the result.
        assert_eq!(unsafe { create(&raw mut mine, 0, 0) }, 0);
        assert_eq!(current(), mine);
        free(&*driver, ptr);
        assert!(driver.mem_alloc(1 << 46).is_err());
        assert_eq!(current(), mine, "the context has changed");
        // SAFETY: nothing uses the context.
        assert_eq!(unsafe { destroy_context(mine) }, 0);
    })
    .join()
    .unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn memory_is_freed_on_another_thread_than_it_was_made_on() {
    let driver = device();
    let blocks: Vec<_> = (0..8).map(|_| driver.mem_alloc(MIB).unwrap()).collect();
    std::thread::scope(|scope| {
        for ptr in blocks {
            let driver = &*driver;
            scope.spawn(move || {
                fill(driver, ptr, 7, MIB);
                free(driver, ptr);
            });
        }
    });
}
