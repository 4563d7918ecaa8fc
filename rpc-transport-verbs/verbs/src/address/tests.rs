use super::*;
use crate::{DeviceName, PortMtu};

fn port() -> PortAttributes {
    PortAttributes {
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        active_mtu: PortMtu::Known(Mtu::Bytes4096),
        max_msg_len: 1 << 31,
        gid_count: 16,
        ..PortAttributes::default()
    }
}

fn entry(index: u8, address: &str, gid_type: GidType, netdev: Option<&str>) -> GidEntry {
    GidEntry {
        index,
        gid: Gid(address.parse::<Ipv6Addr>().unwrap().octets()),
        gid_type,
        netdev: netdev.map(str::to_owned),
    }
}

fn chosen(gids: &[GidEntry], wish: Option<u8>) -> Result<PortAddress, AddressError> {
    let wish = AddressWish {
        gid_index: wish,
        ..AddressWish::default()
    };
    choose_gid("mlx5_0", 1, &port(), gids, &wish, "the only one")
}

/// The table of a network card with one IPv4 address: each GID appears once per RoCE version.
fn usual_table() -> Vec<GidEntry> {
    let link_local = "fe80::1234:56ff:fe78:9abc";
    let global = "::ffff:192.0.2.1";
    vec![
        entry(0, link_local, GidType::RoceV1, Some("eth0")),
        entry(1, link_local, GidType::RoceV2, Some("eth0")),
        entry(2, global, GidType::RoceV1, Some("eth0")),
        entry(3, global, GidType::RoceV2, Some("eth0")),
    ]
}

#[test]
fn of_the_usual_table_it_is_version_2_with_a_global_address() {
    let address = chosen(&usual_table(), None).unwrap();
    assert_eq!((address.gid_index, address.gid_type), (3, GidType::RoceV2));
    assert_eq!(
        address.to_string(),
        "port 1, GID 3 ::ffff:192.0.2.1 (RoCE v2, netdev eth0), MTU 4096"
    );
    assert_eq!(
        address.reason,
        "port 1: the only one; GID 3: the best of 4, being RoCE v2, on netdev eth0, global"
    );
}

#[test]
fn each_rule_of_the_rank_outweighs_those_after_it() {
    use GidType::{RoceV1, RoceV2, Unknown};
    let (global, local, local4) = ("2001:db8::1", "fe80::1", "::ffff:169.254.1.1");
    let better_first = [
        (
            entry(9, local, RoceV2, None),
            entry(0, global, Unknown, Some("a")),
        ),
        (
            entry(9, local, Unknown, None),
            entry(0, global, RoceV1, Some("a")),
        ),
        (
            entry(9, local, RoceV2, Some("a")),
            entry(0, global, RoceV2, None),
        ),
        (
            entry(9, global, RoceV2, Some("a")),
            entry(0, local, RoceV2, Some("a")),
        ),
        (
            entry(9, global, RoceV2, Some("a")),
            entry(0, local4, RoceV2, Some("a")),
        ),
        (
            entry(3, global, RoceV2, Some("a")),
            entry(4, "2001:db8::2", RoceV2, Some("a")),
        ),
    ];
    for (better, worse) in better_first {
        let wanted = better.index;
        for table in [[better.clone(), worse.clone()], [worse, better]] {
            assert_eq!(chosen(&table, None).unwrap().gid_index, wanted, "{table:?}");
        }
    }
}

#[test]
fn a_named_gid_is_taken_and_a_missing_one_lists_what_there_is() {
    assert_eq!(chosen(&usual_table(), Some(1)).unwrap().gid_index, 1);
    let error = chosen(&usual_table(), Some(7)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "port 1 of 'mlx5_0' has no GID 7; in use are: 0, 1, 2, 3"
    );
}

/// The best of all is that of another network device.
#[test]
fn of_the_gids_that_were_named_it_is_the_best() {
    let mut table = usual_table();
    let vlan = "eth0.7";
    for (index, address, gid_type) in [
        (4, "fe80::5", GidType::RoceV2),
        (5, "::ffff:198.51.100.1", GidType::RoceV1),
    ] {
        table.push(entry(index, address, gid_type, Some(vlan)));
    }
    for (name, index, why) in [
        ("@eth0.7", 4, "the best of 2"),
        ("@198.51.100.0/24", 5, "the only one"),
        ("@198.51.100.1", 5, "the only one"),
        ("@eth0", 3, "the best of 4"),
        ("@192.0.2.1", 3, "the best of 2"),
        ("@::/0", 3, "the best of 6"),
    ] {
        let wish = name.parse::<DeviceName>().unwrap().wish;
        let address = choose_gid("mlx5_0", 1, &port(), &table, &wish, "the only one").unwrap();
        assert_eq!(address.gid_index, index, "{name}");
        assert!(address.reason.contains(why), "{name}: {}", address.reason);
    }
}

