//! Rejects requested features that the device does not support, and names them.

use super::super::super::limits::needs_local_write;
use crate::provider::queue_pair_options::QueuePairOptions;
use crate::provider::soft::capacities::DEVICE_NAME;
use crate::types::{Access, ExtendedConfig, SendOps, VerbsError};

/// Rejects rights that do not go together, and the FLUSH access rights: the device has nothing to
/// flush to. The other rights cost nothing or already hold for its memory.
pub(crate) fn check_access(access: Access) -> Result<(), VerbsError> {
    needs_local_write(access)?;
    for (right, what) in [
        (Access::FLUSH_GLOBAL, "the access right FLUSH_GLOBAL"),
        (
            Access::FLUSH_PERSISTENT,
            "the access right FLUSH_PERSISTENT",
        ),
    ] {
        if access.contains(right) {
            return Err(not_supported("register", what));
        }
    }
    Ok(())
}

/// Rejects extended features beyond the send operations of the queue pair's type.
pub(crate) fn check_extended(config: &QueuePairOptions) -> Result<(), VerbsError> {
    let ops = SendOps::of_type(config.qp_type);
    let lacks = |field: &ExtendedConfig| {
        let only_ops = ExtendedConfig {
            send_ops: field.send_ops,
            ..ExtendedConfig::default()
        };
        *field != only_ops || !ops.contains(field.send_ops)
    };
    match config.extended.fields().find(|(field, _)| lacks(field)) {
        Some((_, what)) => Err(not_supported("create_qp_ex", what)),
        None => Ok(()),
    }
}

fn not_supported(call: &'static str, what: &'static str) -> VerbsError {
    VerbsError::NotSupported {
        call,
        device: DEVICE_NAME.to_owned(),
        what,
    }
}
