//! Other processes: this program once more, in a child mode that the environment asks for.

#![expect(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_errors_doc,
    reason = "only lockcore-trial shares them"
)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockcore::LockBackend;
use tokio::runtime::Builder;

use crate::fixture::{BoxError, Feature, Fixture};
use crate::lateness::Lateness;
use crate::scene::Scene;
use crate::verdict::{Judged, Unpassed, Verdict, Wrong};

const ROLE: &str = "LOCKCORE_CONFORMANCE_CHILD";
const URL: &str = "LOCKCORE_CONFORMANCE_CHILD_URL";
const DIR: &str = "LOCKCORE_CONFORMANCE_CHILD_DIR";
const CHANCE: &str = "LOCKCORE_CONFORMANCE_CHILD_SEED";

/// How long a process is waited for until it is ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// The exit status of a child that could not tell.
const INCONCLUSIVE: u8 = 75;

/// What a child is asked to do.
pub struct Task {
    pub role: String,
    pub backend: Arc<dyn LockBackend>,
    pub dir: PathBuf,
    pub seed: u64,
}

/// Does a child's task, if this process is one. It looks so long for its store: what is done to the network or to servers may
/// keep it from some.
pub fn main<'a>(
    fixtures: impl Iterator<Item = &'a dyn Fixture>,
    patience: Duration,
    work: impl AsyncFnOnce(Task) -> Verdict,
) -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let lateness = Lateness::measured();
    let runtime = Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(Unpassed::from).and_then(|runtime| {
        runtime.block_on(async {
            let url = std::env::var(URL)?;
            let reached = |fixture: &&dyn Fixture| !fixture.lacks().contains(&Feature::Processes);
            let fixtures: Vec<&dyn Fixture> = fixtures.filter(reached).collect();
            let task = Task {
                backend: reopen(&fixtures, &url, patience).await?,
                role,
                dir: std::env::var(DIR)?.into(),
                seed: std::env::var(CHANCE)?.parse()?,
            };
            work(task).await
        })
    });
    Some(match done.map_err(|unpassed| unpassed.judged(&lateness)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Judged::Broken(law, what) | Judged::Late(law, what)) => {
            let law = law.map(|law| format!("{law}: ")).unwrap_or_default();
            eprintln!("{law}{what}");
            ExitCode::FAILURE
        }
        Err(Judged::Inconclusive(what)) => {
            eprintln!("inconclusive: {what}");
            ExitCode::from(INCONCLUSIVE)
        }
        // A child has a task, and no case.
        Err(Judged::Lacking) => unreachable!("a child misses nothing that a case needs"),
    })
}

/// The backend of the first fixture that knows the URL.
async fn reopen(
    fixtures: &[&dyn Fixture],
    url: &str,
    patience: Duration,
) -> Result<Arc<dyn LockBackend>, BoxError> {
    let since = Instant::now();
    loop {
        let mut last: BoxError = "no fixture can be reached by other processes".into();
        for fixture in fixtures {
            match fixture.reopen(url).await {
                Ok(backend) => return Ok(backend),
                Err(error) => last = error,
            }
        }
        if since.elapsed() >= patience {
            return Err(last);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A directory that this case's processes share, removed at the end.
pub struct Shared(PathBuf);

impl Shared {
    pub fn new() -> Verdict<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "lockcore-conformance-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir)?;
        Ok(Self(dir))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What is left there harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child process; killed when it is dropped.
pub struct Process {
    child: Child,
    pub seed: u64,
}

impl Process {
    /// Starts a child on the scene's space.
    pub(crate) fn start(scene: &Scene, dir: &Shared, role: &str) -> Verdict<Self> {
        let url = scene.space().url().ok_or(Unpassed::Lacking)?;
        let seed = scene.seed().wrapping_add(scene.below(1 << 30) as u64);
        scene
            .journal()
            .note(format!("a process begins to {role}, seed {seed}"));
        Self::spawn(&url, dir.path(), role, seed)
    }

    /// Starts a child on a space.
    pub fn spawn(url: &str, dir: &Path, role: &str, seed: u64) -> Verdict<Self> {
        let child = Command::new(std::env::current_exe()?)
            .env(ROLE, role)
            .env(URL, url)
            .env(DIR, dir)
            .env(CHANCE, seed.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Self { child, seed })
    }

    /// Its number in the system.
    #[cfg(unix)]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has done its task, or was killed; wrong, if it failed.
    #[cfg(unix)]
    pub fn has_ended(&mut self) -> Verdict<bool> {
        match self.child.try_wait()? {
            Some(status) if status.success() => Ok(true),
            _ => self.was_killed(),
        }
    }

    /// Whether SIGKILL has ended it; wrong, if something else has.
    #[cfg(unix)]
    pub fn was_killed(&mut self) -> Verdict<bool> {
        use std::os::unix::process::ExitStatusExt;
        let kill = rustix::process::Signal::KILL.as_raw();
        match self.child.try_wait()? {
            None => Ok(false),
            Some(status) if status.signal() == Some(kill) => Ok(true),
            Some(status) => Err(self.ended("ended by itself", status)),
        }
    }

    /// SIGKILL, or what the system has in its place.
    pub(crate) fn kill(mut self, scene: &Scene) -> Verdict {
        scene
            .journal()
            .note(format!("the process of seed {} is killed", self.seed));
        if let Some(status) = self.child.try_wait()? {
            return Err(self.ended("ended by itself", status));
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it has done its task.
    pub(crate) async fn done(mut self) -> Verdict {
        loop {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                return Err(self.ended("failed", status));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until it has made this file. Without it nothing can be told: no law says how soon a process comes so far.
    pub(crate) async fn made(&mut self, file: &Path) -> Verdict {
        let since = Instant::now();
        while !file.exists() {
            if since.elapsed() > PATIENCE {
                let (seed, file) = (self.seed, file.display());
                let what =
                    format!("the process of seed {seed} has not made {file} in {PATIENCE:?}");
                return Err(Unpassed::Inconclusive(what));
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(self.ended("ended early", status));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn ended(&mut self, how: &str, status: ExitStatus) -> Unpassed {
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            // What it said helps; without it the status has to do.
            let _ = stderr.read_to_string(&mut said);
        }
        let what = format!(
            "the process of seed {} {how}, {status}: {}",
            self.seed,
            said.trim()
        );
        if status.code() == Some(INCONCLUSIVE.into()) {
            Unpassed::Inconclusive(what)
        } else {
            Wrong(what)
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail when it has ended, and that is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
