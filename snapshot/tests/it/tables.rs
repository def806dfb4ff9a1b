//! Tests the other formats, and files of unknown formats.

use millpond_planning::MinimallocCsv;
use millpond_snapshot::explain;
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::recording::{Clock, EventKind};

use crate::{HEADER, imported, read, unknowns};

#[test]
fn buffers_of_minimalloc_live_from_lower_to_before_upper() {
    let recording = imported(b"id,lower,upper,size,alignment\nb2,3,9,500,\nb1,0,3,200,1024\n\nb3,5,7,0,1\n");
    let events: Vec<_> = recording
        .events()
        .map(|event| (recording.tag(event.tag.unwrap()), event.kind, event.time().unwrap(), event.bytes))
        .collect();
    use EventKind::{Allocate, Free};
    assert_eq!(
        events,
        [
            ("b1", Allocate, 0, 200),
            ("b1", Free, 3, 200), // before blocks that begin at that step
            ("b2", Allocate, 3, 500),
            ("b3", Allocate, 5, 0),
            ("b3", Free, 7, 0),
            ("b2", Free, 9, 500),
        ]
    );
    assert_eq!(recording.clock(), Clock::Steps);
    assert_eq!(recording.event(0).unwrap().alignment_log2, 10);
    assert_eq!((recording.sums().peak_live_bytes, recording.sums().live_blocks), (500, 0));
}

#[test]
fn other_names_of_columns_are_known_and_an_end_is_the_last_step() {
    let recording =
        imported("\u{feff}size, begin, end, buffer_id, offset, gaps\n8,1,2,x,512,1-2\n".as_bytes());
    let times: Vec<_> = recording.events().map(|event| (event.time().unwrap(), event.address)).collect();
    assert_eq!(times, [(1, (1 << 32) + 512), (3, (1 << 32) + 512)]);
    assert!(unknowns(&recording).contains(&"gaps"));
    assert!(!unknowns(&recording).contains(&"addresses"));
}

#[test]
fn ids_in_quotes_are_read_as_the_planner_reads_them() {
    let text = "\u{feff}\"id\",lower,upper,size\n\"a,b\",0,4,100\n\"c\"\"d\",1,2,300\n5\" e,3,4,8\n\
                \"\",3,4,9\n";
    let recording = imported(text.as_bytes());
    let allocated = recording.events().filter(|event| event.kind == EventKind::Allocate);
    let ids = allocated.map(|event| recording.tag(event.tag.unwrap()).to_owned()).collect::<Vec<_>>();
    assert_eq!(ids, ["a,b", "c\"d", "5\" e", ""]);
    let csv = MinimallocCsv::parse(text.trim_start_matches('\u{feff}')).unwrap();
    assert!(csv.rows().iter().map(|row| &row.id).eq(&ids));
    let again = imported(csv.with_offsets(&[0, 100, 0, 256]).as_bytes());
    assert!(again.events().zip(recording.events()).all(|(a, b)| (a.kind, a.bytes) == (b.kind, b.bytes)));
    let open = read(b"id,lower,upper,size\na,0,4,100\n\"b,1,2,300\nc,1,2,3\"\n").unwrap_err();
    assert_eq!(open, "file:3: a cell in quotes has no end on its line");
}

