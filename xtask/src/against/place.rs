//! On which processor what runs. A conversation of two threads is twice as fast on one processor as on two, and the scheduler
//! leaves them where they are for seconds: left to it, that decides a comparison.

/// The processors of this process.
pub(super) struct Places(Vec<usize>);

impl Places {
    pub(super) fn get() -> Result<Self, String> {
        Ok(Self(all()?))
    }

    /// What this thread starts from now on are servers: they have all processors but the first.
    pub(super) fn servers(&self) -> Result<(), String> {
        match &self.0[..] {
            [_] => Ok(()),
            all => keep_to(&all[1..]),
        }
    }

    /// What this thread starts from now on are programs that measure: they share the first.
    pub(super) fn programs(&self) -> Result<(), String> {
        keep_to(&self.0[..1])
    }
}

#[cfg(target_os = "linux")]
fn all() -> Result<Vec<usize>, String> {
    use rustix::thread::{CpuSet, sched_getaffinity};

    let set = sched_getaffinity(None).map_err(|error| format!("the processors: {error}"))?;
    let all = 0..CpuSet::MAX_CPU;
    Ok(all.filter(|cpu| set.is_set(*cpu)).collect())
}

#[cfg(target_os = "linux")]
fn keep_to(cpus: &[usize]) -> Result<(), String> {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).map_err(|error| format!("the processors {cpus:?}: {error}"))
}

/// Where this is not known, the scheduler decides.
#[cfg(not(target_os = "linux"))]
fn all() -> Result<Vec<usize>, String> {
    Ok(vec![0])
}

#[cfg(not(target_os = "linux"))]
fn keep_to(_: &[usize]) -> Result<(), String> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    fn seen() -> String {
        let mut command = Command::new("grep");
        command.args(["Cpus_allowed_list", "/proc/self/status"]);
        let output = command.output().expect("grep is there");
        String::from_utf8(output.stdout).expect("numbers are text")
    }

    #[test]
    fn servers_and_programs_are_apart() {
        // The thread of a test is its own.
        let all = Places::get().unwrap();
        all.servers().unwrap();
        let servers = seen();
        all.programs().unwrap();
        let programs = seen();
        assert!(
            all.0.len() == 1 || servers != programs,
            "{servers}{programs}"
        );
        let first = format!("\t{}\n", all.0[0]);
        assert!(programs.ends_with(&first), "{programs}");
    }
}
