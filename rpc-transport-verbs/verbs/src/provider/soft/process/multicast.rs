//! Multicast groups of the process and their member queue pairs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::provider::soft::capacities::exhausted;
use crate::types::{Gid, QpNum, VerbsError};

/// Maximum number of groups of one process.
pub(crate) const MAX_GROUPS: usize = 1024;
/// Maximum number of queue pairs in one group.
pub(crate) const MAX_MEMBERS: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Groups(Mutex<HashMap<Gid, Vec<QpNum>>>);

impl Groups {
    pub(crate) fn join(&self, gid: Gid, qp_num: QpNum) -> Result<(), VerbsError> {
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
    pub(crate) fn leave(&self, gid: Gid, qp_num: QpNum) -> bool {
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
    pub(crate) fn forget(&self, qp_num: QpNum) {
        self.groups().retain(|_, members| {
            members.retain(|member| *member != qp_num);
            !members.is_empty()
        });
    }

    /// Returns the current members of the group, in the order in which they joined.
    pub(crate) fn members(&self, gid: Gid) -> Vec<QpNum> {
        self.groups().get(&gid).cloned().unwrap_or_default()
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<Gid, Vec<QpNum>>> {
        // The lists are consistent after each step, so a panic under the lock does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
