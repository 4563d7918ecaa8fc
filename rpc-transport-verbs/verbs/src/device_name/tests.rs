//! Names, and what they mean.

use proptest::prelude::*;

use super::*;
use crate::GidType;

fn parsed(text: &str) -> DeviceName {
    let name = text.parse::<DeviceName>().unwrap();
    assert_eq!(name.to_string(), text);
    name
}

fn filter(text: &str) -> GidFilter {
    let name = parsed(text);
    assert_eq!(
        (name.device, name.wish.port, name.wish.gid_index),
        (None, None, None)
    );
    name.wish.gids.unwrap()
}

fn entry(netdev: Option<&str>, address: &str) -> GidEntry {
    let address = address.parse::<IpAddr>().unwrap();
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    GidEntry {
        index: 0,
        gid: Gid(address.octets()),
        gid_type: GidType::RoceV2,
        netdev: netdev.map(str::to_owned),
    }
}

#[test]
fn a_port_and_a_gid_may_follow_a_name() {
    for (text, port, gid_index) in [
        ("mlx5_0", None, None),
        ("mlx5_0:2", Some(2), None),
        ("mlx5_0:2:3", Some(2), Some(3)),
    ] {
        let name = parsed(text);
        assert_eq!(name.device.as_deref(), Some("mlx5_0"));
        let wish = AddressWish {
            port,
            gid_index,
            gids: None,
        };
        assert_eq!(name.wish, wish);
    }
    // Not a network device: only an `@` makes it one.
    assert_eq!(parsed("eth0").device.as_deref(), Some("eth0"));
}

#[test]
fn a_network_device_may_be_named() {
    for name in ["eth0", "eth0.100", "enp1s0f0np0", "1.2.3", "bond0-a"] {
        let expected = GidFilter::Netdev(name.to_owned());
        assert_eq!(filter(&format!("@{name}")), expected);
    }
    let of_vlan = filter("@eth0.100");
    assert!(of_vlan.accepts(&entry(Some("eth0.100"), "192.0.2.1")));
    for other in [Some("eth0"), Some("eth0.10"), None] {
        assert!(!of_vlan.accepts(&entry(other, "192.0.2.1")), "{other:?}");
    }
}

#[test]
fn an_address_is_that_of_one_gid_and_a_subnet_has_many() {
    for (text, inside, outside) in [
        (
            "@192.0.2.1",
            &["192.0.2.1"][..],
            &["192.0.2.0", "::192.0.2.1"][..],
        ),
        (
            "@192.0.2.0/24",
            &["192.0.2.0", "192.0.2.255"],
            &["192.0.3.0", "192.0.1.255", "fe80::1", "::192.0.2.1"],
        ),
        // The address of a host with the prefix of its network, as `ip addr` prints it.
        ("@10.1.2.3/9", &["10.127.255.255"], &["10.128.0.0"]),
        ("@192.0.2.1/31", &["192.0.2.0"], &["192.0.2.2"]),
        ("@0.0.0.0/0", &["203.0.113.7"], &["fe80::1", "::1"]),
        ("@2001:db8::1", &["2001:db8::1"], &["2001:db8::2"]),
        (
            "@2001:db8::/33",
            &["2001:db8:7fff::1"],
            &["2001:db8:8000::1", "192.0.2.1"],
        ),
        ("@fe80::/10", &["fe80::1", "febf::1"], &["fec0::1"]),
        ("@::/0", &["fe80::1", "192.0.2.1"], &[]),
    ] {
        let filter = filter(text);
        for (addresses, is_inside) in [(inside, true), (outside, false)] {
            for address in addresses {
                let is_accepted = filter.accepts(&entry(Some("eth0"), address));
                assert_eq!(is_accepted, is_inside, "{address} in {text}");
            }
        }
    }
}

/// The whole length of an address, and a mapped address, have a shorter form.
#[test]
fn other_ways_to_write_a_name_mean_the_same() {
    for (text, shown) in [
        ("@192.0.2.1/32", "@192.0.2.1"),
        ("@2001:db8::1/128", "@2001:db8::1"),
        ("@::ffff:192.0.2.1", "@192.0.2.1"),
        ("@::ffff:192.0.2.0/120", "@192.0.2.0/24"),
        ("@2001:DB8:0::1", "@2001:db8::1"),
    ] {
        let name = text.parse::<DeviceName>().unwrap();
        assert_eq!(name.to_string(), shown);
        assert_eq!(name, parsed(shown));
    }
}

#[test]
fn a_text_that_names_nothing_is_refused_with_the_forms_that_do() {
    for text in [
        "",
        ":1",
        "@",
        "@/24",
        "@/",
        "@.",
        "@..",
        "mlx5_0:",
        "mlx5_0:x",
        "mlx5_0:256",
        "mlx5_0:+1",
        "mlx5_0:1:+3",
        "mlx5_0:99999999999999999999",
        "mlx5_0:\u{0661}",
        "mlx5_0:1:-1",
        "mlx5_0:1:2:3",
        "mlx5_0::3",
        "@eth0:1",
        "@eth0::1",
        "@eth0/24",
        "@eth 0",
        "@a.name.of.sixteen",
        "@192.0.2.1:1",
        "@1.2.3.4.5/24",
        "@fe80::1%eth0",
        "@[fe80::1]",
    ] {
        let error = text.parse::<DeviceName>().unwrap_err();
        let name = text.to_owned();
        assert_eq!(error, DeviceNameError::Malformed { name });
        let shown = error.to_string();
        assert!(
            shown.starts_with(&format!("'{text}' is no name")),
            "{shown}"
        );
        assert!(shown.contains("mlx5_0:1:3") && shown.contains("@eth0"));
    }
}

