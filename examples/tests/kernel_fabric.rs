//! Calls whose packets are in the class, and as short, as the name of the device says: between two
//! devices of Soft-RoCE, whose packets are seen on the way. These tests run in the guest of
//! `.ci/guest`: they need its devices, the environment variables that it sets, and root to listen to
//! network devices.
//!
//! The server process is another instance of this test program that runs the ignored test
//! `server_process`.

#![allow(clippy::print_stderr, reason = "prints what the tests saw")]

mod echo_process;

use std::env;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use echo_process::{Process, call};
use proto::echo::EchoClient;
use rpc_core::LocalPoller;
use rpc_transport_verbs::{Device, DeviceError, FabricSettings};
use rustix::net::{AddressFamily, Protocol, RawProtocol, RecvFlags, SocketFlags, SocketType};

#[test]
#[ignore = "the other tests run it, as the server's process"]
fn server_process() {
    echo_process::serve();
}

/// Returns an address that the guest tells.
fn address_of(name: &str) -> Ipv4Addr {
    let text = env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: these tests run in the guest only (make test-rdma)")
    });
    text.parse().unwrap()
}

/// A packet of RoCE version 2.
#[derive(Clone, Copy, Debug)]
struct Packet {
    source: Ipv4Addr,
    /// Type of service of the IPv4 header.
    tos: u8,
    /// P_Key of the base transport header.
    pkey: u16,
    /// Bytes behind the header of UDP: the headers of RDMA, the payload and the checksum.
    len: usize,
}

/// The longest headers of a packet of a connection, with its checksum: BTH, RETH, immediate, ICRC.
const MAX_HEADERS: usize = 12 + 16 + 4 + 4;

impl Packet {
    /// Parses a frame of Ethernet. Returns `None` if it is something else.
    fn parse(frame: &[u8]) -> Option<Self> {
        const IPV4: u16 = 0x0800;
        const UDP: u8 = 17;
        const ROCE_PORT: u16 = 4791;
        const IP_AT: usize = 14;
        let be16 = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        if be16(12)? != IPV4 || *frame.get(IP_AT + 9)? != UDP {
            return None;
        }
        let udp_at = IP_AT + usize::from(frame[IP_AT] & 0xf) * 4;
        if be16(udp_at + 2)? != ROCE_PORT {
            return None;
        }
        let source: [u8; 4] = frame.get(IP_AT + 12..IP_AT + 16)?.try_into().ok()?;
        Some(Self {
            source: source.into(),
            tos: frame[IP_AT + 1],
            pkey: be16(udp_at + 8 + 2)?,
            len: usize::from(be16(udp_at + 4)?).checked_sub(8)?,
        })
    }
}

/// Returns a socket that hears all frames of all network devices from now on.
fn listen() -> OwnedFd {
    /// `ETH_P_ALL`: frames of all protocols, those that leave as well.
    const ALL: u16 = 3;
    let all = RawProtocol::new(ALL.to_be().into()).map(Protocol::from_raw);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, all)
        .expect("these tests need root")
}

/// Runs `work`, and returns the packets of RoCE from this address that were seen meanwhile.
fn packets_during(source: Ipv4Addr, work: impl FnOnce()) -> Vec<Packet> {
    let (socket, is_over) = (listen(), AtomicBool::new(false));
    let hear = || {
        let mut packets = Vec::new();
        let mut frame = [0; 16 << 10];
        loop {
            // Read before the socket: what `work` caused is in the socket by then.
            let was_over = is_over.load(Ordering::Acquire);
            match rustix::net::recv(&socket, &mut frame, RecvFlags::empty()) {
                Ok((len, _)) => packets.extend(Packet::parse(&frame[..len])),
                Err(rustix::io::Errno::AGAIN) if was_over => break,
                Err(rustix::io::Errno::AGAIN) => thread::sleep(Duration::from_micros(100)),
                Err(error) => panic!("listening to network devices: {error}"),
            }
        }
        packets.retain(|packet| packet.source == source);
        packets
    };
    thread::scope(|scope| {
        let heard = scope.spawn(hear);
        work();
        is_over.store(true, Ordering::Release);
        heard.join().unwrap()
    })
}

/// Makes a call of 20 kB from `rxe1` to a server on `rxe2`, each with these settings. Returns the
/// client's limits, and the client's packets.
fn call_with(settings: &str) -> (String, Vec<Packet>) {
    let (_server, address) = Process::server_on(&format!("rxe2:1:1{settings}"));
    let device = Device::open(&format!("rxe1:1:1{settings}")).unwrap();
    let poller = LocalPoller::new(&device).unwrap();
    let channel = poller.connect(&address);
    let echo = EchoClient::new(channel.unwrap_or_else(|error| panic!("{error}")));
    let payload: Vec<u8> = (0..20_000_u32).map(|index| index as u8).collect();
    let packets = packets_during(address_of("RXE1_ADDRESS"), || {
        let answer = poller.block_on(call(&echo, &payload));
        assert!(answer.unwrap() == payload, "the response is another one");
    });
    (poller.limits().to_string(), packets)
}

