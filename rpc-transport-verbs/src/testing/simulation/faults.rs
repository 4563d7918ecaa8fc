//! What can go wrong, by name, and how often it does.

use crate::hooks::{Fault, Post};

/// How often each thing goes wrong, in thousandths of its chances.
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
    /// Nothing goes wrong.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// A fault strikes so many times in a thousand.
    pub fn set(&mut self, fault: Fault, thousandths: u16) {
        self.rates[fault as usize] = thousandths;
    }

    /// Posts are cut so many times in a thousand.
    pub fn set_post(&mut self, post: Post, thousandths: u16) {
        self.posts[post as usize] = thousandths;
    }
}
