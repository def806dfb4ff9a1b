//! The stream-safe lower bound: the heaviest cut through the streams whose positions the orders leave
//! concurrent.
//!
//! A cut chooses one position of each stream. Assume that no order leads from a later position of one stream
//! to an earlier position of another. Then all blocks that are live at the chosen positions conflict, and the
//! sum of their sizes is a lower bound. The heaviest such cut is a closure of greatest weight, and a minimum
//! cut of a network finds it.

use crate::Problem;
use crate::clocks::{Clocks, Told, number_streams};

/// The most nodes of a network. If there are more, only cuts within a shorter range of positions are
/// compared.
const NODES: usize = 2000;

/// The most pairs of a stream and a window that are compared. More pairs would need gigabytes.
const PAIRS: usize = 1 << 24;

/// Returns the sum of sizes of the heaviest cut, in units of the problem. If the time is over, returns the
/// heaviest sum that was found. If there are too many orders, returns 0, which is always a valid bound.
pub(crate) fn heaviest(problem: &Problem, is_late: &dyn Fn() -> bool) -> u64 {
    let orders = problem.orders().unwrap_or_default();
    let clocks = Clocks::new(problem.blocks(), orders);
    let Some(told) = clocks.told() else { return 0 };
    let mut thresholds: Vec<u64> = told.iter().flat_map(|told| [told.from, told.up_to]).collect();
    thresholds.sort_unstable();
    // No cut has positions before and after a wait for the whole device, so windows that end there lose no
    // cut.
    let mut windows: Vec<u64> = thresholds.chunks(NODES / 2).skip(1).map(|chunk| chunk[0]).collect();
    windows.extend(clocks.device_waits());
    windows.push(0);
    windows.sort_unstable();
    windows.dedup();
    if number_streams(problem.blocks()).len().saturating_mul(windows.len()) > PAIRS {
        return 0;
    }
    let lanes: Vec<Lane> = lanes(problem, &told, &windows);
    let mut best = 0;
    let mut first = 0;
    for (at, &start) in windows.iter().enumerate() {
        let end = windows.get(at + 1).copied().unwrap_or(u64::MAX);
        let until = first + told[first..].iter().take_while(|told| told.from < end).count();
        let inside: Vec<Told> =
            told[first..until].iter().copied().filter(|told| told.up_to > start).collect();
        first = until;
        match window(&lanes, start, end, &inside, is_late) {
            Some(weight) => best = best.max(weight),
            None => return best,
        }
    }
    best
}

/// The position ranges of one stream. Within a range, the stream's position makes no difference to the other
/// streams of a cut.
struct Lane {
    starts: Vec<u64>,
    /// The largest sum of live sizes in each range.
    peaks: Vec<u64>,
}

fn lanes(problem: &Problem, told: &[Told], windows: &[u64]) -> Vec<Lane> {
    let numbers = number_streams(problem.blocks());
    let mut starts = vec![windows.to_vec(); numbers.len()];
    for told in told {
        starts[told.seer].push(told.from);
        starts[told.seen].push(told.up_to);
    }
    let mut events = vec![Vec::new(); numbers.len()];
    for block in problem.blocks() {
        let size = block.size.div_ceil(problem.unit());
        let events = &mut events[numbers[&block.stream]];
        events.push((block.birth, size));
        events.push((block.death, size.wrapping_neg()));
    }
    let lane = |(mut starts, mut events): (Vec<u64>, Vec<(u64, u64)>)| {
        starts.sort_unstable();
        starts.dedup();
        events.sort_unstable_by_key(|&(at, _)| at);
        let mut peaks = Vec::with_capacity(starts.len());
        let (mut next, mut live) = (0, 0u64);
        for (number, &start) in starts.iter().enumerate() {
            let end = starts.get(number + 1).copied().unwrap_or(u64::MAX);
            let mut peak = if events.get(next).is_some_and(|&(at, _)| at == start) { 0 } else { live };
            while next < events.len() && events[next].0 < end {
                let at = events[next].0;
                while next < events.len() && events[next].0 == at {
                    live = live.wrapping_add(events[next].1);
                    next += 1;
                }
                peak = peak.max(live);
            }
            peaks.push(peak);
        }
        Lane { starts, peaks }
    };
    starts.into_iter().zip(events).map(lane).collect()
}

