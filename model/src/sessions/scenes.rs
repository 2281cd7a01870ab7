//! What is checked: a few clients each, and what goes wrong between them.

use super::promises::{
    ADOPTABLE, DEAD, EXCLUSION, INTENT, ITS_LOCKS, NOT_FINISHED, NOTHING_LEFT, ONE_ADOPTER, OTHERS,
    TOKENS, TRUTH, UNDER_LOCKS,
};
use super::{Budget, Doubled, Program, Sessions, Store, Without};

/// A model, and the promise that it breaks if it lacks a rule.
#[derive(Debug, Clone)]
pub struct Scene {
    /// What it is about.
    pub name: &'static str,
    /// The model.
    pub model: Sessions,
    /// The promise that is broken.
    pub breaks: Option<&'static str>,
}

const ONE: Program = Program {
    keys: 1,
    attempts: 1,
    intent: false,
    adopts: false,
    at_once: false,
};
const MAKER: Program = Program {
    intent: true,
    ..ONE
};
const ADOPTER: Program = Program {
    adopts: true,
    ..ONE
};
const ONLY_ADOPTS: Program = Program {
    keys: 0,
    attempts: 0,
    ..ADOPTER
};

/// Leases and tokens.
fn leases(store: Store) -> Sessions {
    Sessions {
        store,
        programs: vec![ONE, ONE],
        keys: 1,
        timed: true,
        reenters: false,
        tokens: true,
        budget: Budget {
            renewals: 1,
            doubles: 1,
            sweeps: 1,
            ..Budget::default()
        },
        doubled: Doubled {
            open: true,
            renew: true,
            release: true,
            ..Doubled::default()
        },
        without: None,
    }
}

/// The same, where a guard has two keys.
fn leases_of_two(store: Store) -> Sessions {
    let both = Program { keys: 3, ..ONE };
    Sessions {
        keys: 2,
        programs: vec![both, both],
        budget: Budget::default(),
        ..leases(store)
    }
}

/// Requests that come again, or after nobody waits for them.
fn requests(store: Store) -> Sessions {
    Sessions {
        programs: vec![Program { attempts: 2, ..ONE }, ONE],
        timed: false,
        tokens: false,
        budget: Budget {
            resends: 1,
            give_ups: 1,
            ..Budget::default()
        },
        doubled: Doubled {
            acquire: true,
            ..Doubled::default()
        },
        ..leases(store)
    }
}

/// The same, and the store executes one of them twice by itself.
fn doubled(store: Store) -> Sessions {
    let mut model = requests(store);
    model.budget.doubles = 1;
    model.doubled.renew = true;
    model.doubled.release = true;
    model
}

/// An acquisition of several keys that is undone, beside two others.
fn undone(store: Store) -> Sessions {
    let mut model = requests(store);
    model.keys = 2;
    model.programs = vec![Program { keys: 3, ..ONE }, Program { keys: 2, ..ONE }, ONE];
    model.budget = Budget {
        doubles: 1,
        ..Budget::default()
    };
    model.doubled = Doubled {
        release: true,
        ..Doubled::default()
    };
    model
}

/// An owner that has a key several times.
fn reentrant(store: Store) -> Sessions {
    let mut model = requests(store);
    model.programs[0].at_once = true;
    model.reenters = true;
    model
}

/// Who makes a change and may die of it, and who adopts.
fn intents(store: Store) -> Sessions {
    Sessions {
        programs: vec![MAKER, ADOPTER],
        timed: false,
        tokens: false,
        budget: Budget {
            kills: 1,
            pauses: 1,
            give_ups: 1,
            doubles: 1,
            sweeps: 1,
            resends: 1,
            ..Budget::default()
        },
        doubled: Doubled {
            renew: true,
            adopt: true,
            release: true,
            ..Doubled::default()
        },
        ..leases(store)
    }
}

/// Two changes of one client, one after the other.
fn two_intents(store: Store) -> Sessions {
    let mut model = intents(store);
    model.programs[0].attempts = 2;
    model.budget.sweeps = 0;
    model.budget.pauses = 0;
    model
}

/// The same as the first one, and the store executes a request for a lock twice by itself.
fn doubled_intents(store: Store) -> Sessions {
    let mut model = intents(store);
    model.budget.pauses = 0;
    model.doubled = Doubled {
        acquire: true,
        ..Doubled::default()
    };
    model
}

/// A change whose maker dies, and two who adopt.
fn adopters(store: Store) -> Sessions {
    let mut model = intents(store);
    model.programs = vec![MAKER, ONLY_ADOPTS, ONLY_ADOPTS];
    model.doubled = Doubled {
        adopt: true,
        ..Doubled::default()
    };
    model
}

