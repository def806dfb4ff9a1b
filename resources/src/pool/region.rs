use millpond_core::ALLOCATION_ALIGNMENT;

const PAGE_BITS: u32 = 21;
/// Places where a block can start in a page of 2 MiB.
const STARTS: usize = 1 << (PAGE_BITS - ALLOCATION_ALIGNMENT.ilog2());
const NONE: u32 = u32::MAX;

/// Which chunk starts where in one page.
///
/// A page inside a large block has no entry, a page with one start keeps it in place, and only a page with
/// several has a table (32 KiB for 2 MiB of device memory: 1.6 %).
#[derive(Debug, Clone)]
enum Page {
    None,
    One { start: u32, id: u32 },
    Many(Box<[u32]>),
}

/// Memory from one upstream allocation.
///
/// ```text
///  base                                            base + bytes
///  | chunk | chunk      | chunk | …         | chunk |
///  | page 0 (2 MiB)        | page 1            | …   |    which chunk starts where
/// ```
///
/// A start is entered when its chunk is handed out, and never removed: a stale entry names a chunk that is
/// not in use or starts elsewhere. So finding the chunk of a pointer takes two loads and no hashing.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// The chunk at the base; the same one as long as the region lives.
    pub(crate) first: u32,
    pages: Vec<Page>,
}

impl Region {
    pub(crate) fn new(base: u64, bytes: u64, first: u32) -> Self {
        let pages = vec![Page::None; bytes.div_ceil(1 << PAGE_BITS) as usize];
        Self { base, bytes, first, pages }
    }

    pub(crate) fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.bytes
    }

    fn place(&self, addr: u64) -> (usize, u32) {
        let offset = addr - self.base;
        let start = (offset & ((1 << PAGE_BITS) - 1)) / ALLOCATION_ALIGNMENT;
        ((offset >> PAGE_BITS) as usize, start as u32)
    }

    /// Notes that `id` starts at `addr`, which the region contains.
    pub(crate) fn set_start(&mut self, addr: u64, id: u32) {
        let (page, start) = self.place(addr);
        let page = &mut self.pages[page];
        match page {
            Page::One { start: other, id: other_id } if *other != start => {
                let mut table = vec![NONE; STARTS].into_boxed_slice();
                table[*other as usize] = *other_id;
                table[start as usize] = id;
                *page = Page::Many(table);
            }
            Page::Many(table) => table[start as usize] = id,
            Page::None | Page::One { .. } => *page = Page::One { start, id },
        }
    }

    /// The chunk last handed out at `addr`, which the region contains.
    pub(crate) fn start(&self, addr: u64) -> Option<u32> {
        let (page, start) = self.place(addr);
        match &self.pages[page] {
            Page::One { start: known, id } if *known == start => Some(*id),
            Page::Many(table) => Some(table[start as usize]).filter(|id| *id != NONE),
            Page::None | Page::One { .. } => None,
        }
    }
}
