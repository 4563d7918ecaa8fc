//! Queue pairs with extended fields: supported features work, unsupported ones are named in the
//! error.

use verbline_verbs::{
    CompletionStatus as C, CreateFlags, ExtendedConfig, QpNum, QpType, QueuePair, QueuePairConfig,
    SendOps, VerbsError, WorkRequest,
};

use super::case::{Section, case};
use super::device::{Device, Kind};
use super::end::{End, Options, connect, rc, ud};

pub(crate) const CASES: Section = Section {
    topic: "extended queue pairs",
    cases: &[
        case!(
            nothing_asked_for_is_a_queue_pair_as_any,
            "specification: creation parameters"
        ),
        case!(
            a_queue_pair_of_each_type_has_all_operations_of_its_type,
            "specification: creation parameters"
        ),
        case!(
            a_queue_pair_that_was_asked_for_operations_carries_them_out,
            "specification: creation parameters; opcode legality"
        ),
        case!(
            an_operation_that_its_type_lacks_is_named,
            "specification: creation parameters; opcode legality"
        ),
        case!(
            a_creation_flag_is_given_or_named,
            "specification: creation parameters"
        ),
        case!(
            of_several_fields_the_one_that_is_lacking_is_named,
            "specification: creation parameters"
        ),
        case!(
            a_header_for_segments_is_given_or_named,
            "specification: creation parameters"
        ),
        case!(
            another_number_in_packets_is_for_datagrams_and_given_or_named,
            "specification: creation parameters"
        ),
    ],
};

const NOTHING: ExtendedConfig = ExtendedConfig {
    create_flags: CreateFlags::NONE,
    max_tso_header: None,
    source_qpn: None,
    send_ops: SendOps::NONE,
};

fn create(end: &End, qp_type: QpType, extended: ExtendedConfig) -> Result<QueuePair, VerbsError> {
    let config = QueuePairConfig {
        qp_type,
        ..QueuePairConfig::new(&end.cq, &end.cq)
    };
    end.domain.create_qp_ex(config, extended)
}

/// Checks that the device either provides the feature or names it in its error.
fn given_or_named(device: &Device, made: Result<QueuePair, VerbsError>, name: &str) {
    match made {
        // Neither of the software devices supports any of these features.
        Ok(_) => assert_eq!(device.kind, Kind::Card, "{name}"),
        Err(VerbsError::NotSupported { call, what, .. }) => {
            assert_eq!((call, what), ("create_qp_ex", name));
        }
        Err(error) => panic!("{error}"),
    }
}

fn nothing_asked_for_is_a_queue_pair_as_any(_: &Device) {
    let end = End::new(rc());
    let qp = create(&end, QpType::ReliableConnection, NOTHING).unwrap();
    assert!(qp.capabilities().max_send_wr >= 16);
}

const TYPES: [QpType; 3] = [
    QpType::ReliableConnection,
    QpType::UnreliableConnection,
    QpType::UnreliableDatagram,
];

fn a_queue_pair_of_each_type_has_all_operations_of_its_type(_: &Device) {
    let end = End::new(rc());
    for qp_type in TYPES {
        let send_ops = SendOps::of_type(qp_type);
        let asked = ExtendedConfig {
            send_ops,
            ..NOTHING
        };
        let qp = create(&end, qp_type, asked).unwrap();
        assert_eq!(qp.qp_type(), qp_type);
    }
}

fn a_queue_pair_that_was_asked_for_operations_carries_them_out(_: &Device) {
    let options: Options = rc();
    let (mut left, mut right) = (End::new(options), End::new(options));
    let asked = ExtendedConfig {
        send_ops: SendOps::RDMA_READ | SendOps::RDMA_WRITE,
        ..NOTHING
    };
    left.qp = create(&left, QpType::ReliableConnection, asked).unwrap();
    connect((&mut left.qp, options), (&mut right.qp, options));
    right.fill(0..8, 3);
    left.succeed(WorkRequest::read(left.at(0..8), right.remote(0)));
    assert!(left.is_all(0..8, 3));
    // Operations that were not requested at creation can be posted as well.
    right.recv(64..128);
    left.succeed(WorkRequest::send(left.at(0..8)));
    right.expect_recv(C::Success);
}

fn an_operation_that_its_type_lacks_is_named(_: &Device) {
    let end = End::new(ud());
    for (qp_type, lacking, name) in [
        (
            QpType::UnreliableDatagram,
            SendOps::RDMA_WRITE,
            "send_ops_flags: IBV_QP_EX_WITH_RDMA_WRITE",
        ),
        (
            QpType::UnreliableConnection,
            SendOps::RDMA_READ,
            "send_ops_flags: IBV_QP_EX_WITH_RDMA_READ",
        ),
        (
            QpType::ReliableConnection,
            SendOps::TSO,
            "send_ops_flags: IBV_QP_EX_WITH_TSO",
        ),
    ] {
        let asked = ExtendedConfig {
            send_ops: SendOps::of_type(qp_type) | lacking,
            ..NOTHING
        };
        let error = create(&end, qp_type, asked).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

fn a_creation_flag_is_given_or_named(device: &Device) {
    let end = End::new(rc());
    for (create_flags, name) in [
        (
            CreateFlags::BLOCK_SELF_MCAST_LB,
            "create_flags: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB",
        ),
        (
            CreateFlags::SCATTER_FCS,
            "create_flags: IBV_QP_CREATE_SCATTER_FCS",
        ),
        (
            CreateFlags::CVLAN_STRIPPING,
            "create_flags: IBV_QP_CREATE_CVLAN_STRIPPING",
        ),
        (
            CreateFlags::PCI_WRITE_END_PADDING,
            "create_flags: IBV_QP_CREATE_PCI_WRITE_END_PADDING",
        ),
    ] {
        let asked = ExtendedConfig {
            create_flags,
            ..NOTHING
        };
        let made = create(&end, QpType::ReliableConnection, asked);
        given_or_named(device, made, name);
    }
}

fn of_several_fields_the_one_that_is_lacking_is_named(device: &Device) {
    let end = End::new(rc());
    let asked = ExtendedConfig {
        create_flags: CreateFlags::SCATTER_FCS,
        send_ops: SendOps::SEND | SendOps::RDMA_READ,
        ..NOTHING
    };
    let made = create(&end, QpType::ReliableConnection, asked);
    given_or_named(device, made, "create_flags: IBV_QP_CREATE_SCATTER_FCS");
    // Nothing is left behind: the completion queue can be destroyed.
    let End { qp, cq, .. } = end;
    drop(qp);
    cq.destroy().unwrap();
}

fn a_header_for_segments_is_given_or_named(device: &Device) {
    let end = End::new(ud());
    let asked = ExtendedConfig {
        max_tso_header: Some(64),
        ..NOTHING
    };
    let made = create(&end, QpType::UnreliableDatagram, asked);
    given_or_named(device, made, "max_tso_header");
}

fn another_number_in_packets_is_for_datagrams_and_given_or_named(device: &Device) {
    let end = End::new(ud());
    let asked = ExtendedConfig {
        source_qpn: Some(QpNum(0x1234)),
        ..NOTHING
    };
    let made = create(&end, QpType::UnreliableDatagram, asked);
    given_or_named(device, made, "source_qpn");
    for qp_type in [QpType::ReliableConnection, QpType::UnreliableConnection] {
        let error = create(&end, qp_type, asked).unwrap_err();
        assert!(
            matches!(
                error,
                VerbsError::InvalidArgument {
                    argument: "source_qpn",
                    ..
                }
            ),
            "{error}"
        );
    }
}
