//! Turns by the tasks of several processes.
//!
//! A process is the program that measures, started once more. It is given its work on its standard input, a line each
//! time, and ends with its input: also in the middle of its work, when the program that measures was killed.

use std::io::{BufRead as _, BufReader, Lines, Write as _, stdin, stdout};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockcore::Locks;
use tokio::sync::mpsc;

use crate::ours::{Kind, Ours};
use crate::turns::{Failure, Hold, Lock, Turn, take_by_tasks};

/// The lock that all want.
const KEY: &str = "one of processes";
/// What a process says when it has its store.
const READY: &str = "ready";
/// Who does not end so long after its input is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// So many of its tasks take turns.
    pub tasks: usize,
    /// How long each turn holds the lock.
    pub hold: Hold,
    /// The pause after each turn.
    pub pause: Duration,
    /// For so long.
    pub time: Duration,
}

impl Work {
    /// Tasks that hold the lock across a yield, without a pause.
    #[must_use]
    pub fn of(tasks: usize, time: Duration) -> Self {
        Self {
            tasks,
            hold: Hold::Yield,
            pause: Duration::ZERO,
            time,
        }
    }

    /// The same number of tasks in each of several processes, so many in all.
    #[must_use]
    pub fn shared_out(tasks: usize, processes: usize, time: Duration) -> Vec<Self> {
        let of = |at| tasks / processes + usize::from(at < tasks % processes);
        (0..processes).map(|at| Self::of(of(at), time)).collect()
    }

    fn line(&self) -> String {
        let held = u8::from(self.hold == Hold::Yield);
        let (pause, time) = (self.pause.as_micros(), self.time.as_micros());
        format!("{} {held} {pause} {time}", self.tasks)
    }

    fn parse(line: &str) -> Result<Self, Failure> {
        let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
        let [tasks, held, pause, time] = numbers?[..] else {
            return Err(format!("{line:?} is no work").into());
        };
        Ok(Self {
            tasks: usize::try_from(tasks)?,
            hold: if held == 0 { Hold::None } else { Hold::Yield },
            pause: Duration::from_micros(pause),
            time: Duration::from_micros(time),
        })
    }
}

/// The turns of each task of each process.
pub type Turns = Vec<Vec<Vec<Turn>>>;

/// Processes that wait for work. They end when this is dropped.
#[derive(Debug)]
pub struct Processes(Vec<Process>);

#[derive(Debug)]
struct Process {
    child: Child,
    /// Closed before it is waited for.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Processes {
    /// Starts so many, each by this command, and waits until each has its store.
    ///
    /// # Errors
    ///
    /// One that cannot be started, or ends at once.
    pub fn start(count: usize, mut command: impl FnMut() -> Command) -> Result<Self, Failure> {
        let mut all = Self(Vec::new());
        for _ in 0..count {
            let mut child = command()
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let (input, output) = (child.stdin.take(), child.stdout.take());
            all.0.push(Process {
                child,
                input,
                output: BufReader::new(output.ok_or("piped")?).lines(),
            });
        }
        for process in &mut all.0 {
            if process.line()? != READY {
                return Err("a process does not know what is said here".into());
            }
        }
        Ok(all)
    }

    /// All do their work at once, each its own: the turns of each task of each process, and how long it was.
    ///
    /// # Errors
    ///
    /// A process that has ended.
    pub fn take_turns(&mut self, work: &[Work]) -> Result<(Turns, Duration), Failure> {
        if work.len() != self.0.len() {
            return Err(format!("{} works for {} processes", work.len(), self.0.len()).into());
        }
        for (process, work) in self.0.iter_mut().zip(work) {
            let input = process.input.as_mut().ok_or("it is open")?;
            writeln!(input, "{}", work.line())?;
        }
        let start = Instant::now();
        let mut all = Vec::new();
        for process in &mut self.0 {
            all.push(tasks(&process.line()?)?);
        }
        Ok((all, start.elapsed()))
    }
}

