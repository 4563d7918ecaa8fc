//! The bytes that peers exchange, written down a second time for the attackers: frames of the
//! handshake (`proto/handshake.proto`), messages of links (`link_message.rs` of the software
//! device), and the layout of shared memory (`ring/mod.rs`, `wake.rs`). When one of those changes,
//! this module changes with it, and no other file of the attacks does.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::{fs, io};

use prost::Message;
use rpc_core::frame::{CallId, FrameHeader, FrameKind, HEADER_LEN};
use rpc_core::session::{ClientSession, ServerSession};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::SocketAddrUnix;

use crate::Outcome;

// ---- GIDs ----

/// A GID of the software device.
pub type Gid = [u8; 16];

/// Returns the bytes with which the GIDs of this environment begin: the link-local prefix, and a
/// hash of the boot and the namespaces.
fn gid_prefix() -> io::Result<[u8; 6]> {
    let mut location = fs::read("/proc/sys/kernel/random/boot_id")?;
    for name in ["net", "pid"] {
        let link = fs::read_link(format!("/proc/self/ns/{name}"))?;
        location.extend(link.into_os_string().into_encoded_bytes());
    }
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let [a, b, c, d] = location.iter().fold(0x811c_9dc5, step).to_be_bytes();
    Ok([0xfe, 0x80, a, b, c, d])
}

/// Returns a GID of this process; the same for the same number.
///
/// # Errors
///
/// Fails if the namespaces cannot be read.
pub fn own_gid(number: u32) -> io::Result<Gid> {
    let mut gid = [0; 16];
    gid[..6].copy_from_slice(&gid_prefix()?);
    gid[6..10].copy_from_slice(&std::process::id().to_be_bytes());
    gid[12..].copy_from_slice(&number.to_be_bytes());
    Ok(gid)
}

const SOCKET_PREFIX: &str = "verbline-soft-";

