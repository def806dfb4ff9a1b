use crate::backing::paged::address_space::Space;
use crate::backing::paged::handles::{AliasId, HandleId, Handles, NONE};

/// A mapping in an alias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    /// `NONE` where something was unmapped.
    pub(super) handle: HandleId,
    /// From the start of the alias, in bytes.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Which mapping of all that were ever made in aliases.
    pub(super) number: u64,
}

/// Handles that are mapped a second time, one behind the other.
#[derive(Debug)]
pub(super) struct Alias {
    pub(super) base: u64,
    /// Addresses kept for this alias, in bytes.
    pub(super) slot: u64,
    /// How much of them is mapped, from the start.
    pub(super) bytes: u64,
    pub(super) maps: Vec<Map>,
    /// Plans and releases under way that map or unmap here. The alias keeps its end meanwhile.
    pub(super) busy: u32,
    /// Something could not be unmapped behind its end: it must not go on.
    pub(super) is_closed: bool,
    /// When a block was last put there, in such blocks.
    pub(super) used: u64,
}

impl Alias {
    /// The address of a place.
    pub(super) fn addr(&self, place: usize) -> u64 {
        self.base + self.maps[place].offset
    }

    /// Whether more may be mapped behind its end.
    pub(super) fn may_go_on(&self) -> bool {
        self.busy == 0 && !self.is_closed
    }
}

/// All aliases.
#[derive(Debug, Default)]
pub(super) struct Aliases {
    table: Vec<Option<Alias>>,
    vacant: Vec<AliasId>,
    pub(super) space: Space,
    /// Mappings in all aliases.
    pub(super) mappings: usize,
    /// How many were ever made.
    made: u64,
    /// How many blocks were ever put in aliases.
    blocks: u64,
}

impl Aliases {
    pub(super) fn get(&self, id: AliasId) -> &Alias {
        self.table[id as usize].as_ref().expect("a view in the tables exists")
    }

    pub(super) fn get_mut(&mut self, id: AliasId) -> &mut Alias {
        self.table[id as usize].as_mut().expect("a view in the tables exists")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (AliasId, &Alias)> {
        (0..).zip(&self.table).filter_map(|(id, alias)| Some((id, alias.as_ref()?)))
    }

    pub(super) fn len(&self) -> usize {
        self.table.len() - self.vacant.len()
    }

    /// Adds an alias in which nothing is mapped.
    pub(super) fn add(&mut self, base: u64, slot: u64) -> AliasId {
        let alias = Alias { base, slot, bytes: 0, maps: Vec::new(), busy: 0, is_closed: false, used: 0 };
        if let Some(id) = self.vacant.pop() {
            self.table[id as usize] = Some(alias);
            return id;
        }
        self.table.push(Some(alias));
        (self.table.len() - 1) as AliasId
    }

    /// Notes that a block is put in an alias.
    pub(super) fn note_block(&mut self, id: AliasId) {
        self.blocks += 1;
        self.get_mut(id).used = self.blocks;
    }

    /// Notes a mapping at the end of an alias.
    pub(super) fn push(&mut self, handles: &mut Handles, id: AliasId, handle: HandleId) {
        let bytes = handles.get(handle).bytes;
        let number = self.made;
        self.made += 1;
        let alias = self.get_mut(id);
        let place = alias.maps.len() as u32;
        alias.maps.push(Map { handle, offset: alias.bytes, bytes, number });
        alias.bytes += bytes;
        handles.get_mut(handle).aliases.push((id, place));
        self.mappings += 1;
    }

    /// Forgets a mapping, which the caller ends; says its address. The alias is busy until it is ended.
    pub(super) fn forget(&mut self, id: AliasId, place: usize) -> u64 {
        self.mappings -= 1;
        let alias = self.get_mut(id);
        alias.maps[place].handle = NONE;
        alias.addr(place)
    }

    /// A plan or a release that was under way in an alias is over: it ends with its last mapping. An alias in
    /// which nothing is mapped is forgotten. `is_clean` says whether all that was to be unmapped is.
    pub(super) fn end_work(&mut self, id: AliasId, is_clean: bool) {
        let alias = self.get_mut(id);
        alias.busy -= 1;
        alias.is_closed |= !is_clean;
        if alias.busy > 0 {
            return;
        }
        while let Some(last) = alias.maps.pop_if(|last| last.handle == NONE) {
            alias.bytes = last.offset;
        }
        if alias.maps.is_empty() {
            let slot = (alias.base, alias.slot, alias.is_closed);
            self.table[id as usize] = None;
            self.vacant.push(id);
            if let (base, bytes, false) = slot {
                self.space.free(base, bytes);
            }
        }
    }

    /// The handle mapped at an address in an alias, and the address of its mapping. Error path: it walks.
    pub(super) fn at(&self, addr: u64) -> Option<(HandleId, u64)> {
        let (_, alias) =
            self.iter().find(|(_, alias)| addr >= alias.base && addr - alias.base < alias.bytes)?;
        let map = alias.maps.iter().find(|map| addr - alias.base < map.offset + map.bytes)?;
        (map.handle != NONE).then_some((map.handle, alias.base + map.offset))
    }

    /// All mappings: address and bytes.
    pub(super) fn mapped(&self) -> impl Iterator<Item = (u64, u64)> {
        let of = |alias: &'_ Alias| {
            let maps = alias.maps.iter().filter(|map| map.handle != NONE);
            let base = alias.base;
            maps.map(move |map| (base + map.offset, map.bytes)).collect::<Vec<_>>()
        };
        self.iter().flat_map(move |(_, alias)| of(alias))
    }

    /// Panics where aliases and handles disagree.
    pub(super) fn validate(&self, handles: &Handles) {
        let mut mappings = 0;
        for (id, alias) in self.iter() {
            assert!(alias.bytes <= alias.slot, "view {id} leaves its addresses");
            let mut offset = 0;
            for (place, map) in alias.maps.iter().enumerate() {
                assert_eq!(map.offset, offset, "mappings of view {id} follow each other");
                offset += map.bytes;
                if map.handle == NONE {
                    continue;
                }
                mappings += 1;
                let handle = handles.get(map.handle);
                assert_eq!(handle.bytes, map.bytes, "a handle is mapped whole");
                assert!(handle.aliases.contains(&(id, place as u32)), "a handle knows its views");
            }
            assert_eq!(offset, alias.bytes);
            let ends_mapped = alias.maps.last().is_some_and(|map| map.handle != NONE);
            assert!(alias.busy > 0 || ends_mapped, "view {id} ends in a gap");
        }
        assert_eq!(mappings, self.mappings, "mappings in views");
        let known: usize = handles.iter().map(|(_, handle)| handle.aliases.len()).sum();
        assert_eq!(known, mappings, "a handle is mapped where no view knows it");
        self.space.validate(self.iter().map(|(_, alias)| (alias.base, alias.slot)).collect());
    }
}
