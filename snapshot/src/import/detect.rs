//! Recognises a file by its content, never by its name.

use millpond_engine::log::column;

use super::table::row;
use super::{csv, minimalloc, pprof};

/// How many bytes of a file's start are examined.
pub(super) const HEAD_BYTES: usize = 4096;

/// The format of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// A pickle of protocol 2 to 5.
    Pickle,
    /// A web page, which may contain a snapshot.
    Html,
    /// A log with RMM's columns.
    Rmm,
    /// minimalloc's CSV.
    Minimalloc,
    /// A SQLite database.
    Sqlite,
    /// A trace for Chrome or Perfetto.
    Trace,
    /// A pprof profile.
    Pprof,
    /// Any other text. Some of its lines may have a known format. If none has, this is the description of the
    /// file, and the remedy.
    Text(&'static str),
    /// A format that is not supported. The text is the description of the file, and the remedy.
    Other(&'static str),
}

const SQLITE: &[u8] = b"SQLite format 3\0";

/// The first bytes of unsupported files, each with a description and the remedy.
const OTHERS: &[(&[u8], &str)] = &[
    (
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
        "is a checkpoint in torch.save's old format, which holds weights but no memory events; write a \
         snapshot with torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")",
    ),
    (
        b"PK\x03\x04",
        "is a zip file, such as a checkpoint of torch.save, which holds no memory events; if the zip file \
         contains a snapshot, unpack it; if not, write a snapshot with \
         torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")",
    ),
    (b"\x7fELF", "is a program or a library (ELF); name the file that the program wrote"),
    (
        b"memray",
        "is a memray recording, which shows only the host's memory; with PyTorch, write a snapshot with \
         torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")",
    ),
    (
        b"NVR\0",
        "is an Nsight Compute report, which has no memory events; profile with Nsight Systems: `nsys profile \
         --cuda-memory-usage=true` and `nsys export --type sqlite`",
    ),
    (b"MZ", "is a Windows program; name the file that the program wrote"),
    (
        b"PAR1",
        "is a Parquet file; if it is an Nsight Systems export, export it again with `nsys export --type \
         sqlite`",
    ),
    (
        b"ARROW1",
        "is an Arrow file; if it is an Nsight Systems export, export it again with `nsys export --type \
         sqlite`; if not, export a CSV with RMM's columns",
    ),
    (
        b"\xff\xff\xff\xff",
        "may be an Arrow stream; if it is an Nsight Systems export, export it again with `nsys export --type \
         sqlite`",
    ),
    (
        b"\x89HDF\r\n",
        "is an HDF5 file; if it is an Nsight Systems export, export it again with `nsys export --type \
         sqlite`; a file of weights has no memory events",
    ),
    (b"\x93NUMPY", "is a NumPy array, which holds no memory events"),
    (b"GGUF", "is a model (GGUF), which holds no memory events"),
    (b"BZh", "is packed with bzip2; unpack it first (`bunzip2`), or pack it with gzip or zstd"),
    (b"\xfd7zXZ\0", "is packed with xz; unpack it first (`unxz`), or pack it with gzip or zstd"),
    (b"7z\xbc\xaf\x27\x1c", "is packed with 7-Zip; unpack it first"),
    (b"Rar!", "is packed with RAR; unpack it first"),
    (b"%PDF", "is a PDF, which holds no memory events"),
    (b"\x89PNG", "is a picture, which holds no memory events; name the file that the viewer showed"),
    (b"\xff\xd8\xff", "is a picture, which holds no memory events; name the file that the viewer showed"),
];

const CORE: &str = "is a core file of a crashed process, which does not contain the GPU's memory; with \
                    PyTorch, write a snapshot with torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")";

const XPLANE: &str = "is an XLA profile (xplane.pb), which cannot be imported; save the live buffers with \
                      jax.profiler.save_device_memory_profile(\"memory.prof\"), or name a log that contains \
                      the allocator's dump";

const JSON: &str = "is JSON, which cannot be imported: a PyTorch snapshot is a pickle (`_dump_snapshot`), an \
                    Nsight Systems export is SQLite (`nsys export --type sqlite`), and a log is CSV";

const NSYS_REPORT: &str = "is an Nsight Systems report, which only Nsight Systems can read; export it with \
                           `nsys export --type sqlite`";

const EMPTY: &str = "is empty";

