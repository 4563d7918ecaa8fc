//! What all measurements have in common: the options, the set-up that follows from them, and where
//! the report goes.

// Printing is the purpose of a benchmark.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fmt;
use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use rpc_core::{Intents, Waiting};
use rpc_transport_verbs::Device;

use crate::cores::Cores;
use crate::message::{FIXED_SIZE, Load, Shape};
use crate::report::{Report, Row};
use crate::service::intents_for;
use crate::slices::Side;
use crate::{Outcome, arguments, rounds};

/// A measurement, with its own options.
pub trait Measurement {
    /// The device that is measured if none is named; `None` for the best available one.
    fn device(&self) -> Option<&'static str> {
        None
    }

    /// Measures, and adds all that was found to the report of `bench`.
    ///
    /// # Errors
    ///
    /// Returns whatever ends the measurement.
    fn measure(&self, bench: &mut Bench) -> Outcome<()>;
}

/// The options of every measurement.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every measurement")]
pub struct SetupArgs {
    /// Device name, as mlx5_0, mlx5_0:1:3 or @eth0 [default: the best available device, or the one that VERBLINE_DEVICE names]
    #[arg(long, global = true)]
    device: Option<String>,
    /// Print the report as one JSON object on the last line, too
    #[arg(long, global = true)]
    json: bool,
    /// Folder for the histograms, in the format of HdrHistogram's plotter, and for the drawings
    #[arg(long, global = true, default_value = "target/bench")]
    out: PathBuf,
}

/// A measurement that is under way.
pub struct Bench {
    /// The device that is measured.
    pub device: Device,
    /// The cores of both sides.
    pub cores: Cores,
    /// What was found so far.
    pub report: Report,
    /// What was found and must not be. The measurement fails after the report.
    pub failures: Vec<String>,
}

impl Bench {
    /// Opens the device, measures, prints the report and writes its files.
    ///
    /// # Errors
    ///
    /// Returns whatever ends the measurement, or what was found and must not be.
    pub fn run(name: &str, args: &SetupArgs, measurement: &dyn Measurement) -> Outcome<()> {
        let device = match args.device.as_deref().or(measurement.device()) {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        let mut bench = Bench {
            cores: Cores::choose()?,
            report: Report::new(name),
            failures: Vec::new(),
            device,
        };
        measurement.measure(&mut bench)?;
        bench.progress("");
        let report = bench.report;
        print!("{report}");
        for drawing in report.save(&args.out)? {
            println!("drawing: {}", drawing.display());
        }
        if args.json {
            println!("{}", report.to_json());
        }
        match &bench.failures[..] {
            [] => Ok(()),
            failures => Err(failures.join("\n").into()),
        }
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        self.device.name()
    }

    /// Says what is going to be measured, and on which cores. The report begins with the device.
    pub fn announce(&mut self, what: impl fmt::Display) {
        println!("{what}, over '{}'\n{}", self.device(), self.cores);
        self.report.figure("device", self.device.name());
    }

    /// Says more about the set-up.
    pub fn say(&self, what: impl fmt::Display) {
        println!("{what}");
    }

    /// Lets named sides take turns of `calls` calls, and reports their latencies in one table, with ratios
    /// to the side `base`. `start` adds the figures that come first in the row with an index.
    ///
    /// # Errors
    ///
    /// Returns the first error of a side.
    pub fn latencies(
        &mut self,
        title: &str,
        [rounds, calls]: [usize; 2],
        sides: Vec<(&str, &mut dyn Side)>,
        start: impl Fn(usize, Row) -> Row,
        base: Option<usize>,
    ) -> Outcome<()> {
        let (names, mut sides): (Vec<_>, Vec<_>) = sides.into_iter().unzip();
        let (records, rounds) =
            rounds::alternate(&mut sides, rounds, calls, self.cores, |taken| {
                self.progress(format_args!("{title}: {taken} turns"));
            })?;
        let rows = names.iter().zip(&records).enumerate();
        let rows = rows.map(|(row, (name, record))| {
            start(row, Row::new(*name))
                .with_rounds("p50_ns", &rounds, row, base)
                .with("p99_ns", record.histogram.value_at_quantile(0.99))
        });
        self.report.table(title, rows);
        for (name, record) in names.into_iter().zip(&records) {
            self.report.histogram(name, &record.histogram);
        }
        self.report.note(rounds.to_string());
        Ok(())
    }

    /// Shows how far the measurement has come, if somebody watches.
    pub fn progress(&self, text: impl fmt::Display) {
        if std::io::stderr().is_terminal() {
            eprint!("\r{text:<32}\r");
        }
    }
}

/// The message that is sent over and over, and how its pollers wait.
#[derive(Clone, Debug, Args)]
pub struct MessageArgs {
    /// Shape of the message [default: fixed64 for 64 bytes, bytes for any other size]
    #[arg(long, value_enum)]
    message: Option<Shape>,
    /// Payload size in bytes
    #[arg(long, default_value_t = FIXED_SIZE)]
    pub size: usize,
    /// What pollers do while idle
    #[arg(long, default_value = "adaptive", value_parser = arguments::waiting())]
    pub waiting: Waiting,
}

impl MessageArgs {
    /// Returns the message.
    ///
    /// # Errors
    ///
    /// Fails if the shape cannot have that size.
    pub fn load(&self) -> Outcome<Load> {
        let shape = self.message.unwrap_or(match self.size {
            FIXED_SIZE => Shape::Fixed64,
            _ => Shape::Bytes,
        });
        Load::new(shape, self.size)
    }

    /// Returns the default intents, with this message and this way to wait.
    #[must_use]
    pub fn intents(&self, load: &Load) -> Intents {
        Intents {
            waiting: self.waiting,
            ..intents_for(load.encoded_len())
        }
    }
}

/// Returns the default intents for a message of `encoded_len` bytes, with pollers that never sleep.
#[must_use]
pub fn busy_intents(encoded_len: usize) -> Intents {
    Intents {
        waiting: Waiting::Busy,
        ..intents_for(encoded_len)
    }
}
