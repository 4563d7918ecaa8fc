//! Which settings a port can have, and what is said of the others.

use verbline_verbs::AddressWish;

use super::*;

/// Checks settings for a port of this kind with an MTU of 1,024.
fn checked_on(link_layer: LinkLayer, settings: FabricSettings) -> Result<Source, String> {
    let context = Context::open("soft").unwrap();
    let address = context.choose_address(AddressWish::default()).unwrap();
    let address = PortAddress {
        link_layer,
        mtu: Mtu::Bytes1024,
        ..address
    };
    let checked = settings.check(&context, address);
    checked.map_err(|error| error.to_string())
}

fn refused(settings: FabricSettings) -> String {
    checked_on(LinkLayer::Ethernet, settings).unwrap_err()
}

const NONE: FabricSettings = FabricSettings {
    traffic_class: None,
    service_level: None,
    pkey: None,
    max_mtu: None,
    ack_timeout: None,
    retries: None,
    vector: None,
};

#[test]
fn without_settings_everything_is_as_usual() {
    let source = checked_on(LinkLayer::Ethernet, NONE).unwrap();
    assert_eq!(source.path, Path::default());
    assert_eq!(source.address.mtu, Mtu::Bytes1024);
    checked_on(LinkLayer::Memory, NONE).unwrap();
}

#[test]
fn a_device_without_a_fabric_has_no_settings() {
    let class = FabricSettings {
        traffic_class: Some(0),
        ..NONE
    };
    for layer in [LinkLayer::Memory, LinkLayer::Tcp] {
        let error = checked_on(layer, class).unwrap_err();
        assert!(
            error.starts_with("'soft' cannot have tc=0: it has no fabric"),
            "{error}"
        );
    }
}

#[test]
fn a_partition_is_found_by_its_number_and_one_that_is_not_there_lists_the_table() {
    for key in [0xffff, 0x7fff] {
        let settings = FabricSettings {
            pkey: Some(key),
            ..NONE
        };
        let source = checked_on(LinkLayer::Ethernet, settings).unwrap();
        assert_eq!(source.path.pkey_index, 0);
        assert_eq!(source.path.pkey, Some(PartitionKey::DEFAULT));
    }
    for key in [0x8001, 0, 0x8000] {
        let error = refused(FabricSettings {
            pkey: Some(key),
            ..NONE
        });
        assert!(error.contains("0: 0xffff (full member)"), "{error}");
    }
}

#[test]
fn a_partition_has_the_index_of_its_entry_whatever_kind_of_member_the_port_is() {
    let table = [
        (0, 0xffff),
        (2, 0x8001),
        (5, 0x0003),
        (6, 0x0004),
        (7, 0x8004),
    ];
    let table = table.map(|(index, key)| (index, PartitionKey(key)));
    for (wanted, index, key) in [
        (0xffff, 0, 0xffff),
        (0x8001, 2, 0x8001),
        (0x0001, 2, 0x8001),
        (0x8003, 5, 0x0003),
        // The port is both kinds of member.
        (0x8004, 7, 0x8004),
        (0x0004, 6, 0x0004),
    ] {
        let found = find_pkey(1, &table, PartitionKey(wanted));
        assert_eq!(found, Ok((index, PartitionKey(key))), "{wanted:#x}");
    }
    let error = find_pkey(2, &table, PartitionKey(0x8002)).unwrap_err();
    let expected = "port 2 is in no such partition; its table has 0: 0xffff (full member), 2: 0x8001 (full \
                    member), 5: 0x0003 (limited member), 6: 0x0004 (limited member), 7: 0x8004 (full member). Take";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn an_mtu_is_one_of_five_and_the_port_has_it() {
    let capped_at = |mtu| FabricSettings {
        max_mtu: Some(mtu),
        ..NONE
    };
    for (mtu, kept) in [(256, Mtu::Bytes256), (1024, Mtu::Bytes1024)] {
        let source = checked_on(LinkLayer::Ethernet, capped_at(mtu)).unwrap();
        assert_eq!(source.address.mtu, kept);
    }
    let error = refused(capped_at(2048));
    assert!(error.contains("its port has an MTU of 1024"), "{error}");
    for mtu in [0, 255, 1000, 8192, u32::MAX] {
        let error = refused(capped_at(mtu));
        assert!(
            error.contains(&format!("mtu={mtu}: MTUs are 256")),
            "{error}"
        );
    }
}

#[test]
fn a_service_level_is_a_lane_on_infiniband_and_a_priority_on_ethernet() {
    let level = |level| FabricSettings {
        service_level: Some(level),
        ..NONE
    };
    for (layer, most) in [(LinkLayer::InfiniBand, 15), (LinkLayer::Ethernet, 7)] {
        let source = checked_on(layer, level(most)).unwrap();
        assert_eq!(source.path.service_level, most);
        let error = checked_on(layer, level(most + 1)).unwrap_err();
        assert!(error.contains(&format!("a number up to {most}")), "{error}");
    }
}

#[test]
fn a_device_gives_up_before_verbline_does() {
    let waits = |milliseconds, retries| FabricSettings {
        ack_timeout: Some(Duration::from_millis(milliseconds)),
        retries,
        ..NONE
    };
    let path = |settings| checked_on(LinkLayer::Ethernet, settings).unwrap().path;
    assert_eq!(path(waits(1, None)).timeout.unwrap().code(), 8);
    assert_eq!(path(waits(268, Some(0))).timeout.unwrap().code(), 16);
    // Up to 536.9 ms, seven times, each of which a device may take for four.
    assert_eq!(path(waits(536, None)).timeout.unwrap().code(), 17);
    assert_eq!(path(waits(537, Some(5))).timeout.unwrap().code(), 18);
    let error = refused(waits(537, None));
    assert!(
        error.contains("timeout=537ms: with all retries, the device could wait for 30.1s"),
        "{error}"
    );
    for (milliseconds, word) in [(0, "for ever"), (u64::MAX, "no timeout that is as long")] {
        let error = refused(waits(milliseconds, None));
        assert!(error.contains(word), "{error}");
    }
    for retries in [7, 8, 255] {
        let settings = FabricSettings {
            retries: Some(retries),
            ..NONE
        };
        let error = refused(settings);
        assert!(error.contains("up to 6 times"), "{error}");
    }
}

#[test]
fn a_vector_is_one_that_the_device_has() {
    let vector = |vector| FabricSettings {
        vector: Some(vector),
        ..NONE
    };
    for there in [CompletionVector::Only(0), CompletionVector::Spread] {
        checked_on(LinkLayer::Ethernet, vector(there)).unwrap();
    }
    let error = refused(vector(CompletionVector::Only(1)));
    assert!(
        error.contains("vector=1: the device has 1 completion vector, counted"),
        "{error}"
    );
}
