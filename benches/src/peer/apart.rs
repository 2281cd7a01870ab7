//! Libraries that cannot be in one build with ours: programs of `benches/apart`, which are given what to do on their
//! standard input.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::{Peer, Way};
use lockkeeper_workloads::{Hold, Turn};

/// The program of a library. It ends with its input.
pub(super) struct Process {
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    child: Child,
}

/// The library, if its program was built: it is looked for beside this one.
pub(super) fn peer(name: &'static str, url: &str) -> Option<Peer> {
    let this = std::env::current_exe().expect("the program's path");
    let program = this.with_file_name(name);
    if !program.exists() {
        println!(
            "without {name}: build it with `cargo build --release --manifest-path benches/apart/Cargo.toml --target-dir target`"
        );
        return None;
    }
    let mut child = Command::new(program)
        .arg(url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let way = Way::Apart(Process {
        ask: child.stdin.take(),
        answers: BufReader::new(child.stdout.take().expect("piped")),
        child,
    });
    Some(Peer { name, way })
}

impl Process {
    /// Nothing else happens here until it has answered.
    pub(super) fn turns(
        &mut self,
        keys: &[String],
        hold: Hold,
        time: Duration,
    ) -> (Vec<Vec<Turn>>, Duration) {
        let hold = match hold {
            Hold::None => "none",
            Hold::Yield => "yield",
        };
        let ask = self.ask.as_mut().expect("it is there until the end");
        writeln!(ask, "{} {hold} {}", time.as_millis(), keys.join("\t")).expect("it listens");
        let mut each = vec![Vec::new(); keys.len()];
        for line in (&mut self.answers).lines() {
            let line = line.expect("it answers");
            if line.is_empty() {
                return (each, time);
            }
            let mut numbers = line.split(' ').map(|number| number.parse::<u64>());
            let mut next = || numbers.next().expect("four numbers").expect("a number");
            let who = usize::try_from(next()).expect("not that many");
            let (asked, granted, released) = (next(), next(), next());
            each[who].push(Turn {
                asked,
                granted,
                released,
            });
        }
        panic!("it has ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.ask.take());
        let _ = self.child.wait();
    }
}
