use proptest::prelude::*;

use rpc_core::Intents;
use rpc_core::transport::FabricError;
use verbline_verbs::{DeviceAttributes, LinkLayer};

use super::reads::ReadSupport;
use super::{Sizing, note_locked};
use crate::transport::plan::{Plan, ReadPlan};

/// Returns the attributes of a device that exceeds all requirements of these tests.
fn device() -> DeviceAttributes {
    DeviceAttributes {
        max_qp: 1 << 16,
        max_qp_wr: 1 << 16,
        max_sge: 1,
        max_cq: 1 << 16,
        max_cqe: 1 << 22,
        max_srq: 1 << 16,
        max_srq_wr: 1 << 20,
        max_mr: 1 << 16,
        max_mr_len: 1 << 40,
        max_locked_len: usize::MAX,
        max_inline_data: 220,
        max_qp_rd_atomic: 16,
        max_qp_init_rd_atomic: 128,
        port_count: 1,
        ..DeviceAttributes::default()
    }
}

fn plan(intents: &Intents, sizing: &Sizing) -> Result<Plan, FabricError> {
    let plan = Plan::new("soft", intents, sizing, &device())?;
    Ok(plan.on("soft", "port 1".to_owned(), sizing, &device(), SOFT))
}

const SOFT: ReadSupport = ReadSupport {
    link_layer: LinkLayer::Memory,
    why_unprotected: None,
};

const ETHERNET: ReadSupport = ReadSupport {
    link_layer: LinkLayer::Ethernet,
    why_unprotected: None,
};

#[test]
fn long_messages_are_read_where_windows_protect_memory_or_peers_are_trusted() {
    let plan = Plan::new("x", &Intents::default(), &Sizing::default(), &device()).unwrap();
    let on = |sizing: &Sizing, attributes: &DeviceAttributes, support| {
        plan.on("x", String::new(), sizing, attributes, support)
    };
    let default = Sizing::default();
    let soft = on(&default, &device(), SOFT);
    assert_eq!(
        (soft.limits.read_depth, soft.limits.piece_len),
        (16, 65_536)
    );
    assert!(soft.reads.uses_windows && soft.reads.reads_per_poll == 1);
    let card = on(&default, &device(), ETHERNET);
    assert_eq!((card.reads.depth, card.reads.max_read_len), (16, 262_144));
    assert!(card.reads.uses_windows && card.reads.reads_per_poll == 16);

    let unprotected = ReadSupport {
        why_unprotected: Some("its windows are open".to_owned()),
        ..ETHERNET
    };
    let no_reads = DeviceAttributes {
        max_qp_init_rd_atomic: 0,
        ..device()
    };
    let off = Sizing {
        read_depth: Some(0),
        ..Sizing::default()
    };
    for (plan, why) in [
        (
            on(&default, &device(), unprotected.clone()),
            "its windows are open",
        ),
        (on(&default, &no_reads, SOFT), "has no RDMA READ"),
        (on(&off, &device(), SOFT), "`read_depth` is 0"),
    ] {
        assert_eq!(plan.reads, ReadPlan::default());
        assert_eq!(plan.limits.read_depth, 0);
        let text = plan.limits.to_string();
        assert!(text.contains("fragments") && text.contains(why), "{text}");
    }

    let trusting = Sizing {
        trusted_peers: true,
        read_depth: Some(4),
        piece_len: Some(10_000),
        ..Sizing::default()
    };
    let trusted = on(&trusting, &device(), unprotected);
    assert!(trusted.reads.depth == 4 && !trusted.reads.uses_windows);
    assert_eq!(trusted.limits.piece_len, 10_000);
    assert!(trusted.limits.long_messages.contains("trusted"));
}

#[test]
fn the_defaults_fit_in_twelve_mebibytes() {
    let plan = plan(&Intents::default(), &Sizing::default()).unwrap();
    let limits = &plan.limits;
    assert_eq!(
        (limits.receives_posted, limits.receives_reserved),
        (1024, 256)
    );
    assert_eq!((limits.send_queue_depth, limits.signal_interval), (256, 32));
    assert_eq!(limits.max_inline_len, 220);
    assert!(limits.registered_len() < 12 << 20, "{limits}");
}

