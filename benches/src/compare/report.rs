//! The report, in Markdown.

use std::fmt::Write as _;

use lockkeeper_workloads::{
    ABORT, ACQUIRE, HAND_OVER, NEVER_WITHIN, PAIR, READ_FOR, REFUSED, RELEASE, SWEPT, WAIT,
};

use super::goals::{self, GOALS};
use super::plot::Plot;
use super::result::{
    At, BASELINE, CPU_MS, Comparison, FAIRNESS, GIVEN_UP, LEAST_SHARE, OURS, PER_SECOND, REQUESTS,
    Round, TO_BASELINE, TTL_MS, Times, named, of_times, to_f64,
};
use super::{
    BY_2_PROCESSES, BY_8_PROCESSES, BY_PROCESSES, CONTENDED_BY_PROCESSES, HAND_OVERS_FOR, KEPT,
    TAKEOVER, WAITER,
};
use crate::rounds::Spread;

/// So many there are.
const STORES: usize = 6;

/// A table: its head, and rows of as many cells.
struct Table {
    text: String,
    any: bool,
}

impl Table {
    fn new(head: &[&str]) -> Self {
        let mut text = format!("| {} |\n|", head.join(" | "));
        for _ in head {
            text.push_str("---|");
        }
        text.push('\n');
        Self { text, any: false }
    }

    /// Adds a row, unless only its name is known.
    fn row(&mut self, name: &str, cells: &[String]) {
        if cells.iter().any(|cell| cell != "–") {
            let _ = writeln!(self.text, "| {name} | {} |", cells.join(" | "));
            self.any = true;
        }
    }
}

/// One cell: the median and the spread of rounds.
fn cell(figure: Option<Spread>) -> String {
    figure.map_or_else(|| "–".to_owned(), |figure| figure.short())
}

/// A wait in hold times; one that was given up has no end.
fn cell_of_wait(holds: Option<Spread>) -> String {
    match holds {
        Some(holds) if holds.median() >= f64::from(NEVER_WITHIN) => {
            format!("never within {NEVER_WITHIN}")
        }
        holds => cell(holds),
    }
}

fn ms(name: &'static str, read: fn(&Times) -> u64) -> impl Fn(&Round) -> Option<f64> {
    of_times(name, move |times| to_f64(read(times)) / 1e3)
}

fn seconds(name: &'static str) -> impl Fn(&Round) -> Option<f64> {
    of_times(name, |times| times.mean / 1e6)
}

/// What a report is written of.
struct Writer<'a> {
    found: &'a Comparison,
    text: String,
}

pub(super) fn markdown(found: &Comparison, plots: &[Plot]) -> String {
    let mut writer = Writer {
        found,
        text: String::new(),
    };
    writer.head();
    writer.promises();
    writer.goals();
    writer.uncontended();
    writer.contended();
    writer.hand_overs();
    writer.peers();
    writer.shares();
    writer.writers();
    writer.trees();
    writer.documents();
    writer.guards();
    writer.takeovers();
    writer.plots(plots);
    writer.how();
    writer.text
}

impl<'a> Writer<'a> {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn part(&mut self, title: &str, text: &str) {
        let _ = write!(self.text, "\n## {title}\n\n{text}\n\n");
    }

    /// Adds the table, if anything stands in it.
    fn table(&mut self, table: &Table) {
        if table.any {
            self.line(&table.text);
        }
    }