#[test]
fn a_prefix_that_is_longer_than_the_address_is_refused_with_the_longest() {
    for (text, max) in [
        ("@1.2.3.4/33", 32),
        ("@1.2.3.4/256", 32),
        ("@1.2.3.4/", 32),
        ("@1.2.3.4/+8", 32),
        ("@1.2.3.4/-1", 32),
        ("@1.2.3.4/8/8", 32),
        ("@1.2.3.4/255.0.0.0", 32),
        ("@fe80::/129", 128),
        ("@fe80::/x", 128),
    ] {
        let error = text.parse::<DeviceName>().unwrap_err();
        let name = text.to_owned();
        assert_eq!(error, DeviceNameError::Prefix { name, max });
        assert!(error.to_string().contains(&format!("0 to {max} bits")));
    }
}

#[test]
fn settings_and_lists_are_refused_with_where_they_belong() {
    for (text, found) in [
        ("mlx5_0?tc=104", '?'),
        ("@eth0?tc=104&mtu=1024", '?'),
        ("?mlx5_0", '?'),
        ("mlx5_0,soft", ','),
        ("@192.0.2.0/24,soft", ','),
        ("sl=3", '='),
        ("mlx5_0&mtu=1024", '&'),
    ] {
        let error = text.parse::<DeviceName>().unwrap_err();
        let name = text.to_owned();
        assert_eq!(error, DeviceNameError::NotAlone { name, found });
        let shown = error.to_string();
        assert!(shown.contains(&format!("contains '{found}'")), "{shown}");
        assert!(shown.contains("mlx5_0?tc=104&mtu=1024,soft"), "{shown}");
    }
}

#[test]
fn a_filter_and_a_gid_are_said_as_an_operator_knows_them() {
    assert_eq!(filter("@d0").in_words(), "of the netdev 'd0'");
    let subnet = filter("@192.0.2.0/24").in_words();
    assert_eq!(subnet, "in the subnet 192.0.2.0/24");
    let address = filter("@192.0.2.1").in_words();
    assert_eq!(address, "with the address 192.0.2.1");
    assert_eq!(shown(&entry(Some("d0"), "192.0.2.1")), "d0 192.0.2.1");
    assert_eq!(shown(&entry(None, "fe80::1")), "fe80::1");
    let unused = entry(Some("d1"), "::");
    let table = [
        entry(Some("d0"), "192.0.2.1"),
        entry(Some("d0"), "192.0.2.1"),
    ];
    assert_eq!(listed(table.iter().chain([&unused])), "d0 192.0.2.1");
    assert_eq!(listed([&unused]), "no GID");
}

/// A text of pieces that names consist of, so that many of them are names.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        proptest::sample::select(vec![
            "",
            "@",
            ":",
            "::",
            "/",
            ".",
            "-",
            "+",
            "%",
            "mlx5_0",
            "soft",
            "eth0.7",
            "0",
            "1",
            "32",
            "33",
            "128",
            "129",
            "255",
            "256",
            "192.0.2.1",
            "2001:db8::",
            "::ffff:192.0.2.0",
            "fe80::1",
            "\0",
            " ",
            "\u{e9}",
            "\u{0661}",
        ])
        .prop_map(str::to_owned),
        any::<u8>().prop_map(|number| number.to_string()),
        any::<IpAddr>().prop_map(|address| address.to_string()),
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

/// Names as users write them.
fn names() -> impl Strategy<Value = String> {
    let after = |separator| move |number: Option<u8>| number.map(|it| format!("{separator}{it}"));
    let prefix = any::<Option<u8>>().prop_map(after('/'));
    let [port, gid] = [(); 2].map(|()| any::<Option<u8>>().prop_map(after(':')));
    let selected = (any::<IpAddr>(), prefix).prop_map(|(address, prefix)| {
        let prefix = prefix.unwrap_or_default();
        format!("@{address}{prefix}")
    });
    let named = ("[a-z][a-z0-9_]{0,20}", port, gid).prop_map(|(device, port, gid)| {
        let gid = port.is_some().then_some(gid).flatten();
        format!(
            "{device}{}{}",
            port.unwrap_or_default(),
            gid.unwrap_or_default()
        )
    });
    prop_oneof![selected, named, "@[!-.;-~]{1,16}"]
}

proptest! {
    /// Any text is a name or is refused with itself in the message, and a name is printed as it can be
    /// read again.
    #[test]
    fn what_is_read_is_printed_so_that_it_is_read_again(
        text in prop_oneof![any::<String>(), pieces(), names()],
    ) {
        match text.parse::<DeviceName>() {
            Ok(name) => {
                let printed = name.to_string();
                let again = printed.parse::<DeviceName>();
                prop_assert_eq!(again.as_ref(), Ok(&name), "{} was printed as {}", text, printed);
                prop_assert_eq!(again.unwrap().to_string(), printed);
            }
            Err(error) => {
                let refusal = format!("'{text}' is no name of ");
                prop_assert!(error.to_string().starts_with(&refusal));
            }
        }
    }

    /// The filter takes the GIDs whose first bits are those of the address, whatever they are.
    #[test]
    fn a_subnet_has_the_addresses_with_its_first_bits(
        address in any::<[u8; 16]>(),
        prefix_len in 0..=128_u8,
        bit in 0..128_u8,
    ) {
        let filter = GidFilter::Subnet { address: address.into(), prefix_len };
        let accepts = |gid: u128| filter.accepts(&entry(None, &Ipv6Addr::from(gid).to_string()));
        let address = u128::from_be_bytes(address);
        prop_assert!(accepts(address));
        prop_assert_eq!(accepts(address ^ (1 << (127 - bit))), bit >= prefix_len);
    }
}
