//! Draws a program's memory as lines of text.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use millpond_core::watch::{Fragmentation, ProgramMemory, SegmentMemory, StackMemory, StreamMemory};
use millpond_core::{Holder, LayerMemory, ResourceStatistics, format_bytes};
use millpond_engine::text::{counted, plain, thousands};

/// The most rows of each table.
const ROWS: usize = 8;
/// The most frames of a call site.
const FRAMES: usize = 3;
/// Frames of functions whose names begin with these prefixes are omitted, because they say nothing about the
/// program.
const NOT_OWN: [&str; 9] =
    ["std::", "core::", "alloc::", "backtrace::", "millpond_", "<millpond_", "<core::", "<alloc::", "__rust"];

/// Returns the display of a program's memory. If there is an earlier answer, the display has rates.
pub(super) fn lines(now: &ProgramMemory, before: Option<&ProgramMemory>) -> Vec<String> {
    let stacks = counted(now.stacks.len() as u64, "stack");
    let seconds = now.elapsed_us as f64 / 1e6;
    let mut lines =
        vec![format!("process {}, {stacks}, watched for {seconds:.1} s: {}", now.process, now.program)];
    for stack in &now.stacks {
        let earlier = before.and_then(|before| {
            let earlier = before.stacks.iter().find(|earlier| earlier.id == stack.id)?;
            let elapsed = now.elapsed_us.checked_sub(before.elapsed_us).filter(|elapsed| *elapsed > 0)?;
            Some((earlier, elapsed as f64 / 1e6))
        });
        lines.push(String::new());
        add_stack(stack, earlier, &mut lines);
    }
    if now.stacks_left_out > 0 {
        lines.push(format!("and {}", counted(now.stacks_left_out as u64, "more stack")));
    }
    lines.extend(now.errors.iter().map(|error| format!("not shown: {error}")));
    // The texts come from another process, so control characters are removed.
    lines.iter().map(|line| plain(line.trim_end())).collect()
}

/// Returns a row for each program.
pub(super) fn list(programs: &[ProgramMemory]) -> Vec<String> {
    let rows = programs.iter().map(|of| {
        let sum = |value: fn(&ResourceStatistics) -> u64| {
            let known = of.stacks.iter().filter_map(statistics);
            format_bytes(known.map(|known| value(&known)).fold(0, u64::saturating_add))
        };
        let (live, reserved) = (sum(|of| of.bytes_in_use), sum(|of| of.bytes_reserved));
        let stacks = of.stacks.len().saturating_add(of.stacks_left_out);
        vec![of.process.to_string(), stacks.to_string(), live, reserved, plain(&of.program)]
    });
    table(["PID", "stacks", "live", "reserved", "program"], rows.collect())
}

/// The statistics of the outermost layer that keeps statistics.
fn statistics(stack: &StackMemory) -> Option<ResourceStatistics> {
    stack.report.layers.iter().find_map(|layer| layer.statistics)
}

fn add_stack(stack: &StackMemory, earlier: Option<(&StackMemory, f64)>, lines: &mut Vec<String>) {
    lines.push(format!("{} on {}", stack.report.stack, stack.report.device));
    if let Some(known) = statistics(stack) {
        lines.push(sums(&known));
        let earlier = earlier.and_then(|(earlier, seconds)| Some((statistics(earlier)?, seconds)));
        lines.push(rates(&known, earlier));
    }
    lines.extend(stack.fragmentation.as_ref().map(fragmentation));
    let mut add = |table: Vec<String>, left_out: usize, what: &str| {
        lines.extend(table.into_iter().map(|line| format!("  {line}")));
        if left_out > 0 {
            lines.push(format!("  and {}", counted(left_out as u64, what)));
        }
    };
    add(layers(&stack.report.layers), 0, "");
    let (shown, hidden) = first(&stack.streams);
    add(streams(shown), hidden.saturating_add(stack.streams_left_out), "more stream");
    let holders = stack.report.layers.iter().map(|layer| &*layer.holders).find(|known| !known.is_empty());
    let (shown, hidden) = first(holders.unwrap_or_default());
    add(of_holders(shown), hidden.saturating_add(stack.holders_left_out), "more holder");
    let most_free = stack.fragmentation.as_ref().map(|of| &*of.most_free).unwrap_or_default();
    add(segments(first(most_free).0), 0, "");
}

