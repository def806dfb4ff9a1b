//! Tests that importing takes at most its memory (64 MiB by default) above the file's size, even if the file
//! asks for more. Also tests that an explanation holds one moment of a recording in memory at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond_snapshot::explain::explain;
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::recording::Recording;
use millpond_testkit::size;

/// Counts the allocated bytes, and the most of them at one time.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// An ordinary run has files that are smaller by this factor than the files of a thorough run.
fn part() -> usize {
    size::of(5, 1) as usize
}

/// The most bytes that importing may take above the file's size. A thorough run has the default.
fn most_bytes() -> usize {
    size::of(24 << 20, Options::default().memory) as usize
}

/// Imports a file, and returns the result with the most bytes allocated meanwhile.
fn import(bytes: &[u8]) -> (Result<Recording, String>, usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, bytes).unwrap();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = import::open(&path, &Options::default().memory(most_bytes() as u64))
        .map_err(|error| error.to_string());
    (result, PEAK.load(Ordering::Relaxed) - before)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// Returns a snapshot in PyTorch's form: texts and frames are written once, and each event has its own list.
fn snapshot(events: u32) -> Vec<u8> {
    let mut bytes = b"\x80\x02}(X\x05\0\0\0names(".to_vec();
    let names = [
        "action",
        "addr",
        "size",
        "stream",
        "time_us",
        "frames",
        "name",
        "filename",
        "alloc",
        "free_completed",
    ];
    for (number, name) in names.iter().enumerate() {
        bytes.extend([b'X', name.len() as u8, 0, 0, 0]);
        bytes.extend(name.as_bytes());
        bytes.extend([b'q', number as u8]);
    }
    bytes.extend(b"}q\x0a(h\x06h\x06h\x07h\x07ulX\x08\0\0\0segments]X\x0d\0\0\0device_traces]]");
    let mut memo = 11_u32;
    for number in 0..events {
        if number % 1000 == 0 {
            bytes.extend(if number == 0 { &b"("[..] } else { b"e(" });
        }
        let address = 0x7f00_0000_0000 + u64::from(number / 2 % 1000) * 512;
        bytes.extend(b"}r");
        bytes.extend(memo.to_le_bytes());
        bytes.extend([b'(', b'h', 0, b'h', 8 + (number % 2) as u8, b'h', 1, 0x8a, 8]);
        bytes.extend(address.to_le_bytes());
        bytes.extend([b'h', 2, b'M', 0, 1, b'h', 3, b'K', 0, b'h', 4, 0x8a, 8]);
        bytes.extend((1_700_000_000_000_000 + u64::from(number)).to_le_bytes());
        bytes.extend([b'h', 5, b']', b'r']);
        bytes.extend((memo + 1).to_le_bytes());
        bytes.extend(b"(h\x0ah\x0aeu");
        memo += 2;
    }
    bytes.extend(b"eau.");
    bytes
}

/// Explains a recording of many live blocks and ten failed requests. Returns the most bytes allocated
/// meanwhile, and the bytes of one of its moments.
fn explained(blocks: u64) -> (usize, usize) {
    let rows = (0..blocks)
        .map(|number| format!("1,00:00:00.000000,allocate,{:#x},512,0\n", 0x7f00_0000_0000 + number * 512));
    let failed = "1,00:00:00.000000,allocate failure,(nil),512,0\n".repeat(10);
    let log = format!("Thread,Time,Action,Pointer,Size,Stream\n{}{failed}", rows.collect::<String>());
    let recording = import(log.as_bytes()).0.unwrap();
    let most = |work: &dyn Fn() -> usize| {
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        assert!(work() > 0);
        PEAK.load(Ordering::Relaxed) - before
    };
    let one = most(&|| recording.moment(recording.len()).blocks().len());
    (most(&|| explain(&recording, None).moments.len()), one)
}

/// All checks are in one test, because other tests would allocate at the same time.
#[test]
fn importing_takes_no_more_than_its_memory_above_the_files_size() {
    let snapshots = [(10_000, true), (300_000, true), (1_000_000, false)];
    for (events, packs) in snapshots {
        let events = events / part() as u32;
        let plain = snapshot(events);
        let file = if packs { gzip(&plain) } else { plain };
        let (recording, peak) = import(&file);
        let recording = recording.unwrap();
        assert_eq!(recording.len() as u32, events);
        assert_eq!(recording.stack_counts(), (1, 1));
        assert!(recording.check().unwrap().is_equal());
        let above = peak.saturating_sub(file.len());
        assert!(above < most_bytes(), "{events} events: {} MiB above {}", above >> 20, file.len() >> 20);
    }

    // An explanation of twelve moments holds one of them in memory at a time.
    let (most, one) = explained(30_000);
    assert!(most < one + one / 2, "{most} bytes for an explanation, {one} for one moment");

    let many = |code: &[u8], count: usize| [&b"\x80\x04("[..], &code.repeat(count / part()), b"l."].concat();
    let rows = "1,00:00:00.000000,allocate,0x100,1,0\n".repeat(3_000_000 / part());
    let log = format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}");
    let buffers = format!("id,lower,upper,size\n{}", "a,1,2,3\n".repeat(3_000_000 / part()));
    let numbers: String = (0..2_000_000 / part())
        .fold("id,lower,upper,size\n".to_owned(), |text, id| text + &format!("{id},1,2,3\n"));
    let hostile = [
        many(b"]", 16 << 20),
        many(b"}\x94", 8 << 20),
        many(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x0f", 4 << 20),
        many(b"](K\x01K\x02K\x03e", 2 << 20),
        many(b"}K\x01K\x02s", 2 << 20),
        many(b"N\x85", 8 << 20),
        [&b"\x80\x04N"[..], &b"r\xff\xff\0\0".repeat(2), &vec![0x94; (32 << 20) / part()], b"."].concat(),
        snapshot(2_000_000 / part() as u32),
        log.into_bytes(),
        buffers.into_bytes(),
        numbers.into_bytes(),
        [&b"<html>"[..], &vec![b' '; 70 << 20]].concat(),
        vec![0; 70 << 20],
    ];
    for (number, plain) in hostile.into_iter().enumerate() {
        let file = gzip(&plain);
        drop(plain);
        let (result, peak) = import(&file);
        assert!(result.is_err(), "{number}");
        let above = peak.saturating_sub(file.len());
        assert!(above < most_bytes(), "{number}: {} MiB above {} KiB", above >> 20, file.len() >> 10);
    }
}
