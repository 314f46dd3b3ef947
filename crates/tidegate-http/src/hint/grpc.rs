//! The status of gRPC in a trailer: `google.rpc.Status` in base64, and the `RetryInfo` among its details.
//!
//! The few fields are read by hand: `Status { 3: repeated Any }`, `Any { 1: type_url, 2: value }`,
//! `RetryInfo { 1: Duration }`, `Duration { 1: seconds, 2: nanos }`.

use super::number::SECOND;
use crate::base64;

/// How many details of a status are looked at.
const DETAILS_MAX: usize = 64;

/// The longest delay of the `RetryInfo`s in a status, in nanoseconds. A negative one is none.
pub(super) fn retry_delay(encoded: &[u8]) -> Option<u128> {
    let status = base64::decode(encoded)?;
    let details = Fields(&status).filter(|(number, _)| *number == 3).take(DETAILS_MAX);
    details
        .filter_map(|(_, detail)| {
            let Field::Bytes(detail) = detail else { return None };
            let bytes = |wanted| {
                Fields(detail).find_map(move |(number, field)| match field {
                    Field::Bytes(bytes) if number == wanted => Some(bytes),
                    _ => None,
                })
            };
            bytes(1).filter(|url| url.ends_with(b"google.rpc.RetryInfo"))?;
            // A message that is empty is not sent: then the delay is zero.
            let info = bytes(2).unwrap_or_default();
            let delay = Fields(info).find_map(|(number, field)| match field {
                Field::Bytes(bytes) if number == 1 => Some(bytes),
                _ => None,
            })?;
            duration(delay)
        })
        .max()
}

fn duration(message: &[u8]) -> Option<u128> {
    let (mut seconds, mut nanos) = (0_i64, 0_i64);
    for (number, field) in Fields(message) {
        let Field::Number(value) = field else { continue };
        match number {
            1 => seconds = value.cast_signed(),
            2 => nanos = value.cast_signed(),
            _ => {}
        }
    }
    let nanos = u64::try_from(nanos).ok().filter(|nanos| *nanos < SECOND)?;
    Some(u128::from(u64::try_from(seconds).ok()?) * u128::from(SECOND) + u128::from(nanos))
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// The fields of a protobuf message; it ends at the first that cannot be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.bytes(8).map(|_| Field::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.bytes(length)?)
            }
            5 => self.bytes(4).map(|_| Field::Fixed)?,
            _ => return None,
        };
        Some((key >> 3, field))
    }
}

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_info_is_found_and_broken_messages_are_none() {
        let text = b"CAgSAXEaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIHg";
        assert_eq!(retry_delay(text), Some(30_000_000_000));
        for cut in 0..text.len() - 2 {
            assert_eq!(retry_delay(&text[..cut]), None, "{cut}");
        }
        assert_eq!(retry_delay(b"not base64"), None);
        // seconds: 1, nanos: 500_000_000; and -1 in ten bytes.
        assert_eq!(duration(&[8, 1, 16, 0x80, 0xca, 0xb5, 0xee, 1]), Some(1_500_000_000));
        assert_eq!(duration(&[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]), None);
        assert_eq!(duration(&[16, 0x80, 0x94, 0xeb, 0xdc, 3]), None, "a whole second in nanos");
    }
}
