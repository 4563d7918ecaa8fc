//! Devices and ports: their attributes, and that these are consistent.

use std::collections::HashSet;
use std::thread;

use verbline_verbs::{
    AddressWish, AtomicCapability, Context, Gid, OpenError, PortState, VerbsError, devices,
};

use super::case::{Section, case};
use super::device::{Device, Kind};
use super::verbs_side::{address, device};

pub(crate) const CASES: Section = Section {
    topic: "devices and ports",
    cases: &[
        case!(
            the_device_is_in_the_list,
            "specification: devices; device_test: GetDeviceList"
        ),
        case!(
            a_device_that_is_not_there_cannot_be_opened,
            "specification: devices"
        ),
        case!(
            a_device_is_opened_and_says_its_name,
            "specification: devices; device_test: Open"
        ),
        case!(a_device_may_be_opened_many_times, "specification: devices"),
        case!(
            a_device_may_be_opened_by_another_thread,
            "specification: threads; device_test: OpenInAnotherThread"
        ),
        case!(
            a_device_may_be_opened_by_many_threads_at_once,
            "specification: threads; device_test: OpenInManyThreads"
        ),
        case!(
            a_device_says_limits_that_can_be_used,
            "specification: devices; device_test: QueryDevice"
        ),
        case!(a_device_says_the_same_each_time, "specification: devices"),
        case!(ports_are_numbered_from_one, "specification: ports"),
        case!(
            the_port_that_is_used_is_active_and_says_how,
            "specification: ports"
        ),
        case!(
            the_gid_table_has_the_gid_that_is_used,
            "specification: ports"
        ),
        case!(
            gids_outside_of_the_table_are_refused,
            "specification: ports"
        ),
        case!(
            partition_key_0_is_the_full_member_of_the_default_partition,
            "specification: ports"
        ),
        case!(
            partition_keys_outside_of_the_table_are_refused,
            "specification: ports"
        ),
        case!(
            wishes_for_an_address_that_cannot_be_met_are_explained,
            "specification: ports"
        ),
        case!(
            objects_come_in_the_numbers_that_are_usual,
            "specification: devices"
        ),
    ],
};

const NO_GUID: &str = "0000:0000:0000:0000";

fn open() -> Context {
    super::verbs_side::open()
}

fn the_device_is_in_the_list(_: &Device) {
    let list = devices();
    let names: Vec<_> = list.iter().map(|device| device.name.as_str()).collect();
    assert!(names.contains(&device()), "{names:?}");
    let different: HashSet<_> = names.iter().collect();
    assert_eq!(different.len(), names.len());
    let this = list.iter().find(|one| one.name == device()).unwrap();
    // Zero for a device that has no GUID before it is opened.
    assert!(this.guid == open().query_device().node_guid || this.guid.to_string() == NO_GUID);
}

fn a_device_that_is_not_there_cannot_be_opened(_: &Device) {
    let error = Context::open("no_such_device_0").unwrap_err();
    assert!(
        matches!(&error, OpenError::UnknownDevice { name, .. } if name == "no_such_device_0"),
        "{error}"
    );
    assert!(error.to_string().contains("soft"), "{error}");
}

fn a_device_is_opened_and_says_its_name(_: &Device) {
    assert_eq!(open().device_name(), device());
}

fn a_device_may_be_opened_many_times(_: &Device) {
    let contexts: Vec<_> = (0..20).map(|_| open()).collect();
    for context in &contexts {
        context.alloc_pd().unwrap();
    }
    drop(contexts);
    open().alloc_pd().unwrap();
}

fn a_device_may_be_opened_by_another_thread(_: &Device) {
    let context = thread::spawn(open).join().unwrap();
    context.alloc_pd().unwrap();
}

fn a_device_may_be_opened_by_many_threads_at_once(_: &Device) {
    let threads: Vec<_> = (0..100).map(|_| thread::spawn(open)).collect();
    for thread in threads {
        thread.join().unwrap().alloc_pd().unwrap();
    }
}

fn a_device_says_limits_that_can_be_used(tested: &Device) {
    let limits = open().query_device();
    for (name, count) in [
        ("max_qp", limits.max_qp),
        ("max_qp_wr", limits.max_qp_wr),
        ("max_sge", limits.max_sge),
        ("max_cq", limits.max_cq),
        ("max_cqe", limits.max_cqe),
        ("max_mr", limits.max_mr),
        ("max_mr_len", limits.max_mr_len),
        ("max_srq", limits.max_srq),
        ("max_srq_wr", limits.max_srq_wr),
        ("max_pd", limits.max_pd),
        ("max_mw", limits.max_mw),
        ("max_ah", limits.max_ah),
        ("port_count", limits.port_count.into()),
        ("max_pkeys", limits.max_pkeys.into()),
    ] {
        assert!(count > 0, "{name}");
    }
    assert!(limits.max_qp_rd_atomic > 0 && limits.max_qp_init_rd_atomic > 0);
    let expected = match tested.kind {
        Kind::Soft => AtomicCapability::Global,
        Kind::Rxe => AtomicCapability::Device,
        Kind::Card => limits.atomic_cap,
    };
    assert_eq!(limits.atomic_cap, expected);
}

