//! Who is answered beside HTTP, as the admin address shows it: Redis clients and Envoys.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tidegate_server::resp::Resp;
use tidegate_server::rls::Rls;

use super::series::{Series, Tally};
use super::state::Seconds;

/// A server, where it is, and its last minute.
#[derive(Debug)]
pub(super) struct Side<S> {
    pub(super) server: S,
    address: SocketAddr,
    series: Mutex<Series>,
}

#[derive(Debug, Serialize)]
pub(super) struct RespState {
    address: String,
    commands: u64,
    allowed: u64,
    rejected: u64,
    errors: u64,
    connections: u64,
    connections_refused: u64,
    connections_open: u64,
    slots: usize,
    evicted: u64,
    seconds: Seconds,
}

#[derive(Debug, Serialize)]
pub(super) struct GrpcState {
    address: String,
    requests: u64,
    allowed: u64,
    rejected: u64,
    errors: u64,
    in_flight: u64,
    connections: u64,
    connections_open: u64,
    seconds: Seconds,
}

impl<S> Side<S> {
    pub(super) fn new(server: S, address: SocketAddr) -> Self {
        Self { server, address, series: Mutex::default() }
    }

    fn series(&self) -> MutexGuard<'_, Series> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Side<Resp> {
    pub(super) fn end_second(&self) {
        let counts = self.server.counts();
        self.series().end_second(Tally { allowed: counts.allowed, rejected: counts.rejected });
    }

    pub(super) fn state(&self) -> RespState {
        let counts = self.server.counts();
        RespState {
            address: self.address.to_string(),
            commands: counts.commands,
            allowed: counts.allowed,
            rejected: counts.rejected,
            errors: counts.errors,
            connections: counts.connections,
            connections_refused: counts.connections_refused,
            connections_open: counts.connections_open,
            slots: self.server.slots(),
            evicted: counts.evicted,
            seconds: Seconds::of(&self.series()),
        }
    }
}

impl Side<Rls> {
    pub(super) fn end_second(&self) {
        let counts = self.server.counts();
        self.series().end_second(Tally { allowed: counts.allowed, rejected: counts.rejected });
    }

    pub(super) fn state(&self) -> GrpcState {
        let counts = self.server.counts();
        GrpcState {
            address: self.address.to_string(),
            requests: counts.requests,
            allowed: counts.allowed,
            rejected: counts.rejected,
            errors: counts.errors,
            in_flight: counts.in_flight,
            connections: counts.connections,
            connections_open: counts.connections_open,
            seconds: Seconds::of(&self.series()),
        }
    }
}
