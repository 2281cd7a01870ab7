//! A loss of power: of the log nothing is certain behind the last commit that has waited for the disk.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod support;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use lockcore::backend::{End, Filter, Inspect, IntentChange, Renewed, SessionStore};
use lockcore::{Life, SessionId};
use support::*;

fn log_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push("-wal");
    name.into()
}

/// The file and its log, as they are.
fn written(space: &Space) -> (Vec<u8>, Vec<u8>) {
    let read = |path: &Path| fs::read(path).unwrap();
    (read(&space.path), read(&log_of(&space.path)))
}

/// A commit that puts an intent waits for the disk.
#[tokio::test]
async fn what_is_cut_off_behind_an_intent_leaves_it_and_no_lock_without_its_session() {
    let space = Space::new();
    let backend = space.connect().await;
    let one = open(&backend, 1).await;
    granted(&backend, one, 1, &["create kept", "write /kept/too"]).await;
    let put = renew(&backend, one, 1, "", intent(r#""half""#)).await;
    assert_eq!(put, Renewed::Living);
    let (before, certain) = written(&space);
    let two = open(&backend, 2).await;
    let mut greatest = granted(&backend, two, 1, &["create a", "write /b/c"]).await;
    for n in 2..12 {
        let key = format!("share s{n}");
        greatest = granted(&backend, two, n, &[&key]).await;
        if n % 3 == 0 {
            release(&backend, two, n, &[&key]).await;
        }
        renew(&backend, one, n, "", IntentChange::Keep).await;
    }
    let (file, log) = written(&space);
    assert!(before == file && log.starts_with(&certain), "it only grows");
    let mut lost = 0;
    let step = (log.len() - certain.len()) / 40 + 1;
    for end in (certain.len()..=log.len()).step_by(step) {
        for torn in [false, true] {
            let after = Space::new();
            fs::write(&after.path, &file).unwrap();
            let mut log = log[..end].to_vec();
            // What was being written is something else.
            log.extend(torn.then_some([0xa5; 512]).into_iter().flatten());
            fs::write(log_of(&after.path), log).unwrap();
            lost += usize::from(outlived(&after, one, two, greatest.get()).await);
        }
    }
    assert!(lost > 10, "of {lost} nothing was lost");
}

/// Whether something is lost that was granted.
async fn outlived(space: &Space, one: SessionId, two: SessionId, greatest: u64) -> bool {
    let backend = space.connect().await;
    let sessions = backend.sessions(None, 100).await.unwrap().items;
    let known: BTreeSet<SessionId> = sessions.iter().map(|state| state.session).collect();
    let all = Filter::Prefix(String::new());
    let records = backend.records(&all, None, 100).await.unwrap().items;
    let holders = records.iter().flat_map(|record| &record.holders);
    let mut of_two = 0;
    for holder in holders {
        let session = holder.grant.unwrap().session;
        assert!(known.contains(&session), "{holder:?} without its session");
        of_two += usize::from(session == two);
    }
    let three = open(&backend, 3).await;
    let next = granted(&backend, three, 1, &["create next"]).await;
    assert!(next.get() > greatest, "{next} after {greatest}");
    for text in ["create kept", "read /kept"] {
        refused(&backend, three, 2, &[text]).await;
    }
    let ended = backend.end(&[one], End::Revoke).await.unwrap();
    assert_eq!(ended[0].life, Life::Abandoned, "its intent is there");
    refused(&backend, three, 3, &["write /kept"]).await;
    of_two < 9
}
