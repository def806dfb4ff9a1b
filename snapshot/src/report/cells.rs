//! Draws small blocks into the cells of a coarse map: how much of each cell they cover, and whose blocks
//! cover most of it.

use std::cmp::Reverse;

/// The cells of the map, over events and over addresses.
pub(super) const COLUMNS: usize = 1024;
pub(super) const ROWS: usize = 192;

/// The colours of the map; the last one is for all stacks without their own.
pub(super) const COLOURS: usize = 12;

/// The origins that have their own layers: those with the most blocks. All others add up by colour.
const ORIGINS: usize = 32;

/// The layers of a cell that the page has.
const PARTS: usize = 4;

/// A layer that covers less of a cell is not in it, because sums of many numbers are inexact.
const LEAST: f64 = 1e-6;

/// The cells of each layer.
#[derive(Debug)]
pub(super) struct Cells {
    /// The origins that have their own layers. After these, each colour has a layer.
    own: Vec<usize>,
    /// The layer of each origin.
    layers: Vec<usize>,
    /// The rows of all layers, as the differences between neighbouring columns: a long block changes few of
    /// them. An unused row is empty.
    rows: Vec<Vec<f64>>,
    events: f64,
    height: f64,
}

/// The cells of the page, row by row.
#[derive(Debug, Default)]
pub(super) struct Covered {
    /// The covered share of each cell, in 255ths.
    pub(super) shares: Vec<u8>,
    /// The layers that cover most of each cell, counted from 1, the largest first; 0 if there is none.
    pub(super) layers: [Vec<u8>; PARTS],
    /// The parts of these layers in the covered share, in 255ths.
    pub(super) parts: [Vec<u8>; PARTS],
}

/// The length of a row: one more difference than columns, for blocks that reach the end.
const STRIDE: usize = COLUMNS + 2;

impl Cells {
    /// Returns empty cells for origins, each with its number of blocks and its colour.
    pub(super) fn new(events: usize, height: u64, origins: &[(u64, u8)]) -> Self {
        let mut own: Vec<usize> = (0..origins.len()).collect();
        own.sort_by_key(|&origin| Reverse(origins[origin].0));
        own.truncate(ORIGINS);
        let mut layers: Vec<usize> =
            origins.iter().map(|&(_, colour)| own.len() + usize::from(colour)).collect();
        for (layer, &origin) in own.iter().enumerate() {
            layers[origin] = layer;
        }
        let rows = vec![Vec::new(); (own.len() + COLOURS) * ROWS];
        Self { own, layers, rows, events: events.max(1) as f64, height: height.max(1) as f64 }
    }

    /// Returns the origins that have their own layers.
    pub(super) fn origins(&self) -> impl Iterator<Item = u64> {
        self.own.iter().map(|&origin| origin as u64)
    }

    /// Adds a block that lives from one event to another.
    pub(super) fn add(&mut self, origin: u32, events: (usize, usize), y: u64, bytes: u64) {
        let [left, right] = [events.0, events.1].map(|at| at as f64 / self.events * COLUMNS as f64);
        let [low, high] = [y, y.saturating_add(bytes)].map(|at| at as f64 / self.height * ROWS as f64);
        let last = (high.ceil() as usize).min(ROWS);
        let layer = self.layers[origin as usize];
        for row in (low as usize).min(ROWS)..last {
            let tall = high.min(row as f64 + 1.0) - low.max(row as f64);
            add_row(&mut self.rows[layer * ROWS + row], tall, left, right);
        }
    }

    /// Adds up the cells.
    pub(super) fn finish(&self) -> Covered {
        let mut covered = Covered::default();
        for row in 0..ROWS {
            let rows = self.rows.iter().skip(row).step_by(ROWS).enumerate();
            let used = rows.filter(|(_, steps)| !steps.is_empty());
            let mut sums: Vec<(usize, &Vec<f64>, f64)> =
                used.map(|(layer, steps)| (layer, steps, 0.0)).collect();
            for column in 0..COLUMNS {
                for (_, steps, sum) in &mut sums {
                    *sum += steps[column];
                }
                covered.add(sums.iter().map(|&(layer, _, sum)| (layer, sum)));
            }
        }
        covered
    }
}

