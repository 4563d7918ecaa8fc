use super::*;
use crate::{Context, PortCapability};

#[test]
fn states_have_their_names_and_what_is_newer_its_number() {
    let names = [
        "no state",
        "down",
        "initializing",
        "armed",
        "active",
        "active (deferred)",
        "in state 6",
    ];
    for (code, name) in (0..).zip(names) {
        assert_eq!(PortState::from_code(code).to_string(), name);
    }
    assert_eq!(PortState::from_code(u32::MAX), PortState::Unknown(u32::MAX));
    let names = [
        "in state 0",
        "sleep",
        "polling",
        "disabled",
        "port configuration training",
        "link up",
        "link error recovery",
        "phy test",
        "in state 8",
    ];
    for (code, name) in (0..).zip(names) {
        assert_eq!(PhysicalState::from_code(code).to_string(), name);
    }
    for code in 3..=u8::MAX {
        assert_eq!(LinkLayer::from_code(code), LinkLayer::Other(code));
    }
    assert_eq!(LinkLayer::from_code(0), LinkLayer::InfiniBand);
    assert_eq!(LinkLayer::from_code(2).to_string(), "Ethernet");
}

#[test]
fn an_unknown_mtu_is_kept_and_the_smallest_is_used_for_it() {
    for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
        let mtu = PortMtu::from_code(code);
        assert_eq!(mtu.usable().bytes(), bytes);
        assert_eq!(mtu.to_string(), bytes.to_string());
    }
    for code in [0, 6, 7, u32::MAX] {
        let mtu = PortMtu::from_code(code);
        assert_eq!((mtu, mtu.usable()), (PortMtu::Unknown(code), Mtu::Bytes256));
    }
}

#[test]
fn virtual_lanes_are_counted() {
    let counts: Vec<_> = (0..7).map(|code| VirtualLanes(code).count()).collect();
    let known = [None, Some(1), Some(2), Some(4), Some(8), Some(15), None];
    assert_eq!(counts, known);
    assert_eq!(VirtualLanes(6).to_string(), "code 6");
}

#[test]
fn a_port_reads_as_aligned_lines_with_units() {
    let port = PortAttributes {
        state: PortState::Active,
        physical_state: PhysicalState::LinkUp,
        link_layer: LinkLayer::InfiniBand,
        max_mtu: PortMtu::Known(Mtu::Bytes4096),
        active_mtu: PortMtu::Unknown(6),
        max_msg_len: 1 << 30,
        rate: Rate::from_codes(2, 32),
        lid: 0x1f,
        lmc: 0,
        sm_lid: 1,
        sm_sl: 0,
        subnet_timeout: Some(Duration::from_nanos(4096 << 18)),
        init_type_reply: 0,
        virtual_lanes: VirtualLanes(4),
        capabilities: PortCapabilities::from_bits(1 << PortCapability::Trap.bit() | 2),
        flags: PortFlags::from_bits(0b101),
        gid_count: 128,
        pkey_count: 128,
        bad_pkey_count: 3,
        qkey_violation_count: 0,
    };
    let expected = "\
state                active
physical_state       link up
link_layer           InfiniBand
max_mtu              4096
active_mtu           code 6
max_msg_len          1 GiB
rate                 100 Gb/s (4 × 25, EDR)
lid                  0x001f
lmc                  0
sm_lid               0x0001
sm_sl                0
subnet_timeout       1.074s
init_type_reply      0
virtual_lanes        8
capabilities         IsSM, IsTrapSupported
flags                GRH_REQUIRED, bit 2
gid_count            128
pkey_count           128
bad_pkey_count       3
qkey_violation_count 0";
    assert_eq!(port.to_string(), expected);
}

#[test]
fn the_software_devices_port_is_active_and_has_no_subnet() {
    let context = Context::open("soft").unwrap();
    let port = context.query_port(1).unwrap();
    assert_eq!(port.state, PortState::Active);
    assert_eq!(port.physical_state, PhysicalState::LinkUp);
    assert_eq!((port.lid, port.sm_lid, port.subnet_timeout), (0, 0, None));
    assert_eq!(port.rate, None, "memory has no lanes");
    assert_eq!((port.gid_count, port.pkey_count), (1, 1));
    assert!(port.flags.contains(PortFlag::GrhRequired));
}
