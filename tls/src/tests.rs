//! Identities, roots and expected names, against certificates that the tests issue.

mod bytes;
mod chains;
mod changed;
mod files;
mod in_memory;
pub(crate) mod log;
mod records;
mod secrets;
mod verification;

use tls_testing::{Authority, Issued};

use crate::{Identity, Roots};

trait AsIdentity {
    fn identity(&self) -> Identity;
}

impl AsIdentity for Issued {
    fn identity(&self) -> Identity {
        Identity::from_pem(self.certificate.as_bytes(), self.key.as_bytes()).unwrap()
    }
}

trait AsRoots {
    fn roots(&self) -> Roots;
}

impl AsRoots for Authority {
    fn roots(&self) -> Roots {
        Roots::from_pem(self.pem().as_bytes()).unwrap()
    }
}
