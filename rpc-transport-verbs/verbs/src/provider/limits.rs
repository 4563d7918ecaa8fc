//! Checks values against a device's limits before the device is called, so that the error names the
//! wrong value: devices report all such errors with one error number, and some accept values that
//! they should reject.

use crate::types::{
    Access, AddressVector, Attribute, ModifyError, QpAttributes, QpState, VerbsError,
};

/// Rejects rights of peers to write without the right of the device to write. The kernel's rule
/// (`ib_check_mr_access`), which it reports as `EINVAL`.
pub(super) fn needs_local_write(access: Access) -> Result<(), VerbsError> {
    let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
        return Err(VerbsError::RemoteWithoutLocalWrite);
    }
    Ok(())
}

/// Rejects a parameter outside `min..=max`.
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

/// An attribute with a value that the device does not accept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrongValue {
    pub(super) attribute: Attribute,
    pub(super) value: u64,
    /// The rule that the value violates.
    pub(super) reason: &'static str,
}

impl WrongValue {
    /// Converts this into the error of a call that received the value as an argument.
    pub(super) fn to_argument_error(
        self,
        call: &'static str,
        argument: &'static str,
    ) -> VerbsError {
        VerbsError::InvalidArgument {
            call,
            argument,
            value: self.value,
            reason: self.reason,
        }
    }

    /// Converts this into the error of the transition that the value was given for.
    pub(super) fn at(self, from: QpState, to: QpState) -> ModifyError {
        let Self {
            attribute,
            value,
            reason,
        } = self;
        ModifyError::Value {
            from,
            to,
            attribute,
            value,
            reason,
        }
    }
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
    /// Checks the values of the attributes that are present. The caller has checked which are
    /// present.
    pub(super) fn check(&self, attributes: &QpAttributes) -> Result<(), WrongValue> {
        let refuse_if = |is_wrong: bool, attribute, value: u64, reason| {
            let error = WrongValue {
                attribute,
                value,
                reason,
            };
            if is_wrong { Err(error) } else { Ok(()) }
        };
        let is_port = |port: u8| (1..=self.port_count).contains(&port);
        if let Some(port) = attributes.port {
            let reason = "the device has no such port";
            refuse_if(!is_port(port), Attribute::Port, port.into(), reason)?;
        }
        if let Some(index) = attributes.pkey_index {
            let reason = "the device has no such partition key";
            let is_wrong = index >= self.pkey_count;
            refuse_if(is_wrong, Attribute::PkeyIndex, index.into(), reason)?;
        }
        if let Some(address) = &attributes.address {
            self.check_address(address)?;
        }
        if let Some(number) = attributes.dest_qp_num {
            let reason = "queue-pair numbers have 24 bits";
            let is_wrong = number.0 >> 24 != 0;
            refuse_if(is_wrong, Attribute::DestQpNum, number.0.into(), reason)?;
        }
        if let Some(count) = attributes.max_rd_atomic {
            let reason = "more than the device can have outstanding";
            let is_wrong = count > self.max_rd_atomic;
            refuse_if(is_wrong, Attribute::MaxRdAtomic, count.into(), reason)?;
        }
        if let Some(count) = attributes.max_dest_rd_atomic {
            let reason = "more than the device can answer at a time";
            let is_wrong = count > self.max_dest_rd_atomic;
            refuse_if(is_wrong, Attribute::MaxDestRdAtomic, count.into(), reason)?;
        }
        Ok(())
    }
    /// Checks the values of an address alone.
    pub(super) fn check_address(&self, address: &AddressVector) -> Result<(), WrongValue> {
        let refuse_if = |is_wrong: bool, value: u64, reason| {
            let error = WrongValue {
                attribute: Attribute::Address,
                value,
                reason,
            };
            if is_wrong { Err(error) } else { Ok(()) }
        };
        let is_port = (1..=self.port_count).contains(&address.port);
        let reason = "port: the device has no such port";
        refuse_if(!is_port, address.port.into(), reason)?;
        let reason = "sl: service levels have 4 bits";
        refuse_if(address.sl > 15, address.sl.into(), reason)?;
        let reason = "flow_label: flow labels have 20 bits";
        let label = address.flow_label;
        refuse_if(label >> 20 != 0, label.into(), reason)
    }
}