/// Returns the first rows, and the number of the other rows.
fn first<T>(rows: &[T]) -> (&[T], usize) {
    let shown = rows.len().min(ROWS);
    (&rows[..shown], rows.len() - shown)
}

fn sums(known: &ResourceStatistics) -> String {
    let (live, peak) = (format_bytes(known.bytes_in_use), format_bytes(known.peak_bytes_in_use));
    let blocks = counted(known.blocks_in_use, "block");
    let (reserved, most) = (format_bytes(known.bytes_reserved), format_bytes(known.peak_bytes_reserved));
    format!("  {live} live in {blocks}, peak {peak}; {reserved} reserved, peak {most}")
}

fn rates(known: &ResourceStatistics, earlier: Option<(ResourceStatistics, f64)>) -> String {
    let mut text = match earlier {
        Some((earlier, seconds)) => {
            let rate = |now: u64, before: u64| {
                thousands((now.saturating_sub(before) as f64 / seconds).round() as u64)
            };
            let allocations = rate(known.allocations, earlier.allocations);
            format!(
                "  {allocations} allocations/s, {} frees/s",
                rate(known.deallocations, earlier.deallocations)
            )
        }
        None => {
            let (allocations, frees) = (known.allocations, known.deallocations);
            format!("  {}, {} so far", counted(allocations, "allocation"), counted(frees, "free"))
        }
    };
    let failed = (known.ladder.out_of_memory, "request", "out of memory");
    for (count, noun, what) in [failed, (known.misuses, "wrong free", "refused")] {
        if count > 0 {
            text += &format!("; {} {what}", counted(count, noun));
        }
    }
    text
}

fn fragmentation(of: &Fragmentation) -> String {
    let segments = counted(of.segments as u64, "segment");
    let (free, largest) = (format_bytes(of.bytes_free), format_bytes(of.largest_free_block));
    let blocks = counted(of.blocks_free, "block");
    let share = of.share * 100.0;
    format!("  {segments}; {free} free in {blocks}, the largest {largest}, {share:.1} % fragmented")
}

fn layers(layers: &[LayerMemory]) -> Vec<String> {
    let rows = layers.iter().filter_map(|layer| {
        let known = layer.statistics?;
        let bytes = |bytes: Option<u64>| bytes.map(format_bytes).unwrap_or_default();
        Some(vec![
            layer.layer.clone(),
            format_bytes(known.bytes_in_use),
            thousands(known.blocks_in_use),
            format_bytes(known.bytes_reserved),
            bytes(layer.cached_bytes),
            bytes(layer.reclaimable_bytes),
            bytes(layer.limit_bytes),
        ])
    });
    table(["layer", "live", "blocks", "reserved", "cached", "can go back", "limit"], rows.collect())
}

fn streams(streams: &[StreamMemory]) -> Vec<String> {
    let rows = streams.iter().map(|of| {
        vec![
            of.stream.map_or_else(|| "any or unknown".to_owned(), |stream| format!("{stream:#x}")),
            format_bytes(of.bytes_in_use),
            thousands(of.blocks_in_use),
            format_bytes(of.bytes_free),
            thousands(of.blocks_free),
        ]
    });
    table(["stream", "live", "blocks", "free", "free blocks"], rows.collect())
}

fn of_holders(holders: &[Holder]) -> Vec<String> {
    let rows = holders.iter().map(|holder| {
        let place = holder.backtrace.as_deref().map(call_site);
        let parts: Vec<String> = holder
            .tag
            .iter()
            .map(|tag| format!("`{tag}`"))
            .chain(place.filter(|it| !it.is_empty()))
            .collect();
        let who = if parts.is_empty() { "without a tag".to_owned() } else { parts.join(" ") };
        vec![format_bytes(holder.bytes), thousands(holder.blocks), who]
    });
    table(["held", "blocks", "by"], rows.collect())
}

