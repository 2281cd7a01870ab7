//! `lockkeeper top`: who holds what and who waits for it, on a screen.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::{Duration, SystemTime};

use lockkeeper::Cycle;
use lockkeeper::backend::{Filter, Record, cycles};
use lockkeeper::{Grant, Holder, Life};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};
use tokio::sync::mpsc;

use crate::args::{Common, TopArgs};
use crate::changes::{Change, Kind, Look, Looks};
use crate::describe;
use crate::failure::{Failure, one_line, status};
use crate::signals::Signals;
use crate::store;

/// Changes that are remembered.
const REMEMBERED: usize = 100;

/// A cycle of sessions is shown when it is there in so many looks, one of owners in so many: a listing is no snapshot.
const STANDS: u32 = 3;
const STANDS_BY_OWNER: u32 = 2;

/// How often the keyboard is looked at.
const KEYS: Duration = Duration::from_millis(100);

/// What the screen shows.
#[derive(Default)]
struct Shown {
    store: String,
    at: Option<SystemTime>,
    records: Vec<Record>,
    changes: VecDeque<(SystemTime, Change)>,
    cycles: Vec<Cycle>,
    /// In how many looks in a row each cycle was there.
    standing: BTreeMap<Vec<Option<Grant>>, u32>,
    /// The first line of the table that is shown.
    from: usize,
    /// Why the last look failed.
    failure: Option<String>,
}

pub(crate) async fn top(common: &Common, args: TopArgs) -> Result<u8, Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal: elsewhere use lockkeeper watch, or lockkeeper ls",
        ));
    }
    let mut signals = Signals::listen()?;
    let store = store::open_unless(&mut signals, common).await?;
    let mut looks = Looks::new(&*store.backend, Filter::Prefix(args.prefix));
    let mut shown = Shown {
        store: store.url.clone(),
        ..Shown::default()
    };
    let failed = |error: io::Error| {
        Failure::new(status::UNAVAILABLE, format!("the terminal failed: {error}"))
    };
    let mut pressed = keyboard();
    let mut timer = tokio::time::interval(args.every);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let done = 'all: loop {
        // A key that is pressed meanwhile does not begin it anew.
        let mut look = pin!(async {
            timer.tick().await;
            looks.again().await
        });
        loop {
            if let Err(error) = terminal.draw(|frame| draw(frame, &mut shown)) {
                break 'all Err(failed(error));
            }
            tokio::select! {
                biased;
                number = signals.ending() => break 'all Err(Failure::signal(number.as_raw())),
                key = pressed.recv() => match key {
                    Some(Pressed::Quit) | None => break 'all Ok(0),
                    Some(Pressed::Scroll(by)) => shown.from = shown.from.saturating_add_signed(by),
                    Some(Pressed::Redraw) => {}
                },
                look = &mut look => {
                    match look {
                        Ok(look) => shown.sees(look),
                        Err(failure) => shown.failure = Some(failure.message().unwrap_or_default().to_owned()),
                    }
                    break;
                }
            }
        }
    };
    ratatui::restore();
    done
}

enum Pressed {
    Quit,
    Scroll(isize),
    Redraw,
}

/// What is pressed. The thread ends when nobody listens any more.
fn keyboard() -> mpsc::UnboundedReceiver<Pressed> {
    let (sender, pressed) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while !sender.is_closed() {
            match event::poll(KEYS) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(_) => return,
            }
            let Ok(event) = event::read() else { return };
            let pressed = match event {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => Pressed::Quit,
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        Pressed::Quit
                    }
                    KeyCode::Up | KeyCode::Char('k') => Pressed::Scroll(-1),
                    KeyCode::Down | KeyCode::Char('j') => Pressed::Scroll(1),
                    KeyCode::PageUp => Pressed::Scroll(-10),
                    KeyCode::PageDown => Pressed::Scroll(10),
                    KeyCode::Home => Pressed::Scroll(isize::MIN + 1),
                    _ => continue,
                },
                Event::Resize(..) => Pressed::Redraw,
                _ => continue,
            };
            if sender.send(pressed).is_err() {
                return;
            }
        }
    });
    pressed
}

impl Shown {
    fn sees(&mut self, look: Look) {
        let found = cycles(&look.records);
        let name = |cycle: &Cycle| {
            let mut grants: Vec<_> = cycle.links.iter().map(|link| link.waiter.grant).collect();
            grants.sort_unstable();
            grants
        };
        let before = std::mem::take(&mut self.standing);
        for cycle in &found {
            let name = name(cycle);
            let looks = before.get(&name).copied().unwrap_or(0).saturating_add(1);
            self.standing.insert(name, looks);
        }
        self.cycles = found;
        let standing = &self.standing;
        self.cycles.retain(|cycle| {
            let least = if cycle.by_owner {
                STANDS_BY_OWNER
            } else {
                STANDS
            };
            standing
                .get(&name(cycle))
                .is_some_and(|looks| *looks >= least)
        });
        let first = self.at.is_none();
        self.at = Some(look.at);
        self.records = look.records;
        self.failure = None;
        for change in look.changes.into_iter().filter(|_| !first) {
            self.changes.push_front((look.at, change));
        }
        self.changes.truncate(REMEMBERED);
    }

