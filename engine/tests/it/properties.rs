//! Tests that a log of arbitrary bytes gives an error or events, never a panic, and that rows of the logging
//! adaptor are read back unchanged.

use std::io::Write;

use millpond_adaptors::logging::{Columns, LoggingLayer};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DriverHandle, Layout, StreamRef};
use millpond_driver::DeviceSpec;
use millpond_engine::log::{Action, Event, LogReader, StreamKey};
use millpond_engine::program::{Limits, Program};
use millpond_resources::CudaMemoryResource;
use proptest::prelude::*;

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// Reads everything, in both ways; the caller decides whether that may fail.
fn read(bytes: &[u8]) -> Option<Program> {
    let limits = |skip_bad_rows| Limits::default().skip_bad_rows(skip_bad_rows);
    let read = |skip| LogReader::from_reader("log", bytes).ok().map(|log| Program::read(log, limits(skip)));
    let _ = read(false);
    read(true)?.ok()
}

fn field() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("allocate".to_owned()),
        Just("free".to_owned()),
        Just("allocate failure".to_owned()),
        Just("(nil)".to_owned()),
        any::<u64>().prop_map(|number| number.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        (0_u64..20).prop_map(|number| format!("{:#x}", number * 256)),
        any::<u64>().prop_map(|number| format!("{number:#x}")),
        "[\"\r\t ,0-9a-fx.:-]{0,12}",
        "\\PC{0,6}",
    ]
}

fn row() -> impl Strategy<Value = String> {
    let plausible = (0_u64..4, any::<bool>(), 0_u64..16, any::<u64>(), 0_u64..5).prop_map(
        |(thread, frees, block, bytes, stream)| {
            let action = if frees { "free" } else { "allocate" };
            format!("{thread},05:01:18.946606,{action},{:#x},{bytes},{stream:#x}", block * 256)
        },
    );
    let noise = prop::collection::vec(field(), 0..9).prop_map(|fields| fields.join(","));
    prop_oneof![3 => plausible, 1 => noise]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        read(&bytes);
        read(&[HEADER.as_bytes(), &bytes].concat());
        read(&[&[0x1f, 0x8b], bytes.as_slice()].concat());
        read(&[&[0x28, 0xb5, 0x2f, 0xfd], bytes.as_slice()].concat());
    }

    #[test]
    fn arbitrary_rows_never_panic_and_balance(rows in prop::collection::vec(row(), 1..200)) {
        if let Some(program) = read(format!("{HEADER}{}\n", rows.join("\n")).as_bytes()) {
            let log = program.summary();
            let flaws = &log.flaws;
            let made = log.operations - flaws.unknown_frees - flaws.duplicate_allocations;
            prop_assert_eq!(made + flaws.repeated_frees + log.failed_allocations, log.events);
            prop_assert!(log.leaked_blocks <= log.peak_live_blocks);
            prop_assert!(log.leaked_bytes <= log.peak_live_bytes);
            prop_assert!(u64::from(program.slots()) <= log.peak_live_blocks + 1024);
        }
    }

    #[test]
    fn damaged_packed_logs_never_panic(
        rows in prop::collection::vec(row(), 1..100),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let text = format!("{HEADER}{}\n", rows.join("\n"));
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        for mut packed in [gzip.finish().unwrap(), zstd::encode_all(text.as_bytes(), 1).unwrap()] {
            let at = at.index(packed.len());
            packed[at] = value;
            packed.truncate(if cut { at } else { packed.len() });
            read(&packed);
        }
    }

    #[test]
    fn what_the_logging_adaptor_writes_is_read_back(
        extended in any::<bool>(),
        requests in prop::collection::vec((0_u64..1 << 20, 0_u32..4, any::<bool>()), 1..60),
    ) {
        let columns = if extended { Columns::Extended } else { Columns::Rmm };
        let (text, calls) = logged(columns, &requests);
        let events: Vec<Event> =
            LogReader::from_reader("log", text.as_slice()).unwrap().map(Result::unwrap).collect();
        let read = events.iter().map(|row| (row.action, row.pointer.address(), row.bytes, row.stream));
        let made = calls.iter().map(|call| (call.action, call.address, call.layout.bytes(), call.stream));
        let (read, made): (Vec<_>, Vec<_>) = (read.collect(), made.collect());
        prop_assert_eq!(read, made);
        for (event, call) in events.iter().zip(&calls) {
            prop_assert_eq!(event.device.is_some(), extended);
            prop_assert_eq!(event.monotonic_ns.is_some(), extended);
            // The adaptor logs a free before it does it.
            prop_assert_eq!(event.duration_ns.is_some(), extended && event.action != Action::Free);
            prop_assert_eq!(event.alignment, if extended { call.layout.alignment() } else { 256 });
        }
        prop_assert!(events.windows(2).all(|pair| pair[0].sequence < pair[1].sequence || !extended));
    }
}

struct Call {
    action: Action,
    address: u64,
    layout: Layout,
    stream: StreamKey,
}

/// Makes requests of a logging adaptor, frees some at once and the others never, and returns its calls.
fn logged(columns: Columns, requests: &[(u64, u32, bool)]) -> (Vec<u8>, Vec<Call>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let driver: DriverHandle = DeviceSpec::SimH200.open().unwrap();
    let resource =
        CudaMemoryResource::new(driver).layer(LoggingLayer::new().file(&path).columns(columns)).unwrap();
    let mut calls = Vec::new();
    for &(bytes, stream, frees) in requests {
        let layout = Layout::with_alignment(bytes, if bytes % 7 == 0 { 4096 } else { 256 }).unwrap();
        let (stream, key) = match stream {
            0 => (StreamRef::LEGACY, StreamKey::Legacy),
            1 => (StreamRef::from_raw_parts(1, 0), StreamKey::Legacy),
            2 => (StreamRef::PER_THREAD, StreamKey::PerThread),
            _ => (StreamRef::from_raw_parts(0x55e8_c0a1, 9), StreamKey::Handle(0x55e8_c0a1)),
        };
        let (action, block) = match resource.allocate(layout, stream) {
            Ok(block) => (Action::Allocate, Some(block)),
            Err(_) => (Action::AllocateFailure, None),
        };
        let address = block.map_or(0, |block| block.address());
        calls.push(Call { action, address, layout, stream: key });
        if let Some(block) = block.filter(|_| frees) {
            // SAFETY: the block is live, unused, and given back with its layout.
            unsafe { resource.deallocate(block, layout, stream) };
            calls.push(Call { action: Action::Free, address, layout, stream: key });
        }
    }
    drop(resource);
    (std::fs::read(path).unwrap(), calls)
}
