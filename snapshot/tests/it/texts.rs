//! Tests texts that programs print: messages that memory ran out, dumps of allocators, leaks, and logs
//! between other lines. The files have the forms of public reports, with other numbers.

use std::path::PathBuf;

use millpond_engine::log::StreamKey;
use millpond_engine::program::Limits;
use millpond_snapshot::explain::{Explained, Occasion, Style, explain, print};
use millpond_snapshot::import;
use millpond_snapshot::recording::{EventKind, Recording};

use crate::{imported, of_device, read, unknowns};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Returns a file of the readers' tests.
pub(crate) fn file(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/readers");
    std::fs::read(folder.join(name)).unwrap()
}

/// Returns all files of the readers' tests, by name.
pub(crate) fn files() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/readers");
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.ends_with(".py")).collect();
    names.sort();
    assert!(names.len() > 15, "{names:?}");
    names.into_iter().map(|name| (name.clone(), file(&name))).collect()
}

/// Returns the explained failed requests of a recording.
fn failures(recording: &Recording) -> Vec<Explained> {
    let moments = explain(recording, None).moments;
    moments.into_iter().filter(|moment| moment.occasion == Occasion::Failure).collect()
}

fn detail<'a>(recording: &'a Recording, name: &str) -> Option<&'a str> {
    let details = &recording.source().details;
    details.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Returns the frames of the stack of each failed request.
fn stacks(recording: &Recording) -> Vec<Vec<String>> {
    let failed = recording.events().filter(|event| event.kind == EventKind::AllocateFailure);
    failed
        .map(|event| {
            let frames = event.stack.into_iter().flat_map(|stack| recording.stack(stack));
            frames.map(|frame| format!("{} {}:{}", frame.function, frame.file, frame.line)).collect()
        })
        .collect()
}

#[test]
fn a_message_of_pytorch_is_a_state_with_its_sums() {
    let recording = imported(&file("oom_ranks.txt"));
    assert_eq!(
        (recording.source().format.as_str(), recording.device()),
        ("PyTorch out-of-memory message", Some(0))
    );
    let [failure] = &failures(&recording)[..] else { panic!() };
    let ledger = &failure.ledger;
    assert_eq!(failure.wanted_bytes, Some(304 * MIB));
    assert_eq!(failure.device_free_bytes, Some(218 * MIB + 3 * MIB / 4));
    assert_eq!(ledger.active_bytes, 91 * GIB);
    assert_eq!(ledger.reserved_bytes, Some(91 * GIB + 744 * MIB + MIB / 4));
    assert_eq!(ledger.unused_bytes(), 744 * MIB + MIB / 4);
    assert!(ledger.largest_free_bytes < 304 * MIB, "{ledger:?}");
    assert_eq!(recording.device_bytes(), Some(94 * GIB + GIB / 2));
    // All but the free and the reserved bytes: the context, and the other process.
    let outside = 94 * GIB + GIB / 2 - (218 * MIB + 3 * MIB / 4) - ledger.reserved_bytes.unwrap();
    assert_eq!(failure.outside_bytes, Some(outside));
    assert_eq!(detail(&recording, "bytes of process 2109"), Some("536870912"));
    let private = recording.events().filter(|event| recording.lane(event).pool == Some((0, 1)));
    assert_eq!(private.map(|event| event.bytes).sum::<u64>(), 118 * MIB);
    for code in ["sums_only", "rounded", "no_trace", "repeated", "other_device"] {
        assert!(unknowns(&recording).contains(&code), "{:?}", unknowns(&recording));
    }
    let frames = &stacks(&recording)[0];
    assert_eq!(
        frames[0],
        "_wrapped_call_impl /venv/lib/python3.11/site-packages/torch/nn/modules/module.py:1751"
    );
    assert_eq!(frames[1..], ["main /app/train.py:44", "<module> /app/train.py:80"]);
    assert!(explain(&recording, None).lines_to_record.is_some());
}

