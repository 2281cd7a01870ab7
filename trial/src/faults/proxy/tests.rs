//! Each fault, seen from both sides of the proxy.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;

/// Longer than anything takes that has to come.
const PATIENCE: Duration = Duration::from_secs(20);
/// In that time comes what is not held.
const SOON: Duration = Duration::from_millis(200);

/// A store that the test speaks for, and a proxy before it.
struct Fixture {
    store: TcpListener,
    proxy: Proxy,
    _proxies: Proxies,
}

impl Fixture {
    async fn new(seed: u64) -> Self {
        let store = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxies = Proxies::new().unwrap();
        let address = store.local_addr().unwrap().to_string();
        Self {
            proxy: proxies.start(&address, seed).unwrap(),
            store,
            _proxies: proxies,
        }
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.proxy.port())).await
    }

    /// The two ends of a new connection.
    async fn pair(&self) -> (TcpStream, TcpStream) {
        let client = self.connect().await.unwrap();
        let (store, _) = timeout(PATIENCE, self.store.accept())
            .await
            .unwrap()
            .unwrap();
        (client, store)
    }
}

/// Sends bytes from one end to the other.
async fn sent(from: &mut TcpStream, to: &mut TcpStream, what: &[u8]) {
    from.write_all(what).await.unwrap();
    arrives(to, what).await;
}

async fn arrives(to: &mut TcpStream, what: &[u8]) {
    let mut seen = vec![0; what.len()];
    let read = timeout(PATIENCE, to.read_exact(&mut seen));
    read.await.expect("it arrives").unwrap();
    assert_eq!(seen, what);
}

/// Nothing comes, not even an end.
async fn nothing_arrives(to: &mut TcpStream) {
    let read = timeout(SOON, to.read(&mut [0])).await;
    assert!(read.is_err(), "{read:?}");
}

/// Reads to the end; how many bytes there were, and how it ended.
async fn rest(of: &mut TcpStream) -> (Vec<u8>, std::io::Result<()>) {
    let mut seen = Vec::new();
    let end = timeout(PATIENCE, of.read_to_end(&mut seen)).await;
    (seen, end.expect("it ends").map(drop))
}