    fn stores(&self) -> Vec<&'a str> {
        let stores = self.found.stores.iter();
        stores.map(|store| store.name.as_str()).collect()
    }

    fn figure(
        &self,
        (store, workload, size): (&str, &str, u32),
        read: impl Fn(&Round) -> Option<f64>,
    ) -> String {
        let at = At {
            store,
            of: OURS,
            workload,
            size,
        };
        cell(self.found.figure(at, read))
    }

    /// Ours to another's, round by round.
    fn beside(
        &self,
        (store, workload, size): (&str, &str, u32),
        other: &str,
        read: impl Fn(&Round) -> Option<f64> + Copy,
    ) -> Option<Spread> {
        let at = |of| At {
            store,
            of,
            workload,
            size,
        };
        self.found.ratio((at(OURS), read), (at(other), read))
    }

    fn head(&mut self) {
        self.line("# The stores side by side");
        self.line("");
        let only = match self.found.stores.len() {
            STORES.. => String::new(),
            _ => format!(" --only {}", self.stores().join(",")),
        };
        let _ = writeln!(
            self.text,
            "Written by `cargo xtask compare{only} --rounds {}` on {}: {}.\n",
            self.found.rounds,
            self.found.date,
            self.found.machine.join(", ")
        );
        self.line(
            "A cell is the median of the rounds, with the least and the greatest of them behind it. **Ratios first**: they \
             were measured side by side and say more than absolute figures, which are those of one machine. The *baseline* is \
             what the store itself needs for the like, through the same driver and with the same settings. All servers ran \
             on the machine that asked them.",
        );
    }

    fn promises(&mut self) {
        self.part(
            "What was measured",
            "What a grant survives is what the store says of itself, as it was set up here; a store that promises less \
             can be faster. [GUARANTEES.md](../GUARANTEES.md) has the rest.",
        );
        let mut table = Table::new(&[
            "store",
            "server",
            "whose clock",
            "who waits",
            "survives a crash",
            "… a loss of power",
        ]);
        let yes = |it: bool| if it { "yes" } else { "no" }.to_owned();
        for store in &self.found.stores {
            let waits = store
                .poll_ms
                .map_or_else(|| "is told".to_owned(), |ms| format!("looks every {ms} ms"));
            table.row(
                &store.name,
                &[
                    store.server.clone(),
                    store.clock.clone(),
                    waits,
                    yes(store.survives_crash),
                    yes(store.survives_power_loss),
                ],
            );
        }
        self.table(&table);
    }

    fn goals(&mut self) {
        self.part(
            "What each has to reach",
            "The limits that this project sets itself, against the figures of this run.",
        );
        let mut table = Table::new(&["store", "figure", "limit", "here", "reached"]);
        for goal in &GOALS {
            if let Some((figure, reached)) = goal.judge(self.found) {
                let verdict = if reached { "yes" } else { "**no**" };
                table.row(
                    goal.store,
                    &[
                        goal.what.to_owned(),
                        goal.limit(),
                        figure.short(),
                        verdict.to_owned(),
                    ],
                );
            }
        }
        self.table(&table);
    }

    fn uncontended(&mut self) {
        self.part(
            "One lock that nobody else wants",
            "Acquire and release through the whole client, by one task, and by 16 tasks with a lock each. The ratio is of \
             the time of a pair.",
        );
        let mut table = Table::new(&[
            "store",
            "to the baseline",
            "median, ms",
            "p99, ms",
            "pairs a second",
            "16 tasks: to the baseline's rate",
            "pairs a second",
            "p99, ms",
        ]);
        let mut baselines = Table::new(&["store", "the baseline's pair"]);
        for store in &self.found.stores {
            let name = store.name.as_str();
            let (one, many) = ((name, "uncontended", 1), (name, "uncontended", 16));
            let rate = self.beside(many, BASELINE, named(PER_SECOND));
            table.row(
                name,
                &[
                    cell(goals::pair(self.found, name)),
                    self.figure(one, ms(PAIR, |times| times.p50)),
                    self.figure(one, ms(PAIR, |times| times.p99)),
                    self.figure(one, named(PER_SECOND)),
                    cell(rate),
                    self.figure(many, named(PER_SECOND)),
                    self.figure(many, ms(PAIR, |times| times.p99)),
                ],
            );
            if let Some([pair, _]) = &store.baseline {
                baselines.row(name, std::slice::from_ref(pair));
            }
        }
        self.table(&table);
        self.table(&baselines);
    }

    fn contended(&mut self) {
        let processes = format!(
            "By processes each has a connection of its own, and pauses for the time of one pair after each turn; they \
             take turns for {} s. Fairness is Jain's index: 1 where each had as many turns.",
            BY_PROCESSES.as_secs()
        );
        self.part(
            "One lock that many want",
            &format!(
                "A hand-over is a turn after another one's turn. The tasks of one process hold the lock across a yield, so \
                 that the others run meanwhile. The ratio is of hand-overs a second to the pairs of one task alone, \
                 measured just before and just after. {processes}"
            ),
        );
        let mut tasks = Table::new(&[
            "8 tasks of one process",
            "to uncontended",
            "hand-overs a second",
            "grant to next grant, median, ms",
            "p99, ms",
            "longest wait / mean",
            "least share",
            "fairness",
        ]);
        let mut processes = Table::new(&[
            "8 processes",
            "hand-overs a second",
            "release to next grant, median, ms",
            "p99, ms",
            "p99 of waits / mean",
            "longest wait / mean",
            "least share",
            "fairness",
        ]);
        let longest = || of_times(WAIT, |times| to_f64(times.longest) / times.mean);
        for store in self.stores() {
            let at = (store, "contended", 8);
            tasks.row(
                store,
                &[
                    cell(goals::tasks(self.found, store)),
                    self.figure(at, named(PER_SECOND)),
                    self.figure(at, ms(HAND_OVER, |times| times.p50)),
                    self.figure(at, ms(HAND_OVER, |times| times.p99)),
                    cell(goals::longest(self.found, store)),
                    self.figure(at, named(LEAST_SHARE)),
                    self.figure(at, named(FAIRNESS)),
                ],
            );
            let at = (store, CONTENDED_BY_PROCESSES, 8);
            processes.row(
                store,
                &[
                    self.figure(at, named(PER_SECOND)),
                    cell(goals::next_ms(self.found, store)),
                    self.figure(at, ms(HAND_OVER, |times| times.p99)),
                    cell(goals::fair(self.found, store)),
                    self.figure(at, longest()),
                    self.figure(at, named(LEAST_SHARE)),
                    self.figure(at, named(FAIRNESS)),
                ],
            );
        }
        self.table(&tasks);
        self.table(&processes);
    }

    fn hand_overs(&mut self) {
        self.part(
            "One lock that the tasks of several processes want",
            &format!(
                "8 and 64 tasks in all, of 1, 2 and 8 processes: hand-overs a second to the pairs of one task alone, which \
                 were measured just before and just after. Each turn is held across a yield, and nobody pauses. Several \
                 processes take turns for {} s. A waiter of another process acquires again and again for {} s while the 8 \
                 tasks of one process do: how long it waits each time.",
                HAND_OVERS_FOR.as_secs(),
                BY_PROCESSES.as_secs()
            ),
        );
        let mut ratios = Table::new(&[
            "to uncontended",
            "1 process: 8 tasks",
            "64 tasks",
            "2 processes: 8 tasks",
            "64 tasks",
            "8 processes: 8 tasks",
            "64 tasks",
        ]);
        let mut rates = Table::new(&[
            "hand-overs a second",
            "1 process: 8 tasks",
            "64 tasks",
            "2 processes: 8 tasks",
            "64 tasks",
            "8 processes: 8 tasks",
            "64 tasks",
        ]);
        let mut waiter = Table::new(&[
            "a waiter beside 8 tasks of another process",
            "wait, median, ms",
            "longest, ms",
            "its turns",
        ]);
        let of = ["contended", BY_2_PROCESSES, BY_8_PROCESSES];
        for store in self.stores() {
            let cells = |name: &'static str| {
                let each = of.iter().flat_map(|of| [(*of, 8), (*of, 64)]);
                each.map(|(of, tasks)| self.figure((store, of, tasks), named(name)))
                    .collect::<Vec<_>>()
            };
            let at = (store, WAITER, 8);
            let waits = [
                self.figure(at, ms(WAIT, |times| times.p50)),
                self.figure(at, ms(WAIT, |times| times.longest)),
                self.figure(at, of_times(WAIT, |times| to_f64(times.count))),
            ];
            ratios.row(store, &cells(TO_BASELINE));
            rates.row(store, &cells(PER_SECOND));
            waiter.row(store, &waits);
        }
        self.table(&ratios);
        self.table(&rates);
        self.table(&waiter);
    }

    fn peers(&mut self) {
        self.part(
            "Other libraries",
            "What a program might take instead, on the same server in the same rounds: our rate to theirs, so that more \
             than 1 means that we are faster. Locks of sessions (`PgAdvisoryLock`, `distributed-lock-postgres`) write \
             nothing and are gone with their connection; what a record buys is in [GUARANTEES.md](../GUARANTEES.md).",
        );
        let mut table = Table::new(&[
            "store, library",
            "one task: pairs",
            "16 tasks: pairs",
            "2 tasks, one lock: hand-overs",
            "8 tasks",
            "32 tasks",
            "their longest wait of 8 / mean",
        ]);
        for store in self.stores() {
            for peer in self.found.peers(store) {
                let rate = |workload, size| {
                    cell(self.beside((store, workload, size), peer, named(PER_SECOND)))
                };
                let theirs = At {
                    store,
                    of: peer,
                    workload: "contended",
                    size: 8,
                };
                let longest = of_times(WAIT, |times| to_f64(times.longest) / times.mean);
                table.row(
                    &format!("{store}, {peer}"),
                    &[
                        rate("uncontended", 1),
                        rate("uncontended", 16),
                        rate("contended", 2),
                        rate("contended", 8),
                        rate("contended", 32),
                        cell(self.found.figure(theirs, longest)),
                    ],
                );
            }
        }
        self.table(&table);
    }

    fn shares(&mut self) {
        self.part(
            "Shares and semaphores",
            "One more holder of a share while 0, 9 and 999 others hold it, as a ratio to the first. Shares of one key, by 16 \
             tasks, to exclusive locks by 16 tasks with a key each. A semaphore of 10 that 100 tasks take in turn, each \
             across a yield, to the turns of 10 tasks at the same semaphore, of whom nobody waits.",
        );
        let mut table = Table::new(&[
            "store",
            "10 holders / 1",
            "1,000 holders / 1",
            "1 holder: median, ms",
            "1,000 holders: median, ms",
            "16 tasks: one key shared / a key each",
            "semaphore: 100 tasks / 10",
            "turns a second",
            "wait, median, ms",
            "p99, ms",
            "fairness",
        ]);
        for store in self.stores() {
            let to_one = |holders| self.grown(store, "share", holders, 1);
            let semaphore = (store, "semaphore", 100);
            table.row(
                store,
                &[
                    to_one(10),
                    to_one(1_000),
                    self.figure((store, "share", 1), ms(PAIR, |times| times.p50)),
                    self.figure((store, "share", 1_000), ms(PAIR, |times| times.p50)),
                    self.figure((store, "shared", 16), named(TO_BASELINE)),
                    self.figure(semaphore, named(TO_BASELINE)),
                    self.figure(semaphore, named(PER_SECOND)),
                    self.figure(semaphore, ms(WAIT, |times| times.p50)),
                    self.figure(semaphore, ms(WAIT, |times| times.p99)),
                    self.figure(semaphore, named(FAIRNESS)),
                ],
            );
        }
        self.table(&table);
    }

    fn writers(&mut self) {
        self.part(
            "A writer beside readers",
            &format!(
                "Three shares of a key are held at any time by readers who come and go, and one task of the same process \
                 wants the key for itself. Its wait is told in hold times of a reader ({} ms). After {NEVER_WITHIN} it gives \
                 up: then it is told as never.",
                READ_FOR.as_millis()
            ),
        );
        let mut table = Table::new(&["store", "wait, median", "longest", "waits", "given up"]);
        for store in self.stores() {
            let at = At {
                store,
                of: OURS,
                workload: "writer beside readers",
                size: 3,
            };
            let wait = |read: fn(&Times) -> u64| {
                cell_of_wait(self.found.figure(at, goals::in_holds(read)))
            };
            let cells = [
                wait(|times| times.p50),
                wait(|times| times.longest),
                cell(
                    self.found
                        .figure(at, of_times(WAIT, |times| to_f64(times.count))),
                ),
                cell(self.found.figure(at, named(GIVEN_UP))),
            ];
            table.row(store, &cells);
        }
        self.table(&table);
    }

    /// The time of a pair at one size to that at another.
    fn grown(&self, store: &str, workload: &str, size: u32, to: u32) -> String {
        let at = |size| At {
            store,
            of: OURS,
            workload,
            size,
        };
        let median = || of_times(PAIR, |times| to_f64(times.p50));
        cell(self.found.ratio((at(size), median()), (at(to), median())))
    }

    fn trees(&mut self) {
        self.part(
            "Tree locks",
            "Acquire and release of a path, as a ratio to one of depth 1; the same while others hold 100 siblings of it.",
        );
        let mut table = Table::new(&[
            "store",
            "depth 5 / 1",
            "depth 32 / 1",
            "depth 1: median, ms",
            "depth 32: median, ms",
            "beside siblings: depth 32 / 1",
            "depth 1: median, ms",
            "depth 32: median, ms",
        ]);
        for store in self.stores() {
            let median = |workload, depth| {
                self.figure((store, workload, depth), ms(PAIR, |times| times.p50))
            };
            let beside = "tree beside siblings";
            table.row(
                store,
                &[
                    self.grown(store, "tree", 5, 1),
                    self.grown(store, "tree", 32, 1),
                    median("tree", 1),
                    median("tree", 32),
                    self.grown(store, beside, 32, 1),
                    median(beside, 1),
                    median(beside, 32),
                ],
            );
        }
        self.table(&table);
    }

    fn documents(&mut self) {
        self.part(
            "Document locks",
            "All ids in one acquisition. *Released* is when others can have everything; *swept* when no record is left in \
             the store; *refused*: the last id is held by another one; *given up*: from when the acquisition was dropped \
             half-way until another one has its first id. Times are in s, and *swept* has the end of the session in it.",
        );
        let mut baselines = Table::new(&["store", "the baseline's records"]);
        for ids in self.found.sizes("documents") {
            let ids_text = format!("{ids} ids");
            let mut table = Table::new(&[
                &ids_text,
                "acquired, to the baseline",
                "released and swept, to the baseline",
                "acquired",
                "released",
                "swept",
                "refused",
                "given up",
            ]);
            for store in self.stores() {
                let at = (store, "documents", ids);
                let baseline = |what| {
                    let mean = move |round: &Round| of_times(what, |times| times.mean)(round);
                    cell(self.beside(at, BASELINE, mean))
                };
                table.row(
                    store,
                    &[
                        baseline(ACQUIRE),
                        baseline(SWEPT),
                        self.figure(at, seconds(ACQUIRE)),
                        self.figure(at, seconds(RELEASE)),
                        self.figure(at, seconds(SWEPT)),
                        self.figure(at, seconds(REFUSED)),
                        self.figure(at, seconds(ABORT)),
                    ],
                );
            }
            self.table(&table);
        }
        for store in &self.found.stores {
            if let Some([_, many]) = &store.baseline {
                baselines.row(&store.name, std::slice::from_ref(many));
            }
        }
        self.table(&baselines);
    }

    fn guards(&mut self) {
        self.part(
            "10,000 guards, kept for a minute",
            "With the default TTL of 30 s. Requests are counted in front of the server; the CPU time is that of the process \
             which holds them.",
        );
        let mut table = Table::new(&["store", "requests", "CPU, ms"]);
        for store in self.stores() {
            let at = (store, KEPT, super::processes::GUARDS);
            table.row(
                store,
                &[
                    self.figure(at, named(REQUESTS)),
                    self.figure(at, named(CPU_MS)),
                ],
            );
        }
        self.table(&table);
    }

    fn takeovers(&mut self) {
        self.part(
            "When the holder is killed",
            "Holders with the shortest TTL of the store are killed with SIGKILL, at different times since their last \
             renewal: how long after that who waits has the lock, to the TTL, and in ms.",
        );
        let mut table = Table::new(&[
            "store",
            "median / TTL",
            "longest / TTL",
            "TTL, ms",
            "median, ms",
            "p90, ms",
            "longest, ms",
            "killed",
        ]);
        for store in self.stores() {
            let at = (store, TAKEOVER, 1);
            let to_ttl = |read: fn(&Times) -> u64| {
                move |round: &Round| Some(ms("takeover", read)(round)? / named(TTL_MS)(round)?)
            };
            table.row(
                store,
                &[
                    self.figure(at, to_ttl(|times| times.p50)),
                    self.figure(at, to_ttl(|times| times.longest)),
                    self.figure(at, named(TTL_MS)),
                    self.figure(at, ms("takeover", |times| times.p50)),
                    self.figure(at, ms("takeover", |times| times.p90)),
                    self.figure(at, ms("takeover", |times| times.longest)),
                    self.figure(at, of_times("takeover", |times| to_f64(times.count))),
                ],
            );
        }
        self.table(&table);
    }

    fn plots(&mut self, plots: &[Plot]) {
        self.part("How cost grows", "Both axes are logarithmic.");
        for plot in plots {
            let _ = writeln!(self.text, "![{}]({})\n", plot.title, plot.file);
        }
    }

    fn how(&mut self) {
        let resumed = self.found.resumed_after.map_or_else(String::new, |round| {
            format!(" It was resumed after round {round}, with servers that were started anew.")
        });
        self.part(
            "How it was measured",
            &format!(
                "`cargo xtask compare` starts a server of each store on the machine, builds the release build, and runs each \
                 workload on each store in turn: {} rounds, the first store of a round being another one each time, after \
                 one that does not count. Turns are taken for {} ms in a round. The client is one process on one thread; \
                 distributions are those of HdrHistogram with three digits. Every round stays in \
                 `compare.json` beside this file, where it was measured.{resumed} `lockkeeper bench --url URL` runs a short form against a store of yours.",
                self.found.rounds, self.found.slice_ms
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_was_given_up_is_told_as_never() {
        let of = |holds: f64| cell_of_wait(Some(Spread::of(vec![holds])));
        assert_eq!(of(3.5), "3.50");
        assert_eq!(of(f64::from(NEVER_WITHIN)), "never within 50");
        assert_eq!(of(f64::from(NEVER_WITHIN) + 0.1), "never within 50");
        assert_eq!(cell_of_wait(None), "–");
    }
}
