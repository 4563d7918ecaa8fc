//! The page: what is not to be trusted, pictures, figures, conditions, data.

use std::fmt::{self, Write};

use super::{Report, Run};
use crate::record::Record;
use crate::table::{MOST_KINDS, PERCENTILES};
use crate::unit::Unit;

const STYLE: &str = include_str!("page.css");

/// Returns the page.
pub(super) fn page(report: &Report) -> String {
    let mut page = String::new();
    write_page(report, &mut page).expect("a text takes everything");
    page
}

fn write_page(report: &Report, page: &mut String) -> fmt::Result {
    let title = Escaped(&report.title);
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    )?;
    cautions(report, page)?;
    for (name, picture) in report.pictures() {
        let title = Escaped(&picture.title);
        write!(
            page,
            "<figure id=\"{name}\" role=\"group\" aria-label=\"{title}\" tabindex=\"0\">\n{}</figure>\n",
            picture.to_svg(),
        )?;
    }
    percentiles(report, page)?;
    for run in report.runs.iter().filter(|run| run.sweep.steps.len() > 1) {
        steps(run, page)?;
    }
    failures(report, page)?;
    conditions(report, page)?;
    // In a script, only `<` could end it, and in JSON it is only in texts.
    let json = report.to_json().replace('<', "\\u003c");
    write!(
        page,
        "<h2>Data</h2>\n<p>All counts of all histograms are in this page as JSON, in the element \
         <code>script#report</code>: <code>docs/load.md</code> lists the keys.</p>\n\
         <script type=\"application/json\" id=\"report\">{json}</script>\n</main>\n</body>\n</html>\n"
    )
}

fn cautions(report: &Report, page: &mut String) -> fmt::Result {
    let runs = report.runs.iter().filter(|run| !run.cautions.is_empty());
    let runs: Vec<&Run> = runs.collect();
    if runs.is_empty() {
        return Ok(());
    }
    page.push_str("<section class=\"cautions\">\n<h2>What not to trust</h2>\n");
    // Most cautions are about the machine, and so of all runs.
    let is_of_all = |said: &String| report.runs.iter().all(|run| run.cautions.contains(said));
    let (of_all, of_some): (Vec<_>, Vec<_>) = runs
        .iter()
        .flat_map(|run| run.cautions.iter().map(|said| (run.label.as_str(), said)))
        .partition(|(_, said)| is_of_all(said));
    page.push_str("<ul>\n");
    for (label, said) in &of_some {
        writeln!(
            page,
            "<li><strong>{}:</strong> {}</li>",
            Escaped(label),
            Escaped(said)
        )?;
    }
    let mut known: Vec<&String> = Vec::new();
    for (_, said) in of_all {
        if !known.contains(&said) {
            known.push(said);
            writeln!(page, "<li>{}</li>", Escaped(said))?;
        }
    }
    page.push_str("</ul>\n</section>\n");
    Ok(())
}

/// A row for the response times and one for the service times of each run.
fn percentiles(report: &Report, page: &mut String) -> fmt::Result {
    page.push_str(
        "<h2>Percentiles</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">run</th>",
    );
    page.push_str("<th scope=\"col\">time</th>");
    headings(page)?;
    page.push_str("</tr></thead>\n<tbody>\n");
    for run in &report.runs {
        let Some(record) = run.shown() else { continue };
        let label = run.shown_label();
        let label = Escaped(&label);
        write!(page, "<tr><th scope=\"row\">{label}</th><td>response</td>")?;
        times(&record.response, page)?;
        counts(record, page)?;
        page.push_str("</tr>\n");
        if record.wanted.is_some() {
            write!(page, "<tr><th scope=\"row\">{label}</th><td>service</td>")?;
            times(&record.service, page)?;
            page.push_str("<td></td><td></td><td></td><td></td><td></td></tr>\n");
        }
    }
    page.push_str(
        "</tbody></table></div>\n<p>The response time counts from the intended start of a call, the service time \
         from when it was sent. A closed loop intends to send a call when it sends it.</p>\n",
    );
    Ok(())
}

