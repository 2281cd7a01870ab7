//! Users, roles, API keys and TLS, on a server that asks who we are: its own answers, and the roles as they are shipped.
//! Left out on others.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::future::Future;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use elasticsearch::http::Method;
use libtest_mimic::{Arguments, Failed, Trial};
use lockcore::backend::{ClaimStore, Filter, Inspect, SessionStore};
use lockcore::{AcquireError, Attempt, ErrorKind, Label, Locks, LostReason, Operation, Released};
use lockcore_es::{BearerToken, EsBackend, EsConfig};
use serde_json::{Value, json};
use support::access::{Access, PASSWORD, Security, User};
use support::{Space, connect, connect_to, failures, id, request};
use tempfile::NamedTempFile;
use tokio::time::timeout;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let security = Access::get().engine();
    let keys = security == Some(Security::Elasticsearch);
    let trials = vec![
        trial(
            "roles::for_use_suffices",
            security.is_some(),
            for_use_suffices,
        ),
        trial(
            "roles::for_use_has_nothing_to_spare",
            security.is_some(),
            for_use_has_nothing_to_spare,
        ),
        trial(
            "roles::for_making_has_nothing_to_spare",
            security.is_some(),
            for_making_has_nothing_to_spare,
        ),
        trial(
            "roles::making_and_using_are_apart",
            security.is_some(),
            making_and_using_are_apart,
        ),
        trial(
            "roles::for_removing_is_one_more",
            security.is_some(),
            for_removing_is_one_more,
        ),
        trial(
            "users::who_is_unknown_is_told",
            security.is_some(),
            who_is_unknown_is_told,
        ),
        trial(
            "users::what_is_taken_away_is_missed",
            security.is_some(),
            what_is_taken_away_is_missed,
        ),
        trial(
            "roles::who_may_not_write_writes_nothing",
            security.is_some(),
            who_may_not_write_writes_nothing,
        ),
        trial(
            "roles::rights_go_one_by_one_under_a_guard_and_come_back",
            security.is_some(),
            rights_go_one_by_one_under_a_guard_and_come_back,
        ),
        trial(
            "roles::a_right_that_stays_away_ends_the_guard",
            security.is_some(),
            a_right_that_stays_away_ends_the_guard,
        ),
        trial(
            "tls::the_server_is_who_its_authority_says",
            security.is_some(),
            the_server_is_who_its_authority_says,
        ),
        trial(
            "keys::are_as_good_as_their_role",
            keys,
            keys_are_as_good_as_their_role,
        ),
        trial("keys::end", keys, keys_end),
        trial("tokens::come_and_go", keys, tokens_come_and_go),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial<F: Future<Output = ()>>(
    name: &str,
    can_be: bool,
    run: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        runtime.map_err(Failed::from)?.block_on(run());
        Ok(())
    };
    Trial::test(name, run).with_ignored_flag(!can_be)
}

fn security() -> Security {
    Access::get().engine().unwrap()
}

/// Somebody with these roles.
async fn user(space: &Space, what: &str, roles: &[(&str, &Value)]) -> User {
    let mut names = Vec::new();
    for (which, role) in roles {
        names.push(put_role(space, what, which, role).await);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let name = format!("{}-{what}", space.namespace);
    security().put_user(&name, &names).await
}

/// Somebody with the role for use, and that role.
async fn with_role(space: &Space) -> (User, Value) {
    connect(space).await;
    let role = security().role("use", &space.namespace);
    (user(space, "user", &[("use", &role)]).await, role)
}

async fn put_role(space: &Space, what: &str, which: &str, role: &Value) -> String {
    let name = format!("{}-{what}-{which}", space.namespace);
    security().put_role(&name, role).await;
    name
}

async fn for_use_suffices() {
    let space = Space::new();
    let (user, _) = with_role(&space).await;
    let backend = connect_to(&space.url_of(&user)).await.unwrap();
    let failures = failures(&space, &backend).await;
    assert!(failures.is_empty(), "{failures:?}");
}

/// The role without one of its items each.
fn reduced(role: &Value) -> Vec<(String, Value)> {
    let lists = [
        "/indices/0/names",
        "/indices/0/privileges",
        "/cluster_permissions",
        "/index_permissions/0/index_patterns",
        "/index_permissions/0/allowed_actions",
    ];
    let mut found = Vec::new();
    for list in lists {
        let items = role.pointer(list).and_then(Value::as_array);
        // The server takes no role for nothing.
        for item in 0..items.map_or(0, Vec::len) {
            let mut role = role.clone();
            let items = role.pointer_mut(list).unwrap().as_array_mut().unwrap();
            let item = items.remove(item);
            if !items.is_empty() {
                found.push((format!("{list} without {item}"), role));
            }
        }
    }
    assert!(found.len() > 2, "{role}");
    found
}

async fn for_use_has_nothing_to_spare() {
    let space = Space::new();
    let (user, role) = with_role(&space).await;
    for (what, role) in reduced(&role) {
        put_role(&space, "user", "use", &role).await;
        let errors = match connect_to(&space.url_of(&user)).await {
            Ok(backend) => failures(&space, &backend).await,
            Err(error) => vec![error],
        };
        assert!(!errors.is_empty(), "{what} suffices");
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Unauthorized, "{what}: {error:?}");
        }
    }
}

