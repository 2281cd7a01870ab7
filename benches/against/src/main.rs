//! One of the two builds that `cargo xtask compare --against COMMIT` measures in turns.
//!
//! This code is the same in both: `xtask` builds it once with the library of the working tree and once with that of the
//! other commit. So it uses little of the library, and only what does not change often.
//!
//! The store's URL stands in `LOCKKEEPER_URL`. Each line of the input is `FIGURE MS`: what to measure, and for about how
//! long. The answer is a line of JSON with what was found, in µs by name. The input `list` is answered with the names of
//! all figures, `built` with the folder that this was built in. The program ends with its input.

mod figures;
mod processes;

use std::io::{Write as _, stdout};
use std::time::Duration;

use lockkeeper_workloads::Failure;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::figures::{FIGURES, Measurer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("LOCKKEEPER_URL")?;
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return processes::worker(&url).await;
    }
    let mut measurer = Measurer::new(url).await?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = match line.split_once(' ') {
            None if line == "list" => serde_json::to_string(FIGURES)?,
            None if line == "built" => serde_json::to_string(env!("CARGO_MANIFEST_DIR"))?,
            Some((figure, ms)) => {
                let time = Duration::from_millis(ms.parse()?);
                serde_json::to_string(&measurer.measure(figure, time).await?)?
            }
            None => return Err(format!("there is no request {line:?}").into()),
        };
        writeln!(stdout(), "{answer}")?;
    }
    Ok(())
}
