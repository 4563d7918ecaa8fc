//! What is outside a device's limits, refused by name before the device is asked: devices have one error
//! number for all of it, and some take what they should refuse.

use crate::verbs::{Attribute, ModifyError, QpAttributes, VerbsError};

/// Refuses a parameter outside `min..=max`.
pub(super) fn in_range(
    call: &'static str,
    parameter: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<(), VerbsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let (value, min, max) = (value as u64, min as u64, max as u64);
    Err(VerbsError::OutOfRange {
        call,
        parameter,
        value,
        min,
        max,
    })
}

/// Limits of a queue pair's attributes that differ between devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttributeLimits {
    pub(super) port_count: u8,
    pub(super) pkey_count: u16,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
}

impl AttributeLimits {
    /// Checks the values of what is present; presence itself was checked.
    pub(super) fn check(&self, attributes: &QpAttributes) -> Result<(), ModifyError> {
        let wrong = |attribute, value, reason| {
            Err(ModifyError::Value {
                attribute,
                value,
                reason,
            })
        };
        let at_most = |attribute, value: Option<u64>, max: u64, reason| match value {
            Some(value) if value > max => wrong(attribute, value, reason),
            _ => Ok(()),
        };
        let is_port = |port: u8| (1..=self.port_count).contains(&port);
        if let Some(port) = attributes.port.filter(|port| !is_port(*port)) {
            return wrong(Attribute::Port, port.into(), "the device has no such port");
        }
        if let Some(address) = attributes.address.filter(|a| !is_port(a.port)) {
            let reason = "port: the device has no such port";
            return wrong(Attribute::Address, address.port.into(), reason);
        }
        if let Some(index) = attributes.pkey_index.filter(|i| *i >= self.pkey_count) {
            let reason = "the device has no such partition key";
            return wrong(Attribute::PkeyIndex, index.into(), reason);
        }
        let dest_qp_num = attributes.dest_qp_num.map(|number| u64::from(number.0));
        let min_rnr_timer = attributes.min_rnr_timer.map(|timer| u64::from(timer.0));
        let small = |value: Option<u8>| value.map(u64::from);
        at_most(
            Attribute::DestQpNum,
            dest_qp_num,
            0x00ff_ffff,
            "queue-pair numbers have 24 bits",
        )?;
        at_most(
            Attribute::MinRnrTimer,
            min_rnr_timer,
            31,
            "a code of at most 31",
        )?;
        at_most(
            Attribute::Timeout,
            small(attributes.timeout),
            31,
            "at most 31",
        )?;
        at_most(
            Attribute::RetryCnt,
            small(attributes.retry_cnt),
            7,
            "at most 7",
        )?;
        at_most(
            Attribute::RnrRetry,
            small(attributes.rnr_retry),
            7,
            "at most 7",
        )?;
        at_most(
            Attribute::MaxRdAtomic,
            small(attributes.max_rd_atomic),
            self.max_rd_atomic.into(),
            "more than the device can have outstanding",
        )?;
        at_most(
            Attribute::MaxDestRdAtomic,
            small(attributes.max_dest_rd_atomic),
            self.max_dest_rd_atomic.into(),
            "more than the device can answer at a time",
        )
    }
}
