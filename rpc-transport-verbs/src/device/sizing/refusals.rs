//! Errors that name the setting to change, and the value that would fit.

use rpc_core::transport::FabricError;

/// Why a device can never be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "it has no shared receive queues, and the connections of a poller share their receives through one; use another device ('soft' is available everywhere)"
)]
pub(super) struct NoSharedReceiveQueue;

pub(super) fn at_least_one(setting: &'static str, value: u32) -> Result<u32, FabricError> {
    if value == 0 {
        return Err(does_not_fit(setting, 0, "it must be at least 1"));
    }
    Ok(value)
}

pub(super) fn sum<const N: usize>(
    terms: [u32; N],
    setting: &'static str,
) -> Result<u32, FabricError> {
    terms
        .into_iter()
        .try_fold(0u32, u32::checked_add)
        .ok_or_else(|| {
            let value = terms.iter().map(|&term| u64::from(term)).sum();
            does_not_fit(
                setting,
                value,
                "there would be more than 4,294,967,295 slots",
            )
        })
}

pub(super) fn too_much(
    setting: &'static str,
    value: impl Into<u64>,
    needed: u64,
    what: &str,
    limit: u64,
) -> FabricError {
    let reason = format!("it needs {needed} {what}, and the device has {limit}");
    does_not_fit(setting, value.into(), reason)
}

/// Adds the number of connections that would fit or, if not even one fits, another setting to
/// lower.
pub(super) fn with_advice(mut refused: FabricError, most: u32, instead: &str) -> FabricError {
    if let FabricError::Intent { reason, .. } = &mut refused {
        reason.push_str(&match most {
            0 => format!("; not even one connection fits, so lower {instead}"),
            most => format!("; {most} connections would fit"),
        });
    }
    refused
}

pub(super) fn does_not_fit(
    setting: &'static str,
    value: u64,
    reason: impl Into<String>,
) -> FabricError {
    FabricError::Intent {
        setting,
        value,
        reason: reason.into(),
    }
}
