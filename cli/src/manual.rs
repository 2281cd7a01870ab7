//! `lockkeeper completions` and `man`: what is made of the arguments' own descriptions.

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::Output;

pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lockkeeper", &mut text);
    print(text)
}

/// Prints the page of an action, or of the whole command.
pub(crate) fn page(action: Option<&str>) -> Result<u8, Failure> {
    let mut command = Cli::command();
    command.build();
    let page = match action {
        None => command,
        Some(name) => {
            let action = command.find_subcommand(name).cloned();
            action.ok_or_else(|| {
                Failure::usage(format!(
                    "there is no action {name:?}: see lockkeeper --help"
                ))
            })?
        }
    };
    let mut text = Vec::new();
    Man::new(page)
        .render(&mut text)
        .expect("a vector takes everything");
    print(text)
}

fn print(text: Vec<u8>) -> Result<u8, Failure> {
    let text = String::from_utf8(text).expect("it is made of texts");
    let mut output = Output::new();
    output.line(text.trim_end())?;
    output.finish()
}
