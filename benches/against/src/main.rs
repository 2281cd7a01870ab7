//! One of the two builds that `cargo xtask compare --against COMMIT` measures in turns.
//!
//! This code is the same in both: `xtask` builds it once with the library of the working tree and once with that of the
//! other commit. So it uses little of the library, and only what does not change often.
//!
//! The store's URL stands in `LOCKKEEPER_URL`. Each line of the input is `FIGURE MS`: what to measure, and for about how
//! long. The answer is a line of JSON with what was found, in µs by name. The input `list` is answered with the names of
//! all figures and the number of their slices, `built` with the folder that this was built in. The program ends with its input.

mod figures;

use std::io::{Write as _, stdout};
use std::time::Duration;

use lockkeeper_workloads::{Failure, processes};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::figures::{FIGURES, Measurer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let url = std::env::var("LOCKKEEPER_URL")?;
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return processes::work(&lockkeeper::connect(&url).await?).await;
    }
    let mut measurer = Measurer::new(url).await?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        writeln!(stdout(), "{}", answer(&mut measurer, &line).await?)?;
    }
    Ok(())
}

async fn answer(measurer: &mut Measurer, line: &str) -> Result<String, Failure> {
    Ok(match line.rsplit_once(' ') {
        None if line == "list" => serde_json::to_string(FIGURES)?,
        None if line == "built" => serde_json::to_string(env!("CARGO_MANIFEST_DIR"))?,
        None => return Err(format!("there is no request {line:?}").into()),
        Some((figure, ms)) => {
            let time = Duration::from_millis(ms.parse()?);
            serde_json::to_string(&measurer.measure(figure, time).await?)?
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test]
    async fn every_figure_is_measured_on_the_memory_store() {
        let mut measurer = Measurer::new("memory:".to_owned()).await.unwrap();
        let list = answer(&mut measurer, "list").await.unwrap();
        let list: Vec<(String, u32)> = serde_json::from_str(&list).unwrap();
        let mut names = Vec::new();
        for (figure, _) in &list {
            let found = answer(&mut measurer, &format!("{figure} 50"))
                .await
                .unwrap();
            let found: BTreeMap<String, f64> = serde_json::from_str(&found).unwrap();
            assert!(found.values().all(|us| *us > 0.0), "{figure}: {found:?}");
            // The driver looks for the figure of a part so.
            let part = format!("{figure}, ");
            assert!(
                found
                    .keys()
                    .all(|name| name == figure || name.starts_with(&part))
            );
            names.extend(found.into_keys());
        }
        // Other processes do not reach this store; documents have four parts.
        let of_processes = list.iter().filter(|(figure, _)| figure.contains("process"));
        let expected = list.len() - of_processes.count() + 3;
        assert_eq!(names.len(), expected, "{names:?}");
        for wrong in ["another 5", "pair", "pair of 16 tasks"] {
            assert!(answer(&mut measurer, wrong).await.is_err(), "{wrong}");
        }
    }
}
