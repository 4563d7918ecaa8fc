use super::*;
use crate::{
    Access, AckTimeout, AlternatePath, Context, Gid, Mtu, PathMigration, Psn, QueuePairConfig,
    RetryCount, RnrRetry, RnrTimer,
};

/// The three tables of the manual page, one row per state, copied literally.
fn listed(qp_type: QpType, state: QpState) -> Vec<A> {
    use QpType::{ReliableConnection as RC, UnreliableConnection as UC, UnreliableDatagram as UD};
    let row: &[A] = match (qp_type, state) {
        (_, QpState::Reset | QpState::Error) => &[],
        (UD, QpState::Init | QpState::Rtr) => &[A::PkeyIndex, A::Port, A::Qkey],
        (UD, QpState::Rts | QpState::Sqd | QpState::Sqe) => {
            &[A::PkeyIndex, A::Port, A::Qkey, A::SqPsn]
        }
        (UC | RC, QpState::Init) => &[A::PkeyIndex, A::Port, A::Access],
        (UC, QpState::Rtr) => &[
            A::PkeyIndex,
            A::Port,
            A::Access,
            A::Address,
            A::PathMtu,
            A::DestQpNum,
            A::RqPsn,
            A::AlternatePath,
        ],
        (UC, QpState::Rts | QpState::Sqd | QpState::Sqe) => &[
            A::PkeyIndex,
            A::Port,
            A::Access,
            A::Address,
            A::PathMtu,
            A::DestQpNum,
            A::RqPsn,
            A::AlternatePath,
            A::SqPsn,
            A::PathMigration,
        ],
        (RC, QpState::Rtr) => &[
            A::PkeyIndex,
            A::Port,
            A::Access,
            A::Address,
            A::PathMtu,
            A::DestQpNum,
            A::RqPsn,
            A::MaxDestRdAtomic,
            A::MinRnrTimer,
            A::AlternatePath,
        ],
        (RC, QpState::Rts | QpState::Sqd) => &[
            A::PkeyIndex,
            A::Port,
            A::Access,
            A::Address,
            A::PathMtu,
            A::DestQpNum,
            A::RqPsn,
            A::MaxDestRdAtomic,
            A::MinRnrTimer,
            A::AlternatePath,
            A::SqPsn,
            A::Timeout,
            A::RetryCnt,
            A::RnrRetry,
            A::MaxRdAtomic,
            A::PathMigration,
        ],
        // No row: this type has no such state.
        (RC, QpState::Sqe) => &[],
    };
    row.to_vec()
}

/// All attributes present.
fn full(state: QpState) -> QpAttributes {
    let address = AddressVector {
        gid: Gid([0xfe; 16]),
        ..AddressVector::default()
    };
    QpAttributes {
        state: Some(state),
        current_state: Some(state),
        notify_drained: Some(true),
        access: Some(Access::REMOTE_READ | Access::REMOTE_WRITE),
        pkey_index: Some(0),
        port: Some(1),
        qkey: Some(0x1111),
        address: Some(address),
        path_mtu: Some(Mtu::Bytes4096),
        timeout: AckTimeout::new(14),
        retry_cnt: RetryCount::new(6),
        rnr_retry: Some(RnrRetry::FOREVER),
        rq_psn: Some(Psn::new(0x1234)),
        max_rd_atomic: Some(1),
        alternate_path: Some(AlternatePath {
            address,
            pkey_index: 0,
            port: 1,
            timeout: AckTimeout::FOREVER,
        }),
        min_rnr_timer: RnrTimer::new(13),
        sq_psn: Some(Psn::new(0xabcdef)),
        max_dest_rd_atomic: Some(16),
        path_migration: Some(PathMigration::Migrated),
        dest_qp_num: Some(QpNum(0x11)),
        sq_draining: Some(true),
    }
}

#[test]
fn in_every_state_of_every_type_what_the_manual_lists_is_told_and_nothing_else() {
    for qp_type in QpType::ALL {
        for state in QpState::ALL {
            let attributes = full(state).valid_in(qp_type, state);
            let mask: AttributeMask = listed(qp_type, state).into_iter().collect();
            assert_eq!(attributes.mask(), mask, "{qp_type} in {state}");
            assert_eq!(attributes.state, Some(state));
            assert_eq!(attributes.sq_draining.is_some(), state == QpState::Sqd);
        }
    }
}

