//! A job that every host starts, and that runs once in a period.

use std::time::Duration;

use lockkeeper::Turn;
use tokio::time::{Instant, sleep, sleep_until};

use crate::BoxError;

/// What cron would do, on a host whose clock is behind by so much: it starts the job in each period.
async fn host(url: &str, behind: Duration, start: Instant) -> Result<Vec<u32>, BoxError> {
    const PERIOD: Duration = Duration::from_millis(2_500);
    let locks = lockkeeper::connect(url).await?;
    let mut ran = Vec::new();
    for period in 0..3 {
        sleep_until(start + PERIOD * period + behind).await;
        // A little less than the period, and more than the clocks differ.
        let schedule = locks.schedule("report").at_least(PERIOD * 4 / 5);
        let work = async |_held| {
            sleep(Duration::from_millis(20)).await;
            Ok::<_, BoxError>(())
        };
        match schedule.run(work).await? {
            Turn::Ran { kept, .. } => {
                kept?;
                ran.push(period);
            }
            Turn::Taken(_) => println!("period {period}: another host was first"),
            _ => unreachable!("a turn is taken, or it is not"),
        }
    }
    // What is kept stays so.
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(ran)
}

pub(crate) async fn run(url: &str) -> Result<(), BoxError> {
    let start = Instant::now() + Duration::from_millis(200);
    let behind = [0, 300, 900].map(Duration::from_millis);
    let [one, two, three] = behind.map(|behind| host(url, behind, start));
    let (one, two, three) = tokio::try_join!(one, two, three)?;
    println!("the hosts ran it in the periods {one:?}, {two:?} and {three:?}");
    let mut all = [one, two, three].concat();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2], "once in each period");
    Ok(())
}
