//! Tests traces of torch.profiler and JAX's device memory profiles.

use millpond_snapshot::explain::explain;
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::recording::{Clock, EventKind, Recording};

use crate::texts::file;
use crate::{imported, of_device, read, unknowns};

/// Returns the frames of an event.
fn stack(recording: &Recording, number: usize) -> Vec<String> {
    let stack = recording.event(number).unwrap().stack;
    let frames = stack.into_iter().flat_map(|stack| recording.stack(stack));
    frames.map(|frame| format!("{} {}:{}", frame.function, frame.file, frame.line)).collect()
}

#[test]
fn the_memory_events_of_a_trace_are_in_the_order_of_their_times() {
    let recording = imported(&file("trace.json"));
    assert_eq!(
        (recording.source().format.as_str(), recording.clock()),
        ("torch.profiler trace", Clock::Unix)
    );
    use EventKind::{Allocate, Free, PhaseEnd, PhaseStart};
    let events: Vec<_> = recording.events().map(|event| (event.kind, event.bytes, event.is_before)).collect();
    assert_eq!(
        events,
        [
            (Allocate, 512, true), // freed in the trace
            (Allocate, 512, true), // never freed: the sum tells it
            (PhaseStart, 0, false),
            (Allocate, 4096, false),
            (Free, 512, false),
            (Free, 4096, false),
            (PhaseEnd, 0, false),
        ]
    );
    assert_eq!(stack(&recording, 3), ["aten::empty :0", "train_step train.py:42"]);
    assert_eq!(stack(&recording, 4), ["train_step train.py:42"]);
    assert_eq!(recording.event(3).unwrap().time(), Some(1_700_000_000_000_210_250));
    let sums = recording.sums();
    // The allocator counted the same: 5,120 bytes at most, and 512 at the end.
    assert_eq!((sums.peak_live_bytes, sums.live_bytes, sums.blocks_before), (5120, 512, 2));
    assert_eq!(explain(&recording, None).moments[0].ledger.active_bytes, 5120);
    for code in ["segments", "streams", "host_memory", "other_device", "blocks_before"] {
        assert!(unknowns(&recording).contains(&code), "{:?}", unknowns(&recording));
    }
    assert!(!unknowns(&recording).contains(&"sums_differ") && !unknowns(&recording).contains(&"stacks"));
    assert!(recording.source().details.contains(&("most bytes reserved".to_owned(), "41943040".to_owned())));
    let other = import::read("file", file("trace.json").as_slice(), &of_device(1));
    assert_eq!(other.unwrap().sums().live_bytes, 64);
}

#[test]
fn old_and_cut_traces_are_read() {
    let recording = imported(&file("trace_old.json"));
    let sums = recording.sums();
    assert_eq!((sums.allocations, sums.frees, sums.peak_live_bytes, sums.live_bytes), (2, 1, 2048, 2048));
    assert_eq!(
        (recording.clock(), recording.event(0).unwrap().time()),
        (Clock::Unix, Some(1_612_345_678_000_090_000))
    );
    assert!(unknowns(&recording).contains(&"stacks"));
    let text = file("trace.json");
    let cut = text.windows(13).position(|part| part == b"\"ts\": 500.000").unwrap();
    let recording = imported(&text[..cut]);
    assert_eq!(recording.sums().live_bytes, 4096 + 512);
    assert!(unknowns(&recording).contains(&"rest_missing"));
}

#[test]
fn traces_without_memory_are_named() {
    let of = |events: &str| read(format!("{{\"traceEvents\": [{events}]}}").as_bytes()).unwrap_err();
    assert!(of("{}").contains("without memory events") && of("{}").contains("profile_memory=True"));
    for empty in ["[]", "null"] {
        let error = read(format!("{{\"schemaVersion\": 1, \"traceEvents\": {empty}}}").as_bytes());
        let error = error.unwrap_err();
        assert!(error.starts_with("file: is an empty trace: nothing ran"), "{error}");
        assert!(error.contains("profile_memory=True"), "{error}");
    }
    for odd in ["{}", "5", "\"text\""] {
        let error = read(format!("{{\"traceEvents\": {odd}}}").as_bytes()).unwrap_err();
        assert!(error.contains("`traceEvents` is not a list of events"), "{error}");
    }
    let host = "{\"ph\":\"i\",\"name\":\"[memory]\",\"ts\":1,\"args\":{\"Bytes\":4,\"Addr\":4,\"Device \
                Id\":-1,\
                \"Device Type\":0}}";
    assert!(of(host).contains("only for the host"), "{}", of(host));
    assert!(of("{\"ph\":").contains("invalid JSON"), "{}", of("{\"ph\":"));
    // Values of unexpected types.
    let odd = "{\"ph\":[],\"name\":{},\"ts\":\"x\",\"args\":[1]},{\"args\":null},\
               {\"ts\":1e300,\"name\":\"[memory]\"},\
               {\"ts\":1,\"name\":\"[memory]\",\"args\":{\"Bytes\":1e40,\"Addr\":-1.5,\"Device Id\":1}}";
    assert!(of(odd).contains("without memory events"), "{}", of(odd));
}

/// A memory event on device 0 at 1 us.
const EVENT: &str = r#"{"ph":"i","name":"[memory]","tid":1,"ts":1,
    "args":{"Device Id":0,"Device Type":1,"Bytes":512,"Addr":4096,"Ev Idx":0}}"#;