fn is_reset(end: &std::io::Result<()>) -> bool {
    end.as_ref()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

#[tokio::test]
async fn without_a_fault_everything_passes() {
    let fixture = Fixture::new(1).await;
    let (mut client, mut store) = fixture.pair().await;
    let much: Vec<u8> = (0..1 << 20)
        .map(|at: u32| at.to_le_bytes()[at as usize % 4])
        .collect();
    let (mut from_client, mut to_client) = client.split();
    let (mut from_store, mut to_store) = store.split();
    let mut seen = (vec![0; much.len()], vec![0; much.len()]);
    let all = async {
        tokio::try_join!(
            to_store.write_all(&much),
            to_client.write_all(&much),
            from_client.read_exact(&mut seen.0),
            from_store.read_exact(&mut seen.1),
        )
    };
    timeout(PATIENCE, all).await.unwrap().unwrap();
    assert!(seen.0 == much && seen.1 == much);
    to_client.shutdown().await.unwrap();
    let (seen, end) = rest(&mut store).await;
    assert!(seen.is_empty() && end.is_ok());
    sent(&mut store, &mut client, b"answers pass, still").await;
    assert!(!fixture.proxy.mend(), "there was no fault");
}

#[tokio::test]
async fn a_cut_ends_connections_and_refuses_new_ones() {
    let fixture = Fixture::new(1).await;
    let (mut client, mut store) = fixture.pair().await;
    sent(&mut client, &mut store, b"before").await;
    fixture.proxy.strike(NetworkFault::Cut);
    assert!(rest(&mut client).await.0.is_empty());
    assert!(rest(&mut store).await.0.is_empty());
    let since = Instant::now();
    let refused = loop {
        match fixture.connect().await {
            Err(error) => break error.kind(),
            Ok(_) if since.elapsed() < PATIENCE => sleep(Duration::from_millis(1)).await,
            Ok(_) => panic!("it is not refused"),
        }
    };
    assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
    assert!(fixture.proxy.mend());
    let mut client = loop {
        match fixture.connect().await {
            Ok(client) => break client,
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
        }
        sleep(Duration::from_millis(1)).await;
    };
    client.write_all(b"!").await.unwrap();
    let mut store = loop {
        // Those that were made while it was being cut have ended.
        let (mut store, _) = timeout(PATIENCE, fixture.store.accept())
            .await
            .unwrap()
            .unwrap();
        if store.read_exact(&mut [0]).await.is_ok() {
            break store;
        }
    };
    sent(&mut store, &mut client, b"after").await;
}

#[tokio::test]
async fn in_silence_nothing_passes_and_nothing_is_lost() {
    let fixture = Fixture::new(1).await;
    let (mut client, mut store) = fixture.pair().await;
    fixture.proxy.strike(NetworkFault::Silent);
    client.write_all(b"request").await.unwrap();
    store.write_all(b"answer").await.unwrap();
    nothing_arrives(&mut client).await;
    nothing_arrives(&mut store).await;
    let (mut other, mut of_other) = fixture.pair().await;
    other.write_all(b"too").await.unwrap();
    nothing_arrives(&mut of_other).await;
    assert!(fixture.proxy.mend());
    arrives(&mut store, b"request").await;
    arrives(&mut client, b"answer").await;
    arrives(&mut of_other, b"too").await;
}

#[tokio::test]
async fn of_a_one_way_cut_the_other_way_is_open() {
    for held in [NetworkFault::RequestsHeld, NetworkFault::AnswersHeld] {
        let fixture = Fixture::new(1).await;
        let (mut client, mut store) = fixture.pair().await;
        let (from, to) = match held {
            NetworkFault::RequestsHeld => (&mut client, &mut store),
            _ => (&mut store, &mut client),
        };
        fixture.proxy.strike(held);
        sent(to, from, b"this way is open").await;
        assert!(!fixture.proxy.way.met.load(Ordering::Relaxed));
        from.write_all(b"held").await.unwrap();
        nothing_arrives(to).await;
        sent(to, from, b"and stays open").await;
        assert!(fixture.proxy.mend());
        arrives(to, b"held").await;
    }
}

#[tokio::test]
async fn what_is_held_outlives_its_client() {
    let fixture = Fixture::new(1).await;
    let (mut client, mut store) = fixture.pair().await;
    fixture.proxy.strike(NetworkFault::RequestsHeld);
    client.write_all(b"late").await.unwrap();
    drop(client);
    nothing_arrives(&mut store).await;
    fixture.proxy.mend();
    assert_eq!(rest(&mut store).await.0, b"late");
}

#[tokio::test]
async fn a_reset_meets_a_part_of_one_request() {
    let request = [7; 1_000];
    let mut parts = Vec::new();
    for seed in 1..=5 {
        let fixture = Fixture::new(seed).await;
        let (mut client, mut store) = fixture.pair().await;
        sent(&mut client, &mut store, b"before").await;
        fixture.proxy.strike(NetworkFault::Reset);
        sent(&mut store, &mut client, b"an answer is no request").await;
        client.write_all(&request).await.unwrap();
        let (none, end) = rest(&mut client).await;
        assert!(none.is_empty() && is_reset(&end), "{none:?} {end:?}");
        let (part, end) = rest(&mut store).await;
        assert!(is_reset(&end), "{end:?}");
        assert!(request.starts_with(&part));
        parts.push(part.len());
        // The next one is not met.
        let (mut client, mut store) = fixture.pair().await;
        sent(&mut client, &mut store, &request).await;
        assert!(fixture.proxy.mend());
    }
    assert!(
        parts.iter().any(|part| (1..1_000).contains(part)),
        "{parts:?}"
    );
    parts.dedup();
    assert!(parts.len() > 1, "chance decides how much passes: {parts:?}");
}

#[tokio::test]
async fn one_answer_is_swallowed() {
    let fixture = Fixture::new(1).await;
    let (mut client, mut store) = fixture.pair().await;
    fixture.proxy.strike(NetworkFault::Swallowed);
    sent(&mut client, &mut store, b"request").await;
    store.write_all(b"answer").await.unwrap();
    let (none, end) = rest(&mut client).await;
    assert!(none.is_empty() && is_reset(&end), "{none:?} {end:?}");
    assert!(is_reset(&rest(&mut store).await.1));
    let (mut client, mut store) = fixture.pair().await;
    sent(&mut store, &mut client, b"answer").await;
    assert!(fixture.proxy.mend());
}

#[tokio::test]
async fn what_is_slow_arrives() {
    let fixture = Fixture::new(1).await;
    let (mut client, mut store) = fixture.pair().await;
    let much: Vec<u8> = (0..10_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    fixture.proxy.strike(NetworkFault::Slow);
    sent(&mut client, &mut store, &much).await;
    sent(&mut store, &mut client, &much).await;
    assert!(fixture.proxy.mend());
}

#[tokio::test(start_paused = true)]
async fn what_is_slow_comes_in_pieces() {
    let (way, much) = (Way::new("", 1), vec![1_u8; 100_000]);
    let time = async |way: &Way| {
        let (mut to, from) = tokio::io::duplex(much.len());
        let since = tokio::time::Instant::now();
        connection::write(way, &much, &mut to).await.unwrap();
        drop((to, from));
        since.elapsed()
    };
    assert_eq!(time(&way).await, Duration::ZERO);
    way.fault.send_replace(Some(NetworkFault::Slow));
    // A piece in a millisecond, and each of them is late besides.
    let pieces = u64::try_from(much.len() / connection::PIECE).unwrap();
    assert!(time(&way).await >= Duration::from_millis(pieces));
}

#[tokio::test]
async fn a_store_that_is_away_resets() {
    let Fixture {
        store,
        proxy,
        _proxies,
    } = Fixture::new(1).await;
    drop(store);
    // It may be reset before or after it was told that it is connected.
    let error = match TcpStream::connect(("127.0.0.1", proxy.port())).await {
        Ok(mut client) => rest(&mut client).await.1,
        Err(error) => Err(error),
    };
    assert!(is_reset(&error));
}

#[tokio::test]
async fn a_proxy_takes_its_connections_with_it() {
    let Fixture {
        store,
        proxy,
        _proxies,
    } = Fixture::new(1).await;
    let port = proxy.port();
    let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut store, _) = store.accept().await.unwrap();
    sent(&mut client, &mut store, b"before").await;
    drop(proxy);
    assert!(rest(&mut client).await.0.is_empty());
    assert!(rest(&mut store).await.0.is_empty());
}

/// Where a child of a test finds the port that it connects to.
const CHILD: &str = "LOCKKEEPER_TEST_CONNECTS";

/// Another process with a connection, which sends what it is told.
struct Other(std::process::Child);

impl Other {
    fn new(port: u16) -> Self {
        let name = "faults::proxy::tests::one_server_is_cut_off_whoever_opens_a_connection";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact"])
            .env(CHILD, port.to_string())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// What it is there for, until nobody tells it anything.
    fn main(port: &str) {
        let store = std::net::TcpStream::connect(("127.0.0.1", port.parse().unwrap()));
        // Nobody takes what is sent after a reset.
        drop(std::io::copy(&mut std::io::stdin(), &mut store.unwrap()));
    }

    fn send(&mut self, what: &[u8]) {
        use std::io::Write as _;
        let input = self.0.stdin.as_mut().unwrap();
        input.write_all(what).and_then(|()| input.flush()).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// Servers that the test speaks for, and the network between them.
struct Cluster {
    servers: Vec<TcpListener>,
    between: Between,
    _proxies: Proxies,
}

impl Cluster {
    async fn new() -> Self {
        let mut servers = Vec::new();
        for _ in 0..3 {
            servers.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let addresses = servers
            .iter()
            .map(|it| it.local_addr().unwrap().to_string());
        let proxies = Proxies::new().unwrap();
        Self {
            between: proxies.between(&addresses.collect::<Vec<_>>()).unwrap(),
            servers,
            _proxies: proxies,
        }
    }

    async fn accept(&self, server: usize) -> TcpStream {
        let accepted = timeout(PATIENCE, self.servers[server].accept()).await;
        accepted.expect("somebody comes").unwrap().0
    }

    /// The two ends of a connection that this process opens.
    async fn pair(&self, server: usize) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(("127.0.0.1", self.between.port(server))).await;
        (client.unwrap(), self.accept(server).await)
    }
}

#[tokio::test]
async fn one_server_is_cut_off_whoever_opens_a_connection() {
    if let Ok(port) = std::env::var(CHILD) {
        return Other::main(&port);
    }
    let cluster = Cluster::new().await;
    let between = &cluster.between;
    // This process is the first server.
    let (mut to_second, mut at_second) = cluster.pair(1).await;
    let (mut to_itself, mut at_itself) = cluster.pair(0).await;
    let mut second = Other::new(between.port(0));
    let mut of_second = cluster.accept(0).await;
    let mut third = Other::new(between.port(0));
    let mut of_third = cluster.accept(0).await;
    let processes = [std::process::id(), second.0.id(), third.0.id()];

    between.strike(1, NetworkFault::Silent, &processes).unwrap();
    second.send(b"held");
    to_second.write_all(b"held").await.unwrap();
    nothing_arrives(&mut of_second).await;
    nothing_arrives(&mut at_second).await;
    third.send(b"passes");
    arrives(&mut of_third, b"passes").await;
    sent(&mut to_itself, &mut at_itself, b"passes").await;
    let (mut late, mut at_late) = cluster.pair(1).await;
    late.write_all(b"held").await.unwrap();
    nothing_arrives(&mut at_late).await;
    assert_eq!(between.mend(), 3);
    for held in [&mut of_second, &mut at_second, &mut at_late] {
        arrives(held, b"held").await;
    }

    between.strike(0, NetworkFault::Silent, &processes).unwrap();
    sent(&mut to_itself, &mut at_itself, b"to itself").await;
    to_second.write_all(b"held").await.unwrap();
    nothing_arrives(&mut at_second).await;
    assert_eq!(between.mend(), 1);
    arrives(&mut at_second, b"held").await;

    between.strike(1, NetworkFault::Cut, &processes).unwrap();
    for end in [&mut of_second, &mut to_second, &mut at_second, &mut late] {
        let (seen, end) = rest(end).await;
        assert!(seen.is_empty() && is_reset(&end), "{seen:?}, {end:?}");
    }
    let new = TcpStream::connect(("127.0.0.1", between.port(1))).await;
    let (_, end) = rest(&mut new.unwrap()).await;
    assert!(is_reset(&end), "{end:?}");
    let (mut to_third, mut at_third) = cluster.pair(2).await;
    sent(&mut to_third, &mut at_third, b"passes").await;
    third.send(b"passes");
    arrives(&mut of_third, b"passes").await;
    assert_eq!(between.mend(), 4);
    let _of_the_cut = cluster.accept(1).await;
    let (mut again, mut at_again) = cluster.pair(1).await;
    sent(&mut again, &mut at_again, b"passes").await;
}

#[test]
fn a_process_that_is_not_there_has_no_connection_to_cut() {
    let between = Proxies::new().unwrap().between(&["127.0.0.1:1".to_owned()]);
    let gone = between.unwrap().strike(0, NetworkFault::Cut, &[u32::MAX]);
    let error = gone.unwrap_err().to_string();
    assert!(error.contains("/proc/4294967295/fd"), "{error}");
}
