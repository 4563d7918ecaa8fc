//! The bytes that peers exchange, written down a second time for the attackers. When a format
//! changes, this folder changes with it, and no other file of the attacks does.
//!
//! - this file: GIDs, and the names of sockets;
//! - [`handshake`]: frames of the handshake (`proto/handshake.proto`), and requests of the core;
//! - [`links`]: messages of links (`link_message.rs` of the software device);
//! - [`memory`]: the layout of shared memory (`ring/mod.rs` and `wake.rs` of the software device);
//! - [`tcp`]: messages of TCP links (`link.rs` of the handshake, `wire/header.rs` of the software
//!   device).

pub(crate) mod handshake;
pub(crate) mod links;
pub(crate) mod memory;
pub(crate) mod tcp;

use std::{fs, io};

use rustix::net::SocketAddrUnix;

use benches::Outcome;

/// A GID of the software device.
pub(crate) type Gid = [u8; 16];

/// Returns a GID of this process in the environment of `server`; the same for the same number. The
/// first six bytes name the environment, the next four the process.
#[must_use]
pub(crate) fn own_gid(server: &Gid, number: u32) -> Gid {
    let mut gid = *server;
    gid[6..10].copy_from_slice(&std::process::id().to_be_bytes());
    gid[10..12].fill(0);
    gid[12..].copy_from_slice(&number.to_be_bytes());
    gid
}

const SOCKET_PREFIX: &str = "verbline-soft-";

/// Returns the address of the socket of a GID.
///
/// # Errors
///
/// Fails if the name is no valid address.
pub(crate) fn socket_of(gid: &Gid) -> io::Result<SocketAddrUnix> {
    let digits: String = gid.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{SOCKET_PREFIX}{digits}");
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// Returns the GIDs under which a process listens. Every user of the host may read them.
///
/// # Errors
///
/// Fails if the process has none.
pub(crate) fn gids_of(pid: u32) -> Outcome<Vec<Gid>> {
    let table = fs::read_to_string("/proc/net/unix")?;
    let gids: Vec<Gid> = table
        .lines()
        .filter_map(|line| {
            let (_, digits) = line.split_once(&format!("@{SOCKET_PREFIX}"))?;
            let gid = u128::from_str_radix(digits.trim_end(), 16).ok()?;
            Some(gid.to_be_bytes())
        })
        .filter(|gid: &Gid| gid[6..10] == pid.to_be_bytes())
        .collect();
    if gids.is_empty() {
        return Err(format!("process {pid} has no socket of the software device").into());
    }
    Ok(gids)
}
