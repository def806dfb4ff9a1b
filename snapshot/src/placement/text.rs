//! Prints a placement as text.

use std::io::{self, Write};

use millpond_engine::text::{bytes_among, counted, plain};

use super::{Answer, Placement, Sharing};

/// Prints a placement for people.
///
/// # Errors
/// Writing to `out` fails.
pub fn print(placement: &Placement, out: &mut impl Write) -> io::Result<()> {
    let Placement { blocks, streams, failed_requests, bound_host_order, bound_stream_safe, .. } = *placement;
    let (blocks, stream_count) = (counted(blocks as u64, "block"), counted(streams as u64, "stream"));
    writeln!(out, "{}: {blocks}, {stream_count}", plain(&placement.file))?;
    let mut line = |name: &str, text: String| writeln!(out, "  {name:<12}{text}");
    if failed_requests > 0 {
        let requests = counted(failed_requests as u64, "request");
        line("failed", format!("{requests}, each counted as a block that lives for an instant"))?;
    }
    let size = |bytes| size(placement, bytes);
    if streams > 1 && placement.private_pools > 0 {
        // A graph uses its memory again whenever it replays, and the file does not show when.
        let pools = counted(placement.private_pools as u64, "private pool");
        let why = format!("streams share no memory, because the file has {pools} (CUDA graphs)");
        line("least", format!("{}: {why}", size(bound_stream_safe)))?;
    } else {
        line("least", format!("{}: the peak of live memory, in host order", size(bound_host_order)))?;
        if streams > 1 {
            let why = "if streams share no memory, because the file does not show how they are ordered";
            line("", format!("{}: {why}", size(bound_stream_safe)))?;
        }
    }
    if let Some(height) = placement.height {
        let ratio = if placement.bound == 0 { 1.0 } else { height as f64 / placement.bound as f64 };
        let proof = match (placement.is_optimal, placement.timed_out) {
            (true, _) => "no placement needs less",
            (false, false) => "a smaller placement may exist",
            (false, true) => "a smaller placement may exist, and more `--time` may find it",
        };
        let kind = match placement.sharing {
            Sharing::HostOrder if streams > 1 => " in host order",
            _ => "",
        };
        let ratio = match height == placement.bound {
            true => String::new(),
            false => format!(", {ratio:.5} times {}", size(placement.bound)),
        };
        line("plan", format!("{}{kind}{ratio}: {proof}", size(height)))?;
    }
    for doubt in &placement.doubts {
        line("note", plain(&doubt.text))?;
    }
    line("hardness", format!("{:.3}: the largest block / the least", placement.hardness()))?;
    match placement.capacity.zip(placement.answer) {
        Some((capacity, answer)) => line("capacity", self::answer(placement, capacity, answer)),
        None => Ok(()),
    }
}

/// Formats one of the sizes of a placement. Sizes that differ have different texts.
fn size(placement: &Placement, bytes: u64) -> String {
    let Placement { bound_host_order, bound_stream_safe, bound, height, capacity, .. } = *placement;
    let all = [bound_host_order, bound_stream_safe, bound].into_iter().chain(height).chain(capacity);
    bytes_among(bytes, &all.collect::<Vec<u64>>())
}

/// Returns whether the blocks fit into the capacity, and what the answer assumes.
fn answer(placement: &Placement, capacity: u64, answer: Answer) -> String {
    let Placement { bound_host_order, bound_stream_safe, bound, sharing, .. } = *placement;
    let size = |bytes| size(placement, bytes);
    let shown = size(capacity);
    match answer {
        Answer::Fits => format!("{shown} suffices: the plan proves it"),
        Answer::Unknown => format!("{shown} may suffice: no fitting plan found, but one may exist"),
        Answer::Impossible if capacity < bound_host_order => {
            format!("{shown} is too little for any allocator: {} are needed", size(bound_host_order))
        }
        Answer::Impossible if sharing == Sharing::StreamSafe && capacity < bound_stream_safe => format!(
            "{shown} is too little if streams share no memory, which needs {}; with `--streams host-order`, \
             streams share memory",
            size(bound_stream_safe)
        ),
        Answer::Impossible => format!(
            "{shown} is too little for blocks that keep their addresses, which need {}; an allocator that \
             maps pages, as cuda+pool does, may need less",
            size(bound)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{self, Options};
    use crate::placement::Request;

    #[test]
    fn an_answer_says_which_bound_it_means() {
        let csv = "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n";
        let recording = import::read("example", csv.as_bytes(), &Options::default()).unwrap();
        let mut placement = Placement::of(&recording, &Request::new(Sharing::StreamSafe)).unwrap();
        let bounds = [1220, 1300, 1320].map(|mib| mib << 20);
        [placement.bound_host_order, placement.bound_stream_safe, placement.bound] = bounds;
        for (capacity, sharing, told) in [
            (1219, Sharing::StreamSafe, "1.190GiB is too little for any allocator: 1.191GiB are needed"),
            (
                1299,
                Sharing::StreamSafe,
                "1.269GiB is too little if streams share no memory, which needs 1.270GiB",
            ),
            (
                1319,
                Sharing::StreamSafe,
                "1.288GiB is too little for blocks that keep their addresses, which need 1.289GiB",
            ),
            (1299, Sharing::HostOrder, "for blocks that keep their addresses, which need 1.29GiB"),
        ] {
            placement.sharing = sharing;
            placement.capacity = Some(capacity << 20);
            let answer = answer(&placement, capacity << 20, Answer::Impossible);
            assert!(answer.contains(told), "{answer}");
        }
    }

    #[test]
    fn memory_of_graphs_is_not_shared_in_the_order_of_the_hosts_calls() {
        let csv = "id,lower,upper,size\na,0,10,4096\nb,10,20,1024\n";
        let recording = import::read("example", csv.as_bytes(), &Options::default()).unwrap();
        let mut placement = Placement::of(&recording, &Request::new(Sharing::StreamSafe)).unwrap();
        (placement.streams, placement.private_pools, placement.bound_stream_safe) = (2, 5, 5120);
        let printed = |placement: &Placement| {
            let mut out = Vec::new();
            print(placement, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let text = printed(&placement);
        assert!(
            text.contains("least       5KiB: streams share no memory, because the file has 5 private"),
            "{text}"
        );
        assert!(!text.contains("host order"), "{text}");
        placement.private_pools = 0;
        assert!(printed(&placement).contains("least       4KiB: the peak of live memory, in host order"));
    }
}
