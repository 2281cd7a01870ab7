//! Security: a certificate that an authority of its own has signed, and a user who may do everything.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Who may do everything.
const USER: &str = "admin";
const PASSWORD: &str = "may-do-everything";
/// The password as bcrypt keeps it.
const HASH: &str = "$2a$04$lockkeeperlockkeeperluHnnMWTiUe9A9xsgYZcVCksUUEFUOR7a";

/// What a node of Elasticsearch finds in its configuration. It looks at its disk once: with each look it would lift the
/// block of an index whose disk a test takes for full.
const ELASTICSEARCH: &str = "\
cluster.name: lockkeeper
node.name: node
network.host: 127.0.0.1
node.store.allow_mmap: false
action.auto_create_index: false
cluster.routing.allocation.disk.threshold_enabled: false
cluster.info.update.interval: 24h
indices.breaker.total.use_real_memory: false
";
/// The same of one without users.
const OPEN: &str = "xpack.security.enabled: false\n";
/// … and of one that has them. It issues tokens, which takes more than the basic licence.
const CLOSED: &str = "\
xpack.license.self_generated.type: trial
xpack.security.enabled: true
xpack.security.autoconfiguration.enabled: false
xpack.security.http.ssl.enabled: true
xpack.security.http.ssl.certificate: node.pem
xpack.security.http.ssl.key: node.key
";

/// Configures a node of Elasticsearch, whose home holds this configuration, with users or without.
pub(super) fn elasticsearch(config: &Path, secured: bool) -> Result<(), String> {
    let security = if secured { CLOSED } else { OPEN };
    write(
        config,
        "elasticsearch.yml",
        &[ELASTICSEARCH, security].concat(),
    )?;
    if !secured {
        return Ok(());
    }
    certificate(config)?;
    write(config, "users", &format!("{USER}:{HASH}\n"))?;
    write(config, "users_roles", &format!("superuser:{USER}\n"))
}

/// Lets a node of OpenSearch have users, whose home holds this configuration; says its settings for that.
pub(super) fn opensearch(config: &Path) -> Result<Vec<String>, String> {
    let security = config.join("opensearch-security");
    fs::create_dir_all(&security).map_err(|error| format!("{}: {error}", security.display()))?;
    certificate(config)?;
    let basic = "http_enabled: true, order: 0, http_authenticator: {type: basic, challenge: false}, \
                 authentication_backend: {type: intern}";
    let authentication = format!("config: {{dynamic: {{authc: {{basic: {{{basic}}}}}}}}}");
    let user = format!("{USER}: {{hash: \"{HASH}\", backend_roles: [{USER}]}}");
    let mapping = format!("all_access: {{backend_roles: [{USER}]}}");
    for (file, kind, content) in [
        ("config.yml", "config", authentication.as_str()),
        ("internal_users.yml", "internalusers", &user),
        ("roles_mapping.yml", "rolesmapping", &mapping),
        ("roles.yml", "roles", ""),
        ("action_groups.yml", "actiongroups", ""),
        ("tenants.yml", "tenants", ""),
    ] {
        let text = format!("_meta: {{type: {kind}, config_version: 2}}\n{content}\n");
        write(&security, file, &text)?;
    }
    let mut settings = Vec::new();
    for way in ["transport", "http"] {
        for (setting, file) in [
            ("pemcert", "node.pem"),
            ("pemkey", "node.key"),
            ("pemtrustedcas", "ca.pem"),
        ] {
            settings.push(format!(
                "plugins.security.ssl.{way}.{setting}_filepath={file}"
            ));
        }
    }
    settings.extend(
        [
            "plugins.security.ssl.http.enabled=true",
            "plugins.security.allow_default_init_securityindex=true",
            "plugins.security.restapi.roles_enabled=all_access",
        ]
        .map(String::from),
    );
    Ok(settings)
}

/// How such a node is reached.
pub(super) fn url(port: u16, config: &Path) -> String {
    let ca = config.join("ca.pem");
    format!(
        "https://{USER}:{PASSWORD}@localhost:{port}/?ca={}",
        ca.display()
    )
}

/// What a server answers, whether it has security or not.
pub(super) fn get(url: &str, path: &str) -> Result<String, String> {
    let (url, ca) = match url.split_once("/?ca=") {
        Some((url, ca)) => (url, Some(PathBuf::from(ca))),
        None => (url, None),
    };
    let mut agent = Agent::config_builder().timeout_global(Some(Duration::from_secs(5)));
    if let Some(ca) = ca {
        let pem = fs::read(&ca).map_err(|error| format!("{}: {error}", ca.display()))?;
        let ca = Certificate::from_pem(&pem).map_err(|error| error.to_string())?;
        let roots = RootCerts::new_with_certs(&[ca]);
        agent = agent.tls_config(TlsConfig::builder().root_certs(roots).build());
    }
    let answer = Agent::new_with_config(agent.build())
        .get(format!("{url}{path}"))
        .call();
    let mut answer = answer.map_err(|error| error.to_string())?;
    let text = answer.body_mut().read_to_string();
    text.map_err(|error| error.to_string())
}

/// Writes `node.key`, `node.pem` for `localhost`, and `ca.pem` of who has signed that.
fn certificate(folder: &Path) -> Result<(), String> {
    let failed = |error: rcgen::Error| format!("no certificate: {error}");
    let authority_key = KeyPair::generate().map_err(failed)?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = authority.self_signed(&authority_key).map_err(failed)?;
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().map_err(failed)?;
    let node = CertificateParams::new(vec!["localhost".to_owned()]).map_err(failed)?;
    let node = node.signed_by(&key, &issuer).map_err(failed)?;
    write(folder, "ca.pem", &ca.pem())?;
    write(folder, "node.pem", &node.pem())?;
    write(folder, "node.key", &key.serialize_pem())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    let path = folder.join(name);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}
