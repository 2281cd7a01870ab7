//! Metrics for Prometheus: two tasks want one lock, and `http://127.0.0.1:9185/metrics` tells.
//! `cargo run -p lockcore --features metrics --example observed -- [SECONDS]`

use std::error::Error;
use std::time::Duration;

use lockcore::{Attempt, Locks, MemoryBackend, Released};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args()
        .nth(1)
        .map(|text| text.parse())
        .transpose()?;
    // Before the client is built: it takes its instruments from the recorder that is there then.
    let exporter = PrometheusBuilder::new().install_recorder()?;
    let locks = Locks::builder(MemoryBackend::new()).build()?;
    let listener = TcpListener::bind("127.0.0.1:9185").await?;
    println!("http://{}/metrics", listener.local_addr()?);
    let all = async { tokio::try_join!(works(&locks), tries(&locks), serve(&listener, &exporter)) };
    let length = Duration::from_secs(seconds.unwrap_or(u64::MAX / 4));
    match timeout(length, all).await {
        Ok(ended) => ended.map(drop),
        Err(_) => Ok(()),
    }
}

/// A task that waits for its turn.
async fn works(locks: &Locks) -> Result<(), Box<dyn Error>> {
    loop {
        let guard = locks.lock("observed").acquire().await?;
        sleep(Duration::from_millis(200)).await;
        let _: Released = guard.release().await?;
        sleep(Duration::from_millis(10)).await;
    }
}

/// Another task, which tries without waiting.
async fn tries(locks: &Locks) -> Result<(), Box<dyn Error>> {
    loop {
        if let Attempt::Acquired(guard) = locks.lock("observed").try_acquire().await? {
            let _: Released = guard.release().await?;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Answers every request with the metrics.
async fn serve(listener: &TcpListener, exporter: &PrometheusHandle) -> Result<(), Box<dyn Error>> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        let mut asked = [0; 1_024];
        // Whoever asks may go away.
        let _ = timeout(Duration::from_secs(1), stream.read(&mut asked)).await;
        let text = exporter.render();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            text.len()
        );
        let _ = stream.write_all((head + &text).as_bytes()).await;
    }
}