/// The headings of what [`times`] and [`counts`] write.
fn headings(page: &mut String) -> fmt::Result {
    let counts = ["calls", "answered", "sent late", "never sent", "failed"];
    for name in PERCENTILES.iter().map(|(name, _)| *name).chain(counts) {
        write!(page, "<th scope=\"col\">{name}</th>")?;
    }
    Ok(())
}

/// A row for each load of a sweep.
fn steps(run: &Run, page: &mut String) -> fmt::Result {
    let over = run.sweep.over;
    write!(
        page,
        "<h2>{}: each {over}</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">{over}</th>",
        Escaped(&run.label)
    )?;
    headings(page)?;
    page.push_str("</tr></thead>\n<tbody>\n");
    for step in &run.sweep.steps {
        write!(
            page,
            "<tr><th scope=\"row\">{}</th>",
            over.unit().text(step.at)
        )?;
        times(&step.record.response, page)?;
        counts(&step.record, page)?;
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
    if let Some(knee) = run.sweep.knee_sentence() {
        writeln!(page, "<p>{}.</p>", Escaped(&knee))?;
    }
    Ok(())
}

fn times(times: &hdrhistogram::Histogram<u64>, page: &mut String) -> fmt::Result {
    for (_, quantile) in PERCENTILES {
        let time = match times.is_empty() {
            true => "–".to_owned(),
            false => Unit::Nanoseconds.text(times.value_at_quantile(quantile) as f64),
        };
        write!(page, "<td>{time}</td>")?;
    }
    Ok(())
}

fn counts(record: &Record, page: &mut String) -> fmt::Result {
    write!(
        page,
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
        record.due(),
        Unit::PerSecond.text(record.achieved),
        record.late,
        record.unsent,
        record.failures.count()
    )
}

fn failures(report: &Report, page: &mut String) -> fmt::Result {
    let failed = report.runs.iter().flat_map(|run| {
        let records = run.sweep.steps.iter().map(move |step| (run, &step.record));
        records.filter(|(_, record)| record.failures.count() > 0)
    });
    let failed: Vec<_> = failed.collect();
    if failed.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<h2>Failures</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">run</th>\
         <th scope=\"col\">calls</th><th scope=\"col\" class=\"text\">what they said</th></tr></thead>\n<tbody>\n",
    );
    for (run, record) in failed {
        let mut kinds: Vec<_> = record.failures.kinds.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (said, count) in kinds.into_iter().take(MOST_KINDS) {
            let (label, said) = (Escaped(&run.label), Escaped(said));
            writeln!(
                page,
                "<tr><th scope=\"row\">{label}</th><td>{count}</td><td class=\"text\">{said}</td></tr>"
            )?;
        }
    }
    page.push_str("</tbody></table></div>\n");
    Ok(())
}

