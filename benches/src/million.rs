//! One acquisition of 1,000,000 document ids on SQLite.

use std::time::Instant;

use lockcore::{Attempt, Locks};

use crate::rounds::{one_thread, resident_mib, sqlite};

const IDS: u32 = 1_000_000;

fn ids() -> impl Iterator<Item = String> {
    (0..IDS).map(|n| format!("document-{n:07}-of-an-index"))
}

pub(crate) fn run() {
    one_thread().block_on(async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("locks.db");
        let locks = Locks::builder(sqlite(&file).await)
            .build()
            .expect("the defaults can be used");
        let other = Locks::builder(sqlite(&file).await)
            .build()
            .expect("the defaults can be used");
        println!("client's memory before: {:.0} MiB", resident_mib());

        let start = Instant::now();
        let guard = locks
            .documents(ids())
            .acquire()
            .await
            .expect("nobody else wants them");
        println!(
            "acquire of {IDS} ids: {:.2} s",
            start.elapsed().as_secs_f64()
        );
        println!(
            "client's memory while it holds them: {:.0} MiB",
            resident_mib()
        );
        let start = Instant::now();
        let _ = guard.release().await.expect("the file can be written");
        println!(
            "release (acknowledged; the records are swept afterwards): {:.3} s",
            start.elapsed().as_secs_f64()
        );

        let last = ids().last().expect("a million");
        let in_the_way = other
            .documents([&last])
            .acquire()
            .await
            .expect("it is free");
        let start = Instant::now();
        match locks
            .documents(ids())
            .try_acquire()
            .await
            .expect("the file can be written")
        {
            Attempt::Acquired(_) => panic!("the last id is held"),
            Attempt::Busy(busy) => assert_eq!(busy.first().claim.key().as_str(), last),
        }
        println!(
            "refused at the last id, with nothing held: {:.2} s",
            start.elapsed().as_secs_f64()
        );
        let start = Instant::now();
        for id in ids().step_by(99_991) {
            match other
                .documents([id])
                .try_acquire()
                .await
                .expect("the file can be written")
            {
                Attempt::Acquired(guard) => drop(guard),
                Attempt::Busy(busy) => panic!("left behind: {busy:?}"),
            }
        }
        println!(
            "spot checks that each can be had at once: {:.3} s",
            start.elapsed().as_secs_f64()
        );
        let _ = in_the_way.release().await.expect("the file can be written");
        let start = Instant::now();
        let done = locks.shutdown(std::time::Duration::from_secs(120)).await;
        println!(
            "shutdown, all records swept ({done}): {:.2} s",
            start.elapsed().as_secs_f64()
        );
    });
}
