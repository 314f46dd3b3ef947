//! Integers for a script, as one argument: an array in `MessagePack`, which the server reads in one call.
//!
//! As arguments of their own they cost the server a string each, twice, and a conversion. Only three of the forms of
//! integers are used: <https://github.com/msgpack/msgpack/blob/master/spec.md>.

/// The array so far.
#[derive(Debug)]
pub(super) struct Numbers {
    count: u32,
    /// Begins with the head, whose count is put in at the end.
    bytes: Vec<u8>,
}

/// An array whose count takes 32 bits.
const ARRAY: u8 = 0xdd;
const INT_32: u8 = 0xd2;
const INT_64: u8 = 0xd3;
/// The kind and the count.
const HEAD: usize = 5;

impl Numbers {
    pub(super) fn with_capacity(numbers: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEAD + 3 * numbers);
        bytes.extend_from_slice(&[ARRAY, 0, 0, 0, 0]);
        Self { count: 0, bytes }
    }

    pub(super) fn push(&mut self, number: i64) {
        self.count += 1;
        if let Ok(byte @ -32..) = i8::try_from(number) {
            self.bytes.extend_from_slice(&byte.to_be_bytes());
        } else if let Ok(number) = i32::try_from(number) {
            self.bytes.push(INT_32);
            self.bytes.extend_from_slice(&number.to_be_bytes());
        } else {
            self.bytes.push(INT_64);
            self.bytes.extend_from_slice(&number.to_be_bytes());
        }
    }

    pub(super) fn packed(mut self) -> Vec<u8> {
        let counts = self.bytes.iter_mut().skip(1);
        for (byte, count) in counts.zip(self.count.to_be_bytes()) {
            *byte = count;
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;

    #[test]
    fn the_server_reads_the_numbers_that_were_packed() {
        let server = Server::start(&[]);
        let mut connection = server.connection();
        // Around the ends of each form, and the largest that a double can count.
        let ends = [0, 32, 128, 1 << 15, 1 << 16, 1 << 31, 1 << 32, (1 << 53) - 2];
        let mut numbers = Numbers::with_capacity(0);
        let mut expected = Vec::new();
        for number in ends.iter().flat_map(|end| [-end - 1, -end, 1 - end, end - 1, *end, end + 1]) {
            numbers.push(number);
            expected.push(number);
        }
        let told: Vec<i64> = redis::cmd("EVAL")
            .arg("return cmsgpack.unpack(ARGV[1])")
            .arg(0)
            .arg(numbers.packed())
            .query(&mut connection)
            .unwrap();
        assert_eq!(told, expected);
    }
}
