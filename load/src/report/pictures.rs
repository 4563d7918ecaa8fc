//! The pictures of a report.

use std::iter;

use hdrhistogram::Histogram;

use super::cautions::MANY_LATE;
use super::{Report, Run};
use crate::plot::{Axis, Curve, Marks, Plot, Rule, Scale};
use crate::record::Record;
use crate::slices::Slice;
use crate::sweep::Over;
use crate::unit::Unit;

/// Returns the pictures, with a short name each.
pub(super) fn of(report: &Report) -> Vec<(String, Plot)> {
    let mut pictures = vec![("percentiles".to_owned(), percentiles(report))];
    let has_slices = |run: &Run| {
        run.shown()
            .is_some_and(|record| record.slices.each.len() > 1)
    };
    if report.runs.iter().any(has_slices) {
        pictures.push(("over-time".to_owned(), over_time(report)));
    }
    for over in [
        Over::Rate,
        Over::MessageBytes,
        Over::Connections,
        Over::InFlight,
    ] {
        let is_swept = |run: &&Run| run.sweep.over == over && run.sweep.steps.len() > 1;
        let runs: Vec<&Run> = report.runs.iter().filter(is_swept).collect();
        if !runs.is_empty() {
            let name = format!("against-{}", over.to_string().replace(' ', "-"));
            pictures.push((name, against(over, &runs)));
        }
    }
    pictures
}

impl Run {
    /// The record whose details are shown: that of the only load, or of the highest one before the knee.
    pub(super) fn shown(&self) -> Option<&Record> {
        let step = self.sweep.sustained().or(self.sweep.steps.first())?;
        Some(&step.record)
    }

    /// What is said of the record whose details are shown: the label, and the load if there are several.
    pub(super) fn shown_label(&self) -> String {
        let over = self.sweep.over;
        match (self.sweep.sustained(), self.sweep.steps.len()) {
            (Some(step), 2..) => {
                format!("{}, {over} {}", self.label, over.unit().text(step.at))
            }
            _ => self.label.clone(),
        }
    }
}

/// The response time that each share of the calls did not exceed.
fn percentiles(report: &Report) -> Plot {
    let curves = report.runs.iter().filter_map(|run| {
        let curve = quantiles(&run.shown()?.response);
        Some(Curve::new(run.shown_label(), curve))
    });
    Plot {
        title: "Response time by percentile".to_owned(),
        subtitle: "p99: 99 of 100 calls took at most this long".to_owned(),
        x: Axis::new("share of the calls", Unit::Share, Scale::Percentile),
        y: Axis::new("response time", Unit::Nanoseconds, Scale::Log),
        curves: curves.collect(),
        marks: Vec::new(),
        rule: None,
    }
}

/// The points of a histogram up to the share that one call is beyond.
fn quantiles(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    const TICKS_PER_HALF_DISTANCE: u32 = 4;
    let most = 1.0 - 1.0 / times.len().max(2) as f64;
    let steps = times.iter_quantiles(TICKS_PER_HALF_DISTANCE);
    let below = steps
        .map(|step| (step.quantile_iterated_to(), step.value_iterated_to() as f64))
        .take_while(|(quantile, _)| *quantile < most);
    let last = (!times.is_empty()).then(|| (most, times.value_at_quantile(most) as f64));
    below
        .chain(last)
        .filter(|(_, nanos)| *nanos > 0.0)
        .collect()
}

