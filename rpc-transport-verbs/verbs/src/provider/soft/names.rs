//! How requests name the objects of this device.

use crate::types::AddressVector;

/// A window's index in its context.
pub(crate) type WindowName = u32;

/// A datagram's destination address, in full.
pub(crate) type AddressName = AddressVector;
