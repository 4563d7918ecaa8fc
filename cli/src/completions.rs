//! `verbline completions`: a script for a shell.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::output::Output;

pub(crate) fn print(shell: Shell, output: &mut Output) -> Result<(), Failure> {
    // Into memory: the library panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "verbline", &mut script);
    output.text(&String::from_utf8_lossy(&script))
}