#[test]
fn a_connection_reads_as_aligned_lines_with_units() {
    let attributes = full(QpState::Rts).valid_in(QpType::ReliableConnection, QpState::Rts);
    let expected = "\
state              RTS
port               1
pkey_index         0
access             REMOTE_WRITE|REMOTE_READ
dest_qp_num        0x000011
address            fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe from GID 0, port 1
path_mtu           4096 bytes
rq_psn             0x001234
sq_psn             0xabcdef
timeout            67.109ms for an acknowledgement
retry_cnt          6, so 469.762ms for a silent peer
rnr_retry          for ever
min_rnr_timer      960µs
max_rd_atomic      1
max_dest_rd_atomic 16
path_migration     migrated
alternate_path     fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe from GID 0, port 1, pkey_index 0, timeout for ever";
    assert_eq!(attributes.to_string(), expected);
}

#[test]
fn a_datagram_queue_pair_has_few_lines() {
    let attributes = full(QpState::Sqd).valid_in(QpType::UnreliableDatagram, QpState::Sqd);
    let expected = "\
state              SQD
sq_draining        yes
port               1
pkey_index         0
qkey               0x00001111
sq_psn             0xabcdef";
    assert_eq!(attributes.to_string(), expected);
    assert_eq!(
        QpAttributes::default().to_string(),
        "",
        "nothing is said of nothing"
    );
}

#[test]
fn what_it_was_made_with_is_told_too() {
    let context = Context::open("soft").unwrap();
    let cq = context.create_cq(32).unwrap();
    let cq = &cq.handle();
    let domain = context.alloc_pd().unwrap();
    let config = QueuePairConfig {
        sq_sig_all: true,
        max_send_wr: 5,
        ..QueuePairConfig::new(cq, cq)
    };
    let queue_pair = domain.create_qp(config).unwrap();
    let init = queue_pair.query_init();
    assert_eq!(init.capabilities, queue_pair.capabilities());
    let expected = format!(
        "\
qp_num             {}
qp_type            RC
max_send_wr        5
max_send_sge       1
max_recv_wr        16
max_recv_sge       1
max_inline_data    1 KiB
sq_sig_all         yes",
        init.qp_num
    );
    assert_eq!(init.to_string(), expected);
    let srq = domain.create_srq(1, 1).unwrap();
    let config = QueuePairConfig {
        srq: Some(&srq),
        ..QueuePairConfig::new(cq, cq)
    };
    let init = domain.create_qp(config).unwrap().query_init();
    assert!(init.has_srq && !init.sq_sig_all);
    assert!(init.to_string().contains("shared receive queue"));
}

#[test]
fn of_an_address_the_unusual_is_said() {
    let lid = AddressVector {
        is_global: false,
        lid: 0x1f,
        sl: 3,
        hop_limit: 0,
        ..AddressVector::default()
    };
    assert_eq!(lid.to_string(), "LID 0x001f, port 1, sl 3");
    let class = AddressVector {
        traffic_class: 104,
        flow_label: 7,
        ..AddressVector::default()
    };
    assert_eq!(
        class.to_string(),
        ":: from GID 0, port 1, flow_label 7, traffic_class 104"
    );
}

#[test]
fn class_and_level_of_a_connection_are_in_its_address() {
    let context = Context::open("soft").unwrap();
    let address = context.choose_address(crate::AddressWish::default());
    let address = address.unwrap();
    let cq = context.create_cq(32).unwrap();
    let domain = context.alloc_pd().unwrap();
    let in_init = || {
        let mut queue_pair = domain.create_qp(QueuePairConfig::new(&cq, &cq)).unwrap();
        queue_pair.to_init(address.port, Access::NONE).unwrap();
        let myself = crate::RemoteEndpoint {
            gid: address.gid,
            lid: address.lid,
            qp_num: queue_pair.qp_num(),
            psn: Psn::new(1),
        };
        (queue_pair, crate::RtrAttributes::new(myself))
    };
    let (mut queue_pair, attributes) = in_init();
    assert_eq!(
        (attributes.traffic_class, attributes.service_level),
        (0, 0),
        "as it was before there were settings"
    );
    queue_pair
        .to_rtr(crate::RtrAttributes {
            traffic_class: 104,
            service_level: 3,
            ..attributes
        })
        .unwrap();
    let address = queue_pair.query().unwrap().address.unwrap();
    assert_eq!((address.traffic_class, address.sl), (104, 3));
    let (mut queue_pair, attributes) = in_init();
    let error = queue_pair
        .to_rtr(crate::RtrAttributes {
            service_level: 16,
            ..attributes
        })
        .unwrap_err();
    assert!(error.to_string().contains("4 bits"), "{error}");
}
