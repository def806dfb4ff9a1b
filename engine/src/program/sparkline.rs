//! The course of a log's live bytes, in a few characters.

/// The number of parts that are kept. A line in a terminal has fewer characters.
const PARTS: usize = 256;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The most live bytes in each of equal parts of a log. The length of the log is unknown before its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sparkline {
    /// The most bytes in each finished part, and in the current part.
    most: Vec<i128>,
    /// The number of values in a full part, and in the current part.
    width: u64,
    filled: u64,
}

impl Default for Sparkline {
    fn default() -> Self {
        Self { most: Vec::new(), width: 1, filled: 1 }
    }
}

impl Sparkline {
    /// Adds the live bytes after the next event. They are below 2^124.
    pub(super) fn push(&mut self, bytes: i128) {
        if self.filled < self.width {
            self.filled += 1;
            if let Some(last) = self.most.last_mut() {
                *last = (*last).max(bytes);
            }
            return;
        }
        if self.most.len() == PARTS {
            self.most = self.most.chunks(2).map(|pair| pair[0].max(*pair.last().unwrap_or(&0))).collect();
            self.width *= 2;
        }
        self.most.push(bytes);
        self.filled = 1;
    }

    /// Adds bytes that were live from the start to all parts.
    pub(super) fn raise(&mut self, bytes: i128) {
        self.most.iter_mut().for_each(|most| *most += bytes);
    }

    /// Returns at most `characters` bars, from the first event to the last. A full bar means the peak. If no
    /// block was ever live, the text is empty.
    pub fn text(&self, characters: usize) -> String {
        let peak = self.most.iter().copied().max().unwrap_or(0);
        let count = characters.min(self.most.len());
        if peak <= 0 || count == 0 {
            return String::new();
        }
        let bar = |index: usize| {
            let part = index * self.most.len() / count..(index + 1) * self.most.len() / count;
            let most = self.most[part].iter().copied().max().unwrap_or(0);
            BARS[((most * 8 + peak - 1) / peak).clamp(1, 8) as usize - 1]
        };
        (0..count).map(bar).collect()
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
                assert!(line.most.len() <= PARTS);
                let text = line.text(40);
                let at = text.chars().position(|bar| bar == '█').expect("the peak is there");
                assert_eq!(text.chars().filter(|bar| *bar == '█').count(), 1, "{text}");
                let wanted = (peak * 40 / length) as usize;
                // The last part is shorter than the others.
                assert!(at.abs_diff(wanted) <= 20 && (length > 256 || at.abs_diff(wanted) <= 1), "{text}");
            }
        }
    }
}
