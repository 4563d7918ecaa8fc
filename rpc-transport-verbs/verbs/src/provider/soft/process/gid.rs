//! The GID of a process, and the name of its listening socket, which is derived from the GID.

use std::io;
use std::sync::OnceLock;

use rustix::net::SocketAddrUnix;

use crate::types::Gid;

/// Returns the first bytes of the GIDs of this environment: the link-local prefix and a hash of the
/// environment. In a GID, the process id follows (4 bytes, big endian), then 6 random bytes,
/// because process ids are reused.
///
/// An environment is the scope in which processes can reach each other: one boot of one host, one
/// network namespace (which contains the abstract sockets), one PID namespace (both sides verify
/// each other's process ids) and one time namespace (both sides read the same clock). Two processes
/// whose GIDs have different prefixes cannot connect.
fn gid_prefix() -> [u8; 6] {
    static PREFIX: OnceLock<[u8; 6]> = OnceLock::new();
    *PREFIX.get_or_init(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "/proc cannot be read, so processes that can read it do not find this one: mount it"
            );
            Vec::new()
        });
        let namespace = |name: &str| {
            let link = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default();
            link.into_os_string().into_encoded_bytes()
        };
        let namespaces = ["net", "pid", "time"].map(namespace).concat();
        let location = [boot, namespaces].concat();
        let [a, b, c, d] = fnv_1a(&location).to_be_bytes();
        [0xfe, 0x80, a, b, c, d]
    })
}

/// Computes the 32-bit FNV-1a hash: it is the same in every build, which the standard library's
/// hashes need not be.
fn fnv_1a(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}

/// Creates a GID for this process. No other process will ever have it.
pub(crate) fn new_gid() -> io::Result<Gid> {
    let mut gid = [0; 16];
    gid[..6].copy_from_slice(&gid_prefix());
    gid[6..10].copy_from_slice(&std::process::id().to_be_bytes());
    rustix::rand::getrandom(&mut gid[10..], rustix::rand::GetRandomFlags::empty())?;
    Ok(Gid(gid))
}

/// Returns the id of the process that a GID names; `None` for a GID of another kind of device.
pub(super) fn process_of(gid: Gid) -> Option<u32> {
    let pid = gid.0.strip_prefix(&gid_prefix())?.first_chunk()?;
    Some(u32::from_be_bytes(*pid))
}

pub(super) fn address_of(gid: Gid) -> rustix::io::Result<SocketAddrUnix> {
    use std::fmt::Write;
    let mut name = String::from("verbline-soft-");
    for byte in gid.0 {
        // Writing to a String never fails.
        let _ = write!(name, "{byte:02x}");
    }
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}
