//! Other limits for a layer that is in use.

use std::sync::{Arc, PoisonError};

use super::RateLimit;
use super::build::{RateLimitBuilder, RateLimitError};

/// What became of the limits when they were replaced, from [`RateLimit::replace`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Replaced {
    /// Limits whose keys have spent what they had spent.
    pub kept: Vec<Arc<str>>,
    /// Limits in which every key starts with all there is: new ones, and those that are counted another way now.
    pub fresh: Vec<Arc<str>>,
}

impl RateLimit {
    /// Puts the limits of `builder` in force instead of those that this layer has, for all clones and services of it.
    /// Requests that are decided go on as they are.
    ///
    /// **Debts carry over** in a limit that has the name, the key, the kind of algorithm, the room and the rule of one that was
    /// there: every key stays as full in proportion as it was, also if its quota is another one now. The places in flight are
    /// those that they were. The clock stays; that of `builder` is not used. It takes a walk through the tables of limits
    /// whose quotas change, some milliseconds for a million keys, during which requests are decided.
    ///
    /// ```
    /// use tidegate_http::{RateLimit, RequestLimit};
    ///
    /// let layer = RateLimit::per_client("10/s burst 20");
    /// let limit = |quota| RateLimit::builder().limit(RequestLimit::new("per-client", quota));
    /// let replaced = layer.replace(limit("5/s burst 10"))?;
    /// assert_eq!(replaced.kept, ["per-client".into()]);
    /// assert!(layer.replace(limit("5 a second")).is_err());
    /// # Ok::<(), tidegate_http::RateLimitError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`RateLimitBuilder::build`]: then nothing has changed.
    pub fn replace(&self, builder: RateLimitBuilder) -> Result<Replaced, RateLimitError> {
        let _alone = self.shared.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = self.shared.desk.load_full();
        let (mut desk, changes) = builder.desk(Some(&previous))?;
        let mut replaced = Replaced::default();
        for (entry, changes) in desk.limits.iter_mut().zip(changes) {
            let is_kept = previous.limit(&entry.name).is_some_and(|old| old.shares_table(entry));
            let is_kept = entry.change(&changes) && is_kept;
            let list = if is_kept { &mut replaced.kept } else { &mut replaced.fresh };
            list.push(Arc::clone(&entry.name));
        }
        let max_per_key = desk.per_key.as_ref().map(|per_key| per_key.max);
        desk.places.lock().set_max(desk.max_in_flight, max_per_key);
        self.shared.desk.store(Arc::new(desk));
        Ok(replaced)
    }
}
