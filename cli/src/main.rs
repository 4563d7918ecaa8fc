//! The program `verbline`: lists, describes, calls, probes and loads servers, of Verbline and of gRPC.
//!
//! ```text
//!  arguments.rs ─▶ target.rs ─▶ list.rs                             the names of a server
//!   security.rs    a channel    describe.rs ─▶ proto_text.rs         the text of a .proto
//!                               call.rs ─▶ from_json.rs, to_json.rs messages
//!                               health.rs                           for probes
//!                               bench/                              loads
//!      schema.rs: the types, by reflection.rs or from .proto files
//!      output.rs: standard output            failure.rs: what went wrong, and the exit code
//! ```
#![forbid(unsafe_code)]

mod arguments;
mod bench;
mod call;
mod completions;
mod describe;
mod failure;
mod from_json;
mod health;
mod input;
mod list;
mod method_name;
mod nearest;
mod output;
mod proto_text;
mod reflection;
mod report;
mod schema;
mod security;
mod target;
mod to_json;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use self::arguments::{Arguments, Command};
use self::failure::{Exit, Failure};
use self::output::{Output, visible};

fn main() -> ExitCode {
    // What the libraries log about a failure is in its message, too.
    tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::builder()
                .with_default_directive(LevelFilter::OFF.into())
                .from_env_lossy(),
        )
        .with_writer(io::stderr)
        .init();
    let arguments = Arguments::parse();
    let exit = Exit::of(&arguments.command);
    match run(arguments.command, &mut Output) {
        Ok(code) => code,
        Err(failure) => {
            if !failure.is_quiet() {
                // Where standard error is closed, too, the exit code tells.
                let said = visible(&failure.to_string());
                let _ = writeln!(io::stderr(), "verbline: {said}");
            }
            exit.code(&failure)
        }
    }
}

fn run(command: Command, output: &mut Output) -> Result<ExitCode, Failure> {
    let command = match command {
        Command::Completions { shell } => {
            completions::print(shell, output)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Bench(arguments) => {
            bench::run(*arguments, output)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Report(arguments) => {
            bench::report(arguments, output)?;
            return Ok(ExitCode::SUCCESS);
        }
        asked => asked,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    runtime.block_on(async {
        match command {
            Command::List(arguments) => list::run(arguments, output).await?,
            Command::Describe(arguments) => describe::run(arguments, output).await?,
            Command::Call(arguments) => call::run(arguments, output).await?,
            Command::Health(arguments) => return health::run(arguments, output).await,
            Command::Bench(_) | Command::Report(_) | Command::Completions { .. } => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}