fn segments(segments: &[SegmentMemory]) -> Vec<String> {
    let rows = segments.iter().map(|of| {
        vec![
            format!("{:#x}", of.address),
            format_bytes(of.bytes),
            thousands(of.blocks_in_use),
            format_bytes(of.bytes_free),
            format_bytes(of.largest_free_block),
        ]
    });
    table(["segment", "size", "blocks", "free", "largest free"], rows.collect())
}

/// Returns the innermost frames of the program's own code, the innermost first.
fn call_site(backtrace: &str) -> String {
    let mut frames: Vec<(&str, Option<&str>)> = Vec::new();
    for line in backtrace.lines().map(str::trim) {
        if let Some(place) = line.strip_prefix("at ") {
            let file = place.rsplit(['/', '\\']).next().unwrap_or(place);
            if let Some(last) = frames.last_mut() {
                last.1 = Some(file.strip_suffix(":0").unwrap_or(file));
            }
        } else if let Some((number, name)) = line.split_once(": ")
            && number.parse::<u32>().is_ok()
        {
            frames.push((name, None));
        }
    }
    let is_own = |(name, _): &(&str, Option<&str>)| !NOT_OWN.iter().any(|start| name.starts_with(start));
    let mut own: Vec<_> = frames.iter().copied().filter(is_own).collect();
    if own.is_empty() {
        own = frames;
    }
    let shown = own.iter().take(FRAMES).map(|(name, place)| match place {
        Some(place) => format!("{name} ({place})"),
        None => (*name).to_owned(),
    });
    shown.collect::<Vec<_>>().join(" < ")
}

