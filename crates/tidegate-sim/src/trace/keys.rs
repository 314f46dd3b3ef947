//! Key texts to numbers: each distinct key is kept once and gets the next number.
//!
//! A table of slots with linear probing. A slot holds 32 bits of the hash and the number plus one, 0 when free, so a
//! look-up touches a key's text only when it is very likely the same. `HashMap<Box<str>, u32>` was rejected: the
//! arrivals need the texts as a list too, and the map would keep a second copy of each.
//!
//! Memory per distinct key: its text, 16 bytes for its place in the list, and 11 to 21 bytes of slots. The hash has a
//! random seed, so keys chosen by clients cannot be made to collide.

use std::hash::{BuildHasher, RandomState};

/// The keys so far.
#[derive(Debug)]
pub(super) struct KeyTable {
    names: Vec<Box<str>>,
    /// Upper half: the hash; lower half: number + 1. The length is a power of two, and at most 3/4 are in use.
    slots: Vec<u64>,
    hasher: RandomState,
}

impl KeyTable {
    pub(super) fn new() -> Self {
        Self { names: Vec::new(), slots: vec![0; 1_024], hasher: RandomState::new() }
    }

    /// The number of a key; `None` when it is new and there are 2^32 - 1 keys already.
    ///
    /// Bytes that are not UTF-8 become `\xNN` each, as Apache and nginx write them.
    pub(super) fn id(&mut self, key: &[u8]) -> Option<u32> {
        match self.find(key) {
            Ok(id) => Some(id),
            Err(slot) => match std::str::from_utf8(key) {
                Ok(name) => self.insert(slot, name.into()),
                Err(_) => {
                    let name = escaped(key);
                    match self.find(name.as_bytes()) {
                        Ok(id) => Some(id),
                        Err(slot) => self.insert(slot, name),
                    }
                }
            },
        }
    }

    pub(super) fn into_names(self) -> Vec<Box<str>> {
        self.names
    }

    /// The number of a key, or the free slot that it would get.
    fn find(&self, key: &[u8]) -> Result<u32, FreeSlot> {
        let hash = self.hash(key);
        let mut place = self.first_place(hash);
        loop {
            let slot = self.slots[place];
            if slot == 0 {
                return Err(FreeSlot { place, hash });
            }
            if (slot ^ hash) >> 32 == 0 {
                let id = id_of(slot);
                if self.names[id as usize].as_bytes() == key {
                    return Ok(id);
                }
            }
            place = (place + 1) & (self.slots.len() - 1);
        }
    }

    fn insert(&mut self, free: FreeSlot, name: Box<str>) -> Option<u32> {
        let id = u32::try_from(self.names.len()).ok().filter(|id| *id < u32::MAX)?;
        self.names.push(name);
        self.slots[free.place] = slot(free.hash, id);
        if self.names.len() * 4 > self.slots.len() * 3 {
            self.grow();
        }
        Some(id)
    }

    /// Doubles the slots. The texts are hashed again: keeping whole hashes would cost 4 bytes more per key.
    fn grow(&mut self) {
        let length = self.slots.len() * 2;
        // The old slots go first, so that both are never there at once.
        self.slots = Vec::new();
        self.slots = vec![0; length];
        for (id, name) in (0_u32..).zip(&self.names) {
            let hash = self.hash(name.as_bytes());
            let mut place = self.first_place(hash);
            while self.slots[place] != 0 {
                place = (place + 1) & (length - 1);
            }
            self.slots[place] = slot(hash, id);
        }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the place is masked to the length of the table")]
    fn first_place(&self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }
}

/// Where a key that is not there would go.
#[derive(Debug, Clone, Copy)]
struct FreeSlot {
    place: usize,
    hash: u64,
}

fn slot(hash: u64, id: u32) -> u64 {
    hash & !u64::from(u32::MAX) | (u64::from(id) + 1)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half of a used slot is a number of 32 bits plus one"
)]
fn id_of(slot: u64) -> u32 {
    (slot as u32) - 1
}

fn escaped(key: &[u8]) -> Box<str> {
    let mut name = String::with_capacity(key.len() + 12);
    for chunk in key.utf8_chunks() {
        name.push_str(chunk.valid());
        for byte in chunk.invalid() {
            name.push_str("\\x");
            for half in [byte >> 4, byte & 15] {
                name.push(char::from(b"0123456789ABCDEF"[usize::from(half)]));
            }
        }
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_first_appearance_through_growth() {
        let mut table = KeyTable::new();
        for round in 0..2 {
            for id in 0..10_000 {
                assert_eq!(table.id(format!("key {id}").as_bytes()), Some(id), "round {round}");
            }
        }
        assert_eq!(table.into_names().len(), 10_000);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        let mut table = KeyTable::new();
        assert_eq!(table.id(b"caf\xe9"), Some(0));
        assert_eq!(table.id(b""), Some(1));
        assert_eq!(table.id("caf\u{e9}".as_bytes()), Some(2));
        assert_eq!(table.id(b"caf\xe9"), Some(0));
        let names: Vec<&str> = table.names.iter().map(AsRef::as_ref).collect();
        assert_eq!(names, ["caf\\xE9", "", "caf\u{e9}"]);
    }
}
