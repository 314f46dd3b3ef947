//! Which slot of a cluster a key is in.
//!
//! The slot is CRC16 (XMODEM: polynomial `0x1021`, start 0) of the key, modulo 16384. If the key has a `{`, and after it a
//! `}` that is not the next byte, only what stands between these two counts: the hash tag. Source: the Redis cluster
//! specification, "Key distribution model". All limits of a key have one tag, so they are in one slot.

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16384;

/// The slot of a key.
pub(crate) fn of(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS
}

fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let after = key.get(open + 1..).unwrap_or_default();
    match after.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => after.get(..close).unwrap_or(key),
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let index = usize::from((crc >> 8) as u8 ^ byte);
        (crc << 8) ^ TABLE.get(index).copied().unwrap_or(0)
    })
}

/// The effect of each byte.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // `CLUSTER KEYSLOT` of a server says the same.
        for (key, slot) in [(&b"foo"[..], 12182), (b"hello", 866), (b"", 0)] {
            assert_eq!(of(key), slot, "{key:?}");
        }
    }

    #[test]
    fn only_the_tag_counts() {
        assert_eq!(of(b"{tidegate:api:ann}:requests"), of(b"tidegate:api:ann"));
        assert_eq!(of(b"{tidegate:api:a}b}:requests"), of(b"tidegate:api:a"));
        assert_eq!(tag(b"a{}b{c}"), b"a{}b{c}");
        assert_eq!(tag(b"a{b"), b"a{b");
    }
}