const UNKNOWN_TEXT: &str = "is text in an unknown format. A log has the columns \
                            Thread,Time,Action,Pointer,Size,Stream, and minimalloc's CSV has \
                            id,lower,upper,size. No line is an out-of-memory message of PyTorch, RMM, \
                            TensorFlow or XLA, a line of RMM's debug log, or a leak that compute-sanitizer \
                            reported";

const UNKNOWN: &str = "has an unknown format. Known formats are PyTorch memory snapshots, torch.profiler \
                       traces, JAX's device memory profiles, logs with RMM's columns, minimalloc's CSV, \
                       SQLite exports from Nsight Systems, and texts with out-of-memory messages. Files may \
                       be compressed with gzip or zstd. Export an Nsight Systems report (.nsys-rep, .qdrep) \
                       with `nsys export --type sqlite`";

/// Recognises a file by its first bytes. If the file is short, these are the whole file.
pub(super) fn found(head: &[u8]) -> Found {
    if head.starts_with(b"\x7fELF") && head.get(16) == Some(&4) {
        return Found::Other(CORE);
    }
    if let Some((_, what)) = OTHERS.iter().find(|(start, _)| head.starts_with(start)) {
        return Found::Other(what);
    }
    if head.starts_with(SQLITE) {
        return Found::Sqlite;
    }
    if matches!(head, [0x80, 0..=8, ..]) {
        return Found::Pickle;
    }
    if pprof::is_start(head) {
        return Found::Pprof;
    }
    if head.first() == Some(&0x0a) && is_xplane(&head[..head.len().min(200)]) {
        return Found::Other(XPLANE);
    }
    // The fields before it end in zeros, which no text contains.
    if head.get(257..262) == Some(b"ustar") && head[..257].contains(&0) {
        return Found::Other("is a tar file; unpack it first");
    }
    // A length, and then a JSON header.
    if head.get(8..10) == Some(b"{\"") && head[4..8] == [0; 4] {
        return Found::Other("is a file of weights (safetensors), which has no memory events");
    }
    // A log with damaged rows is still a log. The reader of the log names the damaged row.
    if matches!(head.first(), Some(0xef | b'A'..=b'Z' | b'a'..=b'z')) {
        let header = head.split(|byte| *byte == b'\n').next().unwrap_or(head);
        let header = String::from_utf8_lossy(header);
        let kind = table(header.trim_start_matches('\u{feff}'));
        if matches!(kind, Found::Rmm | Found::Minimalloc) {
            return kind;
        }
    }
    let is_report = [&b"NVIDIA Nsight"[..], b"QdstrmHeader", b"qdrep", b"nsys-rep"];
    if head.contains(&0) {
        let is_report = is_report.iter().any(|name| head.windows(name.len()).any(|at| at == *name));
        return Found::Other(if is_report { NSYS_REPORT } else { UNKNOWN });
    }
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    match text.as_bytes().first() {
        None => Found::Other(EMPTY),
        Some(b'<') => Found::Html,
        Some(b'{' | b'[') if is_trace(text) => Found::Trace,
        Some(b'{') => Found::Text(JSON),
        Some(b'[') if !is_prefixed(text) => Found::Text(JSON),
        Some(_) => table(text.lines().next().unwrap_or("")),
    }
}

/// Returns whether the log reader should read a file. It should if the file is empty, or if all lines in its
/// first bytes are rows of a log.
pub(super) fn is_for_log_reader(start: &[u8]) -> bool {
    match found(&start[..start.len().min(HEAD_BYTES)]) {
        Found::Rmm => !csv::is_mixed(start),
        Found::Other(what) => what == EMPTY,
        _ => false,
    }
}

/// Returns whether a file is a log that was written from a recording.
pub(super) fn is_recording(start: &[u8]) -> bool {
    let header = String::from_utf8_lossy(start.split(|byte| *byte == b'\n').next().unwrap_or(start));
    let names = row(header.trim_start_matches('\u{feff}').trim_end()).unwrap_or_default();
    found(start) == Found::Rmm && names.iter().any(|name| name == column::NOTES)
}

/// Returns whether JSON is a trace for Chrome or Perfetto. A trace of Kineto begins with a list of devices.
fn is_trace(text: &str) -> bool {
    let is_kineto = text.contains("\"schemaVersion\"") && text.contains("\"deviceProperties\"");
    is_kineto || text.contains("\"traceEvents\"") || text.contains("\"ph\":") || text.contains("\"ph\" :")
}