#[test]
fn what_does_not_fit_names_the_setting_and_the_limit() {
    type Change = fn(&mut Intents, &mut Sizing, &mut DeviceAttributes);
    let cases: [(&str, &str, Change); 9] = [
        ("connections", "at least 1", |i, _, _| i.connections = 0),
        ("max_in_flight", "at least 1", |i, _, _| i.max_in_flight = 0),
        ("max_streams", "at least 1", |i, _, _| i.max_streams = 0),
        ("max_message_len", "has at most", |i, _, _| {
            i.max_message_len = usize::MAX
        }),
        ("connections", "device has 8", |_, _, d| d.max_qp = 8),
        ("max_in_flight", "device has 64", |_, _, d| d.max_qp_wr = 64),
        ("connections", "device has 100", |_, _, d| d.max_cqe = 100),
        ("max_message_len", "device has 4096", |_, _, d| {
            d.max_mr_len = 4096
        }),
        ("signal_interval", "half", |_, s, _| {
            s.send_queue_depth = Some(32);
            s.signal_interval = Some(17);
        }),
    ];
    for (name, hint, change) in cases {
        let (mut intents, mut sizing, mut device) =
            (Intents::default(), Sizing::default(), device());
        change(&mut intents, &mut sizing, &mut device);
        let error = Plan::new("soft", &intents, &sizing, &device).unwrap_err();
        assert!(error.to_string().contains(hint), "{name}: {error}");
        match error {
            FabricError::Intent { setting, .. } => assert_eq!(setting, name),
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn a_device_without_shared_receive_queues_is_refused_with_what_to_do() {
    let device = DeviceAttributes {
        max_srq: 0,
        ..device()
    };
    let error = Plan::new("efa_0", &Intents::default(), &Sizing::default(), &device).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("the device 'efa_0' cannot be used"),
        "{text}"
    );
    assert!(text.contains("share their receives"), "{text}");
    assert!(text.contains("'soft'"), "{text}");
}

/// Returns the number of connections that would fit according to the error.
fn would_fit(error: &FabricError) -> u32 {
    let FabricError::Intent {
        setting: "connections",
        reason,
        ..
    } = error
    else {
        panic!("{error}");
    };
    let (_, rest) = reason.split_once("; ").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_connections_that_would_fit_do_and_one_more_does_not() {
    type Weaken = fn(&mut DeviceAttributes);
    let cases: [Weaken; 4] = [
        |d| d.max_cqe = 32_767,
        |d| d.max_cqe = 2_000,
        |d| d.max_srq_wr = 900,
        |d| d.max_srq_wr = 80,
    ];
    for weaken in cases {
        let mut device = device();
        weaken(&mut device);
        let plan = |connections| {
            let intents = Intents {
                connections,
                ..Intents::default()
            };
            Plan::new("rxe0", &intents, &Sizing::default(), &device)
        };
        let most = would_fit(&plan(1_000).unwrap_err());
        assert!(plan(most).is_ok(), "{most} of {device:?}");
        assert_eq!(would_fit(&plan(most + 1).unwrap_err()), most);
    }
}

#[test]
fn where_not_even_one_connection_fits_another_setting_is_named() {
    let device = DeviceAttributes {
        max_cqe: 100,
        ..device()
    };
    let error = Plan::new("rxe0", &Intents::default(), &Sizing::default(), &device).unwrap_err();
    assert!(error.to_string().contains("lower max_in_flight"), "{error}");
}

#[test]
fn derived_receives_give_way_to_the_device_and_an_experts_do_not() {
    let device = DeviceAttributes {
        max_srq_wr: 1000,
        ..device()
    };
    let plan = Plan::new("rxe0", &Intents::default(), &Sizing::default(), &device).unwrap();
    let limits = &plan.limits;
    assert!(plan.srq_depth <= 1000 && plan.srq_depth > 995, "{limits}");
    assert_eq!(
        (limits.receives_posted, limits.receives_reserved),
        (624, 156)
    );
    assert!(
        limits
            .to_string()
            .contains("624 receives posted instead of 1024"),
        "{limits}"
    );

    let sizing = Sizing {
        receives_posted: Some(1024),
        ..Sizing::default()
    };
    let error = Plan::new("rxe0", &Intents::default(), &sizing, &device).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("receives_posted = 1024"), "{text}");
    assert!(text.contains("the device has 1000"), "{text}");
}

#[test]
fn each_device_has_its_own_inline_length() {
    let plan = Plan::new("rxe0", &Intents::default(), &Sizing::default(), &device()).unwrap();
    let strong = DeviceAttributes {
        max_inline_data: 1024,
        ..device()
    };
    let weak = plan
        .on(
            "rxe0",
            "port 1, GID 1".to_owned(),
            &Sizing::default(),
            &device(),
            ETHERNET,
        )
        .limits;
    assert_eq!(weak.max_inline_len, 220);
    assert!(weak.to_string().contains("port 1, GID 1"), "{weak}");
    // Nobody asked for more.
    assert!(weak.clamped.is_empty(), "{weak}");
    let asked = Sizing {
        max_inline_len: Some(256),
        ..Sizing::default()
    };
    let clamped = Plan::new("rxe0", &Intents::default(), &asked, &device())
        .unwrap()
        .on("rxe0", String::new(), &asked, &device(), ETHERNET)
        .limits
        .clamped;
    assert!(
        clamped[0].contains("220 bytes instead of 256"),
        "{clamped:?}"
    );
    let (sizing, address) = (Sizing::default(), "port 2".to_owned());
    let soft = plan.on("soft", String::new(), &sizing, &strong, SOFT);
    assert_eq!(soft.limits.max_inline_len, 1024);
    let strong = plan
        .on("mlx5_0", address, &sizing, &strong, ETHERNET)
        .limits;
    assert_eq!((strong.max_inline_len, &*strong.device), (256, "mlx5_0"));
    assert!(strong.clamped.is_empty(), "{strong}");
    assert_eq!(strong.slots(), weak.slots());
}

#[test]
fn the_defaults_fit_where_little_memory_may_be_locked() {
    for lockable in [8 << 20, 16 << 20] {
        let device = DeviceAttributes {
            max_locked_len: lockable,
            ..device()
        };
        let plan = Plan::new("mlx5_0", &Intents::default(), &Sizing::default(), &device).unwrap();
        let limits = &plan.limits;
        assert!(limits.registered_len() <= lockable / 2, "{limits}");
        // The limit is used up: a few more slots would not fit.
        assert!(
            limits.registered_len() + 8 * limits.slot_len > lockable / 2,
            "{limits}"
        );
        assert!(
            limits.receives_posted >= 5 * limits.max_connections,
            "{limits}"
        );
        assert!(limits.clamped[0].contains("may be locked"), "{limits}");
    }
    // The minimum for each connection is kept: registering the memory will fail on the device.
    let device = DeviceAttributes {
        max_locked_len: 64 << 10,
        ..device()
    };
    let plan = Plan::new("mlx5_0", &Intents::default(), &Sizing::default(), &device).unwrap();
    assert_eq!(plan.limits.receives_posted, 5 * 64);
}

#[test]
fn memory_that_a_device_locks_for_queues_is_said_and_so_is_its_lack() {
    let plan = Plan::new("mlx5_0", &Intents::default(), &Sizing::default(), &device()).unwrap();
    let with = |each, lockable| {
        let mut limits = plan.limits.clone();
        note_locked(&mut limits, each, lockable);
        limits
    };
    // Soft-RoCE locks none, whatever may be locked.
    assert_eq!(with(0, 0), plan.limits);
    let ample = with(128 << 10, 64 * (128 << 10));
    assert!(ample.clamped.is_empty(), "{ample}");
    assert_eq!(ample.locked_per_connection, 128 << 10);
    assert!(ample.to_string().contains("128 KiB of locked"), "{ample}");
    let short = with(128 << 10, 64 * (128 << 10) - 1);
    let said = "room for the queues of 63 connections instead of 64";
    assert!(short.clamped[0].contains(said), "{short}");
}

#[test]
fn a_poller_makes_do_with_the_memory_that_it_may_register_or_says_what_it_needs() {
    let with = |max_memory| {
        let intents = Intents {
            max_memory: Some(max_memory),
            ..Intents::default()
        };
        plan(&intents, &Sizing::default()).map(|plan| plan.limits)
    };
    let ample = with(1 << 30).unwrap();
    assert!(
        ample
            .clamped
            .iter()
            .all(|text| !text.contains("max_memory"))
    );
    for max_memory in [4 << 20, 8 << 20] {
        let limits = with(max_memory).unwrap();
        let registered = limits.registered_len() as u64;
        assert!(registered <= max_memory, "{limits}");
        // The limit is used up: a few more slots would not fit.
        assert!(
            registered + 8 * limits.slot_len as u64 > max_memory,
            "{limits}"
        );
        let text = &limits.clamped[0];
        assert!(
            text.contains(&format!("`max_memory` allows {max_memory}")),
            "{text}"
        );
    }
    let FabricError::Intent {
        setting: "max_memory",
        value: 1_000_000,
        reason,
    } = with(1_000_000).unwrap_err()
    else {
        panic!("another error");
    };
    assert!(
        reason.contains("64 connections, with slots of 4352 bytes"),
        "{reason}"
    );
    // The amount in the message is sufficient, and one byte less is not.
    let needed: u64 = reason
        .split(' ')
        .find_map(|word| word.parse().ok().filter(|&number| number > 1_000_000))
        .unwrap();
    assert_eq!(with(needed).unwrap().registered_len() as u64, needed);
    assert!(with(needed - 1).is_err());
    // The number of connections in the message fits.
    let fewer: Vec<u32> = reason
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let intents = Intents {
        connections: *fewer.last().unwrap(),
        max_memory: Some(1_000_000),
        ..Intents::default()
    };
    assert!(plan(&intents, &Sizing::default()).is_ok(), "{reason}");
    let error = with(1000).unwrap_err().to_string();
    assert!(error.contains("lower slot_message_len"), "{error}");
}

proptest! {
    /// For any intents and sizing: either an error is returned, or all relations hold that the
    /// rest of the crate relies on.
    #[test]
    fn every_plan_keeps_its_relations(
        max_message_len in 0usize..1 << 20,
        max_in_flight in 0u32..100_000,
        connections in 0u32..20_000,
        signal_interval in prop::option::of(0u32..200),
        receives_posted in prop::option::of(0u32..5000),
        receives_held in prop::option::of(0u32..300),
        max_memory in prop::option::of(0u64..1 << 32),
    ) {
        let intents = Intents { max_message_len, max_in_flight, connections, max_memory, ..Intents::default() };
        let sizing = Sizing {
            signal_interval,
            receives_posted,
            receives_held,
            ..Sizing::default()
        };
        if let Ok(plan) = plan(&intents, &sizing) {
            let limits = &plan.limits;
            prop_assert!(limits.signal_interval >= 1);
            prop_assert!(limits.signal_interval * 2 <= limits.send_queue_depth);
            prop_assert!(limits.send_queue_depth >= max_in_flight + 2);
            prop_assert!(limits.slot_len % 64 == 0);
            prop_assert!(limits.slot_message_len() >= max_message_len.min(rpc_core::SLOT_MESSAGE_LEN));
            prop_assert!(plan.poll_batch >= 1 && plan.refill_batch >= 1);
            prop_assert!(limits.registered_len() as u64 <= max_memory.unwrap_or(u64::MAX));
            // Required so that no burst empties the queue; see `receive_queue`.
            prop_assert!(
                receives_held.is_some()
                    || limits.receives_held
                        >= limits.receives_reserved + 2 * plan.refill_batch
            );
            // An idle queue is above its limit.
            prop_assert!(plan.srq_limit <= limits.receives_posted + limits.receives_held);
            prop_assert!(
                plan.srq_depth
                    == limits.promisable_receives() + limits.receives_held
            );
        }
    }
}
