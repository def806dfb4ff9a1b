use super::handles::{HandleId, Handles, NONE, ViewId};
use super::space::Space;

/// A mapping in a view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    /// `NONE` where something was unmapped.
    pub(super) handle: HandleId,
    /// From the start of the view, in bytes.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Which mapping of all that were ever made in views.
    pub(super) number: u64,
}

/// Handles that are mapped a second time, one behind the other.
#[derive(Debug)]
pub(super) struct View {
    pub(super) base: u64,
    /// Addresses kept for this view, in bytes.
    pub(super) slot: u64,
    /// How much of them is mapped, from the start.
    pub(super) bytes: u64,
    pub(super) maps: Vec<Map>,
    /// Plans and releases under way that map or unmap here. The view keeps its end meanwhile.
    pub(super) busy: u32,
    /// Something could not be unmapped behind its end: it must not go on.
    pub(super) is_closed: bool,
    /// When a block was last put there, in such blocks.
    pub(super) used: u64,
}

impl View {
    /// The address of a place.
    pub(super) fn addr(&self, place: usize) -> u64 {
        self.base + self.maps[place].offset
    }

    /// Whether more may be mapped behind its end.
    pub(super) fn may_go_on(&self) -> bool {
        self.busy == 0 && !self.is_closed
    }
}

/// All views.
#[derive(Debug, Default)]
pub(super) struct Views {
    table: Vec<Option<View>>,
    vacant: Vec<ViewId>,
    pub(super) space: Space,
    /// Mappings in all views.
    pub(super) mappings: usize,
    /// How many were ever made.
    made: u64,
    /// How many blocks were ever put in views.
    blocks: u64,
}

impl Views {
    pub(super) fn get(&self, id: ViewId) -> &View {
        self.table[id as usize].as_ref().expect("a view in the tables exists")
    }

    pub(super) fn get_mut(&mut self, id: ViewId) -> &mut View {
        self.table[id as usize].as_mut().expect("a view in the tables exists")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ViewId, &View)> {
        (0..).zip(&self.table).filter_map(|(id, view)| Some((id, view.as_ref()?)))
    }

    /// How many mappings were ever made.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    pub(super) fn len(&self) -> usize {
        self.table.len() - self.vacant.len()
    }

    /// Adds a view in which nothing is mapped.
    pub(super) fn add(&mut self, base: u64, slot: u64) -> ViewId {
        let view = View { base, slot, bytes: 0, maps: Vec::new(), busy: 0, is_closed: false, used: 0 };
        if let Some(id) = self.vacant.pop() {
            self.table[id as usize] = Some(view);
            return id;
        }
        self.table.push(Some(view));
        (self.table.len() - 1) as ViewId
    }

    /// Notes that a block is put in a view.
    pub(super) fn note_block(&mut self, id: ViewId) {
        self.blocks += 1;
        self.get_mut(id).used = self.blocks;
    }

    /// Notes a mapping at the end of a view.
    pub(super) fn push(&mut self, handles: &mut Handles, id: ViewId, handle: HandleId) {
        let bytes = handles.get(handle).bytes;
        let number = self.made;
        self.made += 1;
        let view = self.get_mut(id);
        let place = view.maps.len() as u32;
        view.maps.push(Map { handle, offset: view.bytes, bytes, number });
        view.bytes += bytes;
        handles.get_mut(handle).views.push((id, place));
        self.mappings += 1;
    }

    /// Forgets a mapping, which the caller ends; says its address. The view is busy until it is ended.
    pub(super) fn forget(&mut self, id: ViewId, place: usize) -> u64 {
        self.mappings -= 1;
        let view = self.get_mut(id);
        view.maps[place].handle = NONE;
        view.addr(place)
    }

    /// A plan or a release that was under way in a view is over: it ends with its last mapping. A view in
    /// which nothing is mapped is forgotten. `is_clean` says whether all that was to be unmapped is.
    pub(super) fn end_work(&mut self, id: ViewId, is_clean: bool) {
        let view = self.get_mut(id);
        view.busy -= 1;
        view.is_closed |= !is_clean;
        if view.busy > 0 {
            return;
        }
        while let Some(last) = view.maps.pop_if(|last| last.handle == NONE) {
            view.bytes = last.offset;
        }
        if view.maps.is_empty() {
            let slot = (view.base, view.slot, view.is_closed);
            self.table[id as usize] = None;
            self.vacant.push(id);
            if let (base, bytes, false) = slot {
                self.space.give(base, bytes);
            }
        }
    }

    /// The handle mapped at an address in a view, and the address of its mapping. Error path: it walks.
    pub(super) fn at(&self, addr: u64) -> Option<(HandleId, u64)> {
        let (_, view) = self.iter().find(|(_, view)| addr >= view.base && addr - view.base < view.bytes)?;
        let map = view.maps.iter().find(|map| addr - view.base < map.offset + map.bytes)?;
        (map.handle != NONE).then_some((map.handle, view.base + map.offset))
    }

    /// All mappings: address and bytes.
    pub(super) fn mapped(&self) -> impl Iterator<Item = (u64, u64)> {
        let of = |view: &'_ View| {
            let maps = view.maps.iter().filter(|map| map.handle != NONE);
            let base = view.base;
            maps.map(move |map| (base + map.offset, map.bytes)).collect::<Vec<_>>()
        };
        self.iter().flat_map(move |(_, view)| of(view))
    }

    /// Panics where views and handles disagree.
    pub(super) fn validate(&self, handles: &Handles) {
        let mut mappings = 0;
        for (id, view) in self.iter() {
            assert!(view.bytes <= view.slot, "view {id} leaves its addresses");
            let mut offset = 0;
            for (place, map) in view.maps.iter().enumerate() {
                assert_eq!(map.offset, offset, "mappings of view {id} follow each other");
                offset += map.bytes;
                if map.handle == NONE {
                    continue;
                }
                mappings += 1;
                let handle = handles.get(map.handle);
                assert_eq!(handle.bytes, map.bytes, "a handle is mapped whole");
                assert!(handle.views.contains(&(id, place as u32)), "a handle knows its views");
            }
            assert_eq!(offset, view.bytes);
            let ends_mapped = view.maps.last().is_some_and(|map| map.handle != NONE);
            assert!(view.busy > 0 || ends_mapped, "view {id} ends in a gap");
        }
        assert_eq!(mappings, self.mappings, "mappings in views");
        let known: usize = handles.iter().map(|(_, handle)| handle.views.len()).sum();
        assert_eq!(known, mappings, "a handle is mapped where no view knows it");
        self.space.validate(self.iter().map(|(_, view)| (view.base, view.slot)).collect());
    }
}
