//! A cost that depends on a size.

/// A cost that depends on a size. The curve is a list of points (bytes, nanoseconds), joined by straight
/// lines.
///
/// Below the first point, the cost is the cost of the first point. Beyond the last point, the last straight
/// line continues. If that line falls, the cost stays constant instead.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Deserialize), serde(try_from = "Vec<(u64, u64)>"))]
pub struct Curve(Vec<(u64, u64)>);

impl Curve {
    /// Creates the curve through these points. Each point is a number of bytes and a number of nanoseconds.
    ///
    /// # Errors
    /// A message that names the mistake. The mistakes are: no point, or a point whose number of bytes is not
    /// larger than the number before.
    pub fn new(points: Vec<(u64, u64)>) -> Result<Self, String> {
        if points.is_empty() {
            return Err("give at least one point [bytes, nanoseconds]".to_owned());
        }
        match points.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            Some(pair) => {
                Err(format!("the points' bytes must increase, but {} comes after {}", pair[1].0, pair[0].0))
            }
            None => Ok(Self(points)),
        }
    }

    /// Returns the points as bytes and nanoseconds, in the order of increasing bytes.
    pub fn points(&self) -> &[(u64, u64)] {
        &self.0
    }

    pub(super) fn scale(&mut self, scale: impl Fn(&mut u64)) {
        self.0.iter_mut().for_each(|(_, ns)| scale(ns));
    }

    /// Returns the cost for `bytes` bytes, in nanoseconds.
    pub fn ns(&self, bytes: u64) -> u64 {
        let points = &self.0;
        let after = points.partition_point(|&(size, _)| size < bytes);
        if after == 0 || points.len() == 1 {
            return points[0].1;
        }
        let to = after.min(points.len() - 1);
        let ((x0, y0), (x1, y1)) = (points[to - 1], points[to]);
        let share = |rise: u64| {
            let part = u128::from(bytes - x0) * u128::from(rise) / u128::from(x1 - x0);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        match y1.checked_sub(y0) {
            Some(rise) => y0.saturating_add(share(rise)),
            None => y0 - share(y0 - y1).min(y0 - y1),
        }
    }
}

impl From<&[(u64, u64)]> for Curve {
    /// Sorts the points. If several points have the same number of bytes, only the first of them is used. If
    /// there is no point, the cost is 0.
    fn from(points: &[(u64, u64)]) -> Self {
        let mut points = points.to_vec();
        points.sort_by_key(|(bytes, _)| *bytes);
        points.dedup_by_key(|(bytes, _)| *bytes);
        if points.is_empty() {
            points.push((0, 0));
        }
        Self(points)
    }
}

impl TryFrom<Vec<(u64, u64)>> for Curve {
    type Error = String;

    fn try_from(points: Vec<(u64, u64)>) -> Result<Self, String> {
        Self::new(points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u64, u64)]) -> Curve {
        Curve::new(points.to_vec()).unwrap()
    }

    #[test]
    fn costs_between_lie_between_and_beyond_go_on() {
        let line = curve(&[(10, 100), (20, 200), (30, 400)]);
        let costs = [0, 10, 15, 20, 25, 30, 40].map(|bytes| line.ns(bytes));
        assert_eq!(costs, [100, 100, 150, 200, 300, 400, 600]);
        assert!(line.ns(u64::MAX) > 1 << 60);
    }

    #[test]
    fn a_cost_that_falls_never_falls_below_its_last_point() {
        let line = curve(&[(10, 400), (20, 200), (30, 100)]);
        assert_eq!(
            [10, 15, 20, 25, 30, 31, u64::MAX].map(|x| line.ns(x)),
            [400, 300, 200, 150, 100, 100, 100]
        );
        assert_eq!(curve(&[(7, 5)]).ns(1 << 40), 5);
    }

    #[test]
    fn points_go_up() {
        assert!(Curve::new(Vec::new()).unwrap_err().contains("at least one"));
        assert!(Curve::new(vec![(2, 1), (2, 3)]).unwrap_err().contains("2 comes after 2"));
    }
}