/// Aligns the columns. The first column and the last one have text or numbers of their own width; the other
/// columns have numbers.
fn table<const N: usize>(header: [&str; N], rows: Vec<Vec<String>>) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    let is_text = |at: usize| matches!(header[at], "layer" | "stream" | "segment" | "by" | "program");
    table.add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        column.set_cell_alignment(if is_text(at) { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.to_string().lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document of a program with a tag, a call site, two streams and a hostile name.
    fn document(allocations: u64, elapsed_us: u64) -> ProgramMemory {
        let statistics = ResourceStatistics::default()
            .bytes_in_use(3 << 20)
            .peak_bytes_in_use(4 << 20)
            .bytes_reserved(8 << 20)
            .blocks_in_use(1500)
            .allocations(allocations)
            .misuses(2);
        let backtrace = [
            "   0: std::alloc",
            "             at /rustc/alloc.rs:7:5",
            "   1: train::step",
            "             at /program/train.rs:41:9",
            "   2: main",
        ];
        let backtrace = backtrace.join("\n");
        let value = serde_json::json!({
            "format": 1, "process": 7, "program": "train\u{1b}[2J", "elapsed_us": elapsed_us,
            "stacks_left_out": 0, "errors": ["a layer of stack 9 panicked"],
            "stacks": [{
                "id": 1, "holders_left_out": 3, "streams_left_out": 0,
                "report": {
                    "stack": "cuda+pool+tracking", "device": "cuda:0", "device_memory": null,
                    "layers": [{
                        "layer": "pool", "statistics": serde_json::to_value(statistics).unwrap(),
                        "largest_allocation": null, "limit_bytes": 1u64 << 30, "limit_used_bytes": null,
                        "reclaimable_bytes": 0, "reclaimable_after_sync_bytes": null, "cached_bytes": 4096,
                        "free": [], "scopes": [], "holders": [
                            {"tag": "layers", "backtrace": backtrace, "blocks": 1000, "bytes": 2 << 20},
                            {"tag": null, "backtrace": null, "blocks": 500, "bytes": 1 << 20},
                        ],
                    }],
                },
                "fragmentation": {
                    "segments": 2, "bytes_reserved": 8 << 20, "bytes_free": 5 << 20, "blocks_free": 12,
                    "largest_free_block": 3 << 20, "share": 0.4, "most_free": [{
                        "address": 4096, "bytes": 6 << 20, "bytes_free": 5 << 20,
                        "largest_free_block": 3 << 20, "blocks_in_use": 9,
                    }],
                },
                "streams": [
                    {"stream": 21992, "blocks_in_use": 1500, "bytes_in_use": 3 << 20, "blocks_free": 0,
                     "bytes_free": 0},
                    {"stream": null, "blocks_in_use": 0, "bytes_in_use": 0, "blocks_free": 12,
                     "bytes_free": 5 << 20},
                ],
            }],
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_picture_has_stacks_streams_holders_and_segments() {
        let text = lines(&document(2000, 3_000_000), None).join("\n");
        let expected = "\
process 7, 1 stack, watched for 3.0 s: train\u{fffd}[2J

cuda+pool+tracking on cuda:0
  3MiB live in 1,500 blocks, peak 4MiB; 8MiB reserved, peak 0B
  2,000 allocations, 0 frees so far; 2 wrong frees refused
  2 segments; 5MiB free in 12 blocks, the largest 3MiB, 40.0 % fragmented
  layer  live  blocks  reserved  cached  can go back  limit
  pool   3MiB   1,500      8MiB    4KiB           0B   1GiB
  stream          live  blocks  free  free blocks
  0x55e8          3MiB   1,500    0B            0
  any or unknown    0B       0  5MiB           12
  held  blocks  by
  2MiB   1,000  `layers` train::step (train.rs:41:9) < main
  1MiB     500  without a tag
  and 3 more holders
  segment  size  blocks  free  largest free
  0x1000   6MiB       9  5MiB          3MiB
not shown: a layer of stack 9 panicked";
        assert_eq!(text, expected, "{text}");
    }

    #[test]
    fn two_answers_give_rates() {
        let text = lines(&document(3000, 3_500_000), Some(&document(2000, 3_000_000))).join("\n");
        assert!(text.contains("  2,000 allocations/s, 0 frees/s; 2 wrong"), "{text}");
        let same = lines(&document(2000, 1), Some(&document(2000, 1))).join("\n");
        assert!(same.contains("2,000 allocations, 0 frees so far"), "{same}");
    }

    #[test]
    fn a_list_has_a_row_for_each_program() {
        let expected =
            ["PID  stacks  live  reserved  program", "  7       1  3MiB      8MiB  train\u{fffd}[2J"];
        assert_eq!(list(&[document(1, 1)]), expected);
    }

    #[test]
    fn numbers_that_make_no_sense_are_shown() {
        let mut wrong = document(u64::MAX, u64::MAX);
        let stack = &mut wrong.stacks[0];
        stack.streams = vec![stack.streams[0].clone(); ROWS + 1];
        (stack.streams_left_out, stack.holders_left_out) = (usize::MAX, usize::MAX);
        stack.report.layers[0].holders = vec![stack.report.layers[0].holders[0].clone(); ROWS + 1];
        let known = stack.report.layers[0].statistics.unwrap();
        stack.report.layers[0].statistics = Some(known.bytes_in_use(u64::MAX).bytes_reserved(u64::MAX));
        wrong.stacks.push(wrong.stacks[0].clone());
        wrong.stacks_left_out = usize::MAX;
        let text = list(&[wrong.clone()]).join("\n");
        assert!(text.contains(&format!(" {} ", usize::MAX)) && text.contains("16.00EiB"), "{text}");
        let text = lines(&wrong, Some(&document(0, 0))).join("\n");
        assert!(text.contains("more streams") && text.contains("more holders"), "{text}");
    }

    #[test]
    fn a_call_site_is_the_programs_own_code() {
        assert_eq!(call_site("   0: core::a\n   1: std::b\n"), "core::a < std::b");
        assert_eq!(call_site("no frames"), "");
        let python = "   0: step\n             at /a/train.py:12:0\n";
        assert_eq!(call_site(python), "step (train.py:12)");
    }
}