impl Process {
    fn line(&mut self) -> Result<String, Failure> {
        Ok(self.output.next().ok_or("a process has ended")??)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            process.input = None;
        }
        let start = Instant::now();
        for process in &mut self.0 {
            while let Ok(None) = process.child.try_wait() {
                if start.elapsed() > ENDS_WITHIN {
                    let _ = process.child.kill();
                    let _ = process.child.wait();
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// The turns of each task, as a line.
fn text(each: &[Vec<Turn>]) -> String {
    let turn = |turn: &Turn| format!("{},{},{}", turn.asked, turn.granted, turn.released);
    let task = |turns: &Vec<Turn>| turns.iter().map(turn).collect::<Vec<_>>().join(" ");
    each.iter().map(task).collect::<Vec<_>>().join(";")
}

fn tasks(line: &str) -> Result<Vec<Vec<Turn>>, Failure> {
    let task = |text: &str| text.split_whitespace().map(turn).collect();
    line.split(';').map(task).collect()
}

fn turn(text: &str) -> Result<Turn, Failure> {
    let numbers: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
    let [asked, granted, released] = numbers?[..] else {
        return Err(format!("{text} is no turn").into());
    };
    Ok(Turn {
        asked,
        granted,
        released,
    })
}

/// One of the processes: does what its input says, and prints the turns. Ends with its input.
///
/// # Errors
///
/// What the store's were, and work that it does not understand.
///
/// # Cancel safety
///
/// What was acquired is given back in the background.
pub async fn work(locks: &Locks) -> Result<(), Failure> {
    // A thread, because a runtime waits at its end for what reads on it.
    let (lines, mut work) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in stdin().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let lock: Arc<dyn Lock> = Arc::new(Ours::new(locks, Kind::Lock));
    writeln!(stdout(), "{READY}")?;
    while let Some(line) = work.recv().await {
        let Work {
            tasks,
            hold,
            pause,
            time,
        } = Work::parse(&line)?;
        let keys = vec![KEY.to_owned(); tasks];
        let each = tokio::select! {
            each = take_by_tasks(&lock, &keys, hold, pause, time) => each?,
            // Nothing else is said meanwhile.
            _ = work.recv() => break,
        };
        writeln!(stdout(), "{}", text(&each))?;
    }
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_understood_as_it_was_said() {
        for work in [
            Work::of(64, Duration::from_millis(300)),
            Work {
                tasks: 1,
                hold: Hold::None,
                pause: Duration::from_micros(1_271),
                time: Duration::from_secs(3),
            },
        ] {
            assert_eq!(Work::parse(&work.line()).unwrap(), work);
        }
        for wrong in ["", "1 2 3", "1 2 3 4 5", "1 2 3 many"] {
            assert!(Work::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tasks_are_shared_out() {
        let of = |tasks, processes| {
            let all = Work::shared_out(tasks, processes, Duration::ZERO).into_iter();
            all.map(|work| work.tasks).collect::<Vec<_>>()
        };
        assert_eq!(of(8, 1), [8]);
        assert_eq!(of(64, 2), [32, 32]);
        assert_eq!(of(8, 3), [3, 3, 2]);
    }

    #[test]
    fn turns_are_read_as_they_were_written() {
        let turn = |asked| Turn {
            asked,
            granted: asked + 1,
            released: asked + 2,
        };
        for each in [
            vec![vec![turn(1), turn(5)], vec![], vec![turn(7)]],
            vec![vec![turn(3)]],
        ] {
            assert_eq!(tasks(&text(&each)).unwrap(), each);
        }
        assert!(tasks("1,2").is_err());
    }

    #[test]
    fn a_process_that_does_not_answer_is_an_error_and_is_stopped() {
        let silent = || {
            let mut command = Command::new("true");
            command.arg("-");
            command
        };
        assert!(Processes::start(2, silent).is_err());
        let another = || Command::new("cat");
        // It says what it hears, which is nothing until its input ends.
        let all = Processes(vec![process(another())]);
        let child = all.0[0].child.id();
        drop(all);
        assert!(!std::path::Path::new(&format!("/proc/{child}")).exists());
    }

    fn process(mut command: Command) -> Process {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Process {
            child,
            input,
            output: BufReader::new(output.unwrap()).lines(),
        }
    }
}
