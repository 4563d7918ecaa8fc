//! [`Tls`]: who the server has to be, and who this program is.

use std::path::PathBuf;

use clap::Args;
use verbline::tls::{ClientTls, Expect, Identity, Roots, TlsError};

/// How the server proves its name, and this program its own.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct Tls {
    /// Connect with TLS only. https:// and each of the options below imply it
    #[arg(long)]
    tls: bool,
    /// Believe these authorities, a PEM file. Default: those of the system
    #[arg(long = "ca", value_name = "FILE")]
    roots: Option<PathBuf>,
    /// Show this certificate to the server, a PEM file
    #[arg(long = "cert", value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The private key of the certificate, a PEM file without a password
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// Expect a certificate for this name. Default: the host of the address
    #[arg(long, value_name = "NAME", conflicts_with = "spiffe")]
    server_name: Option<String>,
    /// Expect a certificate for this SPIFFE id, whatever the address
    #[arg(long, value_name = "ID")]
    spiffe: Option<String>,
}

impl Tls {
    /// Reads the files. Returns `None` if nothing is asked for.
    pub(crate) fn open(&self) -> Result<Option<ClientTls>, TlsError> {
        let name = self.server_name.clone().map(Expect::Name);
        let expected = name.or(self.spiffe.clone().map(Expect::Spiffe));
        let pair = self.certificate.as_ref().zip(self.key.as_ref());
        if !self.tls && self.roots.is_none() && expected.is_none() && pair.is_none() {
            return Ok(None);
        }
        let mut tls = ClientTls::new(match &self.roots {
            Some(file) => Roots::from_file(file)?,
            None => Roots::system()?,
        });
        if let Some((certificate, key)) = pair {
            tls = tls.identity(Identity::from_files(certificate, key)?);
        }
        Ok(Some(match expected {
            Some(expected) => tls.server(expected)?,
            None => tls,
        }))
    }
}
