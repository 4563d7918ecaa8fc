//! Requests of any kind: where a list of them goes.

use super::super::{Operation, SendWork, Sge, Work};
use super::domain::State;
use crate::verbs::{PostError, PostErrorReason, QpType};

impl State {
    pub(super) fn post(
        &mut self,
        place: u32,
        list: &[Work],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        match self.queue_pairs[place as usize].qp_type {
            QpType::ReliableConnection => self.post_connected(place, list, elements),
            QpType::UnreliableConnection | QpType::UnreliableDatagram => {
                self.post_unreliable(place, list, elements)
            }
        }
    }

    fn post_connected(
        &mut self,
        place: u32,
        list: &[Work],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        for (taken, work) in list.iter().enumerate() {
            let (Operation::Send, &[only]) = (&work.operation, work.elements(elements)) else {
                let reason = PostErrorReason::Refused { errno: 95 };
                return Err(PostError { taken, reason });
            };
            let send = SendWork {
                wr_id: work.wr_id,
                addr: only.addr,
                len: only.len,
                local_key: only.local_key,
                signaled: work.signaled,
                inline: work.inline,
                solicited: work.solicited,
            };
            self.post_send(place, &[send])
                .map_err(|error| PostError { taken, ..error })?;
        }
        Ok(())
    }

    /// What a key permitted may be permitted no more.
    pub(super) fn revoke(&mut self) {}
}