async fn for_making_has_nothing_to_spare() {
    let space = Space::new();
    let role = security().role("init", &space.namespace);
    let user = user(&space, "maker", &[("init", &role)]).await;
    for (what, role) in reduced(&role) {
        put_role(&space, "maker", "init", &role).await;
        let made = connect_to(&space.url_of(&user)).await;
        let error = made.expect_err(&what);
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{what}: {error:?}");
    }
}

async fn making_and_using_are_apart() {
    let space = Space::new();
    let [to_use, to_init] = ["use", "init"].map(|which| security().role(which, &space.namespace));
    let user_of_it = user(&space, "user", &[("use", &to_use)]).await;
    let maker = user(&space, "maker", &[("init", &to_init)]).await;

    let error = connect_to(&space.url_of(&user_of_it)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
    assert_eq!(error.operation(), Operation::Connect);
    assert!(error.to_string().contains("was not made yet"), "{error}");
    let (status, _) = space.raw(Method::Get, "/{ns}", String::new()).await;
    assert_eq!(status, 404, "nothing was made");

    let made = connect_to(&space.url_of(&maker)).await.unwrap();
    let used = connect_to(&space.url_of(&user_of_it)).await.unwrap();
    let failures = failures(&space, &used).await;
    assert!(failures.is_empty(), "{failures:?}");
    let label = Label::parse("maker").unwrap();
    let opened = made.open(id(1), &label, Duration::from_secs(30)).await;
    let listed = made.records(&Filter::Prefix(String::new()), None, 1).await;
    for error in [opened.unwrap_err(), listed.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
    }

    let (_, about) = space.raw(Method::Get, "/{ns}", String::new()).await;
    let index = about.as_object().unwrap().keys().next().unwrap();
    let alias = json!({"actions": [{"remove": {"index": index, "alias": &space.namespace}}]});
    let (mapping, settings) = (
        json!({"_meta": {"lockkeeper": 4, "base": 0}}),
        json!({"index.number_of_replicas": 1}),
    );
    let other = Space::new();
    connect(&other).await;
    let nothing = Value::Null;
    let mut refused = vec![
        (Method::Delete, format!("/{index}"), &nothing),
        (
            Method::Post,
            format!("/{}/_search", other.namespace),
            &nothing,
        ),
    ];
    for name in [index, &space.namespace] {
        refused.extend([
            (Method::Put, format!("/{name}/_mapping"), &mapping),
            (Method::Put, format!("/{name}/_settings"), &settings),
            (Method::Post, format!("/{name}/_close"), &nothing),
        ]);
    }
    for (method, path, body) in &refused {
        is_refused(&user_of_it, *method, path, body).await;
        is_refused(&maker, *method, path, body).await;
    }
    is_refused(&user_of_it, Method::Post, "/_aliases", &alias).await;
    is_refused(&user_of_it, Method::Put, &format!("/{index}-2"), &nothing).await;
}

async fn for_removing_is_one_more() {
    let space = Space::new();
    let mut role = security().role("init", &space.namespace);
    let maker = user(&space, "maker", &[("init", &role)]).await;
    let config = EsConfig::parse(&space.url_of(&maker)).unwrap();
    // Also where there is nothing yet.
    for _ in 0..2 {
        let error = EsBackend::remove(config.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
        assert_eq!(error.operation(), Operation::Remove);
        connect_to(&space.url_of(&maker)).await.unwrap();
    }
    let (list, right) = match security() {
        Security::Elasticsearch => ("/indices/0/privileges", "delete_index"),
        Security::OpenSearch => (
            "/index_permissions/0/allowed_actions",
            "indices:admin/delete",
        ),
    };
    let rights = role.pointer_mut(list).and_then(Value::as_array_mut);
    rights.unwrap().push(right.into());
    put_role(&space, "maker", "init", &role).await;
    for _ in 0..2 {
        EsBackend::remove(config.clone()).await.unwrap();
        let (status, _) = space.raw(Method::Get, "/{ns}", String::new()).await;
        assert_eq!(status, 404, "it is gone");
    }
}

async fn is_refused(user: &User, method: Method, path: &str, body: &Value) {
    let text = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let (status, answer) = user.send(method, path, text).await;
    let name = user.name();
    assert_eq!(status, 403, "{name}: {method:?} {path}: {answer}");
}

async fn who_is_unknown_is_told() {
    let space = Space::new();
    connect(&space).await;
    for unknown in [User::named("nobody-knows-me"), User::nobody()] {
        let error = connect_to(&space.url_of(&unknown)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
        assert!(
            error.to_string().contains("does not know who we are"),
            "{error}"
        );
    }
}

/// Under a program that runs.
async fn what_is_taken_away_is_missed() {
    let space = Space::new();
    let (user, _) = with_role(&space).await;
    let backend = connect_to(&space.url_of(&user)).await.unwrap();
    let acquire = request(id(1), 1, &["create k"]);
    let everything = Filter::Prefix(String::new());
    backend.records(&everything, None, 1).await.unwrap();
    security().put_user(user.name(), &[]).await;
    for error in [
        backend.acquire(&acquire).await.unwrap_err(),
        backend.records(&everything, None, 1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
        assert!(error.to_string().contains("not allowed"), "{error}");
    }
    security()
        .put_password(user.name(), "another-one-of-them")
        .await;
    let error = backend.acquire(&acquire).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
    assert!(
        error.to_string().contains("does not know who we are"),
        "{error}"
    );
}

async fn locks(url: &str, ttl: Duration) -> Locks {
    let builder = Locks::builder(connect_to(url).await.unwrap()).ttl(ttl);
    builder.build().unwrap()
}

async fn who_may_not_write_writes_nothing() {
    let space = Space::new();
    let (user, role) = with_role(&space).await;
    for (what, less) in reduced(&role) {
        if !what.contains("write") {
            continue;
        }
        put_role(&space, "user", "use", &less).await;
        let ours = locks(&space.url_of(&user), Duration::from_secs(60)).await;
        let told = ours.lock("k").acquire().await;
        let unauthorized = matches!(&told, Err(AcquireError::Store(error)) if error.kind() == ErrorKind::Unauthorized);
        assert!(unauthorized, "{what}: {told:?}");
    }
    let refresh = space.raw(Method::Post, "/{ns}/_refresh", String::new());
    assert_eq!(refresh.await.0, 200);
    let (_, counted) = space.raw(Method::Get, "/{ns}/_count", String::new()).await;
    assert_eq!(counted["count"], 0, "{counted}");
}

async fn rights_go_one_by_one_under_a_guard_and_come_back() {
    let space = Space::new();
    let (user, role) = with_role(&space).await;
    let backend = connect_to(&space.url_of(&user)).await.unwrap();
    let ours = locks(&space.url_of(&user), Duration::from_secs(60)).await;
    let others = locks(&space.url(), Duration::from_secs(60)).await;
    let held = ours.lock("held").acquire().await.unwrap();
    for (what, less) in reduced(&role) {
        let released = ours.lock("released").acquire().await.unwrap();
        put_role(&space, "user", "use", &less).await;
        let mut failures = failures(&space, &backend).await;
        failures.extend(connect_to(&space.url_of(&user)).await.err());
        let confirmed = held.confirm().await.err();
        let released = released.release().await.err();
        let acquired = ours.lock("other").try_acquire().await;
        let other = others.lock("held").try_acquire().await.unwrap();
        put_role(&space, "user", "use", &role).await;

        assert!(held.is_valid() && matches!(other, Attempt::Busy(_)));
        assert!(!failures.is_empty(), "{what} is not missed");
        // Who may not write can neither confirm, release nor acquire; all else goes on.
        let writes = [confirmed.is_some(), released.is_some(), acquired.is_err()];
        let may_write = !what.contains("write");
        assert_eq!(writes, [!may_write; 3], "{what}");
        failures.extend(confirmed.into_iter().chain(released));
        match acquired {
            Ok(Attempt::Acquired(guard)) => drop(guard),
            Err(AcquireError::Store(error)) => failures.push(error),
            other => panic!("{what}: {other:?}"),
        }
        for error in failures {
            assert_eq!(error.kind(), ErrorKind::Unauthorized, "{what}: {error:?}");
            let said = error.to_string();
            let says =
                said.contains("not allowed to do indices:") && said.contains("give the role");
            assert!(says, "{what}: {error}");
        }
        // Nothing is lost, and nothing that was given back is held any more.
        assert!(held.confirm().await.unwrap(), "{what}");
        for key in ["released", "other"] {
            let again = others
                .lock(key)
                .wait(Duration::from_secs(20))
                .acquire()
                .await;
            let again = again.expect(&what).release().await;
            assert_eq!(again.unwrap(), Released::Released, "{what}");
        }
    }
    assert_eq!(held.release().await.unwrap(), Released::Released);
}

async fn a_right_that_stays_away_ends_the_guard() {
    let space = Space::new();
    let (user, role) = with_role(&space).await;
    let ttl = Duration::from_secs(4);
    let ours = locks(&space.url_of(&user), ttl).await;
    let others = locks(&space.url(), ttl).await;
    let guard = ours.lock("k").acquire().await.unwrap();
    let is_of_writing = |(what, _): &(String, Value)| what.contains("write");
    let (_, less) = reduced(&role).into_iter().find(is_of_writing).unwrap();
    put_role(&space, "user", "use", &less).await;
    let waiting = async {
        let other = others.lock("k").acquire().await.unwrap();
        assert!(!guard.is_valid(), "nothing is granted to two");
        other
    };
    let told = async { timeout(ttl, guard.lost()).await.expect("within its lease") };
    let (other, lost) = tokio::join!(waiting, told);
    assert_eq!(lost, LostReason::Deadline);
    assert!(other.token() > guard.token());
    assert_eq!(guard.release().await.unwrap(), Released::NotHeld);
    put_role(&space, "user", "use", &role).await;
    assert!(other.confirm().await.unwrap());
    assert_eq!(other.release().await.unwrap(), Released::Released);
    assert!(ours.lock("k").acquire().await.unwrap().is_valid());
}

async fn the_server_is_who_its_authority_says() {
    let space = Space::new();
    let url = space.url_to_make();
    connect_to(&url).await.unwrap();
    let (before, options) = url.split_once('?').unwrap();
    let (_, ca) = options.split_once("ca=").unwrap();
    let ca = ca.split('&').next().unwrap();
    let other = another_authority();
    let by_other = url.replace(ca, other.path().to_str().unwrap());
    for (what, url) in [
        ("nobody known has signed it", before.to_owned()),
        ("another name", url.replace("@localhost:", "@127.0.0.1:")),
        ("another authority", by_other),
    ] {
        let error = connect_to(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error:?}");
    }
    let plain = before.replacen("elasticsearchs://", "elasticsearch://", 1);
    let error = connect_to(&plain).await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Indeterminate,
        "without TLS: {error:?}"
    );
}

/// The file with its certificate.
fn another_authority() -> NamedTempFile {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::default();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), authority.self_signed(&key).unwrap().pem()).unwrap();
    file
}

/// An API key with this role and further settings: its id, and how a backend uses it.
async fn key(space: &Space, settings: Value) -> (String, String) {
    let role = security().role("use", &space.namespace);
    let mut body = json!({"name": &space.namespace, "role_descriptors": {"use": role}});
    for (name, value) in settings.as_object().unwrap() {
        body[name] = value.clone();
    }
    let path = "/_security/api_key";
    let (status, key) = support::raw(Method::Post, path, body.to_string()).await;
    assert_eq!(status, 200, "{key}");
    let encoded = key["encoded"].as_str().unwrap().replace('=', "%3D");
    let url = space.url_of(&User::nobody());
    (
        key["id"].as_str().unwrap().to_owned(),
        format!("{url}&api_key={encoded}"),
    )
}

async fn keys_are_as_good_as_their_role() {
    let space = Space::new();
    let (_, url) = key(&space, json!({})).await;
    let error = connect_to(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
    connect(&space).await;
    let backend = connect_to(&url).await.unwrap();
    let failures = failures(&space, &backend).await;
    assert!(failures.is_empty(), "{failures:?}");
    let error = connect_to(&url.replace("api_key=", "api_key=AAAA")).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unauthorized);
}

async fn keys_end() {
    let space = Space::new();
    connect(&space).await;
    let (id, url) = key(&space, json!({})).await;
    let backend = connect_to(&url).await.unwrap();
    let everything = Filter::Prefix(String::new());
    backend.records(&everything, None, 1).await.unwrap();
    let revoked = json!({"ids": [id]}).to_string();
    let (status, answer) = support::raw(Method::Delete, "/_security/api_key", revoked).await;
    assert_eq!(status, 200, "{answer}");
    for error in [
        backend.records(&everything, None, 1).await.unwrap_err(),
        connect_to(&url).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "revoked: {error:?}");
    }

    let (_, url) = key(&space, json!({"expiration": "1ms"})).await;
    let since = Instant::now();
    let error = loop {
        match connect_to(&url).await {
            Err(error) => break error,
            // Its time is by the server's clock, which moves in steps.
            Ok(_) => assert!(
                since.elapsed() < Duration::from_secs(10),
                "it does not expire"
            ),
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "expired: {error:?}");
}

/// Elasticsearch issues tokens, where it has users and the licence for them.
async fn issued() -> String {
    let name = Access::get().to_make.name();
    let body = json!({"grant_type": "password", "username": name, "password": PASSWORD});
    let path = "/_security/oauth2/token";
    let (status, answer) = User::given()
        .send(Method::Post, path, body.to_string())
        .await;
    assert_eq!(
        status, 200,
        "the server issues tokens by its licence: {answer}"
    );
    answer["access_token"].as_str().unwrap().to_owned()
}

/// The server does not know a token any more.
async fn invalidate(token: &str) {
    let body = json!({"token": token}).to_string();
    let path = "/_security/oauth2/token";
    let (status, answer) = User::given().send(Method::Delete, path, body).await;
    assert_eq!(status, 200, "{answer}");
}

async fn tokens_come_and_go() {
    let space = Space::new();
    let url = space.url_of(&User::nobody());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    let first = issued().await;
    std::fs::write(&path, &first).unwrap();
    let token = BearerToken::new(&*first);
    let config = || EsConfig::parse(&url).unwrap();
    let replaced = EsBackend::connect(config().bearer(token.clone()))
        .await
        .unwrap();
    let in_file = EsBackend::connect(config().bearer_file(&path))
        .await
        .unwrap();
    let everything = Filter::Prefix(String::new());
    for backend in [&replaced, &in_file] {
        backend.records(&everything, None, 1).await.unwrap();
    }

    invalidate(&first).await;
    for backend in [&replaced, &in_file] {
        let error = backend.records(&everything, None, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
        assert!(!format!("{error:?}").contains(&first), "{error:?}");
    }
    let second = issued().await;
    std::fs::write(&path, &second).unwrap();
    token.replace(second);
    for (number, backend) in (1..).zip([&replaced, &in_file]) {
        let session = support::open(backend, number).await;
        let wanted = request(session, 1, &["create k"]);
        support::granted(backend, &wanted).await;
        backend.release(wanted.grant, &wanted.claims).await.unwrap();
    }
}
