//! Full buckets in a slot that moves from one node of a cluster to another.
//!
//! A full bucket is a key that is not there. While a slot moves, the node that gets it answers a script of several keys with
//! `TRYAGAIN` as long as one of them is not there, as that one could be still to come. A full bucket never comes, so the limits
//! of a tenant who was idle could not be decided until the whole slot has moved, which can take minutes.
//!
//! So the node that gives the slot away is asked for each key. What is not there now does not come into being there either: that
//! node sends everyone who asks for it to the other one (`ASK`). Such a bucket is full, unless the other node has it; it is
//! written there as full, if it is not there, with a second to live. A key that is still at the old node is left alone.

use crate::fault::Fault;
use crate::script::Take;
use crate::up::Up;

/// Writes down at `to` which of these buckets are full. Says whether there were any.
pub(crate) async fn fill<'a>(
    takes: impl Iterator<Item = &'a Take> + Send,
    from: &Up,
    to: &Up,
) -> Result<bool, Fault> {
    let mut any = false;
    for take in takes {
        if absent(from, &take.key).await? {
            let (capacity, rate) = (take.bucket.capacity(), take.bucket.rate());
            // Full since the beginning of time.
            let state = format!("{capacity} 0 {capacity} {rate}");
            let mut set = redis::cmd("SET");
            set.arg(&*take.key).arg(state).arg("NX").arg("PX").arg(1000);
            to.ask(&set).await?;
            any = true;
        }
    }
    Ok(any)
}

/// Whether a node that gives the slot of a key away has not got the key any more, and will not get it.
async fn absent(from: &Up, key: &[u8]) -> Result<bool, Fault> {
    match from.look(key).await {
        Ok(()) => Ok(false),
        Err(Fault::Redirect { ask: true, .. }) => Ok(true),
        Err(fault) => Err(fault),
    }
}
