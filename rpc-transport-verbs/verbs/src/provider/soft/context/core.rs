//! What a queue pair is: its numbers, its state and its attributes, and where its completions go.

use crate::provider::limits::WrongValue;
use crate::types::{
    AddressVector, Attribute, Gid, PathMigration, PostError, PostErrorReason, QpAttributes, QpNum,
    QpState, QpType,
};

/// What a queue pair is: only verbs, and its failure, change it.
#[derive(Debug)]
pub(crate) struct Core {
    /// The queue pair's index in the context's table.
    pub(crate) index: u32,
    pub(crate) number: QpNum,
    pub(crate) qp_type: QpType,
    pub(crate) domain: u32,
    pub(crate) state: QpState,
    /// The attributes as last set. `state` and the attributes that are only valid in a call are
    /// `None`.
    pub(crate) attributes: QpAttributes,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) srq: Option<usize>,
    pub(crate) sq_sig_all: bool,
}

impl Core {
    pub(crate) fn is_reliable(&self) -> bool {
        self.qp_type == QpType::ReliableConnection
    }

    /// Fails if the state does not allow requests to be posted, of which there are `count`.
    #[inline]
    pub(crate) fn check_post(&self, count: usize) -> Result<(), PostError> {
        let state = self.state;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) && count > 0 {
            return Err(PostError {
                taken: 0,
                reason: PostErrorReason::State { state },
            });
        }
        Ok(())
    }

    /// Returns true if messages are received in this state.
    pub(crate) fn receives_now(&self) -> bool {
        matches!(
            self.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
    }

    /// Returns true if this is the remote queue pair of the attributes.
    pub(crate) fn is_connected_to(&self, (gid, qp_num): (Gid, u32)) -> bool {
        self.attributes.dest_qp_num == Some(QpNum(qp_num))
            && self
                .attributes
                .address
                .is_some_and(|address| address.gid == gid)
    }

    /// Checks the values of the attributes that are present, on a port with `gid_count` GIDs. The
    /// caller has checked which are present.
    pub(crate) fn check_values(
        &self,
        attributes: &QpAttributes,
        gid_count: u8,
    ) -> Result<(), WrongValue> {
        crate::provider::soft::capacities::ATTRIBUTE_LIMITS.check(attributes)?;
        let wrong = |attribute, value, reason| {
            Err(WrongValue {
                attribute,
                value,
                reason,
            })
        };
        if let Some(path) = attributes.alternate_path {
            let reason = "the device has one path";
            return wrong(Attribute::AlternatePath, path.port.into(), reason);
        }
        if let Some(key) = attributes.qkey.filter(|key| key >> 31 != 0) {
            let reason = "the top bit is for privileged programs";
            return wrong(Attribute::Qkey, key.into(), reason);
        }
        match attributes.address {
            Some(address) => self.check_address(address, attributes, gid_count),
            None => Ok(()),
        }
    }

    fn check_address(
        &self,
        address: AddressVector,
        attributes: &QpAttributes,
        gid_count: u8,
    ) -> Result<(), WrongValue> {
        let wrong = |value: u8, reason| {
            Err(WrongValue {
                attribute: Attribute::Address,
                value: u64::from(value),
                reason,
            })
        };
        if !address.is_global {
            return wrong(0, "is_global has to be set: the device has no LIDs");
        }
        if address.sgid_index >= gid_count {
            let reason = "sgid_index: the port has no such GID";
            return wrong(address.sgid_index, reason);
        }
        let port = attributes.port.or(self.attributes.port);
        if Some(address.port) != port {
            return wrong(address.port, "port: another than the queue pair's");
        }
        if self.state == QpState::Sqd
            && self
                .attributes
                .address
                .is_some_and(|now| now.gid != address.gid)
        {
            return wrong(
                address.port,
                "gid: a connection cannot be moved to another process",
            );
        }
        Ok(())
    }

    /// Returns the attributes, as `query` reports them. `is_draining` in SQD until nothing is in flight.
    pub(crate) fn query(&self, is_draining: bool) -> QpAttributes {
        QpAttributes {
            state: Some(self.state),
            sq_draining: Some(self.state == QpState::Sqd && is_draining),
            // The device has a single path, so there is nothing to migrate to.
            path_migration: self
                .attributes
                .path_migration
                .or(Some(PathMigration::Migrated)),
            ..self.attributes
        }
    }

    /// Adopts the attributes that are present.
    pub(crate) fn set(&mut self, new: &QpAttributes) {
        let old = &mut self.attributes;
        *old = QpAttributes {
            state: None,
            current_state: None,
            notify_drained: None,
            access: new.access.or(old.access),
            pkey_index: new.pkey_index.or(old.pkey_index),
            port: new.port.or(old.port),
            qkey: new.qkey.or(old.qkey),
            address: new.address.or(old.address),
            path_mtu: new.path_mtu.or(old.path_mtu),
            timeout: new.timeout.or(old.timeout),
            retry_cnt: new.retry_cnt.or(old.retry_cnt),
            rnr_retry: new.rnr_retry.or(old.rnr_retry),
            rq_psn: new.rq_psn.or(old.rq_psn),
            max_rd_atomic: new.max_rd_atomic.or(old.max_rd_atomic),
            alternate_path: None,
            min_rnr_timer: new.min_rnr_timer.or(old.min_rnr_timer),
            sq_psn: new.sq_psn.or(old.sq_psn),
            max_dest_rd_atomic: new.max_dest_rd_atomic.or(old.max_dest_rd_atomic),
            path_migration: new.path_migration.or(old.path_migration),
            dest_qp_num: new.dest_qp_num.or(old.dest_qp_num),
            sq_draining: None,
        };
    }
}

/// Returns the remote queue pair that INIT→RTR connects to.
pub(crate) fn remote_of(attributes: &QpAttributes) -> Option<(Gid, QpNum)> {
    Some((attributes.address?.gid, attributes.dest_qp_num?))
}