/// Returns the address of the socket of a GID.
///
/// # Errors
///
/// Fails if the name is no valid address.
pub fn socket_of(gid: &Gid) -> io::Result<SocketAddrUnix> {
    let digits: String = gid.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{SOCKET_PREFIX}{digits}");
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// Returns the GIDs under which a process listens. Every user of the host may read them.
///
/// # Errors
///
/// Fails if the process has none.
pub fn gids_of(pid: u32) -> Outcome<Vec<Gid>> {
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

// ---- frames of the handshake ----

/// An endpoint of a hello.
#[derive(Clone, PartialEq, Message)]
pub struct Endpoint {
    /// Kind of device.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Name of the device.
    #[prost(string, tag = "2")]
    pub device: String,
    /// GID of the port.
    #[prost(bytes = "vec", tag = "3")]
    pub gid: Vec<u8>,
    /// MTU in bytes.
    #[prost(uint32, tag = "4")]
    pub mtu: u32,
    /// Number of the queue pair.
    #[prost(uint32, tag = "5")]
    pub qp_number: u32,
    /// Packet sequence number of the sender's first packet.
    #[prost(uint32, tag = "6")]
    pub psn: u32,
}

/// The client's first message.
#[derive(Clone, PartialEq, Message)]
pub struct ClientHello {
    /// One endpoint for each device.
    #[prost(message, repeated, tag = "1")]
    pub endpoints: Vec<Endpoint>,
    /// Longest frame that the client can receive.
    #[prost(uint32, tag = "2")]
    pub max_frame_len: u32,
    /// The session message.
    #[prost(bytes = "vec", tag = "3")]
    pub session: Vec<u8>,
}

/// The server's response to an admitted client.
#[derive(Clone, PartialEq, Message)]
pub struct ServerHello {
    /// The server's endpoint.
    #[prost(message, optional, tag = "1")]
    pub endpoint: Option<Endpoint>,
    /// The session message.
    #[prost(bytes = "vec", tag = "3")]
    pub session: Vec<u8>,
}

/// The client's last message.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Ready {}

/// The server's response to a rejected client.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Refusal {
    /// The reason.
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// The body of a frame.
#[derive(Clone, PartialEq, Message)]
pub struct Handshake {
    /// The message.
    #[prost(oneof = "Body", tags = "1, 2, 3, 4")]
    pub body: Option<Body>,
}

/// A message of the handshake.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Body {
    /// See [`ClientHello`].
    #[prost(message, tag = "1")]
    ClientHello(ClientHello),
    /// See [`ServerHello`].
    #[prost(message, tag = "2")]
    ServerHello(ServerHello),
    /// See [`Ready`].
    #[prost(message, tag = "3")]
    Ready(Ready),
    /// See [`Refusal`].
    #[prost(message, tag = "4")]
    Refusal(Refusal),
}

const HANDSHAKE_VERSION: u16 = 2;
const PROLOGUE_LEN: usize = 14;

/// Returns the hello of a client whose only endpoint has this GID, queue pair and PSN.
#[must_use]
pub fn client_hello(gid: &Gid, qp_number: u32, psn: u32) -> Body {
    Body::ClientHello(ClientHello {
        endpoints: vec![Endpoint {
            kind: "soft".to_owned(),
            device: "soft".to_owned(),
            gid: gid.to_vec(),
            mtu: 4096,
            qp_number,
            psn,
        }],
        max_frame_len: 4200,
        session: ClientSession::new(16).encode_to_vec(),
    })
}

/// Sends a message of the handshake.
///
/// # Errors
///
/// Fails if the socket does.
pub fn send_frame(mut stream: &TcpStream, body: Body) -> io::Result<()> {
    let message = Handshake { body: Some(body) }.encode_to_vec();
    let mut frame = b"VBLN".to_vec();
    frame.extend(HANDSHAKE_VERSION.to_be_bytes());
    frame.extend((message.len() as u32).to_be_bytes());
    frame.extend(HANDSHAKE_VERSION.to_be_bytes());
    frame.extend(HANDSHAKE_VERSION.to_be_bytes());
    frame.extend(message);
    stream.write_all(&frame)
}

/// Receives a message of the handshake.
///
/// # Errors
///
/// Fails if the socket does, or if the message is not one of this version.
pub fn receive_frame(mut stream: &TcpStream) -> Outcome<Body> {
    let mut prologue = [0; PROLOGUE_LEN];
    stream.read_exact(&mut prologue)?;
    let [.., a, b, c, d, _, _, _, _] = prologue;
    let mut message = vec![0; u32::from_be_bytes([a, b, c, d]).min(1 << 16) as usize];
    stream.read_exact(&mut message)?;
    let handshake = Handshake::decode(&message[..])?;
    handshake.body.ok_or_else(|| "an empty frame".into())
}

/// Returns the numbers of the server's methods from its session message.
///
/// # Errors
///
/// Fails if the session does not decode or has no such method.
pub fn method_number(session: &[u8], path: &str) -> Outcome<u16> {
    let session = ServerSession::decode(session)?;
    let mut methods = session.methods.iter();
    let found = methods.find(|method| method.path == path);
    let found = found.ok_or_else(|| format!("the server has no method {path}"))?;
    Ok(u16::try_from(found.number)?)
}

// ---- messages of links ----

/// Version of the layout of shared memory.
const LAYOUT_VERSION: u32 = 3;

const HELLO: u32 = 0x4c42_4556;
const ARENA: u32 = 1;
const ATTACH: u32 = 5;

/// Longest message of a link.
pub const MAX_PACKET: usize = 64;

/// Returns the first message of a link.
#[must_use]
pub fn link_hello(gid: &Gid) -> Vec<u8> {
    packet(HELLO, &[&LAYOUT_VERSION.to_le_bytes(), gid])
}

/// Returns the announcement of an arena, which needs one file.
#[must_use]
pub fn link_arena(number: u64) -> Vec<u8> {
    packet(ARENA, &[&number.to_le_bytes()])
}

/// Returns the announcement of a ring in which the queue pair `from` receives from `to`. The files
/// are those of [`PeerFiles`].
#[must_use]
pub fn link_attach(from: u32, to: u32) -> Vec<u8> {
    let (context, ready_index) = (1_u32, 0_u32);
    let fields = [from, to, context, ready_index].map(u32::to_le_bytes);
    packet(ATTACH, &fields.each_ref().map(|field| &field[..]))
}

/// Returns the index of the ready bit if the message is an attachment.
#[must_use]
pub fn ready_index(packet: &[u8]) -> Option<u32> {
    let [a, b, c, d] = *packet.strip_prefix(&ATTACH.to_le_bytes())?.last_chunk()?;
    Some(u32::from_le_bytes([a, b, c, d]))
}

fn packet(kind: u32, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    for field in fields {
        bytes.extend_from_slice(field);
    }
    bytes
}

/// The files by which the other side sends to one.
#[derive(Debug)]
pub struct PeerFiles {
    /// The ring.
    pub ring: OwnedFd,
    /// The ready bits, with the sleep note.
    pub ready_bits: OwnedFd,
    /// The files that wake the receiver.
    pub wake: Vec<OwnedFd>,
}

impl PeerFiles {
    /// Sorts the files that came with a server's messages, up to and including its attachment.
    ///
    /// # Errors
    ///
    /// Fails if some are missing.
    pub fn of(files: Vec<OwnedFd>) -> Outcome<Self> {
        match <[OwnedFd; 4]>::try_from(files) {
            Ok([ring, ready_bits, wake, engine]) => Ok(Self {
                ring,
                ready_bits,
                wake: vec![wake, engine],
            }),
            Err(files) => Err(format!("the server attached {} files", files.len()).into()),
        }
    }
}

// ---- shared memory ----

const SLOT_COUNT: u64 = 128;
const SLOT_LEN: u64 = 256;
const SLOTS_OFFSET: u64 = 256;
/// Bytes of a slot before its payload.
const SLOT_HEADER_LEN: u64 = 16;
/// Bytes of a ring.
const RING_LEN: u64 = SLOTS_OFFSET + SLOT_COUNT * SLOT_LEN;
/// Offset of the acknowledgement in a ring.
pub const ACK_OFFSET: u64 = 64;
/// Offset of a ring's state, which is followed by its mark.
const STATE_OFFSET: u64 = 128;
/// Bytes of the ready bits.
pub const READY_BITS_LEN: usize = 128 + 512 * 8;
/// Offset of the words of ready bits; the words' own bits come first.
const READY_WORDS_OFFSET: u64 = 128;
/// Offset of the sleep note among the ready bits.
const SLEEP_NOTE_OFFSET: u64 = 64;

/// Creates memory for a peer. It has the seals that the server wants, and `len` bytes that no memory
/// backs.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub fn shared_memory(len: u64, extra: SealFlags) -> io::Result<OwnedFd> {
    let file = memfd_create("attack", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | extra)?;
    Ok(file)
}