#[test]
fn packets_are_in_the_class_and_as_short_as_the_name_says() {
    let (limits, plain) = call_with("");
    eprintln!(
        "without settings: {} packets, {:?} …",
        plain.len(),
        plain.first()
    );
    assert!(!limits.contains("fabric"), "{limits}");
    assert!(plain.iter().all(|packet| packet.tos == 0), "{plain:?}");
    // So those of the other call would be that long, too.
    let longest = plain.iter().map(|packet| packet.len).max();
    assert!(longest > Some(1024 + MAX_HEADERS), "{longest:?}");

    let (limits, marked) = call_with("?tc=104&mtu=1024");
    eprintln!(
        "with settings: {} packets, {:?} …",
        marked.len(),
        marked.first()
    );
    let expected = "\n  fabric     traffic class 104 (DSCP 26), MTU up to 1024\n";
    assert!(limits.contains(expected), "{limits}");
    assert!(limits.contains("MTU 1024\n"), "{limits}");
    assert!(marked.len() > plain.len());
    for packet in &marked {
        assert_eq!((packet.tos, packet.pkey), (104, 0xffff), "{packet:?}");
        assert!(packet.len <= 1024 + MAX_HEADERS, "{packet:?}");
    }
    let longest = marked.iter().map(|packet| packet.len).max();
    assert!(longest > Some(1024), "{longest:?}");
}

#[test]
fn the_smaller_mtu_of_the_two_sides_is_used_and_each_side_has_its_class() {
    let (_server, address) = Process::server_on("rxe2?mtu=512&tc=32");
    let poller = LocalPoller::new(&Device::open("rxe1?tc=104").unwrap()).unwrap();
    let echo = EchoClient::new(poller.connect(&address).unwrap());
    for (name, tos) in [("RXE1_ADDRESS", 104), ("RXE2_ADDRESS", 32)] {
        let packets = packets_during(address_of(name), || {
            let answer = poller.block_on(call(&echo, &[7; 4000]));
            assert_eq!(answer.unwrap(), [7; 4000]);
        });
        let longest = packets.iter().map(|packet| packet.len).max();
        assert!(longest > Some(512), "{longest:?}");
        for packet in &packets {
            assert_eq!(packet.tos, tos, "{packet:?}");
            assert!(packet.len <= 512 + MAX_HEADERS, "{packet:?}");
        }
    }
}

#[test]
fn what_the_device_does_not_have_is_refused_with_what_it_has() {
    for (name, reason) in [
        ("rxe1?pkey=0x8001", "its table has 0: 0xffff (full member)"),
        ("rxe1?mtu=8192", "MTUs are 256, 512, 1024, 2048 and 4096"),
        ("rxe1?vector=100000", "completion vectors"),
        ("rxe1?sl=8", "the priority of a VLAN is a number up to 7"),
        ("rxe1?timeout=0", "0 waits for ever"),
        ("rxe1?retries=7", "up to 6 times"),
    ] {
        let error = Device::open(name).unwrap_err();
        assert!(matches!(error, DeviceError::Setting { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let device = Device::open("?rxe1?pkey=0x8001,soft").unwrap();
    assert_eq!(device.name(), "soft");
    let settings = FabricSettings {
        pkey: Some(0x8001),
        ..FabricSettings::default()
    };
    let error = Device::open("rxe1,soft").unwrap().with_fabric(settings);
    assert!(matches!(error, Err(DeviceError::Setting { .. })));
}

#[test]
fn a_program_sets_what_the_name_does_not() {
    let settings = FabricSettings {
        traffic_class: Some(8),
        pkey: Some(0xffff),
        ack_timeout: Some(Duration::from_millis(100)),
        ..FabricSettings::default()
    };
    let device = Device::open("rxe1?tc=104&vector=spread,soft").unwrap();
    let device = device.with_fabric(settings).unwrap();
    let name = "rxe1?tc=104&pkey=0xffff&timeout=100ms&vector=spread,soft";
    assert_eq!(device.name(), name);
    let pollers = [(); 2].map(|()| LocalPoller::new(&device).unwrap());
    let [one, other] = pollers.map(|poller| poller.limits().fabric.clone());
    let expected = "traffic class 104 (DSCP 26), P_Key 0xffff (full member) at index 0, acknowledgements \
                    within 134.218ms, completion vector ";
    assert!(one.starts_with(expected), "{one}");
    assert_ne!(one, other, "both have the same vector");
}
