//! One connection of a proxy: what passes between a client and its store.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::sleep;

use super::{NetworkFault, Way, is_cut};

/// What is read at once.
const CHUNK: usize = 16 << 10;
/// What is slow waits for up to so long, then passes in pieces of at most so many bytes, at most one in a millisecond.
const LATE_MS: u64 = 100;
pub(super) const PIECE: usize = 256;
/// The store has time for what it got, before it sees the reset.
const SETTLES_MS: u64 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Answers,
}

impl Direction {
    fn is_held(self, fault: Option<NetworkFault>) -> bool {
        match fault {
            Some(NetworkFault::Silent) => true,
            Some(NetworkFault::RequestsHeld) => self == Self::Requests,
            Some(NetworkFault::AnswersHeld) => self == Self::Answers,
            _ => false,
        }
    }
}

/// Both sides have to see a reset.
struct Torn;

/// Passes everything between a client and the store, until both have ended or a fault ends it.
pub(super) async fn serve(way: Arc<Way>, mut client: TcpStream) {
    let mut fault = way.fault.subscribe();
    let Ok(mut store) = TcpStream::connect(&way.store).await else {
        // A client that reached the store itself would be refused.
        return reset(&client);
    };
    for side in [&client, &store] {
        // Else only the time of what passes is another one.
        let _ = side.set_nodelay(true);
    }
    let torn = {
        let (from_client, to_client) = client.split();
        let (from_store, to_store) = store.split();
        let requests = pass(&way, Direction::Requests, from_client, to_store);
        let answers = pass(&way, Direction::Answers, from_store, to_client);
        tokio::select! {
            biased;
            _ = async { fault.wait_for(is_cut).await.is_ok() } => {
                way.met();
                if way.resets { Err(Torn) } else { Ok(()) }
            }
            ended = async { tokio::try_join!(requests, answers) } => ended.map(drop),
        }
    };
    if let Err(Torn) = torn {
        reset(&client);
        reset(&store);
    }
}

/// Its end is a reset.
fn reset(side: &TcpStream) {
    // It fails where the other side has ended it already.
    let _ = side.set_zero_linger();
}

/// Passes what one side says, and its end, to the other.
async fn pass(
    way: &Way,
    direction: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
) -> Result<(), Torn> {
    let mut fault = way.fault.subscribe();
    let mut chunk = vec![0; CHUNK];
    loop {
        // Whoever has reset the connection says nothing more, either.
        let length = from.read(&mut chunk).await.unwrap_or(0);
        if direction.is_held(*fault.borrow()) {
            way.met();
        }
        let _ = fault.wait_for(|fault| !direction.is_held(*fault)).await;
        if length == 0 {
            // It may be gone.
            let _ = to.shutdown().await;
            return Ok(());
        }
        let chunk = &chunk[..length];
        match direction {
            Direction::Requests if way.take(NetworkFault::Reset) => {
                let part = &chunk[..way.random(1..=length)];
                let _ = to.write_all(part).await;
                sleep(Duration::from_millis(way.random(0..=SETTLES_MS))).await;
                return Err(Torn);
            }
            Direction::Answers if way.take(NetworkFault::Swallowed) => return Err(Torn),
            _ => {}
        }
        if write(way, chunk, &mut to).await.is_err() {
            // The other direction sees that, too.
            return Ok(());
        }
    }
}

/// Writes all of it, slowly if everything is slow.
pub(super) async fn write(
    way: &Way,
    mut chunk: &[u8],
    to: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    let is_slow = || *way.fault.borrow() == Some(NetworkFault::Slow);
    if is_slow() {
        way.met();
        sleep(Duration::from_millis(way.random(0..=LATE_MS))).await;
        while !chunk.is_empty() && is_slow() {
            let (piece, rest) = chunk.split_at(way.random(1..=PIECE.min(chunk.len())));
            to.write_all(piece).await?;
            sleep(Duration::from_millis(1)).await;
            chunk = rest;
        }
    }
    to.write_all(chunk).await
}