#[test]
fn the_message_of_another_device_is_read_if_it_is_asked_for() {
    let text = file("oom_ranks.txt");
    let of = |device| import::read("file", text.as_slice(), &of_device(device));
    let recording = of(1).unwrap();
    assert_eq!(recording.device(), Some(1));
    let [failure] = &failures(&recording)[..] else { panic!() };
    assert_eq!(failure.ledger.active_bytes, 90 * GIB + GIB / 2);
    // The device had more free bytes than the request needs.
    assert!(explain(&recording, None).diagnoses.iter().any(|diagnosis| diagnosis.code == "limit"));
    let error = of(3).unwrap_err().to_string();
    assert!(error.contains("no message about device 3"), "{error}");
}

#[test]
fn devices_without_the_wanted_message_are_named() {
    let of = |text: &str| import::read("file", text.as_bytes(), &of_device(5)).unwrap_err().to_string();
    let message = |device: u64| {
        format!(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU {device} has a total capacity of 80.00 GiB \
             of which 1.00 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.00 \
             GiB is reserved by PyTorch but unallocated.\n"
        )
    };
    let error = of(&[message(1), "text\n".to_owned(), message(0), message(1)].concat());
    assert!(error.contains("no message about device 5, only about device 0, 1; choose"), "{error}");
    let many = (10..100).map(message).collect::<String>();
    assert!(of(&many).contains("device 10, 11,") && of(&many).contains(" 25; choose"), "{}", of(&many));
    let error = of("CUDA out of memory. Tried to allocate 2.00 GiB.\n");
    assert!(error.contains("its messages do not name a device"), "{error}");
}

#[test]
fn messages_without_figures_do_not_hide_a_log() {
    let log = format!("{}1,0,allocate,0x100,1000,0x2\n", crate::HEADER);
    for line in ["RuntimeError: out of memory.\t", "RuntimeError: CUDA out of memory.", "x out of memory. T"]
    {
        for between in ["", "text\n", "CUDA out of memory.\n"] {
            let recording = imported(format!("{line}\n{between}{log}").as_bytes());
            assert_eq!(recording.sums().live_bytes, 1000, "{line} {between}");
        }
        let dump = file("bfc_chunks.txt");
        let recording = imported(&[line.as_bytes(), b"\n", &dump].concat());
        assert_eq!(recording.sums(), imported(&dump).sums(), "{line}");
    }
    let error = read(b"CUDA out of memory.\ntext\n").unwrap_err();
    assert!(error.contains("has no figures"), "{error}");
}

/// A tar file has these letters at this place.
#[test]
fn a_text_that_spells_a_format_s_mark_is_no_file_of_that_format() {
    let row = "1,0,allocate,0x100,1000,0x2\n";
    let log = format!("{}{row}", crate::HEADER);
    let log = format!("{log}1,0,{}ustar,0x100,1000,0x2\n{row}", " ".repeat(257 - log.len() - 4));
    assert_eq!(log.find("ustar"), Some(257));
    let error = read(log.as_bytes()).unwrap_err();
    assert!(error.contains("is not an action"), "{error}");
    let tar = [&b"name"[..], &[0; 253], b"ustar"].concat();
    assert!(read(&tar).unwrap_err().contains("tar file"));
}

/// Two readers recognise the line. Reading must end.
#[test]
fn a_line_for_two_readers_goes_to_one_of_them() {
    let bfc = "Allocator (GPU_0_bfc) ran out of memory trying to allocate 8.00GiB";
    let line =
        format!("CUDA out of memory. Tried to allocate 1.00 GiB (GPU 4; 31.75 GiB total capacity) {bfc}");
    for other in ["Allocator (GPU_0_bfc) ran out of memory trying to allocate 8.00GiB", crate::HEADER.trim()]
    {
        for text in [line.to_owned(), format!("{line}\n{other}\n"), format!("{other}\n{line}\n")] {
            let _ = read(text.as_bytes());
        }
    }
}

