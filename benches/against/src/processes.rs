//! One lock that processes take turns at.

use std::io::{BufRead as _, BufReader, Lines, Write as _, stdout};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_workloads::{Failure, Kind, Measured, Ours, Turn, turns};
use tokio::io::AsyncBufReadExt as _;

/// So many.
const PROCESSES: usize = 8;

/// Processes of this program that wait for work.
pub(crate) struct Processes(Vec<Process>);

struct Process {
    child: Child,
    /// Closed before it is waited for.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Processes {
    /// Starts them; they find the store's URL in the environment, as this one did.
    pub(crate) fn start() -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let process = |_| {
            let mut child = Command::new(&program)
                .arg("worker")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let output = child.stdout.take().ok_or("piped")?;
            Ok(Process {
                input: child.stdin.take(),
                output: BufReader::new(output).lines(),
                child,
            })
        };
        (0..PROCESSES)
            .map(process)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// All take turns at once.
    pub(crate) fn take_turns(&mut self, time: Duration) -> Result<Measured, Failure> {
        for process in &mut self.0 {
            let input = process.input.as_mut().ok_or("it is open")?;
            writeln!(input, "{}", time.as_millis())?;
        }
        let start = Instant::now();
        let mut each = Vec::new();
        for process in &mut self.0 {
            let line = process.output.next().ok_or("a process has ended")??;
            each.push(
                line.split_whitespace()
                    .map(turn)
                    .collect::<Result<_, _>>()?,
            );
        }
        Ok(Measured::of_one_lock(&each, start.elapsed()))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            process.input = None;
        }
        for process in &mut self.0 {
            let _ = process.child.wait();
        }
    }
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

/// One of them: takes turns for as many ms as each line of its input says, and prints them.
pub(crate) async fn worker(url: &str) -> Result<(), Failure> {
    let locks = lockkeeper::connect(url).await?;
    let ours = Ours::new(&locks, Kind::Global);
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let until = Instant::now() + Duration::from_millis(line.parse()?);
        let turns = turns::take(&ours, "one of processes", until, Duration::ZERO).await?;
        let turns = turns
            .iter()
            .map(|turn| format!("{},{},{}", turn.asked, turn.granted, turn.released));
        let turns: Vec<String> = turns.collect();
        writeln!(stdout(), "{}", turns.join(" "))?;
    }
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
