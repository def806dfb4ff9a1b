//! The course of a log's live bytes, in a few characters.

/// The number of parts that are kept. A line in a terminal has fewer characters.
const PARTS: usize = 256;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// For [`Sparkline::grows`], a log has this many equal parts. The first parts do not count, because the
/// program is still building data that it keeps.
const TENTHS: usize = 10;
const FIRST_TENTHS: usize = 3;

/// A log with fewer values shows no growth.
const LEAST_VALUES: u64 = 200;

/// Growth is at least this share of the live bytes at the end, as 1/`LEAST_SHARE`.
const LEAST_SHARE: i128 = 4;

/// The least and the most live bytes in one part of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    least: i128,
    most: i128,
}

impl Part {
    fn join(self, other: Self) -> Self {
        Self { least: self.least.min(other.least), most: self.most.max(other.most) }
    }
}

/// The least and the most live bytes in each of equal parts of a log. The length of the log is unknown before
/// its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sparkline {
    /// The finished parts, and the current part.
    parts: Vec<Part>,
    /// The number of values in a full part, and in the current part.
    width: u64,
    filled: u64,
}

impl Default for Sparkline {
    fn default() -> Self {
        Self { parts: Vec::new(), width: 1, filled: 1 }
    }
}

impl Sparkline {
    /// Adds the live bytes after the next event. They are below 2^124.
    pub(super) fn push(&mut self, bytes: i128) {
        let value = Part { least: bytes, most: bytes };
        if self.filled < self.width {
            self.filled += 1;
            if let Some(last) = self.parts.last_mut() {
                *last = last.join(value);
            }
            return;
        }
        if self.parts.len() == PARTS {
            self.parts =
                self.parts.chunks(2).filter_map(|pair| pair.iter().copied().reduce(Part::join)).collect();
            self.width *= 2;
        }
        self.parts.push(value);
        self.filled = 1;
    }

    /// Adds bytes that were live from the start to all parts.
    pub(super) fn raise(&mut self, bytes: i128) {
        for part in &mut self.parts {
            part.least += bytes;
            part.most += bytes;
        }
    }

    /// Joins the parts into `count` parts of about equal length. There are at least `count` parts.
    fn joined(&self, count: usize) -> impl Iterator<Item = Part> + '_ {
        let start = move |index: usize| index * self.parts.len() / count;
        (0..count).filter_map(move |index| {
            self.parts[start(index)..start(index + 1)].iter().copied().reduce(Part::join)
        })
    }

    /// Returns at most `characters` bars, from the first event to the last. A full bar means the peak. If no
    /// block was ever live, the text is empty.
    pub fn text(&self, characters: usize) -> String {
        let peak = self.parts.iter().map(|part| part.most).max().unwrap_or(0);
        let count = characters.min(self.parts.len());
        if peak <= 0 || count == 0 {
            return String::new();
        }
        self.joined(count)
            .map(|part| BARS[((part.most * 8 + peak - 1) / peak).clamp(1, 8) as usize - 1])
            .collect()
    }

    /// Returns whether live memory grows until the end of the log: in each tenth of the log after the first
    /// three, the least live bytes are above the least of the previous tenth.
    pub(super) fn grows(&self) -> bool {
        let values = (self.parts.len() as u64).saturating_sub(1) * self.width + self.filled;
        if self.parts.len() < TENTHS || values < LEAST_VALUES {
            return false;
        }
        let least: Vec<i128> = self.joined(TENTHS).skip(FIRST_TENTHS).map(|part| part.least).collect();
        let growth = least[least.len() - 1] - least[0];
        least.is_sorted_by(|before, after| before < after) && growth * LEAST_SHARE >= least[least.len() - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = i128>) -> Sparkline {
        let mut line = Sparkline::default();
        values.into_iter().for_each(|value| line.push(value));
        line
    }

    #[test]
    fn bars_rise_and_fall_with_live_bytes() {
        assert_eq!(of([1, 2, 3, 4, 5, 6, 7, 8, 4, 0]).text(40), "▁▂▃▄▅▆▇█▄▁");
        assert_eq!(of([1, 8, 1, 1]).text(2), "█▁");
        let mut raised = of([0, -4, 4]);
        raised.raise(4);
        assert_eq!(raised.text(40), "▄▁█");
        assert_eq!(of([]).text(40), "");
        assert_eq!(of([0, 0]).text(40), "");
        assert_eq!(of([i128::from(u64::MAX) << 32, 1]).text(40), "█▁");
    }

    #[test]
    fn long_logs_keep_few_parts_and_every_peak() {
        for length in [255, 256, 257, 1000, 100_000] {
            for peak in [0, 1, length / 3, length - 2, length - 1] {
                let line = of((0..length).map(|at| if at == peak { 1_000_000 } else { 1 }));
                assert!(line.parts.len() <= PARTS);
                let text = line.text(40);
                let at = text.chars().position(|bar| bar == '█').expect("the peak is there");
                assert_eq!(text.chars().filter(|bar| *bar == '█').count(), 1, "{text}");
                let wanted = (peak * 40 / length) as usize;
                // The last part is shorter than the others.
                assert!(at.abs_diff(wanted) <= 20 && (length > 256 || at.abs_diff(wanted) <= 1), "{text}");
            }
        }
    }

    #[test]
    fn memory_grows_if_each_tenth_keeps_more_than_the_previous_one() {
        for length in [200, 1000, 100_000] {
            let saw = |at: i128| if at % 2 == 0 { at } else { at / 2 * 2 + 50 };
            assert!(of((0..length).map(saw)).grows(), "{length}");
            assert!(!of((0..length).map(|at| at.min(length / 2))).grows(), "it stays");
            assert!(!of((0..length).map(|at| at % 50)).grows(), "it comes back");
            assert!(!of((0..length).map(|at| 100 * length + at)).grows(), "it is little");
        }
        assert!(!of(0..199).grows() && !of([]).grows(), "too short");
    }
}