fn a_device_says_the_same_each_time(_: &Device) {
    let (one, other) = (open(), open());
    let (mut first, mut second) = (one.query_device(), other.query_device());
    // The amount of memory that may still be locked depends on what is open.
    (first.max_locked_len, second.max_locked_len) = (0, 0);
    assert_eq!(first, second);
}

fn ports_are_numbered_from_one(_: &Device) {
    let context = open();
    let count = context.query_device().port_count;
    for port in 1..=count {
        context.query_port(port).unwrap();
    }
    for port in [0, count + 1, 255] {
        let error = context.query_port(port).unwrap_err();
        assert!(
            matches!(
                error,
                VerbsError::OutOfRange {
                    parameter: "port",
                    ..
                }
            ),
            "{error}"
        );
    }
}

fn the_port_that_is_used_is_active_and_says_how(_: &Device) {
    let port = open().query_port(address().port).unwrap();
    assert_eq!(port.state, PortState::Active);
    assert_eq!(port.active_mtu.usable(), address().mtu);
    assert_eq!(port.link_layer, address().link_layer);
    assert!(port.max_msg_len >= 1 << 20);
    assert!(port.gid_count > 0 && port.pkey_count > 0);
    assert!(!port.to_string().is_empty());
}

fn the_gid_table_has_the_gid_that_is_used(_: &Device) {
    let context = open();
    let address = address();
    let table = context.query_gid_table(address.port).unwrap();
    let entry = table
        .iter()
        .find(|entry| entry.index == address.gid_index)
        .unwrap();
    assert_eq!((entry.gid, entry.gid_type), (address.gid, address.gid_type));
    assert_ne!(entry.gid, Gid([0; 16]));
    let gid = context.query_gid(address.port, address.gid_index);
    assert_eq!(gid.unwrap(), address.gid);
    let indexes: Vec<_> = table.iter().map(|entry| entry.index).collect();
    assert!(indexes.is_sorted());
}

fn gids_outside_of_the_table_are_refused(_: &Device) {
    let context = open();
    let port = context.query_port(address().port).unwrap();
    match (
        u8::try_from(port.gid_count),
        context.query_gid(address().port, 255),
    ) {
        (Ok(_), Err(error)) => assert!(
            matches!(
                error,
                VerbsError::OutOfRange {
                    parameter: "index",
                    ..
                }
            ),
            "{error}"
        ),
        (Err(_), Ok(_)) => {}
        (count, gid) => panic!("{count:?} entries: {gid:?}"),
    }
    assert!(context.query_gid(0, 0).is_err());
}

fn partition_key_0_is_the_full_member_of_the_default_partition(_: &Device) {
    let key = open().query_pkey(address().port, 0).unwrap();
    assert_eq!(key.0, 0xffff);
}

fn partition_keys_outside_of_the_table_are_refused(_: &Device) {
    let context = open();
    let count = context.query_port(address().port).unwrap().pkey_count;
    let error = context.query_pkey(address().port, count).unwrap_err();
    assert!(
        matches!(
            error,
            VerbsError::OutOfRange {
                parameter: "index",
                ..
            }
        ),
        "{error}"
    );
    let table = context.query_pkey_table(address().port).unwrap();
    assert!(table.iter().all(|(index, _)| *index < count));
}

fn wishes_for_an_address_that_cannot_be_met_are_explained(_: &Device) {
    let context = open();
    let no_port = AddressWish {
        port: Some(9),
        ..AddressWish::default()
    };
    let error = context.choose_address(no_port).unwrap_err().to_string();
    assert!(error.contains("no port 9"), "{error}");
    let no_gid = AddressWish {
        gid_index: Some(255),
        ..AddressWish::default()
    };
    let error = context.choose_address(no_gid).unwrap_err().to_string();
    assert!(error.contains("no GID 255"), "{error}");
}

fn objects_come_in_the_numbers_that_are_usual(_: &Device) {
    const COUNT: usize = 200;
    let end = super::end::End::new(super::end::rc());
    let limits = end.context.query_device();
    let count = [
        limits.max_pd,
        limits.max_cq,
        limits.max_qp,
        limits.max_mr,
        limits.max_srq,
    ]
    .into_iter()
    .fold(COUNT, usize::min);
    assert!(count >= 64, "{count}");
    let domains: Vec<_> = (0..count)
        .map(|_| end.context.alloc_pd().unwrap())
        .collect();
    let queues: Vec<_> = (0..count)
        .map(|_| end.context.create_cq(16).unwrap())
        .collect();
    let pairs: Vec<_> = (0..count).map(|_| end.another()).collect();
    let numbers: HashSet<_> = pairs.iter().map(|qp| qp.qp_num()).collect();
    assert_eq!(numbers.len(), count);
    let regions: Vec<_> = domains
        .iter()
        .map(|domain| domain.expose(64, super::end::everything()).unwrap())
        .collect();
    let shared: Vec<_> = domains
        .iter()
        .map(|domain| domain.create_srq(16, 1).unwrap())
        .collect();
    let handles: Vec<_> = (0..count).map(|_| end.way()).collect();
    let window_type = verbline_verbs::WindowType::Type2;
    let windows: Vec<_> = domains
        .iter()
        .map(|domain| domain.alloc_mw(window_type).unwrap())
        .collect();
    drop((domains, queues, pairs, regions, shared, handles, windows));
}
