//! The tree: its folder, and the listing of it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the tree is, in the folder to work in.
pub(crate) fn root(folder: &Path) -> PathBuf {
    folder.join("tree")
}

/// The place of a path of the tree.
pub(crate) fn place(folder: &Path, path: &str) -> PathBuf {
    root(folder).join(path.trim_start_matches('/'))
}

/// Lays out up to `most` files with the names of a real tree; each says where it began. Their number.
pub(crate) fn lay_out(tree: &Path, folder: &Path, most: usize) -> io::Result<usize> {
    let mut names = Vec::new();
    list_names(tree, "", &mut names, most)?;
    for name in &names {
        let place = place(folder, name);
        fs::create_dir_all(place.parent().unwrap_or(folder))?;
        fs::write(place, name)?;
    }
    fs::write(folder.join("beginning"), names.join("\n"))?;
    Ok(names.len())
}

fn list_names(tree: &Path, prefix: &str, names: &mut Vec<String>, most: usize) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(tree)?.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        // Names that are no keys (control characters, other encodings) are left out.
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = format!("{prefix}/{name}");
        if names.len() >= most || lockkeeper::LockPath::parse(&path).is_err() {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list_names(&entry.path(), &path, names, most)?;
        } else if kind.is_file() {
            names.push(path);
        }
    }
    Ok(())
}

/// Every file at or below a path, and where it began.
pub(crate) fn files_below(folder: &Path, path: &str) -> io::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    collect(&place(folder, path), path, &mut files)?;
    Ok(files)
}

fn collect(place: &Path, path: &str, files: &mut BTreeMap<String, String>) -> io::Result<()> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    if place.is_dir() {
        let entries = match fs::read_dir(place) {
            Err(error) if gone(&error) => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?
                .file_name()
                .into_string()
                .map_err(|_| io::Error::other("a name of our own"))?;
            collect(
                &place.join(&name),
                &format!("{}/{name}", path.trim_end_matches('/')),
                files,
            )?;
        }
    } else {
        match fs::read_to_string(place) {
            Err(error) if gone(&error) => {}
            began => drop(files.insert(path.to_owned(), began?)),
        }
    }
    Ok(())
}