#[test]
fn values_that_are_no_events_are_left_out() {
    for other in ["null", "5", "-5", "1.5", "true", r#""text""#, "[]", r#"[1,[2],{"ph":"X"}]"#, "{}"] {
        for odd in [other.to_owned(), format!(r#"{{"ph":"X","name":"a","ts":1,"args":{other}}}"#)] {
            let recording = imported(format!(r#"{{"traceEvents":[{odd},{EVENT},{odd}]}}"#).as_bytes());
            assert_eq!(recording.sums().live_bytes, 512, "{odd}");
        }
    }
    // As in other readers of JSON, the last value of a key counts.
    let twice = EVENT.replacen(r#""ts":1"#, r#""ts":7,"ts":1"#, 1);
    let recording = imported(format!(r#"{{"traceEvents":[{twice}]}}"#).as_bytes());
    assert_eq!(recording.event(0).unwrap().time(), Some(1000));
}

/// The log of a recording must name a device that the log reader accepts.
#[test]
fn a_device_that_cannot_exist_is_not_known() {
    for (number, known) in
        [(7, Some(7)), ((1 << 30) - 1, Some((1 << 30) - 1)), (1 << 30, None), (u32::MAX, None)]
    {
        let event = EVENT.replacen(r#""Device Id":0"#, &format!(r#""Device Id":{number}"#), 1);
        let recording = imported(format!(r#"{{"traceEvents":[{event}]}}"#).as_bytes());
        assert_eq!(recording.device(), known, "{number}");
    }
}

#[test]
fn a_base_of_times_that_does_not_fit_is_left_out() {
    let time = |base: &str| {
        let text = format!(r#"{{"baseTimeNanoseconds": {base}, "traceEvents":[{EVENT}]}}"#);
        let recording = imported(text.as_bytes());
        (recording.clock(), recording.event(0).unwrap().time())
    };
    for base in ["1e300", "-1e300", "18446744073709551615", "-9223372036854775808"] {
        assert_eq!(time(base), (Clock::Monotonic, Some(1000)), "{base}");
    }
    assert_eq!(time("9223372036854775807"), (Clock::Unix, Some((1 << 63) - 1 + 1000)));
}

#[test]
fn a_trace_that_attacks_its_reader_is_refused() {
    let head = b"{\"traceEvents\": [".to_vec();
    let long = [&head[..], b"{\"name\":\"", &vec![b'x'; 2 << 20]].concat();
    assert!(read(&long).unwrap_err().contains("a text of more than 1 MiB"));
    let deep = [&head[..], b"{\"args\":", &vec![b'['; 1 << 20]].concat();
    assert!(read(&deep).unwrap_err().contains("more than 100 values"));
    let event = b"{\"name\":\"[memory]\",\"ts\":1,\"args\":{\"Bytes\":1,\"Addr\":1,\"Device Id\":0}},";
    let many = [&head[..], &event.repeat(600_000)].concat();
    let packed = crate::hostile::gzip(&many);
    let error = import::read("file", packed.as_slice(), &Options::default()).unwrap_err().to_string();
    assert!(error.contains("needs more than"), "{error}");
}

#[test]
fn live_buffers_of_jax_are_blocks_with_their_stacks() {
    let recording = imported(&file("memory.prof.gz"));
    assert_eq!(
        (recording.source().format.as_str(), recording.device()),
        ("JAX device memory profile", Some(0))
    );
    let sums = recording.sums();
    assert_eq!((sums.live_blocks, sums.live_bytes), (5, (3 << 20) + 4096 + 70_000));
    let explanation = explain(&recording, None);
    let holders = &explanation.moments[0].holders;
    assert_eq!((holders[0].bytes, holders[0].blocks), (3 << 20, 3));
    assert_eq!(holders[0].stack, ["init (/app/run.py:12)", "<module> (/app/run.py:90)"]);
    let tags: Vec<&str> = recording.events().filter_map(|event| Some(recording.tag(event.tag?))).collect();
    assert_eq!(tags, ["buffer", "buffer", "buffer", "buffer", "executable"]);

    let two = imported(&file("two_devices.prof.gz"));
    assert_eq!((two.device(), two.sums().live_bytes), (Some(1), 1 << 30));
    assert!(unknowns(&two).contains(&"other_device"));
    let of = |device| {
        let bytes = file("two_devices.prof.gz");
        import::read("file", bytes.as_slice(), &of_device(device))
    };
    assert_eq!((of(0).unwrap().sums().live_blocks, of(0).unwrap().sums().live_bytes), (2, 2048));
    assert!(of(7).unwrap_err().to_string().contains("has no memory of device 7, only of device 0, 1"));
}

#[test]
fn other_profiles_and_damaged_ones_are_refused() {
    let mut types = b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04\x32\x00".to_vec();
    for name in ["alloc_objects", "count", "alloc_space", "bytes"] {
        types.extend([0x32, name.len() as u8]);
        types.extend(name.as_bytes());
    }
    let error = read(&types).unwrap_err();
    assert!(error.contains("of alloc_objects, alloc_space, but not of device memory"), "{error}");
    assert!(read(&[&types[..], &[0x12, 0x7f, 1]].concat()).unwrap_err().contains("damaged"));
}