/// Returns the weight of the heaviest cut with all positions in `start..end`; `None` if the time is over
/// before that.
fn window(lanes: &[Lane], start: u64, end: u64, told: &[Told], is_late: &dyn Fn() -> bool) -> Option<u64> {
    let ranges: Vec<_> = lanes
        .iter()
        .map(|lane| {
            let of = |position| lane.starts.partition_point(|&start| start < position);
            of(start)..of(end)
        })
        .collect();
    let peaks = |lane: usize| &lanes[lane].peaks[ranges[lane].clone()];
    if told.is_empty() {
        return Some((0..lanes.len()).map(|lane| peaks(lane).iter().max().copied().unwrap_or(0)).sum());
    }
    if is_late() {
        return None;
    }
    // The node of a lane's stretch means "the cut is in this stretch or a later one".
    let mut network = Network::default();
    let (source, sink) = (network.node(), network.node());
    let mut first = Vec::new();
    let (mut base, mut gain) = (0u64, 0u64);
    for lane in 0..lanes.len() {
        let peaks = peaks(lane);
        base += peaks.first().copied().unwrap_or(0);
        first.push(network.nodes());
        for (before, pair) in peaks.windows(2).enumerate() {
            let node = network.node();
            if before > 0 {
                network.arc(node, node - 1, u64::MAX);
            }
            if pair[1] > pair[0] {
                gain += pair[1] - pair[0];
                network.arc(source, node, pair[1] - pair[0]);
            } else {
                network.arc(node, sink, pair[0] - pair[1]);
            }
        }
    }
    for told in told {
        let node = |lane: usize, position: u64| {
            let stretch = lanes[lane].starts.partition_point(|&start| start < position);
            (stretch > ranges[lane].start).then(|| first[lane] + stretch - ranges[lane].start - 1)
        };
        if let (Some(later), Some(needed)) = (node(told.seer, told.from), node(told.seen, told.up_to)) {
            network.arc(later, needed, u64::MAX);
        }
    }
    Some(base + (gain - network.flow(source, sink, is_late)?))
}

/// A network. Shortest augmenting paths in layers find its greatest flow.
#[derive(Default)]
struct Network {
    /// The arcs of each node.
    arcs_of: Vec<Vec<usize>>,
    /// The target and the remaining capacity of each arc. An arc and its reverse are adjacent in the list.
    arcs: Vec<(usize, u64)>,
    layer: Vec<usize>,
    next: Vec<usize>,
}

impl Network {
    fn nodes(&self) -> usize {
        self.arcs_of.len()
    }

    fn node(&mut self) -> usize {
        self.arcs_of.push(Vec::new());
        self.arcs_of.len() - 1
    }

    fn arc(&mut self, from: usize, to: usize, room: u64) {
        self.arcs_of[from].push(self.arcs.len());
        self.arcs.push((to, room));
        self.arcs_of[to].push(self.arcs.len());
        self.arcs.push((from, 0));
    }

    /// Returns the greatest flow; `None` if the time is over before that.
    fn flow(&mut self, source: usize, sink: usize, is_late: &dyn Fn() -> bool) -> Option<u64> {
        let mut total = 0;
        while self.make_layers(source, sink) {
            self.next = vec![0; self.nodes()];
            loop {
                if is_late() {
                    return None;
                }
                let sent = self.send(source, sink);
                if sent == 0 {
                    break;
                }
                total += sent;
            }
        }
        Some(total)
    }

    fn make_layers(&mut self, source: usize, sink: usize) -> bool {
        self.layer = vec![usize::MAX; self.nodes()];
        self.layer[source] = 0;
        let mut reached = vec![source];
        let mut done = 0;
        while let Some(&node) = reached.get(done) {
            done += 1;
            for &arc in &self.arcs_of[node] {
                let (to, room) = self.arcs[arc];
                if room > 0 && self.layer[to] == usize::MAX {
                    self.layer[to] = self.layer[node] + 1;
                    reached.push(to);
                }
            }
        }
        self.layer[sink] != usize::MAX
    }

    /// Sends as much flow as possible along one path to the next layers. Returns 0 if there is no path. A
    /// path may have as many arcs as there are nodes, so it is kept on the heap, not on the thread's stack.
    fn send(&mut self, source: usize, sink: usize) -> u64 {
        let mut path: Vec<(usize, usize)> = Vec::new();
        let mut node = source;
        while node != sink {
            let Some(&arc) = self.arcs_of[node].get(self.next[node]) else {
                // No arc leads on from this node, so the search goes back along the arc that led here.
                let Some((before, _)) = path.pop() else { return 0 };
                self.next[before] += 1;
                node = before;
                continue;
            };
            let (to, left) = self.arcs[arc];
            if left > 0 && self.layer[to] == self.layer[node] + 1 {
                path.push((node, arc));
                node = to;
            } else {
                self.next[node] += 1;
            }
        }
        let sent = path.iter().map(|&(_, arc)| self.arcs[arc].1).min().unwrap_or(0);
        for (_, arc) in path {
            self.arcs[arc].1 -= sent;
            // An arc without a limit stays without a limit.
            self.arcs[arc ^ 1].1 = self.arcs[arc ^ 1].1.saturating_add(sent);
        }
        sent
    }
}
