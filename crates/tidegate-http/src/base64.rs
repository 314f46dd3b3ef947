//! Base64 (RFC 4648), read: for the byte sequences of structured fields and the status of gRPC.

/// Base64 with or without its padding; bits that are left over are not looked at (RFC 9651, section 4.2.7).
pub(crate) fn decode(encoded: &[u8]) -> Option<Box<[u8]>> {
    let padding = encoded.iter().rev().take_while(|byte| **byte == b'=').count();
    let digits = &encoded[..encoded.len() - padding];
    if padding > 2 || (padding > 0 && !encoded.len().is_multiple_of(4)) || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut bits, mut held) = (0_u32, 0);
    for digit in digits {
        let sextet = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(sextet);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff) as u8);
        }
    }
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_with_and_without_padding() {
        for (text, expected) in [
            ("", Some("")),
            ("Zg==", Some("f")),
            ("Zg", Some("f")),
            ("Zm8=", Some("fo")),
            ("Zm8", Some("fo")),
            ("Zm9v", Some("foo")),
            ("Zm9vYmFy", Some("foobar")),
            ("Zm9v!", None),
            ("Zm=v", None),
            ("Zm9vY", None),
            ("Zg=", None),
            ("Zg===", None),
        ] {
            assert_eq!(decode(text.as_bytes()).as_deref(), expected.map(str::as_bytes), "{text}");
        }
    }
}
