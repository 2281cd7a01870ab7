//! The smallest scenes; `cargo xtask model` has all.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};

use super::scenes::{self, Scene};
use super::{Store, Without};

/// Every rule is missing in some scene, on each store where it can be.
#[test]
fn each_rule_has_a_scene_without_it() {
    let lacking = |store: Store| -> BTreeSet<String> {
        let of_store = scenes::all()
            .into_iter()
            .filter(|it| it.model.store == store);
        of_store
            .filter_map(|it| it.model.without)
            .map(|it| format!("{it:?}"))
            .collect()
    };
    let (records, atomic) = (lacking(Store::Records), lacking(Store::Atomic));
    assert_eq!(records.union(&atomic).count(), 26);
    let only = |these: &BTreeSet<String>, others: &BTreeSet<String>| {
        these.difference(others).cloned().collect::<Vec<_>>()
    };
    assert_eq!(
        only(&records, &atomic),
        [
            "DeathIsWritten",
            "IntentLast",
            "OpenFirst",
            "Order",
            "RemovalAcknowledged",
            "RemovedFirst"
        ]
    );
    assert_eq!(
        only(&atomic, &records),
        ["OwnSession", "ReleaseOfTheLiving", "ReleaseRetires"]
    );
}

/// With all rules, and without those that few states show to be missing.
#[test]
fn small_scenes_come_out_as_expected() {
    let few = [
        Without::MissingIsDead,
        Without::DeadStays,
        Without::Retired,
        Without::TokensGoOn,
    ];
    let is_small = |it: &Scene| match it.model.without {
        None => it.name == "late and repeated requests",
        Some(without) => few.contains(&without) && !it.model.programs[0].intent,
    };
    let small: Vec<Scene> = scenes::all().into_iter().filter(is_small).collect();
    assert_eq!(small.len(), 10);
    for scene in small {
        let builder = scene.model.clone().checker();
        let builder = match scene.breaks {
            Some(breaks) => builder.finish_when(HasDiscoveries::AllOf([breaks].into())),
            None => builder,
        };
        let checker = builder.spawn_bfs().join();
        match scene.breaks {
            Some(breaks) => assert!(checker.discovery(breaks).is_some(), "{scene:?}"),
            None => checker.assert_properties(),
        }
    }
}
