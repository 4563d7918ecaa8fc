//! [`MethodName`]: a method as users write it.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// `package.Service/Method`, or `package.Service.Method`. The service is empty in what has neither form,
/// so that it is looked up, is not found, and the nearest names are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MethodName {
    pub(crate) service: String,
    pub(crate) method: String,
}

impl FromStr for MethodName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let text = text.trim_start_matches(['/', '.']);
        let parts = text.rsplit_once('/').or_else(|| text.rsplit_once('.'));
        let (service, method) = parts.unwrap_or(("", text));
        Ok(Self {
            service: service.to_owned(),
            method: method.to_owned(),
        })
    }
}

/// The path by which peers know the method.
impl fmt::Display for MethodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.service.is_empty() {
            true => f.write_str(&self.method),
            false => write!(f, "{}/{}", self.service, self.method),
        }
    }
}
