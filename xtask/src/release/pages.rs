//! The book is built where `mdbook` is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds it into `target/book`. Its links were checked in its sources, without `mdbook`.
pub(super) fn build(root: &Path) -> Result<(), String> {
    let book = root.join("docs/book");
    let Some(program) = program(root) else {
        println!(
            "mdbook is not installed, so the book was not built: `cargo install mdbook --locked`"
        );
        return Ok(());
    };
    let target = root.join("target/book");
    let mut command = Command::new(program);
    let done = command
        .arg("build")
        .arg(&book)
        .arg("--dest-dir")
        .arg(&target)
        .output();
    let done = done.map_err(|error| format!("mdbook cannot be run: {error}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    // It goes on where a part of another file is missing.
    if !done.status.success() || said.contains("ERROR") || said.contains("WARN") {
        return Err(format!("mdbook: {said}"));
    }
    Ok(())
}

fn program(root: &Path) -> Option<PathBuf> {
    let ours = root.join("target/tools/bin/mdbook");
    let mut programs = [PathBuf::from("mdbook"), ours].into_iter();
    programs.find(|program| {
        let mut command = Command::new(program);
        command
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|it| it.success())
    })
}
