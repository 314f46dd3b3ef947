//! Taking a charge back in the flat table.

use tidegate_core::algorithm::Charged;

use super::set::{SLOTS, key_word};
use super::{Flat, Ordering};

impl Flat {
    /// Takes a charge of the only limit back, at the time that `now` reads under the lock; says that time and the units.
    /// `None` if nothing comes back.
    pub(in crate::limiter) fn refund(
        &self,
        hash: u64,
        tier: u8,
        charged: &Charged,
        now: impl FnOnce() -> u64,
    ) -> Option<(u64, u128)> {
        let locked = self.set(hash).lock();
        let slot = locked.set.find(key_word(hash, tier))?;
        // When a slot was given away after the call, it may have been that of this key, and its debt is forgotten with it.
        let given = locked.set.given().load(Ordering::Relaxed);
        let has_room = (1..=SLOTS).any(|slot| locked.set.key(slot) == 0);
        if given >= charged.at && !(given == 0 && has_room) {
            return None;
        }
        let now = now();
        let bucket = self.bucket(locked.version, tier, 0);
        // At most the cost that was charged, and so a `u64`.
        let units = u64::try_from(charged.units(bucket.token, bucket.unit, now)).ok()?;
        let full_at = locked.set.full_at(slot, 0);
        locked.set.set_full_at(slot, 0, full_at.saturating_sub(units));
        (units > 0).then_some((now, u128::from(units)))
    }
}
