//! The names of metrics in the library, on the page of the book, in the alert rules and in the dashboard are the same.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::builds::root;

const CODE: [&str; 2] = [
    "lockcore/src/client/telemetry.rs",
    "lockcore/src/client/requests.rs",
];
const PAGE: &str = "docs/book/src/seen.md";
const ALERTS: &str = "docs/observe/alerts.yaml";
const DASHBOARD: &str = "docs/observe/grafana.json";

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).expect("a file of the workspace")
}

/// The names that follow this text.
fn names(text: &str, before: &str, prefix: &str) -> BTreeSet<String> {
    let mark = format!("{before}{prefix}");
    let behind = text.split(&mark).skip(1);
    let letter = |c: &char| c.is_ascii_lowercase() || *c == '.' || *c == '_';
    behind
        .map(|text| text.chars().take_while(letter).collect())
        .collect()
}

/// The library's metrics, without the prefix.
fn known() -> BTreeSet<String> {
    let of = |file: &&str| names(&read(file), "!(\"", "lockkeeper.");
    CODE.iter().flat_map(of).collect()
}

/// The metrics of an expression, as an exporter for Prometheus writes them.
fn of_prometheus(text: &str) -> BTreeSet<String> {
    let names = names(text, "", "lockkeeper_");
    // How many there were of a distribution is a name of its own there.
    let of = |name: &String| name.strip_suffix("_count").unwrap_or(name).to_owned();
    names.iter().map(of).collect()
}

/// Which has a label that the other side lacks matches nothing, unless the label is named.
#[test]
fn an_alert_that_joins_a_quantile_with_something_else_ignores_it() {
    let alerts = read(ALERTS);
    let joins = alerts
        .lines()
        .filter(|line| line.contains("quantile=") && line.contains(" and "));
    let mut joins = joins.peekable();
    assert!(joins.peek().is_some());
    assert!(joins.all(|line| line.contains(" and ignoring(quantile) ")));
}

fn as_prometheus(names: &BTreeSet<String>) -> BTreeSet<String> {
    names.iter().map(|name| name.replace('.', "_")).collect()
}

#[test]
fn the_page_has_every_metric_and_no_other() {
    let known = known();
    assert!(known.len() > 15, "{known:?}");
    assert_eq!(names(&read(PAGE), "\n| `", "lockkeeper."), known);
}

#[test]
fn alerts_and_dashboard_name_what_there_is() {
    let known = as_prometheus(&known());
    for file in [ALERTS, DASHBOARD, PAGE] {
        let used = of_prometheus(&read(file));
        assert!(used.len() > 3, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&known).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    let on_page = |name: &str| read(PAGE).contains(&format!("`{name}`"));
    let alerts = read(ALERTS);
    let alerts = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        assert!(on_page(alert), "{alert}");
    }
}

/// What Grafana needs of a dashboard of this schema.
#[test]
fn the_dashboard_can_be_imported() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    assert!(dashboard["title"].is_string() && dashboard["uid"].is_string());
    assert_eq!(dashboard["schemaVersion"], 39);
    let variables = dashboard["templating"]["list"].as_array().expect("a list");
    let variables: BTreeSet<&str> = variables
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    assert_eq!(variables, BTreeSet::from(["datasource", "store"]));
    let panels = dashboard["panels"].as_array().expect("panels");
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}");
        let place =
            ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().expect("a number"));
        assert!(place[0] + place[2] <= 24 && place[3] > 0, "{title}");
        assert!(places.insert((place[0], place[1])), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let targets = panel["targets"].as_array().expect("targets");
        let mut names = BTreeSet::new();
        for target in targets {
            assert!(
                names.insert(target["refId"].as_str().expect("a name")),
                "{title}"
            );
            let expression = target["expr"].as_str().expect("an expression");
            let count = |c| expression.matches(c).count();
            for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
                assert_eq!(count(open), count(close), "{expression}");
            }
            assert!(expression.contains("store=~\"$store\""), "{expression}");
        }
        assert!(!names.is_empty(), "{title}");
    }
}