/// A row for each condition, and a column for each run.
fn conditions(report: &Report, page: &mut String) -> fmt::Result {
    let mut names: Vec<&str> = Vec::new();
    for fact in report.runs.iter().flat_map(|run| &run.facts) {
        if !names.contains(&fact.name.as_str()) {
            names.push(&fact.name);
        }
    }
    page.push_str(
        "<h2>Conditions</h2>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\"></th>",
    );
    for run in &report.runs {
        let label = Escaped(&run.label);
        write!(page, "<th scope=\"col\" class=\"text\">{label}</th>")?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for name in names {
        write!(page, "<tr><th scope=\"row\">{}</th>", Escaped(name))?;
        for run in &report.runs {
            let facts = run.facts.iter().filter(|fact| fact.name == name);
            let values: Vec<&str> = facts.map(|fact| fact.value.as_str()).collect();
            write!(
                page,
                "<td class=\"text\">{}</td>",
                Escaped(&values.join("; "))
            )?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
    Ok(())
}

/// A text as HTML, in which it means nothing else than itself.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // No character of a document.
                c if c.is_control() && c != '\n' && c != '\t' => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::slices::Slices;
    use crate::sweep::{Knee, Over, Step, Sweep};

    const HOSTILE: &str = "</script><b>\"'&\u{0}\u{1b}[31m";

    fn record(wanted: Option<f64>, calls: u64) -> Record {
        let second = Duration::from_secs(1);
        let mut record = Record::new(wanted, 2, Slices::new(second, 4));
        record.time = second;
        record.achieved = calls as f64;
        for call in 0..calls {
            let nanos = 1000 + call * 7;
            crate::add_time(&mut record.response, Duration::from_nanos(nanos));
            crate::add_time(&mut record.service, Duration::from_nanos(nanos));
            record.slices.add(
                second.mul_f64(call as f64 / calls as f64),
                Duration::from_nanos(nanos),
                1,
            );
        }
        record
    }

    fn hostile() -> Report {
        let mut with_all = record(Some(100.0), 100);
        with_all
            .failures
            .add(HOSTILE.to_owned(), Duration::from_micros(3));
        with_all.slices.each[1].late = 3;
        with_all.slices.each[2].failed = 1;
        let run = Run::new(HOSTILE, with_all)
            .fact(HOSTILE, HOSTILE)
            .caution(HOSTILE);
        Report::new(HOSTILE).run(run)
    }

    #[test]
    fn texts_from_outside_stay_texts() {
        let page = hostile().to_html();
        assert!(!page.contains("<b>"), "{page}");
        assert!(!page.contains('\u{1b}') && !page.contains('\0'));
        // The end of the data is the only end of a script.
        assert_eq!(page.matches("</script>").count(), 1);
        let begin = page.find("id=\"report\">").expect("the data") + "id=\"report\">".len();
        let end = page.find("</script>").expect("its end");
        let read = Report::from_json(&page[begin..end]).expect("the data is JSON");
        assert_eq!(read, hostile_as_written(&read));
    }

    /// The same report, measured when the other one was.
    fn hostile_as_written(other: &Report) -> Report {
        let mut report = hostile();
        report.runs[0].facts.clone_from(&other.runs[0].facts);
        report
    }

    #[test]
    fn what_was_late_and_what_failed_is_marked_and_the_knee_is_named() {
        let page = hostile().to_html();
        assert!(
            page.contains("calls sent late") && page.contains("calls failed"),
            "{page}"
        );
        let steps = [1e3, 2e3, 4e3].map(|at| Step {
            at,
            record: record(Some(at), 50),
        });
        let sweep = Sweep {
            over: Over::Rate,
            steps: steps.into(),
            knee: Some(Knee::Waits(20.0)),
        };
        let page = Report::new("sweep").run(Run::new("one", sweep)).to_html();
        assert!(page.contains("knee: above 2 k/s"), "{page}");
        assert!(page.contains("id=\"against-rate\""), "{page}");
    }

    #[test]
    fn records_of_nothing_and_of_little_have_a_page_without_strange_numbers() {
        let none = Sweep {
            over: Over::Connections,
            steps: Vec::new(),
            knee: None,
        };
        let wild = Sweep {
            over: Over::Rate,
            steps: vec![],
            knee: Some(Knee::Waits(f64::MAX)),
        };
        let runs = [
            Run::new("no load", none),
            Run::new("no step", wild),
            Run::new("no call", record(None, 0)),
            Run::new("one call", record(Some(1e9), 1)),
        ];
        for run in runs {
            let page = Report::new("little").run(run.clone()).to_html();
            for strange in ["NaN", "inf<", "inf ", "Infinity"] {
                assert!(!page.contains(strange), "{}: {page}", run.label);
            }
        }
        assert!(Report::new("empty").to_html().contains("<h1>empty</h1>"));
    }

    #[test]
    fn a_report_of_another_version_is_refused() {
        let json = Report::new("next").to_json();
        assert!(Report::from_json(&json).is_ok());
        let next = json.replace("\"version\":1", "\"version\":2");
        let said = Report::from_json(&next).expect_err("a version that does not exist yet");
        assert_eq!(
            said.to_string(),
            "the report has version 2, and this program reads 1"
        );
    }
}
