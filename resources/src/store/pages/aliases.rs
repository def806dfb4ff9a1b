//! The table of alias mappings: handles mapped a second time, one after the other.

use crate::store::pages::address_space::Space;
use crate::store::pages::handles::{AliasId, HandleId, Handles, NONE};

/// A mapping in an alias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    /// `NONE` if the handle was unmapped.
    pub(super) handle: HandleId,
    /// From the start of the alias, in bytes.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Counts all mappings ever made in aliases, so that the older of two has the smaller number.
    pub(super) number: u64,
}

/// Contiguous addresses at which handles are mapped one after the other.
#[derive(Debug)]
pub(super) struct Alias {
    pub(super) base: u64,
    /// Bytes of addresses kept for this alias.
    pub(super) slot: u64,
    /// Mapped bytes, from the start of the addresses.
    pub(super) bytes: u64,
    pub(super) maps: Vec<Map>,
    /// The number of plans and releases under way that map or unmap here. Until they end, the alias keeps its
    /// end.
    pub(super) busy: u32,
    /// Whether a handle past its end could not be unmapped. The alias must then not be extended.
    pub(super) is_closed: bool,
    /// The number of the last block in this alias, counted over the blocks of all aliases.
    pub(super) used: u64,
}

impl Alias {
    /// Returns the address of a mapping.
    pub(super) fn addr(&self, place: usize) -> u64 {
        self.base + self.maps[place].offset
    }

    /// Returns whether more handles may be mapped after its end.
    pub(super) fn may_extend(&self) -> bool {
        self.busy == 0 && !self.is_closed
    }
}

/// All aliases.
#[derive(Debug, Default)]
pub(super) struct Aliases {
    table: Vec<Option<Alias>>,
    vacant: Vec<AliasId>,
    pub(super) space: Space,
    /// The number of mappings in all aliases.
    pub(super) mappings: usize,
    /// The number of mappings ever made.
    made: u64,
    /// The number of blocks ever stitched or served in aliases.
    blocks: u64,
}

impl Aliases {
    pub(super) fn get(&self, id: AliasId) -> &Alias {
        self.table[id as usize].as_ref().expect("an alias in the tables exists")
    }

    pub(super) fn get_mut(&mut self, id: AliasId) -> &mut Alias {
        self.table[id as usize].as_mut().expect("an alias in the tables exists")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (AliasId, &Alias)> {
        (0..).zip(&self.table).filter_map(|(id, alias)| Some((id, alias.as_ref()?)))
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

    /// Notes that an alias serves a block.
    pub(super) fn note_block(&mut self, id: AliasId) {
        self.blocks += 1;
        self.get_mut(id).used = self.blocks;
    }

    /// Adds a mapping at the end of an alias.
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

    /// Removes a mapping from the table, and returns its address for the caller to unmap. The alias is busy
    /// until then.
    pub(super) fn forget(&mut self, id: AliasId, place: usize) -> u64 {
        self.mappings -= 1;
        let alias = self.get_mut(id);
        alias.maps[place].handle = NONE;
        alias.addr(place)
    }

    /// Ends a plan or a release that was under way in an alias; `is_clean` says whether it unmapped
    /// everything it should. An idle alias ends with its last mapping, and is removed if it has none.
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

    /// Returns the handle mapped at an address in an alias, and the address of its mapping. It walks all
    /// aliases: only error paths and exports call this.
    pub(super) fn at(&self, addr: u64) -> Option<(HandleId, u64)> {
        let (_, alias) =
            self.iter().find(|(_, alias)| addr >= alias.base && addr - alias.base < alias.bytes)?;
        let map = alias.maps.iter().find(|map| addr - alias.base < map.offset + map.bytes)?;
        (map.handle != NONE).then_some((map.handle, alias.base + map.offset))
    }

    /// Returns the address and bytes of all mappings.
    pub(super) fn mapped(&self) -> impl Iterator<Item = (u64, u64)> {
        let mapped_in = |alias: &'_ Alias| {
            let maps = alias.maps.iter().filter(|map| map.handle != NONE);
            let base = alias.base;
            maps.map(move |map| (base + map.offset, map.bytes)).collect::<Vec<_>>()
        };
        self.iter().flat_map(move |(_, alias)| mapped_in(alias))
    }

    /// Panics if aliases and handles disagree.
    pub(super) fn validate(&self, handles: &Handles) {
        let mut mappings = 0;
        for (id, alias) in self.iter() {
            assert!(alias.bytes <= alias.slot, "alias {id} exceeds its addresses");
            let mut offset = 0;
            for (place, map) in alias.maps.iter().enumerate() {
                assert_eq!(map.offset, offset, "mappings of alias {id} have a gap");
                offset += map.bytes;
                if map.handle == NONE {
                    continue;
                }
                mappings += 1;
                let handle = handles.get(map.handle);
                assert_eq!(handle.bytes, map.bytes, "a handle is mapped in part");
                assert!(handle.aliases.contains(&(id, place as u32)), "a handle lacks one of its aliases");
            }
            assert_eq!(offset, alias.bytes);
            let ends_mapped = alias.maps.last().is_some_and(|map| map.handle != NONE);
            assert!(alias.busy > 0 || ends_mapped, "alias {id} ends in a gap");
        }
        assert_eq!(mappings, self.mappings, "mappings in aliases");
        let known: usize = handles.iter().map(|(_, handle)| handle.aliases.len()).sum();
        assert_eq!(known, mappings, "a handle names an alias that does not have it");
        self.space.validate(self.iter().map(|(_, alias)| (alias.base, alias.slot)).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While a plan or a release is under way, or after a handle stayed mapped, nothing is mapped after the
    /// end.
    #[test]
    fn an_alias_is_extended_only_while_nothing_is_under_way_and_all_went_well() {
        let mut aliases = Aliases::default();
        let id = aliases.add(1 << 40, 64 << 20);
        let map = Map { handle: 0, offset: 0, bytes: 2 << 20, number: 0 };
        aliases.get_mut(id).maps.push(map);
        assert!(aliases.get(id).may_extend());
        for (is_clean, may_extend) in [(true, true), (false, false), (true, false)] {
            aliases.get_mut(id).busy += 2;
            aliases.end_work(id, is_clean);
            assert!(!aliases.get(id).may_extend(), "one of two is still under way");
            aliases.end_work(id, true);
            assert_eq!(aliases.get(id).may_extend(), may_extend);
        }
    }
}