/// Returns whether a text begins with a bracketed word, as lines of logs do, but not with a list.
fn is_prefixed(text: &str) -> bool {
    let line = text.lines().next().unwrap_or("");
    let is_list = line[1..].trim_start().starts_with(['{', '[', '"']);
    let rest = line.split_once(']').map_or("", |(_, rest)| rest.trim_start());
    !is_list && !rest.is_empty() && !rest.starts_with(',')
}

/// Returns whether a protocol buffer contains the name of one of XLA's planes.
fn is_xplane(head: &[u8]) -> bool {
    let has = |name: &[u8]| head.windows(name.len()).any(|at| at == name);
    head.iter().any(|byte| *byte < b'\t') && (has(b"/host:") || has(b"/device:"))
}

/// Returns whether a character shows that a file is no text. Texts for terminals have escape sequences, and
/// progress bars go back.
fn is_binary(char: char) -> bool {
    char == '\u{fffd}' || char.is_control() && !matches!(char, '\t' | '\r' | '\u{8}' | '\u{1b}')
}

/// Recognises a table by the names of its columns.
fn table(header: &str) -> Found {
    let names = row(header).unwrap_or_default();
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    match () {
        () if ["Thread", "Action", "Pointer"].iter().any(|name| has(name)) => Found::Rmm,
        () if minimalloc::is_header(&names) => Found::Minimalloc,
        () if header.chars().any(is_binary) => Found::Other(UNKNOWN),
        () => Found::Text(UNKNOWN_TEXT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_content() {
        let cases: [(&[u8], Found); 20] = [
            (b"\x80\x04\x95", Found::Pickle),
            (b"\x80\x02}q\x00", Found::Pickle),
            (b"\n<!DOCTYPE html>", Found::Html),
            (b"Thread,Time,Action,Pointer,Size,Stream\n", Found::Rmm),
            (b"\xef\xbb\xbfThread,Time,Action,Pointer,Size,Stream\r\n", Found::Rmm),
            (b"id,lower,upper,size\n", Found::Minimalloc),
            (b"buffer_id,start,end,size,offset\n", Found::Minimalloc),
            (b"SQLite format 3\0\x10\0", Found::Sqlite),
            (b"", Found::Other("is empty")),
            (b"{\"traceEvents\": [", Found::Trace),
            (b"{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [", Found::Trace),
            (b"[{\"ph\":\"X\"", Found::Trace),
            (b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04\x12\x03", Found::Pprof),
            (b"{\"schemaVersion\": 1}", Found::Text(JSON)),
            (b"[104507][08:24:53:517252][info  ] RMM", Found::Text(UNKNOWN_TEXT)),
            (b"\n\nTraceback (most recent call last):\n  File \"/host:x\"", Found::Text(UNKNOWN_TEXT)),
            (b"a,b,c\n1,2,3\n", Found::Text(UNKNOWN_TEXT)),
            (b"\x1b[31mEpoch 1:  31%|\x08\x1b[0m\rTraceback\n", Found::Text(UNKNOWN_TEXT)),
            (b"\x01\x1b[31m", Found::Other(UNKNOWN)),
            (b"[1, 2]", Found::Text(JSON)),
        ];
        for (head, expected) in cases {
            assert_eq!(found(head), expected, "{}", head.escape_ascii());
        }
    }

    #[test]
    fn what_is_not_read_is_named_with_what_to_do() {
        let cases: [(&[u8], &str); 14] = [
            (b"PK\x03\x04\x14\0", "zip"),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80", "torch.save"),
            (b"\x7fELF\x02", "ELF"),
            (b"PAR1\x15", "Parquet"),
            (b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0", "core file"),
            (b"memray\0\x0c", "memray"),
            (b"NVR\0\x01", "Nsight Compute"),
            (b"\x0a\xf1\x02\x08\x01\x12\x0d/host:metadata", "xplane"),
            (b"\0\0\0\x01NVIDIA Nsight Systems", "nsys export"),
            (b"BZh91AY", "bzip2"),
            (b"\x40\0\0\0\0\0\0\0{\"a\":", "safetensors"),
            (b"\x89HDF\r\n\x1a", "nsys export"),
            (b"\x01\x02\0\x03", "nsys export"),
            (b"hello\x01", "unknown format"),
        ];
        for (head, expected) in cases {
            let Found::Other(text) = found(head) else { panic!("{}", head.escape_ascii()) };
            assert!(text.contains(expected), "{}: {text}", head.escape_ascii());
        }
    }
}