/// The response time in each slice: three percentiles of one run, or the p99 of several.
fn over_time(report: &Report) -> Plot {
    let curve = |name: String, record: &Record, quantile| {
        let length = record.slices.length_ns as f64;
        let slices = record.slices.each.iter().enumerate();
        let points =
            slices
                .filter(|(_, slice)| !slice.response.is_empty())
                .map(|(index, slice)| {
                    let time = slice.response.value_at_quantile(quantile).max(1);
                    ((index as f64 + 0.5) * length, time as f64)
                });
        Curve::new(name, points)
    };
    let runs = report
        .runs
        .iter()
        .filter_map(|run| Some((run.shown_label(), run.shown()?)));
    let curves = match &report.runs[..] {
        [_] => runs
            .clone()
            .flat_map(|(_, record)| {
                let shown = [("max", 1.0), ("p99", 0.99), ("p50", 0.5)];
                shown.map(|(name, quantile)| curve(name.to_owned(), record, quantile))
            })
            .collect(),
        _ => runs
            .clone()
            .map(|(label, record)| curve(label, record, 0.99))
            .collect(),
    };
    let marks = |name: &str, is_it: fn(&Slice) -> bool| {
        let mut at: Vec<f64> = Vec::new();
        for (_, record) in runs.clone() {
            let length = record.slices.length_ns as f64;
            let slices = record.slices.each.iter().enumerate();
            let marked = slices.filter(|(_, slice)| is_it(slice));
            at.extend(marked.map(|(index, _)| (index as f64 + 0.5) * length));
        }
        (!at.is_empty()).then(|| Marks {
            name: name.to_owned(),
            at,
        })
    };
    let late = marks("calls sent late", |slice| {
        slice.late as f64 > slice.response.len() as f64 * MANY_LATE
    });
    let failed = marks("calls failed", |slice| slice.failed > 0);
    Plot {
        title: "Response time over time".to_owned(),
        subtitle: match &report.runs[..] {
            [_] => "in each slice of the time; calls are counted where they should have been sent",
            _ => {
                "p99 in each slice of the time; calls are counted where they should have been sent"
            }
        }
        .to_owned(),
        x: Axis::new(
            "time since the end of the warm-up",
            Unit::Nanoseconds,
            Scale::Linear,
        ),
        y: Axis::new("response time", Unit::Nanoseconds, Scale::Log),
        curves,
        marks: late.into_iter().chain(failed).collect(),
        rule: None,
    }
}

/// The response time under each load of a sweep, with the knee.
fn against(over: Over, runs: &[&Run]) -> Plot {
    let curves = runs.iter().flat_map(|run| {
        let shown: &[_] = match runs {
            [_] => &[("p99.9", 0.999), ("p99", 0.99), ("p50", 0.5)],
            _ => &[("p99", 0.99), ("p50", 0.5)],
        };
        shown.iter().map(|(name, quantile)| {
            let points = run.sweep.steps.iter().map(|step| {
                let time = step.record.response.value_at_quantile(*quantile).max(1);
                (step.at, time as f64)
            });
            let name = match runs {
                [_] => (*name).to_owned(),
                _ => format!("{}, {name}", run.label),
            };
            Curve::new(name, points)
        })
    });
    let knee = runs.iter().find_map(|run| {
        run.sweep.knee?;
        Some((run, run.sweep.sustained()?.at))
    });
    let rule = knee.map(|(run, at)| Rule {
        at,
        label: match runs {
            [_] => format!("knee: above {}", over.unit().text(at)),
            _ => format!("knee of {}: above {}", run.label, over.unit().text(at)),
        },
    });
    let (subject, axis) = match over {
        Over::Rate => ("rate", "calls offered"),
        Over::MessageBytes => ("size of the message", "encoded bytes of a message"),
        Over::Connections => ("connections", "connections"),
        Over::InFlight => ("calls in flight", "calls in flight"),
    };
    let sentences = runs.iter().filter_map(|run| run.sweep.knee_sentence());
    let subtitle = iter::once("response time from the intended start".to_owned());
    Plot {
        title: format!("Response time against {subject}"),
        subtitle: match runs {
            [_] => sentences.chain(subtitle).next().unwrap_or_default(),
            _ => subtitle.collect(),
        },
        x: Axis::new(axis, over.unit(), Scale::Log),
        y: Axis::new("response time", Unit::Nanoseconds, Scale::Log),
        curves: curves.collect(),
        marks: Vec::new(),
        rule,
    }
}
