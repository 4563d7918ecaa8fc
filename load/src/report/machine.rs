//! [`Machine`]: what a run has been measured on.

use std::fs;
use std::thread;
use std::time::SystemTime;

use super::Fact;

/// Facts about this machine and this process. What cannot be found out is left out.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// Processors that this process may use.
    pub(super) cores: Option<usize>,
    /// A hypervisor says that it is there.
    pub(super) is_virtual: bool,
    /// The program was compiled without optimizations.
    pub(super) is_debug_build: bool,
    processor: Option<String>,
    kernel: Option<String>,
    memory_kib: Option<u64>,
}

impl Machine {
    pub(super) fn of_this_process() -> Self {
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
        Self {
            cores: thread::available_parallelism().ok().map(Into::into),
            is_virtual: line(&processors, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            // Profiles may set the two apart, and nearly none does.
            is_debug_build: cfg!(debug_assertions),
            processor: line(&processors, "model name").map(str::to_owned),
            kernel: kernel.ok().map(|kernel| kernel.trim().to_owned()),
            memory_kib: line(&memory, "MemTotal")
                .and_then(|total| total.split(' ').next()?.parse().ok()),
        }
    }

    /// The facts as they are shown.
    pub(super) fn facts(&self) -> Vec<Fact> {
        let fact = |name: &str, value: Option<String>| {
            let name = name.to_owned();
            Some(Fact {
                name,
                value: value?,
            })
        };
        let now = SystemTime::now();
        let cores = self.cores.map(|cores| match self.is_virtual {
            true => format!("{cores}, of a virtual machine"),
            false => cores.to_string(),
        });
        [
            fact(
                "measured",
                Some(humantime::format_rfc3339_seconds(now).to_string()),
            ),
            fact("processor", self.processor.clone()),
            fact("cores", cores),
            fact(
                "memory",
                self.memory_kib.map(|kib| format!("{} GiB", kib >> 20)),
            ),
            fact(
                "system",
                self.kernel.as_ref().map(|kernel| format!("Linux {kernel}")),
            ),
            fact("verbline-load", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// The value of the first line with this name, in a file such as `/proc/cpuinfo`.
fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(found, _)| found.trim() == name)?;
    Some(value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_machine_is_can_be_found_out() {
        let facts = Machine::of_this_process().facts();
        let names: Vec<&str> = facts.iter().map(|fact| fact.name.as_str()).collect();
        for name in ["measured", "cores", "memory", "system", "verbline-load"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(facts.iter().all(|fact| !fact.value.is_empty()), "{facts:?}");
    }

    #[test]
    fn a_value_is_that_of_its_line() {
        let text = "processor\t: 0\nmodel name\t: A: fast one\nflags\t\t: a hypervisor b\n";
        assert_eq!(line(text, "model name"), Some("A: fast one"));
        assert_eq!(line(text, "MemTotal"), None);
    }
}