#[test]
fn each_message_of_a_log_is_a_failed_request() {
    let recording = imported(&file("oom_old.txt"));
    let failures = failures(&recording);
    let sums: Vec<_> = failures
        .iter()
        .map(|failure| {
            (
                failure.wanted_bytes.unwrap(),
                failure.ledger.active_bytes,
                failure.ledger.reserved_bytes.unwrap(),
            )
        })
        .collect();
    assert_eq!(
        sums,
        [
            (20 * MIB, 30 * GIB + GIB / 4, 30 * GIB + GIB / 2),
            (12 * GIB + GIB / 2, 15 * GIB + GIB / 4, 20 * GIB + GIB / 2)
        ]
    );
    assert_eq!(recording.events().filter(|event| event.kind == EventKind::Lost).count(), 1);
    assert_eq!(recording.sums().failures, 2);
    let codes: Vec<&str> =
        explain(&recording, None).diagnoses.iter().map(|diagnosis| diagnosis.code).collect();
    assert_eq!(codes, ["fragmentation", "fragmentation"]);
    assert_eq!(
        stacks(&recording),
        [vec!["main train.py:201", "<module> train.py:310"], vec!["<module> train.py:322"]]
    );
}

#[test]
fn an_old_message_names_no_setting_that_its_version_lacks() {
    let recording = imported(&file("oom_old.txt"));
    assert_eq!(detail(&recording, "version of PyTorch"), Some("1.4 to 2.0"));
    let explanation = explain(&recording, None);
    for diagnosis in &explanation.diagnoses {
        assert_eq!(diagnosis.fixes[0], "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128");
        assert!(!diagnosis.fixes.iter().any(|fix| fix.contains("expandable_segments:")), "{diagnosis:?}");
    }
    // PyTorch named the segment of the first request, and the second request's own size.
    assert!(explanation.diagnoses[0].evidence[0].starts_with("a request for up to 20MiB failed"));
    assert!(explanation.diagnoses[1].evidence[0].starts_with("a request for 12.5GiB failed"));
    let recording = imported(&file("oom_ranks.txt"));
    assert_eq!(detail(&recording, "version of PyTorch"), Some("2.1 or later"));
}

#[test]
fn the_blocks_that_stand_for_sums_are_not_counted() {
    for name in ["oom_old.txt", "oom_ranks.txt", "oom_async.txt", "xla.txt"] {
        let sums = imported(&file(name)).sums();
        assert!(sums.failures > 0 && sums.live_bytes > 0, "{name}");
        assert_eq!(sums.events, sums.failures, "{name}");
        let counts = [sums.allocations, sums.frees, sums.blocks_before, sums.live_blocks];
        assert_eq!(counts, [0; 4], "{name}");
    }
}

/// The device's size is in the message, and a nominal size agrees with it.
#[test]
fn a_device_that_is_not_the_one_of_the_message_is_refused() {
    let explanation = explain(&imported(&file("oom_old.txt")), Some(32 * GIB));
    assert_eq!(explanation.check_device_bytes(32 * GIB), Ok(()));
    let error = explanation.check_device_bytes(80 * GIB).unwrap_err();
    let expected = "a device with 80GiB contradicts the file, whose device has 31.75GiB; omit the size";
    assert_eq!(error, expected);
}

#[test]
fn a_message_that_a_page_broke_into_lines_is_read() {
    let recording = imported(&file("oom_wrapped.txt"));
    let [failure] = &failures(&recording)[..] else { panic!() };
    assert_eq!(failure.ledger.active_bytes, GIB + 3 * GIB / 4);
    assert_eq!(failure.ledger.unused_bytes(), 2 * MIB + MIB / 2);
    assert_eq!(recording.limit_bytes(), Some(4 * GIB));
    assert_eq!(detail(&recording, "bytes of process 1016459"), Some((39 * GIB / 4).to_string().as_str()));
    let mut out = Vec::new();
    print(&explain(&recording, None), Style::new(false), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("shows only sums") && text.contains("_record_memory_history"), "{text}");
}

#[test]
fn the_message_of_the_asynchronous_allocator_has_no_reserved_bytes() {
    let recording = imported(&file("oom_async.txt"));
    let [failure] = &failures(&recording)[..] else { panic!() };
    assert_eq!((failure.wanted_bytes, failure.ledger.active_bytes), (Some(640 * MIB), 19 * GIB / 2));
    assert_eq!((failure.ledger.reserved_bytes, recording.limit_bytes()), (None, None));
    assert_eq!(recording.device_bytes(), Some(23 * GIB / 2));
}