    fn count(&self, which: impl Fn(&Holder) -> bool) -> usize {
        let all = self.records.iter().flat_map(|record| &record.holders);
        all.filter(|holder| which(holder)).count()
    }
}

fn draw(frame: &mut Frame<'_>, shown: &mut Shown) {
    let cycles: Vec<Line<'_>> = shown.cycles.iter().map(cycle).collect();
    let cycles_height = match cycles.len() {
        0 => 0,
        some => u16::try_from(some.min(3)).unwrap_or(3) + 1,
    };
    let [head, table, waits, events, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(5),
        Constraint::Length(cycles_height),
        Constraint::Length(7),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(heading(shown), head);
    draw_table(frame, shown, table);
    let section = |title: &'static str| Block::new().borders(Borders::TOP).title(title);
    if cycles_height > 0 {
        let red = Style::new().fg(Color::Red);
        let cycles = Paragraph::new(cycles).style(red);
        frame.render_widget(cycles.block(section(" cycles of waits ")), waits);
    }
    let changes = shown.changes.iter().take(usize::from(events.height));
    let changes: Vec<Line<'_>> = changes.map(|(at, it)| happened(*at, it)).collect();
    frame.render_widget(Paragraph::new(changes).block(section(" changes ")), events);
    let foot_text = match &shown.failure {
        Some(failure) => Line::styled(one_line(failure), Style::new().fg(Color::Red)),
        None => Line::from("q quit   up, down, page up, page down scroll"),
    };
    frame.render_widget(foot_text, foot);
}

fn heading(shown: &Shown) -> Line<'static> {
    let holders = shown.count(|it| it.waiting.is_none());
    let waiters = shown.count(|it| it.waiting.is_some());
    let abandoned = shown.count(|it| it.life == Life::Abandoned);
    let at = shown.at.map_or_else(|| "…".to_owned(), describe::time);
    let text = format!(
        "{at}  {} keys, {holders} holders, {waiters} waiters, {abandoned} abandoned  {}",
        shown.records.len(),
        one_line(&shown.store)
    );
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

/// The columns, besides the label, which has the rest.
const WIDTHS: [usize; 4] = [26, 12, 8, 10];

fn row(cells: [&str; 4], label: &str) -> String {
    let mut row = String::new();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        let cut: String = match cell.chars().count() > width {
            true => cell.chars().take(width - 1).chain(['…']).collect(),
            false => (*cell).to_owned(),
        };
        row += &format!("{cut:<width$} ");
    }
    row + label
}

fn draw_table(frame: &mut Frame<'_>, shown: &mut Shown, area: Rect) {
    let mut lines = Vec::new();
    for record in &shown.records {
        let mut key = one_line(record.key.as_str());
        let mut place = 0;
        for holder in &record.holders {
            let state = match holder.waiting {
                Some(_) => {
                    place += 1;
                    format!("waits #{place}")
                }
                None => describe::state(holder).to_owned(),
            };
            let age = shown
                .at
                .zip(holder.since)
                .map_or_else(String::new, |(at, since)| {
                    describe::duration(at.duration_since(since).unwrap_or_default())
                });
            let mode = describe::mode(&holder.key, holder.mode);
            let text = row([&key, mode, &age, &state], &one_line(&holder.label));
            let colour = match (holder.waiting, holder.life) {
                (Some(_), _) => Style::new().fg(Color::Yellow),
                (None, Life::Abandoned) => Style::new().fg(Color::Red),
                (None, _) => Style::new(),
            };
            lines.push(Line::styled(text, colour));
            key.clear();
        }
        if record.more {
            lines.push(Line::from(row([&key, "", "", ""], "and more")));
        }
    }
    let [names, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let height = usize::from(rest.height);
    shown.from = shown.from.min(lines.len().saturating_sub(height));
    let visible: Vec<Line<'_>> = lines.into_iter().skip(shown.from).take(height).collect();
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let names_text = row(["KEY", "MODE", "AGE", "STATE"], "LABEL");
    let names_text = format!("{names_text:<width$}", width = usize::from(area.width));
    frame.render_widget(Line::styled(names_text, reversed), names);
    let nobody = || vec![Line::from("nobody holds anything")];
    let visible = if visible.is_empty() {
        nobody()
    } else {
        visible
    };
    frame.render_widget(Paragraph::new(visible), rest);
}

/// "deadlock: A waits for K of B, B waits for L of A".
fn cycle(cycle: &Cycle) -> Line<'static> {
    let links = cycle.links.iter().map(|link| {
        let (waiter, holder) = (one_line(&link.waiter.label), one_line(&link.holder.label));
        format!(
            "{waiter} waits for {} of {holder}",
            one_line(link.waiter.key.as_str())
        )
    });
    let links: Vec<String> = links.collect();
    let kind = match cycle.by_owner {
        true => "deadlock: ",
        false => "deadlock, if one task holds and waits: ",
    };
    Line::from(format!("{kind}{}", links.join("; ")))
}

