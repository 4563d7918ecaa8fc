//! The memory of one context that its queue pairs access: regions, windows, and what peers may read of
//! them without asking.

use super::regions::Regions;
use super::window_table::Windows;
use crate::provider::soft::shared::published::ContextNotes;
use crate::provider::soft::shared::wake::Mapped;
#[cfg(feature = "test-util")]
use crate::types::WindowFault;

/// The registered memory of one context.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) regions: Regions,
    pub(crate) windows: Windows,
    /// Where the keys stand that permit READs.
    pub(super) notes: Mapped<ContextNotes>,
    #[cfg(feature = "test-util")]
    pub(super) window_fault: WindowFault,
    /// Windows that were allocated so far, and bindings that were carried out.
    #[cfg(feature = "test-util")]
    pub(super) windows_given: usize,
    #[cfg(feature = "test-util")]
    pub(super) windows_bound: usize,
}

impl Memory {
    pub(crate) fn new(
        notes: Mapped<ContextNotes>,
        #[cfg(feature = "test-util")] window_fault: WindowFault,
    ) -> Self {
        Self {
            regions: Regions::default(),
            windows: Windows::default(),
            notes,
            #[cfg(feature = "test-util")]
            window_fault,
            #[cfg(feature = "test-util")]
            windows_given: 0,
            #[cfg(feature = "test-util")]
            windows_bound: 0,
        }
    }
}
