//! What queue pairs get of the settings of their fabric.

use rpc_core::Intents;
use verbline_verbs::{CompletionQueue, PartitionKey, QpAttributes};

use super::*;
use crate::device::sizing::Sizing;
use crate::transport::path::Path;

/// Returns queue pairs of the software device that send as if they were of a network card, and what
/// has to outlive them.
fn queue_pairs(settings: FabricSettings) -> (QueuePairs, CompletionQueue, Context) {
    let context = Context::open("soft").unwrap();
    let address = context.choose_address(AddressWish::default()).unwrap();
    let address = PortAddress {
        link_layer: LinkLayer::Ethernet,
        ..address
    };
    let source = SourceAddresses {
        fabric: settings,
        first: settings.check(&context, address.clone()).unwrap(),
        ..SourceAddresses::only(address)
    };
    let attributes = context.query_device();
    let sizing = Sizing {
        max_inline_len: Some(64),
        ..Sizing::default()
    };
    let plan = Plan::new("card", &Intents::default(), &sizing, &attributes);
    let domain = context.alloc_pd().unwrap();
    let completions = context.create_cq(1024).unwrap();
    let srq = domain.create_srq(16, 1).unwrap();
    let queue_pairs = QueuePairs::new(
        source,
        Plaintext::Refused,
        domain,
        completions.handle(),
        srq,
        plan.unwrap(),
    );
    (queue_pairs, completions, context)
}

/// Connects a queue pair of each, and returns their attributes.
fn connected(one: &QueuePairs, other: &QueuePairs) -> [QpAttributes; 2] {
    let [here, there] = [one, other].map(|queue_pairs| queue_pairs.create().unwrap());
    let kind = one.device_address().kind;
    let [to_here, to_there] = [one.endpoint(&here, kind), other.endpoint(&there, kind)];
    let here = one.connect(here, &to_there).unwrap();
    let there = other.connect(there, &to_here).unwrap();
    [here, there].map(|connected| connected.queue_pair.query().unwrap())
}

#[test]
fn each_side_has_its_settings_and_both_the_smaller_mtu() {
    let settings = FabricSettings {
        traffic_class: Some(104),
        service_level: Some(3),
        pkey: Some(0x7fff),
        max_mtu: Some(512),
        ack_timeout: Some(Duration::from_millis(200)),
        retries: Some(2),
        vector: None,
    };
    let (one, _completions, _context) = queue_pairs(settings);
    let (other, _others_completions, _others_context) = queue_pairs(FabricSettings::default());
    assert_eq!(one.source().path.pkey, Some(PartitionKey::DEFAULT));
    let [here, there] = connected(&one, &other);
    let address = here.address.unwrap();
    assert_eq!((address.traffic_class, address.sl), (104, 3));
    assert_eq!(here.pkey_index, Some(0));
    assert_eq!(here.path_mtu, Some(Mtu::Bytes512));
    assert_eq!(here.timeout.unwrap().code(), 16);
    assert_eq!(here.retry_cnt.unwrap().code(), 2);
    let address = there.address.unwrap();
    assert_eq!((address.traffic_class, address.sl), (0, 0));
    assert_eq!(there.path_mtu, Some(Mtu::Bytes512));
    let usual = RtsAttributes::new(Psn::new(0));
    assert_eq!(there.timeout, Some(usual.timeout));
    assert_eq!(there.retry_cnt, Some(usual.retry_cnt));
}

#[test]
fn an_address_that_is_chosen_again_is_sent_from_in_the_same_way() {
    let settings = FabricSettings {
        traffic_class: Some(104),
        ..FabricSettings::default()
    };
    let (mut queue_pairs, _completions, context) = queue_pairs(settings);
    // The address that is found is that of shared memory, which has no fabric.
    let error = queue_pairs.choose_address_again(&context).unwrap_err();
    assert!(matches!(error, SourceError::Setting(_)), "{error}");
    assert_eq!(queue_pairs.source().path.traffic_class, 104);
    // So a connection does not get another partition, or another class.
    let refused = queue_pairs.create().unwrap_err();
    let shown = refused.to_string();
    assert!(
        shown.contains("cannot have tc=104: it has no fabric"),
        "{shown}"
    );
    queue_pairs.fabric = FabricSettings::default();
    queue_pairs.choose_address_again(&context).unwrap();
    queue_pairs.create().unwrap();
    assert_eq!(queue_pairs.source().path, Path::default());
}
