//! Passwords and tokens.

/// Compares in a time that tells nothing but the lengths.
pub(crate) fn is_same(given: &[u8], secret: &[u8]) -> bool {
    given.len() == secret.len() && given.iter().zip(secret).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}
