//! Tests files that attack their reader. Each is refused with a sentence, or read in bounded memory.

use std::io::{Read, Write};

use millpond_engine::log::notes::push_word;
use millpond_snapshot::explain::explain;
use millpond_snapshot::import;
use millpond_snapshot::peers::model_of;
use millpond_testkit::size;

use crate::pickle::{Py, pickle};
use crate::texts::files;
use crate::{HEADER, imported, of_device, read};

#[track_caller]
fn refused(bytes: &[u8], texts: &[&str]) {
    let error = read(bytes).unwrap_err();
    for text in texts {
        assert!(error.contains(text), "no `{text}` in: {error}");
    }
    assert!(error.len() < 600, "{error}");
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn what_would_run_code_is_refused_by_name_and_place() {
    let cases: [(&[u8], &[&str]); 13] = [
        (b"cos\nsystem\n(X\x02\0\0\0idtR.", &["to import os.system", "GLOBAL at byte 2", "refused"]),
        (b"\x8c\x02os\x8c\x06system\x93.", &["to import os.system", "STACK_GLOBAL at byte 14"]),
        (b"\x93.", &["to import something without a name"]),
        (b"(ios\nsystem\n.", &["to import os.system", "INST at byte 3"]),
        (b"c\x1b[2Jmodule\nname\n.", &["\\u{1b}[2Jmodule.name"]),
        (b"NNR.", &["to call a function", "REDUCE at byte 4"]),
        (b"NNb.", &["its own code", "BUILD"]),
        (b"NN\x81.", &["an object of a class", "NEWOBJ"]),
        (b"(o.", &["an object of a class", "OBJ"]),
        (b"NQ.", &["stored outside of it", "BINPERSID"]),
        (b"Pabc\n.", &["stored outside of it", "PERSID"]),
        (b"\x82\x01.", &["registered extension", "EXT1"]),
        (b"\x97.", &["a buffer that is not in it", "NEXT_BUFFER"]),
    ];
    for (code, texts) in cases {
        for protocol in [2, 4, 5] {
            refused(&[&[0x80, protocol], code].concat(), texts);
        }
        refused(&gzip(&[&[0x80, 4], code].concat()), texts);
    }
    // In the middle of a snapshot.
    let mut bytes = pickle(&Py::List(vec!["a".into(), "b".into()]), 4);
    let end = bytes.len() - 2;
    bytes.splice(end..end, *b"cposix\nsystem\n");
    refused(&bytes, &["to import posix.system"]);
}

#[test]
fn an_import_without_an_end_is_cut_short() {
    refused(&[&b"\x80\x04c"[..], &vec![b'a'; 1 << 20]].concat(), &["GLOBAL"]);
    let long = [&b"\x80\x04c"[..], &vec![b'a'; 5000], b"\nname\n."].concat();
    refused(&long, &["aaa…", ".name"]);
}

#[test]
fn other_protocols_and_opcodes_are_refused() {
    refused(b"\x80\x01}.", &["protocol 1"]);
    refused(b"\x80\x06}.", &["protocol 6", "protocol=4"]);
    for (code, name) in [(&b"I1\n."[..], "INT"), (b"S'a'\n.", "STRING"), (b"NN0.", "POP"), (b"\xfe.", "0xfe")]
    {
        refused(&[b"\x80\x02", code].concat(), &[name, "refused"]);
    }
    for code in
        [&b"a."[..], b"(a.", b"u.", b"NNs.", b"NNa.", b"](NNu.", b"}(Nu.", b"t.", b"h\x07.", b".", b"NN."]
    {
        refused(&[b"\x80\x02", code].concat(), &["refused"]);
    }
    refused(b"\x80\x02](.", &["ends with 1 values"]);
}

/// A pickle whose lists hold each other twice, 60 levels deep: 2^60 elements for a reader that copies.
#[test]
fn a_memo_bomb_takes_no_memory_and_is_not_a_snapshot() {
    let mut bytes = b"\x80\x04]\x94".to_vec();
    for level in 0..60_u8 {
        bytes.extend([b']', 0x94, b'(', b'h', level, b'h', level, b'e']);
    }
    // The remaining lists lie on the stack; put them into one.
    let bytes = [&bytes[..2], b"(", &bytes[2..], b"l."].concat();
    refused(&bytes, &["it holds a list"]);
    // The same lists as stacks of an event.
    let doubled = |segments: &[u8]| {
        let mut bytes = b"\x80\x04}(X\x06\0\0\0frames]\x94".to_vec();
        for level in 0..60_u8 {
            bytes.extend([b'X', 1, 0, 0, 0, level + 1, b']', 0x94, b'(', b'h', level, b'h', level, b'e']);
        }
        bytes.extend(b"X\x08\0\0\0segments");
        bytes.extend(segments);
        bytes.extend(b"u.");
        bytes
    };
    refused(&doubled(b"]"), &["without memory"]);
    refused(&doubled(b"h\x3b"), &["without memory"]);
}

fn text(name: &str) -> Vec<u8> {
    [&[b'X'][..], &(name.len() as u32).to_le_bytes(), name.as_bytes()].concat()
}

/// Returns a list that holds the value of a memo index `count` times.
fn repeated(number: u8, count: usize) -> Vec<u8> {
    [&b"]("[..], &[b'h', number].repeat(count), b"e"].concat()
}

/// 20,000 times one segment with 20,000 times one block: 4 * 10^8 visits for 80 KB.
#[test]
fn segments_that_share_one_list_of_blocks_are_refused() {
    for state in ["inactive", "active_allocated", "of a later version"] {
        let block = [
            b"}q\x01(",
            &*text("address"),
            b"K\x01",
            &text("size"),
            b"K\x01",
            &text("state"),
            &text(state),
            b"u",
        ]
        .concat();
        let segment = [
            b"}q\x02(",
            &*text("address"),
            b"K\x01",
            &text("total_size"),
            b"K\x09",
            &text("blocks"),
            &repeated(1, 20_000),
            b"u",
        ]
        .concat();
        let file = [
            b"\x80\x02}(",
            &*text("other"),
            &[&b"]("[..], &block, &segment, b"e"].concat(),
            &text("segments"),
            &repeated(2, 20_000),
            b"u.",
        ]
        .concat();
        refused(&file, &["many segments share one list of blocks"]);
    }
}

/// 100,000 events that share one text of 1 MiB: 100 GB for a reader that copies it.
#[test]
fn a_long_text_that_each_event_has_is_cut_before_it_is_copied() {
    let long = "x".repeat(1 << 20);
    let event = [
        b"}q\x01(",
        &*text("action"),
        &text("snapshot"),
        &text("user_metadata"),
        &text(&long),
        &text("compile_context"),
        &text("N/A"),
        b"u",
    ]
    .concat();
    let traces = [&b"](]("[..], &event, &[b'h', 1].repeat(100_000), b"ee"].concat();
    let file = [b"\x80\x02}(", &*text("segments"), b"]", &text("device_traces"), &traces, b"u."].concat();
    let recording = read(&file).unwrap();
    assert_eq!(recording.len(), 100_001);
    let tags: Vec<usize> =
        recording.events().filter_map(|event| event.tag).map(|tag| recording.tag(tag).len()).collect();
    assert!(tags.len() == 100_001 && tags.iter().all(|len| *len == 2048), "{:?}", tags.first());
}

/// 20,000 phases that share a frame of 20,000 names.
#[test]
fn a_phase_whose_frame_has_no_end_is_left_out() {
    let names = b"NN".repeat(20_000);
    let frame = [&b"]}("[..], &names, b"ua"].concat();
    let event = [b"}q\x01(", &*text("action"), &text("user_defined"), &text("frames"), &frame, b"u"].concat();
    let traces = [&b"](]("[..], &event, &[b'h', 1].repeat(20_000), b"ee"].concat();
    let file = [b"\x80\x02}(", &*text("segments"), b"]", &text("device_traces"), &traces, b"u."].concat();
    assert_eq!(read(&file).unwrap().len(), 0);
}

/// A log's texts about itself are as long as a line may be, and longer when written with escapes.
#[test]
fn long_texts_and_settings_come_back_from_the_log() {
    let pairs: Vec<(String, Py)> =
        (0..64).map(|number| (format!("{number}{}", " ".repeat(990)), Py::Str(" ".repeat(1000)))).collect();
    let settings = |pairs: &[(String, Py)]| {
        let values =
            pairs.iter().map(|(key, value)| [text(key), pickled(value)].concat()).collect::<Vec<_>>();
        [b"}(", &*values.concat(), b"u"].concat()
    };
    let file = [
        b"\x80\x02}(",
        &*text("segments"),
        b"]",
        &text("device_traces"),
        b"]]a",
        &text("allocator_settings"),
        b"}(",
        &text("roundup_power2_divisions"),
        &settings(&pairs),
        b"uu.",
    ]
    .concat();
    // A snapshot needs an event or a segment, so one event is added.
    let event = [b"]]}(", &*text("action"), &text("snapshot"), b"uaa"].concat();
    let at = file.windows(3).position(|part| part == b"]]a").unwrap();
    let file = [&file[..at], &event, &file[at + 3..]].concat();
    let recording = imported(&file);
    assert_eq!(recording.settings()[0].1.len(), 2048);

    let header = "Thread,Time,Action,Pointer,Size,Stream,Notes\n";
    for kind in ["detail a", "setting a", "unknown a", "check 0 0 0 0 0 0 0 0 0 0", "source"] {
        let log = format!("{header}1,0,allocate,0x100,7,0,{kind} {}\n", "\"".repeat(60_000));
        imported(log.as_bytes());
    }
}

fn pickled(value: &Py) -> Vec<u8> {
    let whole = pickle(value, 2);
    whole[2..whole.len() - 1].to_vec()
}

#[test]
fn a_list_that_holds_itself_is_read_without_end() {
    refused(b"\x80\x02]q\0h\0a.", &["it holds a list"]);
    refused(b"\x80\x02}q\0X\x08\0\0\0segments]q\x01h\x01ah\0as.", &["without memory"]);
    // A segment whose list of blocks is the segment itself, and so is its stack.
    let circle =
        b"\x80\x02}(X\x08\0\0\0segments]q\x01}q\x02(X\x07\0\0\0addressK\x01X\x0a\0\0\0total_sizeK\x09\
                   X\x06\0\0\0blocksh\x01X\x06\0\0\0framesh\x01uau.";
    let recording = read(circle).unwrap();
    assert_eq!(recording.sums().reserved_bytes, Some(9));
}

#[test]
fn sizes_without_end_are_refused_before_memory_is_taken() {
    refused(b"\x80\x04X\xff\xff\xff\xffabc", &["a text of 4294967295 bytes", "BINUNICODE at byte 2"]);
    refused(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", &["a text of 18446744073709551615 bytes"]);
    refused(b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x7fabc", &["BYTEARRAY8"]);
    refused(b"\x80\x04X\0\0\x0f\0abc", &["ends early"]);
    let long = [&b"\x80\x04\x8a\xff"[..], &[1; 255], b"."].concat();
    refused(&long, &["a whole number of 255 bytes", "LONG1 at byte 2"]);
    refused(b"\x80\x04\x8b\xff\xff\xff\x7f1", &["LONG4"]);
    let wide = [&b"\x80\x04\x8a\x0a"[..], &[1; 10], b"."].concat();
    refused(&wide, &["does not fit into 64 bits"]);
    refused(b"\x80\x02Nr\xff\xff\xff\xff.", &["at index 4294967295 of its memo"]);
}

#[test]
fn marks_without_end_are_refused() {
    refused(&[&b"\x80\x04"[..], &vec![b'('; 1 << 20]].concat(), &["1000 collections are nested"]);
    let nested = [&b"\x80\x04"[..], &b"](".repeat(2000), b"."].concat();
    refused(&nested, &["1000 collections are nested"]);
    // Nesting without marks is only data.
    let deep = [&b"\x80\x04)"[..], &vec![0x85; 1 << 18], b"."].concat();
    refused(&deep, &["it holds a list"]);
}

#[test]
fn memory_is_bounded_by_what_the_size_of_the_file_grants() {
    let many = |opcode: u8, count: usize| [&b"\x80\x04("[..], &vec![opcode; count], b"l."].concat();
    for opcode in [b']', b'}', b')', b'N'] {
        refused(&many(opcode, 8 << 20), &["needs more than", "raise the limit: --memory 1GiB"]);
        refused(&gzip(&many(opcode, 8 << 20)), &["needs more than"]);
    }
    refused(&gzip(&many(b'N', 1 << 20)), &["it holds a list"]);
}

#[test]
fn a_file_that_unpacks_without_end_is_refused() {
    let frames: Vec<u8> = b"\x95\0\0\0\0\0\0\0\0".repeat(1 << 20);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(b"\x80\x04").unwrap();
    (0..20).for_each(|_| packed.write_all(&frames).unwrap());
    refused(&packed.finish().unwrap(), &["decompresses to more than 300 times its size"]);
    let zeros = zstd::encode_all(&vec![0; 300 << 20][..], 1).unwrap();
    refused(&zeros, &["has an unknown format"]);
    let page = [&b"<html>"[..], &vec![b' '; 300 << 20]].concat();
    refused(&gzip(&page), &["decompresses to more than 300 times its size"]);
    // Truncated compressed data.
    let packed = gzip(&pickle(&Py::List(vec!["abc".into(); 500]), 4));
    refused(&packed[..packed.len() - 12], &["ends early"]);
}

/// Returns a field of a protocol buffer that has bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len() as u64), bytes].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Returns a sample of a memory profile with the numbers of its locations.
fn sample(locations: &[u8], count: u64, bytes: u64) -> Vec<u8> {
    let values = [varint(count), varint(bytes)].concat();
    field(2, &[field(1, locations), field(2, &values)].concat())
}

fn profile(rest: &[&[u8]]) -> Vec<u8> {
    let types = [field(1, b"\x08\x01\x10\x02"), field(1, b"\x08\x03\x10\x04")].concat();
    let strings = ["", "allocations", "count", "space", "bytes"].map(|text| field(6, text.as_bytes()));
    [types, rest.concat(), strings.concat()].concat()
}

/// 600,000 times one location, once without a frame and once with 300,000 of them: 10^11 fields for a reader
/// that reads the location each time.
#[test]
fn a_location_that_a_profile_names_often_is_read_once() {
    for (fields, frames) in [(&b"\x18\x01"[..], 0), (b"\x22\x00", 2048)] {
        let location = field(4, &[&b"\x08\x01"[..], &fields.repeat(300_000)].concat());
        let recording = imported(&profile(&[&sample(&[1; 600_000], 1, 100), &location]));
        let stack = recording.event(0).unwrap().stack.map(|stack| recording.stack(stack).count());
        assert_eq!((recording.sums().live_bytes, stack.unwrap_or(0)), (100, frames));
    }
}

#[test]
fn sizes_and_devices_that_no_memory_has_are_refused() {
    for sample in [sample(b"", 1, 5_u64.wrapping_neg()), sample(b"", u64::MAX, 5)] {
        refused(&profile(&[&sample]), &["negative sizes"]);
    }
    let large = ["more live bytes than 64 bits can address"];
    refused(&profile(&[&sample(b"", 1, 1 << 62).repeat(20_000)]), &large);
    refused(b"x] 60000 Chunks of size 1125899906842624 totalling 1GiB\nInUse: 9\nMaxAllocSize: 3\n", &large);
    refused(b"x] 90000 Chunks of size 18446744073709551615 totalling 1GiB\nMaxAllocSize: 3\n", &large);
    let error = import::read("file", profile(&[&sample(b"", 1, 5)]).as_slice(), &of_device(7)).unwrap_err();
    assert!(error.to_string().contains("its buffers do not name a device"), "{error}");
    let apart = b"x] 3 Chunks of size 0 totalling 0B\nInUse: 9\nMaxAllocSize: 3\n";
    let mut addresses: Vec<u64> = imported(apart).events().map(|event| event.address).collect();
    addresses.dedup();
    assert_eq!(addresses.len(), 3);
}

/// Imports a damaged file; whatever is read can be written and read again.
fn damaged(name: &str, bytes: &[u8]) {
    let Ok(recording) = read(bytes) else { return };
    let mut log = Vec::new();
    recording.write_csv(&mut log).unwrap();
    assert!(read(&log).is_ok_and(|again| again == recording), "{name}: {}", bytes.escape_ascii());
}

#[test]
fn a_file_that_ends_anywhere_is_read_or_refused() {
    for (name, bytes) in files() {
        for end in (0..bytes.len()).step_by(size::of(3, 1) as usize) {
            damaged(&name, &bytes[..end]);
        }
    }
}

#[test]
fn files_with_random_damage_are_read_or_refused() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound.max(1) as u64) as usize
    };
    for (name, bytes) in files() {
        let mut plain = Vec::new();
        let whole = match flate2::read::GzDecoder::new(bytes.as_slice()).read_to_end(&mut plain) {
            Ok(_) => plain,
            Err(_) => bytes,
        };
        for _ in 0..60 {
            let mut bytes = whole.clone();
            for _ in 0..=below(6) {
                let at = below(bytes.len());
                match below(5) {
                    0 => bytes[at] ^= 1 << below(8),
                    1 => bytes[at] = b"0123456789, \n\r[]{}\"\xff\0"[below(20)],
                    2 => drop(bytes.drain(at..(at + 1 + below(40)).min(bytes.len()))),
                    3 => {
                        let part = bytes[at..(at + 1 + below(200)).min(bytes.len())].to_vec();
                        let to = below(bytes.len());
                        bytes.splice(to..to, part);
                    }
                    _ => drop(bytes.splice(at..at, b"9".repeat(below(30)))),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            damaged(&name, &bytes);
            if let Ok(recording) = read(&bytes) {
                explain(&recording, None);
            }
        }
    }
}

/// The settings of a recording become the text of a stack, which can name files to write and to run.
#[test]
fn a_setting_names_no_layer_and_no_file() {
    let header = "Thread,Time,Action,Pointer,Size,Stream,Notes\n";
    let model = |name: &str, value: &str| {
        let mut notes = "source PyTorch%20memory%20snapshot;setting ".to_owned();
        push_word(&mut notes, name);
        notes.push(' ');
        push_word(&mut notes, value);
        let log = format!("{header}1,0,allocate,0x100,7,0,{notes}\n");
        model_of(&imported(log.as_bytes()))
    };
    assert_eq!(model("max_split_size", "41943040").as_deref(), Some("torch:max_split_size_mb=40"));
    let names = [
        "max_split_size",
        "expandable_segments",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
        "folder",
        "limit",
    ];
    for name in names {
        for value in ["41943040", "True", "0.5", "8", "{'1': 8}", "[1:8]", "/x"] {
            for more in
                [",folder=/x", "+logging:file=/x", ",folder=\"/x\"", "\n,folder=/x", " + plan:file=/x"]
            {
                let model = model(name, &format!("{value}{more}"));
                assert!(model.iter().all(|model| !model.contains("/x")), "{name}: {model:?}");
            }
        }
    }
}

/// Addresses that have the same bits in a map whose hash is a multiplication. With such a map, this test
/// takes minutes.
#[test]
fn addresses_cannot_be_chosen_so_that_maps_are_slow() {
    const MULTIPLIER: u64 = 0xf135_7aea_2e62_a9c5;
    // Newton's iteration for the inverse modulo 2^64.
    let inverse = (0..6).fold(MULTIPLIER, |inverse, _| {
        inverse.wrapping_mul(2_u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse)))
    });
    assert_eq!(inverse.wrapping_mul(MULTIPLIER), 1);
    let rows = (1..40_000_u64).map(|number| {
        let address = inverse.wrapping_mul((number << 40).rotate_right(26));
        format!("1,0,allocate,{address:#x},256,0\n")
    });
    let log = format!("{HEADER}{}", rows.collect::<String>());
    let sums = imported(log.as_bytes()).sums();
    assert_eq!((sums.live_blocks, sums.live_bytes), (39_999, 39_999 * 256));
}