#[test]
fn bad_rows_are_named_with_their_lines() {
    for (row, expected) in [
        ("a,1,x,5", "file:3: the end of a buffer must be a whole number, not `x`"),
        ("a,1,2,-5", "file:3: the size in bytes must be a whole number, not `-5`"),
        ("a,7,7,5", "file:3: the buffer's end, 7, must be after its begin, 7"),
        ("a,1", "file:3: the end of a buffer must be a whole number, not ``"),
        ("a,1,2,18446744073709551615", "together exceed 64 bits"),
    ] {
        let error = read(format!("id,lower,upper,size\na,0,9,1\n{row}\n").as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let long = format!("id,lower,upper,size\n{}\n", "a".repeat(70_000));
    assert!(read(long.as_bytes()).unwrap_err().contains("file:2: a line is longer than 64 KiB"));
    assert!(read(b"id,lower,upper,size\n").unwrap_err().contains("no buffer"));
    let text = read(b"id,lower,upper,size\n\n\xff,1,2,3\n").unwrap_err();
    assert_eq!(text, "file:3: the row is not UTF-8 text");
    let lines = "\u{feff}id,lower,upper,size\r\n\r\na,0,9,1\r\n \r\nb,x,9,1";
    assert_eq!(
        read(lines.as_bytes()).unwrap_err(),
        "file:5: the begin of a buffer must be a whole number, not `x`"
    );
}

#[test]
fn a_log_of_rmm_is_a_recording_that_lacks_the_rest() {
    let rows = "7,05:01:18.946606,allocate,0x100,1000,0x55e8\n7,05:01:18.946607,allocate failure,(nil),99,0\n\
                8,05:01:18.946609,free,0x100,1000,0x2\n";
    let recording = imported(format!("{HEADER}{rows}").as_bytes());
    assert_eq!(recording.source().format, "RMM log");
    assert_eq!(unknowns(&recording), ["other_allocators", "stacks", "stream_order", "times"]);
    let sums = recording.sums();
    assert_eq!((sums.allocations, sums.frees, sums.failures, sums.streams), (1, 1, 1, 3));
    assert_eq!(recording.check(), None);
    let error = read(format!("{HEADER}7,0,allocate,0x100,-1,0\n").as_bytes()).unwrap_err();
    assert_eq!(error, "file:2: column Size: `-1` is negative; a size in bytes is 0 or more");
    assert!(read(HEADER.as_bytes()).unwrap_err().contains("no rows"));
}

#[test]
fn issue_32_a_log_says_how_to_record_code_lines() {
    let header = HEADER.replace('\n', ",Sequence\n");
    for (header, format, has_install) in [(HEADER, "RMM log", true), (&header, "millpond log", false)] {
        let sequence = if has_install { "" } else { ",1" };
        let recording = imported(format!("{header}7,0,allocate,0x100,1000,0{sequence}\n").as_bytes());
        assert_eq!(recording.source().format, format);
        let unknown = recording.unknowns().iter().find(|unknown| unknown.code == "stacks").unwrap();
        assert!(unknown.text.contains("millpond.record_memory_history()"), "{}", unknown.text);
        let install = "call `millpond.compat.rmm.install()` before the first `import rmm`, use";
        assert_eq!(unknown.text.contains(install), has_install, "{}", unknown.text);
    }
}

#[test]
fn of_a_log_of_several_devices_one_is_imported() {
    let header = HEADER.replace('\n', ",Device\n");
    let log = format!("{header}1,0,allocate,0x100,7,0,cuda:1\n1,0,allocate,0x100,9,0,cuda:0\n");
    let recording = imported(log.as_bytes());
    assert_eq!((recording.device(), recording.sums().live_bytes), (Some(1), 7));
    assert!(unknowns(&recording).contains(&"other_device"));
    let options = Options::default().device(Some(0));
    assert_eq!(import::read("file", log.as_bytes(), &options).unwrap().sums().live_bytes, 9);
}

#[test]
fn a_device_that_a_file_does_not_record_is_refused() {
    let options = Options::default().device(Some(7));
    for text in [format!("{HEADER}1,0,allocate,0x100,7,0\n"), "id,lower,upper,size\na,0,10,4096\n".to_owned()]
    {
        let error = import::read("file", text.as_bytes(), &options).unwrap_err().to_string();
        assert_eq!(error, "file: does not record its device: omit --device");
    }
}

#[test]
fn blocks_that_overlap_are_counted_by_their_sizes() {
    // Each pointer is the end of its block.
    let rows = [
        "allocate,0x1100,4096",
        "allocate,0x1200,256",
        "free,0x1200,256",
        "allocate,0x10000,8192",
        "allocate failure,(nil),1024",
    ];
    let log: String = rows
        .iter()
        .map(|row| {
            let (row, bytes) = row.rsplit_once(',').unwrap();
            format!("1,0,{row},{bytes},0\n")
        })
        .collect();
    let recording = imported(format!("{HEADER}{log}1,0,allocate,0x11000,8192,0\n").as_bytes());
    let overlaps = recording.unknowns().iter().find(|unknown| unknown.code == "overlaps").unwrap();
    assert_eq!(
        overlaps.text,
        "2 blocks overlap live blocks, the first at line 3: the file's pointers are not the starts of its \
         blocks, or frees were logged late; all figures come from the sizes, not from the addresses"
    );
    let explanation = explain::explain(&recording, Some(1 << 30));
    for moment in &explanation.moments {
        assert_eq!(moment.ledger.active_bytes, moment.ledger.requested_bytes);
    }
    let sentence = &explanation.verdict.sentence;
    assert!(sentence.contains(" with 12KiB live: 13KiB would have sufficed"), "{sentence}");
    assert!(sentence.ends_with(&overlaps.text), "{sentence}");
    // A block at the address of a freed one, or right after another one, overlaps nothing.
    let rows = "1,0,allocate,0x100,256,0\n1,0,allocate,0x200,256,0\n1,0,free,0x100,256,0\n";
    let recording = imported(format!("{HEADER}{rows}1,0,allocate,0x100,256,0\n").as_bytes());
    assert!(!unknowns(&recording).contains(&"overlaps"));
}

#[test]
fn a_simulated_device_is_none_of_the_same_number() {
    let header = HEADER.replace('\n', ",Device\n");
    let log = format!("{header}1,0,allocate,0x100,7,0,sim:3\n1,0,allocate,0x100,9,0,cuda:3\n");
    let recording = imported(log.as_bytes());
    assert_eq!((recording.device(), recording.is_simulated(), recording.len()), (Some(3), true, 1));
    assert!(unknowns(&recording).contains(&"other_device"));
    let mut written = Vec::new();
    recording.write_csv(&mut written).unwrap();
    assert!(String::from_utf8(written).unwrap().contains(",sim:3,"));
    let mut explained = Vec::new();
    explain::print(&explain::explain(&recording, None), explain::Style::new(false), &mut explained).unwrap();
    let explained = String::from_utf8(explained).unwrap();
    assert!(explained.contains("RMM log, simulated device 3, 1 event\n"), "{explained}");
}

#[test]
fn notes_that_no_recording_writes_are_refused_with_their_line() {
    let header = HEADER.replace('\n', ",Stack,Pool,Tag,Notes\n");
    for (cells, expected) in [
        ("9,,,", "column Stack: no row defines call stack 9"),
        ("x,,,", "column Stack: `x` is not a number"),
        (",0;0,,", "column Pool"),
        (",,%2,", "column Tag"),
        (",,,nonsense 1 2", "column Notes: `nonsense 1 2` is not a note"),
        (",,,stack 1 4.5", "column Notes"),
        (",,,segment_alloc 0x1", "column Notes"),
        (",,,check 1 2 3", "column Notes"),
        (",,,frame 1 x a b", "column Notes"),
    ] {
        let error = read(format!("{header}1,0,free,0x1,1,0,{cells}\n").as_bytes()).unwrap_err();
        assert!(error.starts_with("file:2: ") && error.contains(expected), "{error}");
    }
}
