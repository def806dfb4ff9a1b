//! Finds the distance at which a sequence of allocations repeats itself, as soon as it does.

/// The number of keys in a row by which a place of the sequence is known.
pub(crate) const GRAM: usize = 6;

/// The distances that are followed at a time: a body with loops in loops has one for each of them.
const MOST_FOLLOWED: usize = 8;

/// The places that are remembered, a power of two. In a longer body later ones replace most of those before,
/// but a few are left, and one is enough to find its distance.
const PLACES: usize = 1 << 16;

/// A distance must hold over this part of all that was watched: a loop inside a body is not the body.
const WATCHED_SHARE: usize = 8;

/// Returns the hash of some keys in a row.
pub(crate) fn gram_of(keys: [u64; GRAM]) -> u64 {
    keys.into_iter().fold(0, |hash: u64, key| (hash.rotate_left(5) ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// A distance at which the newest keys are those before.
#[derive(Clone, Copy, Debug)]
struct Followed {
    distance: usize,
    /// The number of the newest keys that are those before.
    run: usize,
    /// The run with which it is tried next.
    try_at: usize,
}

/// A sequence of keys, and the distances at which it repeats.
#[derive(Debug, Default)]
pub(crate) struct Repetition {
    keys: Vec<u64>,
    followed: Vec<Followed>,
    /// By the first bits of a hash of [`GRAM`] keys in a row: a half of that hash, and the place after the
    /// last keys that have it. Without that half, each key was compared with keys far before, which takes a
    /// cache miss.
    places: Vec<(u32, u32)>,
}

impl Repetition {
    /// Adds a key.
    pub(crate) fn push(&mut self, key: u64) {
        let at = self.keys.len();
        self.keys.push(key);
        let keys = &self.keys;
        self.followed.retain_mut(|it| {
            it.run += 1;
            keys[at - it.distance] == key
        });
        if let Some(&newest) = keys.last_chunk::<GRAM>() {
            self.places.resize(PLACES, (0, 0));
            // The highest bits are the best of a product.
            let hash = gram_of(newest);
            let place = &mut self.places[(hash >> (u64::BITS - PLACES.ilog2())) as usize];
            let half = (hash >> 16) as u32;
            let (known, before) = std::mem::replace(place, (half, at as u32 + 1));
            let before = before as usize;
            if known == half && (GRAM..=at).contains(&before) && keys[before - GRAM..before] == newest {
                self.follow(at + 1 - before);
            }
        }
    }

    /// Follows a distance from now on, in place of that with the shortest run.
    fn follow(&mut self, distance: usize) {
        if self.followed.iter().any(|it| it.distance == distance) {
            return;
        }
        if self.followed.len() == MOST_FOLLOWED {
            let shortest = self.followed.iter().enumerate().min_by_key(|(_, it)| it.run);
            shortest.map(|(index, _)| index).into_iter().for_each(|index| {
                self.followed.swap_remove(index);
            });
        }
        // It may have held before, when it was not followed.
        let keys = &self.keys;
        let newest = (distance..keys.len()).rev();
        let run = newest.take_while(|&at| keys[at] == keys[at - distance]).count();
        self.followed.push(Followed { distance, run, try_at: distance });
    }

    /// Returns the shortest distance that `is_right` accepts, of those that have held over as many keys, over
    /// `least`, and over a part of all keys. One that it refuses is tried again after as many more keys.
    pub(crate) fn period<T>(
        &mut self,
        least: usize,
        mut is_right: impl FnMut(usize) -> Option<T>,
    ) -> Option<T> {
        let least = least.max(self.keys.len() / WATCHED_SHARE);
        if self.followed.iter().all(|it| it.run < it.try_at.max(least)) {
            return None;
        }
        self.followed.sort_unstable_by_key(|it| it.distance);
        self.followed.iter_mut().filter(|it| it.run >= it.try_at.max(least)).find_map(|it| {
            it.try_at = it.run + it.distance;
            is_right(it.distance)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distance and the number of keys at which a sequence is first seen to repeat.
    fn found(keys: impl IntoIterator<Item = u64>, least: usize) -> Option<(usize, usize)> {
        let mut repetition = Repetition::default();
        keys.into_iter().zip(1..).find_map(|(key, count)| {
            repetition.push(key);
            repetition.period(least, Some).map(|distance| (distance, count))
        })
    }

    #[test]
    fn a_sequence_repeats_as_soon_as_it_has_been_there_twice() {
        for length in [7u64, 100, 5000] {
            let twice = (0..2 * length).map(|at| at % length);
            assert_eq!(found(twice, 1), Some((length as usize, 2 * length as usize)));
        }
        assert_eq!(found(0..10_000, 1), None);
        // Where it is shorter than what has to repeat, it is seen later.
        assert_eq!(found((0..1000).map(|at| at % 7), 100), Some((7, 107)));
    }

    #[test]
    fn what_came_before_and_loops_inside_do_not_hide_it() {
        // 30 requests, each followed by a loop of 8 that runs five times.
        let body =
            || (0..30u64).flat_map(|at| std::iter::once(1000 + at).chain((0..40).map(|step| step % 8)));
        let length = body().count();
        let all = (5000..5600).chain(body()).chain(body());
        assert_eq!(found(all, 512), Some((length, 600 + 2 * length)));
    }

    #[test]
    fn a_body_that_is_longer_than_the_places_is_found() {
        let length = 4 * PLACES as u64;
        let (distance, count) = found((0..2 * length).map(|at| at % length), 512).unwrap();
        assert_eq!(distance as u64, length);
        assert_eq!(count as u64, 2 * length);
    }

    #[test]
    fn a_distance_that_is_refused_is_tried_again() {
        let mut repetition = Repetition::default();
        let mut tries = Vec::new();
        for at in 0..50 {
            repetition.push(at % 10);
            let asked = std::cell::Cell::new(false);
            let refused: Option<()> = repetition.period(1, |distance| {
                asked.set(true);
                assert_eq!(distance, 10);
                None
            });
            assert!(refused.is_none());
            if asked.get() {
                tries.push(at + 1);
            }
        }
        assert_eq!(tries, [20, 30, 40, 50]);
    }

    #[test]
    fn loops_of_equal_keys_have_the_distance_one() {
        assert_eq!(found([3; 600], 512), Some((1, 513)));
    }
}