#[test]
fn a_port_without_addresses_has_no_gid() {
    let error = chosen(&[entry(0, "::", GidType::RoceV2, Some("a"))], None).unwrap_err();
    assert!(
        matches!(error, AddressError::NoGid { port: 1, .. }),
        "{error}"
    );
}

#[test]
fn a_local_identifier_counts_on_infiniband_alone() {
    let gids = [entry(0, "fe80::1", GidType::InfiniBand, None)];
    let any = AddressWish::default();
    let attributes = PortAttributes {
        link_layer: LinkLayer::InfiniBand,
        lid: 17,
        ..port()
    };
    let address = choose_gid("ib0", 1, &attributes, &gids, &any, "the only one").unwrap();
    assert_eq!(address.lid, 17);
    let attributes = PortAttributes { lid: 17, ..port() };
    let address = choose_gid("eth", 1, &attributes, &gids, &any, "the only one").unwrap();
    assert_eq!(address.lid, 0);
    assert!(
        address.reason.contains("no other address"),
        "{}",
        address.reason
    );
}

/// The name of `soft` with a port and a GID decides what a wish leaves open.
#[test]
fn what_the_name_asks_for_is_chosen_unless_the_wish_says_otherwise() {
    let named = |name| Context::open(name).unwrap();
    let address = named("soft:1:0").choose_address(AddressWish::default());
    let reason = address.unwrap().reason;
    assert_eq!(reason, "port 1: it was named; GID 0: it was named");
    let error = named("soft:2").choose_address(AddressWish::default());
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "'soft' has no port 2; it has 1");
    let port = |port| AddressWish {
        port: Some(port),
        ..AddressWish::default()
    };
    assert_eq!(named("soft:2").choose_address(port(1)).unwrap().port, 1);
    let gid_index = |port, index| AddressWish {
        gid_index: Some(index),
        port,
        gids: None,
    };
    let error = named("soft:1:7").choose_address(AddressWish::default());
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "port 1 of 'soft' has no GID 7; in use are: 0");
    let address = named("soft:1:7").choose_address(gid_index(None, 0));
    assert_eq!(address.unwrap().gid_index, 0);
    // Entry 7 of port 2 is not that of port 1.
    assert_eq!(port(1).or(&gid_index(Some(2), 7)), port(1));
    assert_eq!(port(2).or(&gid_index(Some(2), 7)), gid_index(Some(2), 7));
}

#[test]
fn only_gids_as_wished_for_are_chosen() {
    let wish = |name: &str| name.parse::<DeviceName>().unwrap().wish;
    let context = Context::open("soft").unwrap();
    let error = context.choose_address(wish("@192.0.2.0/24")).unwrap_err();
    let AddressError::NoGidOf { wanted, known, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(wanted, "in the subnet 192.0.2.0/24");
    let gid = context.query_gid(1, 0).unwrap().to_string();
    assert!(known.contains(&gid), "{known}");
    let exact = context.choose_address(wish(&format!("@{gid}"))).unwrap();
    assert_eq!(exact.gid.to_string(), gid);
    // An index that is named counts for more.
    let indexed = AddressWish {
        gid_index: Some(0),
        ..wish("@192.0.2.0/24")
    };
    assert_eq!(context.choose_address(indexed).unwrap().gid_index, 0);
}

/// An active port without an address was said to be down.
#[test]
fn of_a_port_that_is_active_it_is_said_what_it_has_and_of_the_others_that_they_are_down() {
    let filter = "@eth9".parse::<DeviceName>().unwrap().wish.gids;
    let said = |filter: Option<&GidFilter>, active: &[Vec<GidEntry>]| {
        let down = ["port 2: down".to_owned()];
        nothing_chosen("mlx5_0".to_owned(), filter, &down, active).to_string()
    };
    let wanted = "no active port of 'mlx5_0' has a GID of the netdev 'eth9'; in use are: ";
    let unused = entry(0, "::", GidType::RoceV2, Some("eth0"));
    for (table, known) in [
        (vec![], "no GID"),
        (vec![unused], "no GID"),
        (usual_table(), "eth0 fe80::"),
    ] {
        let said = said(filter.as_ref(), &[table]);
        assert!(said.starts_with(&format!("{wanted}{known}")), "{said}");
    }
    for filter in [None, filter.as_ref()] {
        let said = said(filter, &[]);
        assert!(
            said.starts_with("no port of 'mlx5_0' is active (port 2: down)"),
            "{said}"
        );
    }
}

#[test]
fn the_software_device_has_one_address() {
    let context = Context::open("soft").unwrap();
    let address = context.choose_address(AddressWish::default()).unwrap();
    assert_eq!((address.port, address.gid_index, address.lid), (1, 0, 0));
    assert_eq!(address.to_string(), "shared memory of this host");
    let wish = AddressWish {
        port: Some(2),
        ..AddressWish::default()
    };
    let error = context.choose_address(wish).unwrap_err();
    assert_eq!(error.to_string(), "'soft' has no port 2; it has 1");
}
