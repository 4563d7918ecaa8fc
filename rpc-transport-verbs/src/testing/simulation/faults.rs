//! The faults that a simulation can inject, and their rates.

use verbline_verbs::for_transport::hooks::{Fault, Post};

/// Fault rates, in thousandths of the opportunities for each fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    pub(super) rates: [u16; Fault::ALL.len()],
    pub(super) posts: [u16; Post::ALL.len()],
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            rates: [0; Fault::ALL.len()],
            posts: [0; Post::ALL.len()],
        }
    }
}

impl Faults {
    /// Returns rates that inject no faults.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Sets the rate of a fault, in thousandths.
    pub fn set(&mut self, fault: Fault, thousandths: u16) {
        self.rates[fault as usize] = thousandths;
    }

    /// Sets the rate at which posts are rejected or cut short, in thousandths.
    pub fn set_post(&mut self, post: Post, thousandths: u16) {
        self.posts[post as usize] = thousandths;
    }
}