/// Every scene with all rules, and for every rule one that lacks it.
#[must_use]
pub fn all() -> Vec<Scene> {
    let mut scenes = Vec::new();
    for store in [Store::Records, Store::Atomic] {
        let mut step_back = leases(store);
        step_back.budget.steps_back = 1;
        step_back.budget.doubles = 0;
        let mut both_keys = intents(store);
        both_keys.keys = 2;
        both_keys.programs[0].keys = 3;
        both_keys.programs[1].keys = 2;
        for (name, model) in [
            ("leases and tokens", leases(store)),
            ("leases, two keys", leases_of_two(store)),
            ("leases, the clock steps back", step_back),
            ("late and repeated requests", requests(store)),
            ("requests executed twice", doubled(store)),
            ("an undone acquisition", undone(store)),
            ("an owner that re-enters", reentrant(store)),
            ("intents", intents(store)),
            ("intents, two keys", both_keys),
            ("two intents of a session", two_intents(store)),
            ("intents, requests executed twice", doubled_intents(store)),
            ("two adopters", adopters(store)),
        ] {
            scenes.push(Scene {
                name,
                model,
                breaks: None,
            });
        }
        for (without, mut model, breaks) in mutants(store) {
            model.without = Some(without);
            scenes.push(Scene {
                name: "",
                model,
                breaks: Some(breaks),
            });
        }
    }
    scenes
}

/// Each rule, a scene without it, and what is broken then.
fn mutants(store: Store) -> Vec<(Without, Sessions, &'static str)> {
    let mut only_opened = leases(store);
    only_opened.tokens = false;
    only_opened.doubled = Doubled {
        open: true,
        ..Doubled::default()
    };
    let mut few = leases(store);
    few.budget = Budget::default();
    let mut small = adopters(store);
    small.budget = Budget {
        kills: 1,
        give_ups: 1,
        ..Budget::default()
    };
    let mut late = intents(store);
    late.budget = Budget {
        pauses: 1,
        doubles: 1,
        ..Budget::default()
    };
    let with = |mut model: Sessions, kills: u8, pauses: u8| {
        model.budget = Budget {
            kills,
            pauses,
            ..Budget::default()
        };
        model
    };
    let (dies, sleeps) = (with(intents(store), 1, 0), with(intents(store), 0, 1));
    let follows = with(adopters(store), 1, 1);
    let mut mutants = vec![
        (Without::FromTheSending, leases(store), TRUTH),
        (Without::Margin, leases(store), TRUTH),
        (Without::Latch, only_opened, NOTHING_LEFT),
        (Without::MissingIsDead, leases(store), NOTHING_LEFT),
        (Without::LookLast, leases_of_two(store), TOKENS),
        (Without::TokensGoOn, few, TOKENS),
        (Without::DeadStays, leases(store), DEAD),
        (Without::Retired, requests(store), NOTHING_LEFT),
        (Without::RetiredOnRenewal, doubled(store), NOTHING_LEFT),
        (Without::NewNumber, undone(store), TRUTH),
        (Without::OwnGrantOnly, requests(store), OTHERS),
        (Without::HolderByGrant, reentrant(store), TRUTH),
        (Without::AbandonedIsHeld, intents(store), ITS_LOCKS),
        (
            Without::AdoptionByNumber,
            adopters(store),
            match store {
                Store::Records => ONE_ADOPTER,
                Store::Atomic => ADOPTABLE,
            },
        ),
        (Without::AfterTheAdopter, adopters(store), ONE_ADOPTER),
        (Without::SettlementByNumber, follows, UNDER_LOCKS),
        (Without::GivenUpInTheStore, small, ADOPTABLE),
    ];
    match store {
        Store::Records => mutants.extend([
            (Without::OpenFirst, leases(store), TRUTH),
            (Without::DeathIsWritten, late, EXCLUSION),
            (Without::Order, two_intents(store), INTENT),
            (Without::IntentLast, dies.clone(), UNDER_LOCKS),
            (Without::RemovedFirst, dies.clone(), UNDER_LOCKS),
            (Without::RemovalAcknowledged, dies, UNDER_LOCKS),
        ]),
        Store::Atomic => mutants.extend([
            (Without::OwnSession, intents(store), DEAD),
            (Without::ReleaseOfTheLiving, sleeps, UNDER_LOCKS),
            (
                Without::ReleaseRetires,
                doubled_intents(store),
                NOT_FINISHED,
            ),
        ]),
    }
    mutants
}