#[test]
fn words_about_memory_without_figures_are_named() {
    for (text, expected) in [
        ("RuntimeError: CUDA error: out of memory\n", "has no figures"),
        ("RuntimeError: CUDA out of memory.\nbye\n", "has no figures"),
        ("std::bad_alloc: out_of_memory: CUDA error at: x.hpp\n", "has no figures"),
        ("|        PyTorch CUDA memory summary, device ID 0      |\n", "memory_summary"),
        ("| NVIDIA-SMI 550.54 |\n", "nvidia-smi"),
        ("hello\n", "is text in an unknown format"),
        ("{\"a\": \"b\"}\n", "is JSON"),
    ] {
        let error = read(text.as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// The code of a frame, and the message below it.
fn traceback(code: &str, message: &str) -> String {
    let frame = "File \"/app/train.py\", line";
    let main = format!("  {frame} 34, in main\n    buffer = stage(samples)\n");
    format!(
        "Traceback (most recent call last):\n{main}  {frame} 25, in stage\n    {code}\n    ~~~^^^\n\
         {message}\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
}

#[test]
fn page_locked_memory_that_could_not_be_had_is_a_verdict_with_its_line() {
    let (torch, accelerator) =
        ("RuntimeError: CUDA error: out of memory", "torch.AcceleratorError: CUDA error: invalid argument");
    for (code, message) in [
        ("return torch.empty(n, dtype=torch.uint8, pin_memory=True)", torch),
        ("return batch.pin_memory()", accelerator),
        ("return cuda.pinned_array(n)", "CudaAPIError: [2] Call to x results in CUDA_ERROR_OUT_OF_MEMORY"),
        ("return make(n)", "CudaAPIError: [2] Call to cuMemHostAlloc results in CUDA_ERROR_OUT_OF_MEMORY"),
        (
            "return make(n)",
            "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: mr/pinned_host_mr.hpp",
        ),
    ] {
        let explanation = explain(&imported(traceback(code, message).as_bytes()), None);
        assert_eq!(explanation.verdict.code, "oom_pinned_memory", "{code} {message}");
        let sentence = &explanation.verdict.sentence;
        assert!(sentence.contains("by train.py:25 in stage for page-locked (pinned) memory of the host"));
        let mut out = Vec::new();
        print(&explanation, Style::new(false), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            ["pin_memory=False", "num_workers", "prefetch_factor", "ulimit -l"]
                .iter()
                .all(|word| text.contains(word))
        );
        assert!(!text.contains("0B") && !text.contains("device memory"), "{text}");
    }
    // The same messages about other memory, and about a request that is not pinned.
    for (code, message) in [
        ("return torch.empty(n, device=\"cuda\")", torch),
        ("loader = DataLoader(data, pin_memory=False)", torch),
        ("return torch.empty(n, pin_memory=True)", "ValueError: no samples"),
    ] {
        let error = read(traceback(code, message).as_bytes()).unwrap_err();
        assert!(error.contains("has no figures") || error.contains("unknown format"), "{code}: {error}");
    }
}

#[test]
fn a_loader_s_thread_that_pins_names_the_line_that_waited_for_it() {
    let torch = "File \"/venv/lib/python3.12/site-packages/torch";
    let text = format!(
        "[rank0]: Traceback (most recent call last):\n\
         [rank0]:   File \"/app/train.py\", line 30, in <module>\n\
         [rank0]:     for batch in loader:\n[rank0]:   {torch}/_utils.py\", line 733, in reraise\n\
         [rank0]:     raise exception\n\
         [rank0]: RuntimeError: Caught RuntimeError in pin memory thread for device 0.\n\
         [rank0]: Original Traceback (most recent call last):\n\
         [rank0]:   {torch}/utils/data/_utils/pin_memory.py\", line 64, in pin_memory\n\
         [rank0]:     return data.pin_memory(device)\n[rank0]: RuntimeError: CUDA error: out of memory\n\
         [rank0]: Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com\n"
    );
    let recording = imported(text.as_bytes());
    let sentence = explain(&recording, None).verdict.sentence;
    assert!(sentence.contains("by train.py:30 in <module> for page-locked"), "{sentence}");
    assert_eq!(stacks(&recording)[0].len(), 3);
    // Figures of the device in the same text tell more.
    let both = [text.as_bytes(), &file("oom_ranks.txt")].concat();
    assert_eq!(imported(&both).source().format, "PyTorch out-of-memory message");
}

#[test]
fn the_chunks_of_a_dump_are_blocks_and_free_memory() {
    let recording = imported(&file("bfc_chunks.txt"));
    assert_eq!((recording.source().format.as_str(), recording.device()), ("BFC allocator's log", Some(1)));
    let [failure] = &failures(&recording)[..] else { panic!() };
    let ledger = &failure.ledger;
    assert_eq!((failure.wanted_bytes, failure.device_free_bytes), (Some(MIB), Some(MIB)));
    assert_eq!(ledger.reserved_bytes, Some(5 * MIB));
    assert_eq!((ledger.active_bytes, ledger.live_blocks, ledger.segments), (2_621_952, 3, 2));
    assert_eq!((ledger.pinned_bytes, ledger.rounding_bytes), (5 * MIB - 2_621_952, 0));
    assert_eq!(ledger.largest_free_bytes, 1_048_320);
    assert_eq!(recording.limit_bytes(), Some(6 * MIB));
    assert_eq!(stacks(&recording), [["<module> /app/fit.py:12"]]);
    assert_eq!(failure.holders[0].stack, ["model/embed/Gather (:0)"]);
    assert!(!unknowns(&recording).contains(&"sums_differ"), "{:?}", unknowns(&recording));
    assert_eq!(explain(&recording, None).diagnoses[0].code, "fragmentation");
}

#[test]
fn a_dump_without_chunks_has_the_sizes_of_its_summary_or_one_sum() {
    let recording = imported(&file("bfc_sums.txt"));
    let live = 35 * 256 + 4 * 12_845_056 + 31_360_000;
    assert_eq!((recording.sums().live_bytes, recording.sums().live_blocks), (live, 40));
    assert!(unknowns(&recording).contains(&"no_addresses"));
    // Old versions name the failed request after the dump.
    assert_eq!(recording.sums().failures, 1);

    let recording = imported(&file("xla.txt"));
    let [failure] = &failures(&recording)[..] else { panic!() };
    assert_eq!((failure.wanted_bytes, failure.ledger.active_bytes), (Some(8 * GIB), 58_720_256_000));
    assert_eq!((recording.sums().live_blocks, recording.limit_bytes()), (0, Some(63_771_674_624)));
    assert_eq!(stacks(&recording), [["<module> /app/run.py:61"]]);
}

#[test]
fn leaks_are_live_blocks_with_their_stacks() {
    let recording = imported(&file("leaks.txt"));
    assert_eq!(recording.source().format, "compute-sanitizer leak report");
    let sums = recording.sums();
    assert_eq!((sums.live_blocks, sums.live_bytes), (2, MIB + 512));
    let holders = &explain(&recording, None).moments[0].holders;
    assert_eq!(
        holders[0].stack,
        ["cudaMalloc (scale:0)", "make_buffer(unsigned long) (/app/scale.cu:36)", "main (scale:0)"]
    );
    assert_eq!(holders[1].stack[1], "hostAlloc(unsigned long, unsigned int) (api/runtime.cpp:11306)");
    assert!(!unknowns(&recording).contains(&"sums_differ"));

    let old = imported(&file("leaks_old.txt"));
    assert_eq!((old.sums().live_blocks, old.sums().live_bytes), (1, 64));
    assert_eq!(explain(&old, None).moments[0].holders[0].stack[1], "main (./app:0)");
    for code in ["sums_differ", "failures"] {
        assert!(unknowns(&old).contains(&code), "{:?}", unknowns(&old));
    }
    let none =
        read(b"========= COMPUTE-SANITIZER\n========= LEAK SUMMARY: 0 bytes leaked in 0 allocations\n");
    assert!(none.unwrap_err().contains("without leaks"));
}

#[test]
fn rmms_debug_log_has_failed_requests_and_at_its_finest_level_blocks() {
    let recording = imported(&file("rmm_debug.txt"));
    let bytes: Vec<u64> = recording.events().map(|event| event.bytes).collect();
    assert_eq!((recording.source().format.as_str(), bytes), ("RMM debug log", vec![2_139_648, 800_000_000]));
    assert_eq!(
        (recording.limit_bytes(), detail(&recording, "bytes of the pool")),
        (Some(79 * GIB), Some("83751862272"))
    );
    let lane = recording.lane(recording.event(1).unwrap());
    assert_eq!((lane.thread, lane.stream), (104_508, StreamKey::Handle(0x7f00_f400_b4d0)));
    assert!(unknowns(&recording).contains(&"no_blocks"));

    let recording = imported(&file("rmm_trace.txt"));
    let sums = recording.sums();
    assert_eq!((sums.allocations, sums.frees, sums.failures), (2, 1, 1));
    assert_eq!((sums.peak_live_bytes, sums.live_bytes), (1512, 512));
    assert_eq!(recording.rounded_bytes(0), Some(1024));
    assert!(recording.events().map(|event| event.time().unwrap()).is_sorted(), "midnight");
    assert!(!unknowns(&recording).contains(&"no_blocks"));
}

#[test]
fn logs_between_other_lines_and_without_a_header_are_read() {
    let recording = imported(&file("rmm_mixed.txt"));
    let sums = recording.sums();
    assert_eq!((sums.allocations, sums.frees, sums.peak_live_bytes, sums.live_bytes), (1, 1, 256, 0));
    let left_out = "2 lines without a row were left out; the first is line 1";
    assert!(recording.unknowns().iter().any(|unknown| unknown.text == left_out));
    // The same text with its header first, and with the line ends of Windows.
    let text = String::from_utf8(file("rmm_mixed.txt")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let ordered = [lines[1], lines[2], lines[3], lines[4]].join("\n");
    for text in [ordered, text.replace('\n', "\r\n")] {
        assert_eq!(imported(text.as_bytes()).sums(), sums, "{text:?}");
    }
    let error = read(text.replace("free,0x30a000000,256", "free,0x30a000000,-6").as_bytes()).unwrap_err();
    assert!(error.starts_with("file:5: column Size: `-6` is negative"), "{error}");
}

#[test]
fn several_logs_in_a_file_each_begin_without_blocks() {
    let recording = imported(&file("rmm_several.csv"));
    let sums = recording.sums();
    assert_eq!((sums.allocations, sums.frees, sums.failures), (3, 2, 1));
    // The block of the first log that is never freed ends where the second begins.
    assert_eq!((sums.peak_live_bytes, sums.live_bytes, sums.live_blocks), (4096, 4096, 1));
    assert!(["several_logs", "other_lines"].iter().all(|code| unknowns(&recording).contains(code)));
    let header = "Thread,Time,Action,Pointer,Size,Stream\n";
    let error = read(header.repeat(100).as_bytes()).unwrap_err();
    assert!(error.contains("more than 64 logs"), "{error}");
    let bad = format!("{header}1,0,free,0x1,1,0\n{header}1,0,free,0x1,-1,0\n");
    assert!(read(bad.as_bytes()).unwrap_err().starts_with("file:4: column Size"));
}

#[test]
fn a_later_log_of_a_file_may_begin_late_or_end_torn() {
    let header = "Thread,Time,Action,Pointer,Size,Stream\n";
    let text = format!(
        "{header}1,0,allocate,0x100,64,0\n1,0,free,0x900,32,0\n{header}1,0,free,0x100,64,0\n\
         1,0,allocate,0x200,8,0\n1,0,fre"
    );
    let recording = imported(text.as_bytes());
    let sums = recording.sums();
    // Only the first log has a block from before it; the second log's free is of no block in the file.
    assert_eq!((sums.peak_live_bytes, sums.live_bytes, sums.blocks_before), (96, 8, 1));
    for (code, text) in [
        ("began_late", "2 blocks, in all at least 96B"),
        ("rest_missing", "file:7: the last row is cut off"),
        ("several_logs", "2 logs"),
    ] {
        let unknown = recording.unknowns().iter().find(|unknown| unknown.code == code);
        let found = &unknown.unwrap_or_else(|| panic!("{code}: {:?}", recording.unknowns())).text;
        assert!(found.contains(text), "{found}");
    }
}

#[test]
fn a_file_with_sums_only_is_explained_without_blocks_and_pieces() {
    let explained = |name: &str| {
        let explanation = explain(&imported(&file(name)), None);
        let mut out = Vec::new();
        print(&explanation, Style::new(false), &mut out).unwrap();
        (explanation, String::from_utf8(out).unwrap())
    };
    for name in ["oom_old.txt", "oom_ranks.txt", "oom_async.txt", "xla.txt"] {
        let (explanation, text) = explained(name);
        assert!(explanation.moments.iter().all(|moment| moment.occasion == Occasion::Failure), "{name}");
        assert!(explanation.moments.iter().all(|moment| moment.holders.is_empty()), "{name}");
        for word in [" blocks", "largest free", "pinned", "event "] {
            let lines = text.split("not known:").next().unwrap().replace("live blocks", "");
            assert!(!lines.contains(word), "{name}: {word}: {lines}");
        }
        let error = imported(&file(name)).program(Limits::default()).unwrap_err().to_string();
        assert!(error.contains("does not show which blocks were live"), "{name}: {error}");
    }
    let (limited, _) = explained("xla.txt");
    assert_eq!(limited.verdict.code, "oom_limit");
    assert!(limited.diagnoses[0].fixes[0].contains("XLA_PYTHON_CLIENT_MEM_FRACTION"));
    // A log of failed requests tells nothing of what was live, but names the limit of the pool.
    let (failures, text) = explained("rmm_debug.txt");
    assert_eq!(failures.verdict.code, "oom_limit");
    assert!(failures.verdict.sentence.contains("at most 79GiB") && !text.contains("0B"), "{text}");
    // A dump with its chunks has blocks. TensorFlow and JAX do not read PyTorch's variable. A dump does not
    // tell how much of the device is free.
    let (chunks, text) = explained("bfc_chunks.txt");
    assert!(!text.contains("on the device") && !text.contains("the device had"), "{text}");
    assert!(!chunks.verdict.sentence.contains("begins late"), "{}", chunks.verdict.sentence);
    assert!(!chunks.moments[0].holders.is_empty());
    assert!(text.contains("TF_GPU_ALLOCATOR") && !text.contains("PYTORCH"), "{text}");
}

#[test]
fn issue_32_what_a_message_tells_about_other_devices_and_processes_is_told() {
    let of = |gpu: u32, allocated: &str, free: &str| {
        format!(
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB (GPU {gpu}; 39.59 \
             GiB total capacity; {allocated} GiB already allocated; {free} GiB free; 37.40 GiB reserved in \
             total by PyTorch)\n"
        )
    };
    let recording = imported((of(2, "36.40", "0.52") + &of(3, "36.00", "0.10")).as_bytes());
    let explanation = explain(&recording, None);
    // Neither the allocator nor the device had enough alone.
    let what = "1GiB in the allocator and 532MiB on the device were free, but in pieces that were too small: \
                fragmentation";
    assert_eq!(explanation.diagnoses[0].what, what);
    let other = recording.unknowns().iter().find(|unknown| unknown.code == "other_device").unwrap();
    let text = "1 message about other devices (3) was left out; `explain --device N` shows another device";
    assert_eq!(other.text, text);
    let free = "which 4.12 GiB is free";
    let beside = format!(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. GPU 1 has a total \
         capacity of 79.15 GiB of {free}. Process 2271 has 31.40 GiB memory in use. Including \
         non-PyTorch memory, this process has 43.60 GiB memory in use. Of the allocated memory 41.02 \
         GiB is allocated by PyTorch, and 1.33 GiB is reserved by PyTorch but unallocated.\n"
    );
    let explanation = explain(&imported(beside.as_bytes()), None);
    assert_eq!(explanation.verdict.code, "oom_outside");
    let evidence = &explanation.diagnoses[0].evidence;
    assert!(evidence.iter().any(|line| line == "of these, process 2271 uses 31.4GiB"), "{evidence:?}");
    assert!(explanation.diagnoses[0].fixes[0].contains("nvidia-smi"));
    // The process itself holds the memory.
    let other = "Process 2271 has 31.40 GiB memory in use. ";
    let own = beside.replace(other, "").replace("43.60 GiB", "75.00 GiB");
    let diagnosis = &explain(&imported(own.as_bytes()), None).diagnoses[0];
    assert!(diagnosis.what.ends_with("by other libraries of this process, or by the CUDA context"));
    assert!(diagnosis.fixes[0].contains("millpond-replay run --record"), "{:?}", diagnosis.fixes);
}
