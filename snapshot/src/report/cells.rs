//! Draws small blocks into the cells of a coarse map. Each cell gets the share that blocks cover, and the
//! colour that covers most.

/// The number of cells of the map, over events and over addresses.
pub(super) const COLUMNS: usize = 1024;
pub(super) const ROWS: usize = 192;

/// The number of colours of the map. The last colour is for all call stacks that have no colour of their own.
pub(super) const COLOURS: usize = 12;

/// The cells, as differences between neighbouring columns. A long block changes only few differences.
#[derive(Debug)]
pub(super) struct Cells {
    steps: Vec<f64>,
    events: f64,
    height: f64,
}

/// The length of one colour's row. It has one difference more than columns, for blocks that reach the end.
const STRIDE: usize = COLUMNS + 2;

impl Cells {
    pub(super) fn new(events: usize, height: u64) -> Self {
        let steps = vec![0.0; COLOURS * ROWS * STRIDE];
        Self { steps, events: events.max(1) as f64, height: height.max(1) as f64 }
    }

    /// Adds a block that lives from one event to another.
    pub(super) fn add(&mut self, colour: u8, events: (usize, usize), y: u64, bytes: u64) {
        let [left, right] = [events.0, events.1].map(|at| at as f64 / self.events * COLUMNS as f64);
        let [low, high] = [y, y.saturating_add(bytes)].map(|at| at as f64 / self.height * ROWS as f64);
        let last = (high.ceil() as usize).min(ROWS);
        for row in (low as usize).min(ROWS)..last {
            let tall = high.min(row as f64 + 1.0) - low.max(row as f64);
            let at = (usize::from(colour) * ROWS + row) * STRIDE;
            self.add_row(at, tall, left, right);
        }
    }

    fn add_row(&mut self, at: usize, tall: f64, left: f64, right: f64) {
        let (first, last) = ((left as usize).min(COLUMNS - 1), (right as usize).min(COLUMNS - 1));
        let steps = &mut self.steps[at..at + STRIDE];
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

    /// Returns two values for each cell, row by row: the covered share in 255ths, and the colour that covers
    /// most.
    pub(super) fn finish(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut shares, mut colours) = (Vec::new(), Vec::new());
        for row in 0..ROWS {
            let mut covered = [0.0; COLOURS];
            for column in 0..COLUMNS {
                for (colour, covered) in covered.iter_mut().enumerate() {
                    *covered += self.steps[(colour * ROWS + row) * STRIDE + column];
                }
                let share: f64 = covered.iter().sum();
                let most = (0..COLOURS).max_by(|&a, &b| covered[a].total_cmp(&covered[b])).unwrap_or(0);
                // The differences of many blocks leave a small rounding error.
                let is_empty = share < 1e-6;
                shares.push(if is_empty { 0 } else { (share.min(1.0) * 255.0).ceil() as u8 });
                colours.push(if is_empty { 0 } else { most as u8 });
            }
        }
        (shares, colours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_covers_its_share_of_each_cell() {
        let mut cells = Cells::new(COLUMNS * 4, ROWS as u64 * 8);
        cells.add(3, (2, 10), 4, 8);
        cells.add(1, (2, 3), 4, 8);
        cells.add(2, (COLUMNS * 4 - 4, COLUMNS * 4), 0, 8);
        let (shares, colours) = cells.finish();
        let share = |share: f64| (share * 255.0).ceil() as u8;
        // Half of the first column, all of the next, half of the third; half of two rows.
        assert_eq!(shares[..4], [share(0.375), share(0.5), share(0.25), 0]);
        assert_eq!(shares[COLUMNS..COLUMNS + 4], [share(0.375), share(0.5), share(0.25), 0]);
        assert_eq!((colours[0], colours[1], shares[COLUMNS - 1], colours[COLUMNS - 1]), (3, 3, 255, 2));
        assert_eq!(shares[2 * COLUMNS..].iter().copied().max(), Some(0));
    }
}
