//! Multicast groups of the process and their member queue pairs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::objects::{QueuePair, exhausted};
use crate::verbs::{Gid, QpNum, VerbsError};

/// Maximum number of groups of one process.
pub(super) const MAX_GROUPS: usize = 1024;
/// Maximum number of queue pairs in one group.
pub(super) const MAX_MEMBERS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Groups(Mutex<HashMap<Gid, Vec<QpNum>>>);

impl Groups {
    fn join(&self, gid: Gid, qp_num: QpNum) -> Result<(), VerbsError> {
        let call = "attach_mcast";
        let mut groups = self.groups();
        if groups.len() == MAX_GROUPS && !groups.contains_key(&gid) {
            return Err(exhausted(call, "multicast groups", MAX_GROUPS));
        }
        let members = groups.entry(gid).or_default();
        if members.contains(&qp_num) {
            return Ok(());
        }
        if members.len() == MAX_MEMBERS {
            return Err(exhausted(call, "members of the group", MAX_MEMBERS));
        }
        members.push(qp_num);
        Ok(())
    }

    /// Removes a member. Returns `false` if it was not in the group.
    fn leave(&self, gid: Gid, qp_num: QpNum) -> bool {
        let mut groups = self.groups();
        let Some(members) = groups.get_mut(&gid) else {
            return false;
        };
        let before = members.len();
        members.retain(|member| *member != qp_num);
        let was_in = members.len() < before;
        if members.is_empty() {
            groups.remove(&gid);
        }
        was_in
    }

    /// Removes a destroyed queue pair from all groups.
    pub(super) fn forget(&self, qp_num: QpNum) {
        self.groups().retain(|_, members| {
            members.retain(|member| *member != qp_num);
            !members.is_empty()
        });
    }

    /// Returns the current members of the group, in the order in which they joined.
    pub(super) fn members(&self, gid: Gid) -> Vec<QpNum> {
        self.groups().get(&gid).cloned().unwrap_or_default()
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<Gid, Vec<QpNum>>> {
        // The lists are consistent after each step, so a panic under the lock does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuePair {
    /// Joins a multicast group. The LID is ignored: the device has none.
    pub(crate) fn attach_multicast(&mut self, gid: Gid, _lid: u16) -> Result<(), VerbsError> {
        self.domain.node.check()?;
        self.domain.node.groups.join(gid, self.qp_num())
    }

    pub(crate) fn detach_multicast(&mut self, gid: Gid, _lid: u16) -> Result<bool, VerbsError> {
        self.domain.node.check()?;
        Ok(self.domain.node.groups.leave(gid, self.qp_num()))
    }
}
