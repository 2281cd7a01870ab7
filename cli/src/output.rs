//! [`Output`]: lines and JSON on standard output; [`Table`]: rows for people and for programs.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::describe;
use crate::failure::{Failure, status};

/// Standard output, which may be large, and whose reader may go away.
pub(crate) struct Output(BufWriter<StdoutLock<'static>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    pub(crate) fn line(&mut self, line: &str) -> Result<(), Failure> {
        writeln!(self.0, "{line}").map_err(|error| gone(&error))
    }

    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.line(&serde_json::to_string(value).expect("strings and lists are JSON"))
    }

    /// What was written so far is to be seen.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|error| gone(&error))
    }

    pub(crate) fn finish(mut self) -> Result<u8, Failure> {
        self.flush()?;
        Ok(0)
    }
}

/// One field of a [`Table`]: as programs read it, and as people do.
pub(crate) struct Cell {
    plain: String,
    shown: String,
}

impl Cell {
    /// A field that is the same for both.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let plain = text.into();
        let shown = plain.clone();
        Self { plain, shown }
    }

    /// A length of time: for programs in whole seconds.
    pub(crate) fn lasting(time: Option<Duration>) -> Self {
        let Some(time) = time else {
            return Self::text("-");
        };
        Self {
            plain: time.as_secs().to_string(),
            shown: describe::duration(time),
        }
    }

    /// A point in time: for people its age.
    pub(crate) fn since(at: Option<SystemTime>) -> Self {
        let Some(at) = at else { return Self::text("-") };
        #[expect(clippy::disallowed_methods, reason = "for people")]
        let age = SystemTime::now().duration_since(at).unwrap_or_default();
        Self {
            plain: describe::time(at),
            shown: describe::duration(age),
        }
    }
}

/// Rows: on a terminal in columns below headings, elsewhere with tabs.
pub(crate) struct Table {
    headings: &'static [&'static str],
    for_people: bool,
    rows: Vec<Vec<String>>,
    widths: Vec<usize>,
    has_headings: bool,
}

impl Table {
    pub(crate) fn new(headings: &'static [&'static str]) -> Self {
        Self::of(headings, io::stdout().is_terminal())
    }

    fn of(headings: &'static [&'static str], for_people: bool) -> Self {
        Self {
            headings,
            for_people,
            rows: Vec::new(),
            widths: headings.iter().map(|heading| heading.len()).collect(),
            has_headings: false,
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cell = |cell: Cell| match self.for_people {
            true => cell.shown,
            false => cell.plain,
        };
        let row: Vec<String> = cells.into_iter().map(cell).collect();
        for (width, cell) in self.widths.iter_mut().zip(&row) {
            *width = cell.chars().count().max(*width);
        }
        self.rows.push(row);
    }

    /// A line that belongs to the row before, and to no column.
    pub(crate) fn detail(&mut self, text: &str) {
        self.rows.push(vec![String::new(), text.to_owned()]);
    }

    /// Writes the rows so far. The columns of later ones are as wide at least.
    pub(crate) fn write(&mut self, output: &mut Output) -> Result<(), Failure> {
        let mut rows = std::mem::take(&mut self.rows);
        if self.for_people && !self.has_headings && !rows.is_empty() {
            self.has_headings = true;
            rows.insert(0, self.headings.iter().map(ToString::to_string).collect());
        }
        for row in rows {
            output.line(&self.line(&row))?;
        }
        Ok(())
    }

    fn line(&self, row: &[String]) -> String {
        if !self.for_people {
            return row.join("\t");
        }
        let pad = |(cell, width): (&String, &usize)| format!("{cell:<width$}");
        let cells: Vec<String> = row.iter().zip(&self.widths).map(pad).collect();
        cells.join("  ").trim_end().to_owned()
    }
}

fn gone(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::signal(crate::signals::Signal::PIPE.as_raw());
    }
    Failure::new(status::UNAVAILABLE, format!("standard output: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_columns_and_programs_tabs() {
        let at = Some(SystemTime::UNIX_EPOCH);
        let rows = |for_people| {
            let mut table = Table::of(&["KEY", "SINCE", "LABEL"], for_people);
            table.row([Cell::text("é/longer"), Cell::since(None), Cell::text("a")]);
            table.row([Cell::text("b"), Cell::since(at), Cell::text("")]);
            let rows: Vec<String> = table.rows.iter().map(|row| table.line(row)).collect();
            rows
        };
        let [first, second] = &rows(false)[..] else {
            panic!()
        };
        assert_eq!(first, "é/longer\t-\ta");
        assert_eq!(second, "b\t1970-01-01T00:00:00Z\t");
        let [first, second] = &rows(true)[..] else {
            panic!()
        };
        assert!(
            first.starts_with("é/longer  -") && first.ends_with("  a"),
            "{first:?}"
        );
        assert!(
            second.starts_with("b         ") && second.contains('d'),
            "{second:?}"
        );
    }
}
