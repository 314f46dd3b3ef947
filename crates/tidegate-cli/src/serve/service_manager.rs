//! Who started this server, if that is a service manager that asked to be told how far it is: systemd, by `Type=notify`.

use sd_notify::NotifyState;

use crate::fault::warn;

/// All addresses are open.
pub(super) fn ready() {
    tell(NotifyState::Ready);
}

/// No further connection is taken.
pub(super) fn draining() {
    tell(NotifyState::Stopping);
}

/// Does nothing where nobody asked.
fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        warn(&format!("cannot tell the service manager, whose socket NOTIFY_SOCKET names: {error}"));
    }
}