fn add_row(steps: &mut Vec<f64>, tall: f64, left: f64, right: f64) {
    if steps.is_empty() {
        steps.resize(STRIDE, 0.0);
    }
    let (first, last) = ((left as usize).min(COLUMNS - 1), (right as usize).min(COLUMNS - 1));
    if first == last {
        let part = tall * (right - left);
        steps[first] += part;
        steps[first + 1] -= part;
        return;
    }
    let (head, tail) = (tall * (first as f64 + 1.0 - left), tall * (right - last as f64));
    steps[first] += head;
    steps[first + 1] += tall - head;
    steps[last] += tail - tall;
    steps[last + 1] -= tail;
}

impl Covered {
    /// Adds a cell with the share of it that each layer covers.
    fn add(&mut self, layers: impl Iterator<Item = (usize, f64)>) {
        let mut layers: Vec<(usize, f64)> = layers.filter(|&(_, share)| share >= LEAST).collect();
        layers.sort_by(|a, b| b.1.total_cmp(&a.1));
        let all: f64 = layers.iter().map(|(_, share)| share).sum();
        self.shares.push((all.min(1.0) * 255.0).ceil() as u8);
        for (at, (numbers, parts)) in self.layers.iter_mut().zip(&mut self.parts).enumerate() {
            let (number, part) = layers.get(at).map_or((0, 0.0), |&(layer, share)| (layer + 1, share / all));
            numbers.push(number as u8);
            parts.push((part * 255.0).round().max(f64::from(number.min(1) as u8)) as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_covers_its_share_of_each_cell() {
        let mut cells = Cells::new(COLUMNS * 4, ROWS as u64 * 8, &[(1, 0), (9, 1), (5, 2)]);
        cells.add(2, (2, 10), 4, 8);
        cells.add(1, (2, 3), 4, 8);
        cells.add(0, (COLUMNS * 4 - 4, COLUMNS * 4), 0, 8);
        assert_eq!(cells.origins().collect::<Vec<_>>(), [1, 2, 0]);
        let Covered { shares, layers, parts } = cells.finish();
        let share = |share: f64| (share * 255.0).ceil() as u8;
        // Half of the first column, all of the next, half of the third; half of two rows.
        assert_eq!(shares[..4], [share(0.375), share(0.5), share(0.25), 0]);
        assert_eq!(shares[COLUMNS..COLUMNS + 4], [share(0.375), share(0.5), share(0.25), 0]);
        // Of the first cell, the block of origin 2 covers two thirds, and the block of origin 1 one third.
        let first = [0, 1, 2].map(|at| (layers[at][0], parts[at][0]));
        assert_eq!(first, [(2, 170), (1, 85), (0, 0)]);
        assert_eq!((shares[COLUMNS - 1], layers[0][COLUMNS - 1], parts[0][COLUMNS - 1]), (255, 3, 255));
        assert_eq!(shares[2 * COLUMNS..].iter().copied().max(), Some(0));
    }

    #[test]
    fn origins_without_a_layer_of_their_own_add_up_by_colour() {
        let mut origins = vec![(9, 3); ORIGINS];
        origins.extend([(2, 4), (1, 7), (1, 4)]);
        let mut cells = Cells::new(COLUMNS, ROWS as u64, &origins);
        for origin in 0..origins.len() as u32 {
            cells.add(origin, (0, 1), 0, 1);
        }
        let colour = |colour| ORIGINS + colour + 1;
        assert_eq!(cells.layers[ORIGINS..], [colour(4) - 1, colour(7) - 1, colour(4) - 1]);
        let Covered { shares, layers, parts } = cells.finish();
        assert_eq!((shares[0], usize::from(layers[0][0])), (255, colour(4)));
        // Two of 35 blocks; a part of a cell that is there is never 0.
        assert_eq!(parts[0][0], (2.0 / 35.0 * 255.0_f64).round() as u8);
        assert!(parts.iter().all(|parts| parts[0] > 0 && parts[1] == 0), "{:?}", parts[3][..2].to_vec());
    }
}
