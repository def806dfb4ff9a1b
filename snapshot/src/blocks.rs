//! A list that grows in blocks of fixed size, so growth copies no elements, and the memory in use is always
//! known.

use crate::budget::{Budget, Exceeded};

/// The number of elements in a block.
const PER_BLOCK: usize = 4096;

/// A list with 32-bit indices.
#[derive(Debug)]
pub(crate) struct Blocks<T> {
    blocks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Blocks<T> {
    pub(crate) const fn new() -> Self {
        Self { blocks: Vec::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an element and returns its index.
    ///
    /// # Errors
    /// The budget has too little memory left.
    #[inline]
    pub(crate) fn push(&mut self, element: T, budget: &mut Budget) -> Result<u32, Exceeded> {
        if self.len.is_multiple_of(PER_BLOCK) && self.len / PER_BLOCK == self.blocks.len() {
            self.add_block(budget)?;
        }
        let number = self.len;
        self.blocks[number / PER_BLOCK].push(element);
        self.len += 1;
        Ok(number as u32)
    }

    /// Frees the list, and returns its memory to the budget.
    pub(crate) fn free(self, budget: &mut Budget) {
        let bytes = self.blocks.len() * Self::BLOCK_BYTES;
        drop(self);
        budget.give_back(bytes);
    }

    const BLOCK_BYTES: usize = PER_BLOCK * size_of::<T>() + size_of::<Vec<T>>() * 2;

    #[cold]
    fn add_block(&mut self, budget: &mut Budget) -> Result<(), Exceeded> {
        // In other modules, indices have 28 bits.
        if self.len >= 1 << 28 {
            budget.take(usize::MAX)?;
        }
        budget.take(Self::BLOCK_BYTES)?;
        self.blocks.push(Vec::with_capacity(PER_BLOCK));
        Ok(())
    }

    /// Removes the last element.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        self.len = last;
        self.blocks[last / PER_BLOCK].pop()
    }

    /// Removes the elements from index `len` on. Later elements reuse their memory.
    pub(crate) fn truncate(&mut self, len: usize) {
        while self.len > len {
            self.pop();
        }
    }
}

impl<T: Copy> Blocks<T> {
    /// Returns the element with this index.
    ///
    /// # Panics
    /// There is no such element.
    #[inline]
    pub(crate) fn at(&self, number: usize) -> T {
        self.blocks[number / PER_BLOCK][number % PER_BLOCK]
    }

    pub(crate) fn get(&self, number: usize) -> Option<T> {
        (number < self.len).then(|| self.at(number))
    }
}

impl<T> Blocks<T> {
    /// Returns the element with this index.
    ///
    /// # Panics
    /// There is no such element.
    #[inline]
    pub(crate) fn of(&self, number: usize) -> &T {
        &self.blocks[number / PER_BLOCK][number % PER_BLOCK]
    }

    /// Returns the element with this index.
    ///
    /// # Panics
    /// There is no such element.
    pub(crate) fn of_mut(&mut self, number: usize) -> &mut T {
        &mut self.blocks[number / PER_BLOCK][number % PER_BLOCK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_kept_across_blocks_and_memory_is_taken_before_it_is_used() {
        let mut budget = Budget::new((2 * PER_BLOCK * size_of::<u32>() + 200) as u64);
        let mut list = Blocks::new();
        for number in 0..2 * PER_BLOCK as u32 {
            assert_eq!(list.push(number * 3, &mut budget), Ok(number));
        }
        assert!(list.push(0, &mut budget).unwrap_err().to_string().contains("of memory"));
        assert_eq!((list.at(PER_BLOCK), list.get(2 * PER_BLOCK)), (3 * PER_BLOCK as u32, None));
        list.truncate(PER_BLOCK - 1);
        assert_eq!((list.len(), list.pop()), (PER_BLOCK - 1, Some(3 * (PER_BLOCK as u32 - 2))));
        list.push(7, &mut budget).unwrap();
        list.push(8, &mut budget).unwrap();
        list.push(9, &mut budget).unwrap();
        assert_eq!((list.at(PER_BLOCK), *list.of(PER_BLOCK - 2)), (9, 7));
    }
}
