//! What a call takes, and how many of them a thread makes, against the number in flight, the number of
//! connections and the size.

use clap::Args;
use verbline_load::plot::{Axis, Curve, Plot, Scale};
use verbline_load::unit::Unit;

use crate::message::{FIXED_SIZE, Load, Shape};
use crate::rates::Point;
use crate::report::Row;
use crate::rounds::{Rounds, alternate_rows};
use crate::setup::{Bench, Measurement};
use crate::{Outcome, arguments};

/// Calls per second, p50 and p99 against calls in flight, connections and size, in alternating turns
#[derive(Clone, Debug, Args)]
pub struct Curves {
    /// Calls in flight over one connection, of 64 bytes
    #[arg(
        long,
        value_parser = arguments::count,
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256,1024,4096"
    )]
    in_flight: Vec<usize>,
    /// Connections that carry 32 calls of 64 bytes in turn
    #[arg(
        long,
        value_parser = arguments::count,
        value_delimiter = ',',
        default_value = "1,4,16,24,32,64,256,1000"
    )]
    connections: Vec<usize>,
    /// Lengths of the `bytes` field of 8 calls in flight over one connection
    #[arg(
        long,
        value_parser = arguments::bytes,
        value_delimiter = ',',
        default_value = "8,64,128,200,232,256,512,1K,4000,4200,8K,64K"
    )]
    sizes: Vec<usize>,
    /// Turns that each point takes
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

/// Calls in flight over the connections, and those of each size.
const OVER_CONNECTIONS: usize = 32;
const OF_EACH_SIZE: usize = 8;

/// What the calls are measured against.
struct Abscissa<'a> {
    /// The title of the table, and the first words of the files.
    name: &'static str,
    label: &'static str,
    unit: Unit,
    values: &'a [usize],
    /// What does not change.
    conditions: String,
}

impl Measurement for Curves {
    fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        arguments::at_least_one_round(self.rounds)?;
        bench.announce(format_args!(
            "{} rounds; in each, every point of a curve takes a turn of 0.2 s",
            self.rounds
        ));
        let in_flight = Abscissa {
            name: "in flight",
            label: "calls in flight",
            unit: Unit::Number,
            values: &self.in_flight,
            conditions: format!("{FIXED_SIZE} bytes, one connection"),
        };
        self.draw(bench, &in_flight, |bench, in_flight| {
            Point::start(bench, Load::fixed(), 1, in_flight)
        })?;
        let connections = Abscissa {
            name: "connections",
            label: "connections",
            unit: Unit::Number,
            values: &self.connections,
            conditions: format!("{FIXED_SIZE} bytes, {OVER_CONNECTIONS} in flight in turn"),
        };
        self.draw(bench, &connections, |bench, connections| {
            Point::start(bench, Load::fixed(), connections, OVER_CONNECTIONS)
        })?;
        let sizes = Abscissa {
            name: "bytes",
            label: "length of the field",
            unit: Unit::Bytes,
            values: &self.sizes,
            conditions: format!("one connection, {OF_EACH_SIZE} in flight"),
        };
        self.draw(bench, &sizes, |bench, size| {
            Point::start(bench, Load::new(Shape::Bytes, size)?, 1, OF_EACH_SIZE)
        })?;
        bench.report.note(
            "A figure is the median of its turns, `least` and `most` are the rates of one turn, and a \
             ratio is that of the rate to the first row's, in the same round.",
        );
        Ok(())
    }
}

impl Curves {
    /// Lets points take turns, one for each value, and adds a table and two drawings.
    fn draw(
        &self,
        bench: &mut Bench,
        along: &Abscissa<'_>,
        start: impl Fn(&Bench, usize) -> Outcome<Point>,
    ) -> Outcome<()> {
        let points = along.values.iter().map(|&value| start(bench, value));
        let points: Vec<Point> = points.collect::<Outcome<_>>()?;
        let mut times = vec![verbline_load::histogram(); points.len()];
        let [mut p50, mut p99] = [(); 2].map(|()| vec![Vec::new(); points.len()]);
        let rates = alternate_rows(points.len(), self.rounds, bench.cores, |row| {
            bench.progress(format_args!("{}: round {}", along.name, p50[row].len() + 1));
            let turn = points[row].take_turn()?;
            p50[row].push(turn.quantile(0.5));
            p99[row].push(turn.quantile(0.99));
            times[row].add(&turn.times)?;
            Ok(turn.calls_per_s)
        })?;
        let [p50, p99] = [p50, p99].map(|values| rates.with_values(values));
        let (device, report) = (bench.device.name(), &mut bench.report);
        let rows = along.values.iter().enumerate().map(|(row, value)| {
            let (least, most) = rates.least_and_most(row);
            Row::new(value.to_string())
                .with_rounds("calls_per_s", &rates, row, Some(0))
                .with("least_per_s", least)
                .with("most_per_s", most)
                .with("p50_ns", p50.median(row, None))
                .with("p99_ns", p99.median(row, None))
        });
        report.table(along.name, rows);
        report.note(format!("{}: {}; {rates}", along.name, along.conditions));
        for (value, times) in along.values.iter().zip(&times) {
            report.histogram(format!("{} {value}", along.name), times);
        }
        let mut plot = |name: &str, y: Axis, curves| {
            let plot = Plot {
                title: format!("{} against {}", y.label, along.label),
                subtitle: format!("{}, device {device}", along.conditions),
                x: Axis::new(along.label, along.unit, Scale::Log),
                y,
                curves,
                marks: Vec::new(),
                rule: None,
            };
            report.plot(&format!("{} {name}", along.name), plot);
        };
        let curve = |name: &str, of: &dyn Fn(usize) -> f64| {
            let values = along.values.iter().enumerate();
            Curve::new(name, values.map(|(row, &value)| (value as f64, of(row))))
        };
        let median = |name, rounds: &Rounds| {
            curve(name, &|row| rounds.median(row, None).unwrap_or(f64::NAN))
        };
        let of_rates = vec![
            median("median", &rates),
            curve("least of a turn", &|row| rates.least_and_most(row).0),
            curve("most of a turn", &|row| rates.least_and_most(row).1),
        ];
        let axis = Axis::new("calls per second", Unit::PerSecond, Scale::Linear);
        plot("rate", axis, of_rates);
        let axis = Axis::new("latency", Unit::Nanoseconds, Scale::Log);
        plot(
            "latency",
            axis,
            vec![median("p50", &p50), median("p99", &p99)],
        );
        Ok(())
    }
}