/// Creates a ring that accepts messages after `psn`, and whose receiver always wants to be woken.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub fn ring(psn: u32) -> io::Result<OwnedFd> {
    let file = shared_memory(RING_LEN.next_multiple_of(4096), SealFlags::SEAL)?;
    let mut preamble = b"VBLNring".to_vec();
    preamble.extend(LAYOUT_VERSION.to_le_bytes());
    preamble.extend((SLOT_COUNT as u32).to_le_bytes());
    preamble.extend(u64::from(psn).to_le_bytes());
    write_at(&file, &preamble, 0)?;
    write_at(&file, &u64::from(psn).to_le_bytes(), ACK_OFFSET)?;
    // Ready, and the mark is armed.
    write_at(&file, &[1, 0, 0, 0, 1, 0, 0, 0], STATE_OFFSET)?;
    Ok(file)
}

/// Creates ready bits whose note says that the context sleeps and that nobody polls it.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub fn sleeping_bits() -> io::Result<OwnedFd> {
    let len = READY_BITS_LEN.next_multiple_of(4096) as u64;
    let file = shared_memory(len, SealFlags::SEAL)?;
    write_at(&file, &[1, 0, 0, 0, 1, 0, 0, 0], SLEEP_NOTE_OFFSET)?;
    Ok(file)
}

fn slot(sequence: u64) -> u64 {
    SLOTS_OFFSET + sequence % SLOT_COUNT * SLOT_LEN
}

/// Writes a message into a ring and commits it.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub fn commit(ring: impl AsFd, sequence: u64, message: &[u8]) -> io::Result<()> {
    let at = slot(sequence);
    write_at(&ring, message, at + SLOT_HEADER_LEN)?;
    let word = (message.len() as u64) << 32 | sequence & 0xffff_ffff;
    write_at(&ring, &word.to_le_bytes(), at)
}

/// Returns true if the message with this sequence number has been committed.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub fn is_committed(ring: impl AsFd, sequence: u64) -> io::Result<bool> {
    let mut word = [0; 8];
    rustix::io::pread(&ring, &mut word, slot(sequence))?;
    Ok(u64::from_le_bytes(word) & 0xffff_ffff == sequence & 0xffff_ffff)
}

/// Tells the receiver of a ring that it has messages. The bits of one byte are not set in one step,
/// which is good enough for an attacker.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub fn announce(files: &PeerFiles, index: u32) -> io::Result<()> {
    let set = |offset: u64, bit: u64| {
        let (at, mut byte) = (offset + bit / 8, [0]);
        rustix::io::pread(&files.ready_bits, &mut byte, at)?;
        write_at(&files.ready_bits, &[byte[0] | 1 << (bit % 8)], at)
    };
    let word = u64::from(index / 64);
    set(READY_WORDS_OFFSET, u64::from(index))?;
    set(0, word)?;
    // A full file wakes its reader as well.
    let _ = rustix::io::write(&files.wake[0], &1_u64.to_ne_bytes());
    Ok(())
}

/// Writes bytes into shared memory.
///
/// # Errors
///
/// Fails if the kernel refuses it.
pub fn write_at(file: impl AsFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    match rustix::io::pwrite(file, bytes, offset)? {
        len if len == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

// ---- frames of the core ----

/// Returns the frame of a request.
#[must_use]
pub fn request(method: u16, generation: u32, message: &impl Message) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    let header = FrameHeader {
        kind: FrameKind::Request,
        credit_ack: false,
        credits_spent: false,
        going_away: false,
        credits_returned: false,
        credits: 0,
        call: CallId::new(0, generation),
        selector: method,
        metadata_len: 0,
        time_us: 0,
    };
    header.encode(&mut frame);
    frame.extend(message.encode_to_vec());
    frame
}
