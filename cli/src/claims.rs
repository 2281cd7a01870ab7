//! From the arguments to one acquisition's claims, checked before anything is opened.

use std::fs::File;
use std::io::Read;
use std::num::NonZeroU32;
use std::path::Path;

use lockkeeper::limits::{MAX_KEYS, MAX_KEYS_BYTES};
use lockkeeper::{KeyError, LockKey, LockPath, PrepareError};

use crate::args::ClaimArgs;
use crate::failure::Failure;

/// What to lock: one scheme.
#[derive(Debug)]
pub(crate) enum Claims {
    Lock(LockKey),
    Documents(Documents),
    Shared {
        name: LockKey,
        limit: Option<NonZeroU32>,
    },
    Tree {
        write: Vec<LockPath>,
        read: Vec<LockPath>,
    },
}

/// Ids of documents: those of the arguments, and those of a file as its text, so that a million cost little.
#[derive(Debug)]
pub(crate) struct Documents {
    named: Vec<String>,
    lines: String,
}

impl Documents {
    /// Those of a file alone.
    pub(crate) fn of(lines: String) -> Result<Self, Failure> {
        let named = Vec::new();
        let documents = Documents { named, lines };
        count(&documents)?;
        Ok(documents)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        let named = self.named.iter().map(String::as_str);
        // Not `lines`, which would drop a carriage return: an id is taken as it is, or refused.
        named.chain(self.lines.split_terminator('\n'))
    }
}

impl Claims {
    /// What the arguments ask for.
    pub(crate) fn parse(args: &mut ClaimArgs) -> Result<Self, Failure> {
        let documents = !args.document.is_empty() || args.documents_from.is_some();
        let tree = !args.write.is_empty() || !args.read.is_empty();
        let schemes = [args.lock.is_some(), documents, tree, args.share.is_some()];
        match schemes.into_iter().filter(|&asked| asked).count() {
            1 => {}
            0 => {
                return Err(Failure::usage(
                    "nothing to lock: give --lock, --document, --documents-from, --write, --read or --share",
                ));
            }
            _ => {
                return Err(Failure::usage(
                    "claims of one kind only: --lock, or --document with --documents-from, or --write with --read, or --share",
                ));
            }
        }
        if args.limit.is_some() && args.share.is_none() {
            return Err(Failure::usage("--limit goes with --share only"));
        }
        if let Some(name) = &args.lock {
            return Ok(Claims::Lock(flat("--lock", name)?));
        }
        if let Some(name) = &args.share {
            let name = flat("--share", name)?;
            let limit = args.limit;
            return Ok(Claims::Shared { name, limit });
        }
        if tree {
            return Ok(Claims::Tree {
                write: paths("--write", &args.write)?,
                read: paths("--read", &args.read)?,
            });
        }
        for id in &args.document {
            flat("--document", id)?;
        }
        let lines = match &args.documents_from {
            Some(file) => lines(file)?,
            None => String::new(),
        };
        let documents = Documents {
            named: std::mem::take(&mut args.document),
            lines,
        };
        count(&documents)?;
        Ok(Claims::Documents(documents))
    }
}

fn flat(option: &str, text: &str) -> Result<LockKey, Failure> {
    LockKey::flat(text).map_err(|error| bad(option, text, error))
}

fn paths(option: &str, texts: &[String]) -> Result<Vec<LockPath>, Failure> {
    let parse = |text: &String| LockPath::parse(text).map_err(|error| bad(option, text, error));
    texts.iter().map(parse).collect()
}

fn bad(place: &str, text: &str, error: KeyError) -> Failure {
    // A long text is not repeated; its beginning tells which it is.
    let shown: String = text.chars().take(64).collect();
    let dots = if shown.len() < text.len() { "…" } else { "" };
    Failure::usage(format!("{place} {shown:?}{dots}: {error}"))
}

/// The text of a file of ids, each of them checked.
fn lines(file: &Path) -> Result<String, Failure> {
    let place = match file.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => file.display().to_string(),
    };
    let unreadable =
        |error: std::io::Error| Failure::usage(format!("{place} cannot be read: {error}"));
    let input: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin().lock()),
        _ => Box::new(File::open(file).map_err(unreadable)?),
    };
    // The largest acquisition, with an end of line for each id, and one byte that tells that there is more.
    let most = MAX_KEYS_BYTES + MAX_KEYS;
    let bound = u64::try_from(most + 1).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    input
        .take(bound)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() > most {
        return Err(too_large(bytes.len()));
    }
    text(&place, bytes)
}

/// The text of ids that were read from that place.
pub(crate) fn text(place: &str, bytes: Vec<u8>) -> Result<String, Failure> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = &error.as_bytes()[..valid];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        Failure::usage(format!(
            "{place}, line {line}: an id is not UTF-8: encode it, or leave it out"
        ))
    })?;
    for (at, id) in text.split_terminator('\n').enumerate() {
        LockKey::flat(id).map_err(|error| bad(&format!("{place}, line {}:", at + 1), id, error))?;
    }
    Ok(text)
}

fn count(documents: &Documents) -> Result<(), Failure> {
    let claims = documents.ids().count();
    if claims == 0 {
        return Err(Failure::usage(PrepareError::Nothing.to_string()));
    }
    if claims > MAX_KEYS {
        return Err(Failure::usage(PrepareError::TooMany { claims }.to_string()));
    }
    match documents.ids().map(str::len).sum() {
        bytes if bytes > MAX_KEYS_BYTES => Err(too_large(bytes)),
        _ => Ok(()),
    }
}

fn too_large(bytes: usize) -> Failure {
    Failure::usage(PrepareError::TooLarge { bytes }.to_string())
}