fn happened(at: SystemTime, change: &Change) -> Line<'static> {
    let time = describe::time(at);
    // Of "2026-01-01T00:00:00Z" the time.
    let time = time.get(11..19).unwrap_or(&time);
    let holder = &change.holder;
    let why = change
        .note
        .as_ref()
        .map_or_else(String::new, |(by, reason)| {
            format!(", by {}: {}", one_line(by), one_line(reason))
        });
    let text = format!(
        "{time} {:<9} {} {}{why}",
        change.kind.as_str(),
        one_line(holder.key.as_str()),
        one_line(&holder.label)
    );
    let colour = match change.kind {
        Kind::Broken | Kind::Revoked | Kind::Abandoned => Style::new().fg(Color::Red),
        _ => Style::new(),
    };
    Line::from(Span::styled(text, colour))
}

#[cfg(test)]
mod tests {
    use lockkeeper::{LockKey, Mode, OwnerId, SessionId, Waiting};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn holder(key: &str, session: u128, place: Option<u64>) -> Holder {
        let session = SessionId::new(session);
        Holder {
            key: LockKey::parse(key).unwrap(),
            grant: Some(Grant {
                session,
                n: 1 + place.unwrap_or(0),
            }),
            owner: Some(OwnerId { session, m: 1 }),
            mode: Mode::X,
            label: format!("job {}\n", session.get()),
            since: Some(SystemTime::UNIX_EPOCH),
            life: Life::Living,
            waiting: place.map(|place| Waiting {
                place,
                passed: 0,
                may_go: false,
            }),
        }
    }

    fn look(records: &[&[Holder]]) -> Look {
        let record = |holders: &&[Holder]| Record {
            key: holders[0].key.clone(),
            holders: holders.to_vec(),
            more: false,
            version: String::new(),
        };
        Look {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(90),
            records: records.iter().map(record).collect(),
            changes: Vec::new(),
        }
    }

    fn screen(shown: &mut Shown, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, shown)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn holders_waiters_and_a_deadlock_on_a_small_screen() {
        let mut shown = Shown::default();
        let (a, b) = (holder("a", 1, None), holder("b", 2, None));
        let records: [&[Holder]; 2] = [
            &[a.clone(), holder("a", 2, Some(7)), holder("a", 3, Some(9))],
            &[b.clone(), holder("b", 1, Some(4))],
        ];
        shown.sees(look(&records));
        assert_eq!(shown.cycles.len(), 0, "a listing is no snapshot");
        shown.sees(look(&records));
        shown.changes.push_front((
            SystemTime::UNIX_EPOCH,
            Change {
                kind: Kind::Broken,
                holder: b,
                note: Some(("ops".to_owned(), "stuck".to_owned())),
            },
        ));
        let screen = screen(&mut shown, 80, 24);
        assert!(
            screen[0].contains("2 keys, 2 holders, 3 waiters, 0 abandoned"),
            "{screen:#?}"
        );
        assert!(screen[1].starts_with("KEY "), "{screen:#?}");
        assert!(
            screen[2].contains("1m 30s") && screen[2].ends_with("job 1\\n"),
            "{screen:#?}"
        );
        assert!(
            screen[3].contains("waits #1") && screen[4].contains("waits #2"),
            "{screen:#?}"
        );
        let found = |text: &str| screen.iter().any(|line| line.contains(text));
        assert!(
            found("deadlock: job 2\\n waits for a of job 1\\n; job 1"),
            "{screen:#?}"
        );
        assert!(
            found("00:00:00 broken    b job 2\\n, by ops: stuck"),
            "{screen:#?}"
        );
        // The next look has another state: the cycle is over.
        shown.sees(look(&[&[a]]));
        assert_eq!(shown.cycles.len(), 0);
    }

    #[test]
    fn many_keys_are_scrolled_and_tiny_screens_do_no_harm() {
        let mut shown = Shown::default();
        let holders: Vec<Holder> = (0..100)
            .map(|n| holder(&format!("k{n:02}"), n, None))
            .collect();
        let records: Vec<&[Holder]> = holders.chunks(1).collect();
        shown.sees(look(&records));
        shown.from = 1_000;
        let lines = screen(&mut shown, 80, 24);
        assert!(
            lines.iter().any(|line| line.starts_with("k99 ")),
            "{lines:#?}"
        );
        for (width, height) in [(1, 1), (10, 3), (200, 60)] {
            screen(&mut shown, width, height);
        }
    }
}
