//! What an author is told: the same backend with one mistake, and the law that the kit says it breaks.

mod support;

use std::sync::Arc;

use files_backend::FilesBackend;
use lockcore::backend::{ClaimStore, Filter, Inspect, Stood};
use lockcore::{Claim, Grant, LockBackend, Result, async_trait};
use lockcore_conformance::{
    Case, Decorated, Decorator, Failure, Fixture, Law, Layer, cases, check,
};
use support::Files;

/// A release that does not look at the grant: whoever holds the key loses it.
struct Careless(Arc<FilesBackend>);

#[async_trait]
impl Decorator for Careless {
    fn inner(&self) -> &dyn LockBackend {
        &*self.0
    }

    async fn release(&self, grant: Grant, claims: &[Claim]) -> Result<Stood> {
        let stood = self.0.release(grant, claims).await?;
        for claim in claims {
            let filter = Filter::Key(claim.key().clone());
            for record in self.0.records(&filter, None, 1).await?.items {
                for other in record.holders.iter().filter_map(|holder| holder.grant) {
                    self.0.release(other, claims).await?;
                }
            }
        }
        Ok(stood)
    }
}

/// What the kit says about the law.
fn failures(fixture: Files, law: Law) -> Vec<Failure> {
    let fixture: Arc<dyn Fixture> = Arc::new(fixture);
    let of_law = |case: &Case| case.law() == law && case.layer() == Layer::Backend;
    cases()
        .iter()
        .filter(|case| of_law(case))
        .filter_map(|case| check(case, &fixture, 7).err())
        .collect()
}

#[test]
fn a_release_that_does_not_look_at_the_grant_is_told_its_law() {
    let law = Law::OwnClaimsOnly;
    let told = failures(
        Files {
            wrap: |files| Arc::new(Decorated(Careless(files))),
        },
        law,
    );
    let late = "releases::a_late_release_leaves_the_next_holder";
    let late = told.iter().find(|failure| failure.case == late);
    let text = late.expect("the case of that mistake fails").to_string();
    println!("{text}");
    for part in ["law 3, own claims only", "seed 7", "release"] {
        assert!(text.contains(part), "{part:?} is said in:\n{text}");
    }
    assert_eq!(
        failures(
            Files {
                wrap: |files| files
            },
            law
        ),
        []
    );
}
