//! Tests the arena: its size, its growth, and the reuse of blocks between threads and streams.

use std::sync::Arc;
use std::thread;

use millpond_core::driver::{Driver, StreamFlags};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Result, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{ArenaLayer, ArenaOptions, CudaMemoryResource};

const S: StreamRef = StreamRef::LEGACY;
const MIB: u64 = 1 << 20;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn build(text: &str, device: &Arc<SimDevice>) -> Result<AnyResource> {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    let driver: millpond_core::DriverHandle = device.clone();
    text.parse::<StackSpec>()?.build(&table, &driver)
}

fn put(
    resource: &impl DeviceMemoryResource,
    blocks: impl IntoIterator<Item = (DevicePtr, u64)>,
    stream: StreamRef,
) {
    for (ptr, bytes) in blocks {
        // SAFETY: the block came from this resource with this size, once, and no work uses it.
        unsafe { resource.deallocate_bytes(ptr, bytes, stream) }
    }
}

/// RMM: SmallerThanSuperblock.
#[test]
fn an_arena_smaller_than_its_smallest_part_is_refused() {
    let error = build("cuda+arena:size=256KiB", &device()).unwrap_err();
    assert_eq!(
        error.message(),
        "an arena of 262144 bytes is too small: it needs at least 1MiB; raise `size`"
    );
    let error = build("cuda+arena:size=2MiB,max=1MiB", &device()).unwrap_err();
    assert_eq!(
        error.message(),
        "the pool's initial size of 2MiB exceeds its maximum of 1MiB; lower `initial` or raise `max`"
    );
}

#[test]
fn an_arena_takes_half_of_what_is_free() {
    let device = device();
    let arena = CudaMemoryResource::new(device.clone()).layer(ArenaLayer::new()).unwrap();
    assert_eq!(arena.pool().pool_bytes(), 512 * MIB);
    assert_eq!(arena.to_string(), "cuda+arena:size=512MiB");
    drop(arena);
    assert_eq!(device.live_bytes(), 0);
}

#[test]
fn an_arena_finds_its_blocks_by_address() {
    let arena = build("cuda+arena:size=64MiB", &device()).expect("the device has as much");
    let ptr = arena.allocate_bytes(1000, S).expect("there is room");
    let found = arena.block_at(ptr).map(|block| (block.address, block.bytes));
    assert_eq!(found, Some((ptr.address(), 1000)));
    put(&arena, [(ptr, 1000)], S);
    assert_eq!(arena.block_at(ptr), None);
}

/// RMM: AllocateNinetyPercent.
#[test]
fn most_of_an_arena_can_be_one_block() {
    let device = device();
    let arena = build("cuda+arena:size=90%", &device).unwrap();
    let bytes = 900 * MIB;
    let block = arena.allocate_bytes(bytes, S).unwrap();
    put(&arena, [(block, bytes)], S);
}

/// RMM: SmallMediumLarge.
#[test]
fn small_medium_and_large_blocks_share_an_arena() {
    let arena = build("cuda+arena:size=64MiB", &device()).unwrap();
    let blocks = [256, 64 << 20, 1 << 29].map(|bytes| (arena.allocate_bytes(bytes, S).unwrap(), bytes));
    put(&arena, blocks, S);
}

/// RMM: Defragment. Threads and streams fill the arena and free it again. Then the arena is one block; its
/// maximum leaves no other way.
#[test]
fn what_threads_and_streams_freed_becomes_one_block() {
    let device = device();
    let arena = build("cuda+arena:size=64MiB,max=64MiB", &device).unwrap();
    thread::scope(|scope| {
        for index in 0..4 {
            let (arena, device) = (&arena, &device);
            scope.spawn(move || {
                let stream = match index % 2 {
                    0 => StreamRef::PER_THREAD,
                    _ => device.stream_create(StreamFlags::NON_BLOCKING).unwrap(),
                };
                for _ in 0..3 {
                    let sizes = [32 << 10, 100 << 10, 1 << 20, 256, 4 << 20];
                    let blocks = sizes.map(|bytes| (arena.allocate_bytes(bytes, stream).unwrap(), bytes));
                    put(arena, blocks, stream);
                }
            });
        }
    });
    let block = arena.allocate_bytes(64 * MIB, S).unwrap();
    put(&arena, [(block, 64 * MIB)], S);
}

