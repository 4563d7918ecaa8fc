//! [`ServerProcess`]: the server as a process of its own.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A server in another process, which is killed on drop.
pub(crate) struct ServerProcess {
    child: Child,
    address: String,
}

impl ServerProcess {
    /// Starts this program as a server on a device, and waits until it listens.
    pub(crate) fn start(device: &str) -> io::Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(["--device", device, "--serve", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take();
        let mut process = Self {
            child,
            address: String::new(),
        };
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        match line.trim_end().strip_prefix("listening at ") {
            Some(address) => process.address.push_str(address),
            None => return Err(io::Error::other("the server process does not listen")),
        }
        Ok(process)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
