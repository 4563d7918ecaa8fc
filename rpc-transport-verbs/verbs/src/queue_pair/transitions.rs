//! The state and the attributes of a queue pair (`ibv_modify_qp(3)`, `ibv_query_qp(3)`).

use super::super::types::access::Access;
use super::super::types::modify_error::ModifyError;
use super::super::types::queue_pair_attributes::{
    AddressVector, Psn, QpAttributes, RtrAttributes, RtsAttributes,
};
use super::super::types::queue_pair_state::{QpState, QpType};
use super::super::types::queue_pair_transitions::check_transition;
use super::super::types::verbs_error::VerbsError;
use super::QueuePair;

impl QueuePair {
    /// Returns the device's current state of the queue pair (`ibv_query_qp(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::Os`] if the driver fails, [`VerbsError::Forked`] in a forked child.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        self.raw.state()
    }

    /// Returns its current attributes: those that are valid in its state (`ibv_query_qp(3)`).
    ///
    /// # Errors
    ///
    /// As for [`state`](Self::state).
    pub fn query(&self) -> Result<QpAttributes, VerbsError> {
        let all = self.raw.query()?;
        let state = all.state.unwrap_or(QpState::Reset);
        Ok(all.valid_in(self.qp_type, state))
    }

    /// Returns all attributes that the device has, whatever the state. For failure reports: after a
    /// failure verbs guarantee only the state.
    #[doc(hidden)]
    pub fn query_remains(&self) -> Result<QpAttributes, VerbsError> {
        self.raw.query()
    }

    /// Changes state and attributes, all or none (`ibv_modify_qp(3)`). It first checks that the
    /// transition exists, that all required attributes are present, and that the others are
    /// allowed.
    ///
    /// A transition to RESET discards everything posted without a completion: the slots stay in
    /// flight here until [`reclaim`](Self::reclaim) or [`destroy`](Self::destroy).
    ///
    /// # Errors
    ///
    /// [`ModifyError`] names the transition and the attribute that is missing, not allowed or
    /// invalid, or the cause of the device's refusal.
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<(), ModifyError> {
        let actual = self.raw.state().map_err(|error| match error {
            VerbsError::Forked(forked) => ModifyError::Forked(forked),
            VerbsError::Os { source, .. } => ModifyError::Os {
                action: "query its state",
                source,
            },
            other => ModifyError::Os {
                action: "query its state",
                source: std::io::Error::other(other),
            },
        })?;
        let to = check_transition(
            self.qp_type,
            actual,
            attributes.current_state,
            attributes.state,
            attributes.mask(),
        )?;
        if let Err(reason) = self.ring_doorbell() {
            tracing::debug!(%reason, "the device rejected inline messages: they are not posted");
        }
        self.raw.modify(actual, to, attributes)?;
        self.port = attributes.port.unwrap_or(self.port);
        self.max_rd_atomic = attributes.max_rd_atomic.unwrap_or(self.max_rd_atomic);
        Ok(())
    }

    /// Moves from RESET to INIT on `port`. Receives may be posted from now on. `access` sets the
    /// remote operations that the peer may use.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify).
    pub fn to_init(&mut self, port: u8, access: Access) -> Result<(), ModifyError> {
        self.modify(&QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(port),
            access: Some(access),
            ..QpAttributes::default()
        })
    }

    /// Moves from RESET to RTS, for unreliable datagrams, which have no peer. It uses `port`, and
    /// receives datagrams with the Q_Key `qkey`; `psn` is its first sequence number.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify). The queue pair stays in the state that it has reached.
    pub fn to_rts_for_datagrams(
        &mut self,
        port: u8,
        qkey: u32,
        psn: Psn,
    ) -> Result<(), ModifyError> {
        self.modify(&QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(port),
            qkey: Some(qkey),
            ..QpAttributes::default()
        })?;
        self.modify(&QpAttributes {
            state: Some(QpState::Rtr),
            ..QpAttributes::default()
        })?;
        self.modify(&QpAttributes {
            state: Some(QpState::Rts),
            sq_psn: Some(psn),
            ..QpAttributes::default()
        })
    }

    /// Moves from INIT to RTR, ready to receive from the peer. For an unreliable connection, the
    /// RNR timer and the number of READs are ignored.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify).
    pub fn to_rtr(&mut self, attributes: RtrAttributes) -> Result<(), ModifyError> {
        let RtrAttributes {
            remote,
            sgid_index,
            path_mtu,
            min_rnr_timer,
            max_dest_rd_atomic,
            traffic_class,
            service_level,
        } = attributes;
        let is_reliable = self.qp_type == QpType::ReliableConnection;
        self.modify(&QpAttributes {
            state: Some(QpState::Rtr),
            address: Some(AddressVector {
                gid: remote.gid,
                lid: remote.lid,
                sgid_index,
                // A LID alone reaches every port of the subnet, but only the header has a traffic class.
                is_global: remote.lid == 0 || traffic_class != 0,
                port: self.port,
                sl: service_level,
                traffic_class,
                ..AddressVector::default()
            }),
            path_mtu: Some(path_mtu),
            dest_qp_num: Some(remote.qp_num),
            rq_psn: Some(remote.psn),
            max_dest_rd_atomic: is_reliable.then_some(max_dest_rd_atomic),
            min_rnr_timer: is_reliable.then_some(min_rnr_timer),
            ..QpAttributes::default()
        })
    }

    /// Moves from RTR to RTS, ready to send. Don't send before the peer is in RTR. For an
    /// unreliable connection, only the sequence number is used.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify).
    pub fn to_rts(&mut self, attributes: RtsAttributes) -> Result<(), ModifyError> {
        let RtsAttributes {
            psn,
            timeout,
            retry_cnt,
            rnr_retry,
            max_rd_atomic,
        } = attributes;
        let is_reliable = self.qp_type == QpType::ReliableConnection;
        self.modify(&QpAttributes {
            state: Some(QpState::Rts),
            sq_psn: Some(psn),
            timeout: is_reliable.then_some(timeout),
            retry_cnt: is_reliable.then_some(retry_cnt),
            rnr_retry: is_reliable.then_some(rnr_retry),
            max_rd_atomic: is_reliable.then_some(max_rd_atomic),
            ..QpAttributes::default()
        })
    }

    /// Moves from any state but RESET to ERR: all posted requests are flushed.
    ///
    /// # Errors
    ///
    /// As for [`modify`](Self::modify).
    pub fn to_error(&mut self) -> Result<(), ModifyError> {
        self.modify(&QpAttributes {
            state: Some(QpState::Error),
            ..QpAttributes::default()
        })
    }
}