/// RMM: PerThreadToStreamDealloc. RMM's arena ended the process if it did not find a block in the arena of
/// the stream that freed it (issue 1393).
#[test]
fn a_block_of_a_thread_may_be_freed_on_another_stream() {
    let device = device();
    let arena = build("cuda+arena:size=32MiB,max=32MiB", &device).unwrap();
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    for _ in 0..20 {
        let blocks = [256, 8192, 1 << 20, 5 << 20]
            .map(|bytes| (arena.allocate_bytes(bytes, StreamRef::PER_THREAD).unwrap(), bytes));
        put(&arena, blocks, stream);
    }
    assert_eq!(device.take_violations().len(), 0);
}

/// RMM's arena keeps the blocks that a thread cached in its second arena, because its cleaner knows only one.
#[test]
fn threads_that_end_leave_nothing_in_any_of_several_arenas() {
    let device = device();
    let arenas = [(); 3].map(|()| build("cuda+arena:size=4MiB,max=4MiB", &device).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            for arena in &arenas {
                let block = arena.allocate_bytes(256, StreamRef::LEGACY).unwrap();
                put(arena, [(block, 256)], StreamRef::LEGACY);
            }
        });
    });
    for arena in &arenas {
        let all = arena.allocate_bytes(4 * MIB, S).unwrap();
        put(arena, [(all, 4 * MIB)], S);
    }
}

/// RMM's arena never grows.
#[test]
fn an_arena_grows_to_its_maximum() {
    let arena = build("cuda+arena:size=1MiB,max=32MiB", &device()).unwrap();
    let block = arena.allocate_bytes(20 * MIB, S).unwrap();
    let error = arena.allocate_bytes(20 * MIB, S).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(error.stack(), Some("cuda+arena:size=1MiB,max=32MiB"));
    put(&arena, [(block, 20 * MIB)], S);
}

/// RMM: DumpLogOnFailure. RMM's file lacks the state, which RMM logs below the level that it sets.
#[test]
fn the_state_is_written_when_memory_is_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dump, of the arena.log");
    let options = ArenaOptions::default()
        .size_bytes(Some(MIB))
        .maximum_bytes(Some(2 * MIB))
        .dump_log_on_failure(Some(file.clone()));
    let arena =
        millpond_resources::ArenaMemoryResource::new(CudaMemoryResource::new(device()), options).unwrap();
    let spec: StackSpec = arena.to_string().parse().expect("the name is quoted");
    assert_eq!(spec.to_string(), arena.to_string());
    assert!(arena.to_string().ends_with(&format!("dump_log_on_failure=\"{}\"", file.display())));
    let block = arena.allocate_bytes(1000, S).unwrap();
    assert!(!file.exists(), "nothing failed yet");
    arena.allocate_bytes(3 * MIB, S).unwrap_err();
    let text = std::fs::read_to_string(&file).unwrap();
    for part in ["out of memory for 3MiB", "in use in 1 block", "the maximum is 2MiB", "fragmentation: "] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    put(&arena, [(block, 1000)], S);
}

/// If a dump cannot be written, or no program reads it, the request still fails only with its own error.
#[test]
#[cfg(unix)]
fn a_dump_into_a_pipe_without_a_reader_does_not_hang() {
    use std::os::unix::ffi::OsStrExt;

    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let name = std::ffi::CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let places = [pipe, folder.path().to_owned(), "/dev/full".into()];
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for place in places {
            let layer = ArenaLayer::new().size_bytes(MIB).dump_log_on_failure(place);
            let arena = CudaMemoryResource::new(device()).layer(layer).unwrap();
            tell.send(arena.allocate_bytes(2 << 30, S).unwrap_err().is_out_of_memory()).unwrap();
        }
    });
    let answer = || told.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!([answer(), answer(), answer()], [Ok(true); 3]);
}
