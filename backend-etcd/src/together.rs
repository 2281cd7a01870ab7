//! Requests that are sent with others.

use std::collections::BTreeSet;

use etcd_client::{Compare, PutOptions, Txn, TxnOp};
use lockcore::backend::{Acquire, Acquired, SmallBatches, SmallLimits, Stood};
use lockcore::{Claim, Grant, Operation, Result};

use crate::claims::{behind_over, holds, looks, stands};
use crate::error::NAME;
use crate::link::SharedLink;
use crate::namespace::unix_ms;
use crate::record::{SHARED, batch_value, class, holder_value};
use crate::txn::{Way, nobody, present};

/// So many requests go together at most, and so many of these are under way at once.
const TOGETHER: usize = 16;
const AT_ONCE: usize = 4;

/// Requests of one flat key each, sent together.
pub(crate) fn small(link: &SharedLink) -> SmallBatches {
    let limits = SmallLimits {
        together: TOGETHER,
        at_once: AT_ONCE,
        timeout: link.config.timeout,
    };
    SmallBatches::new(
        link,
        NAME,
        limits,
        |link, requests| Box::pin(async move { acquire_many(&link, &requests).await }),
        |link, releases| Box::pin(async move { release_many(&link, &releases).await }),
    )
}

/// One transaction, of which each part is done if nobody is in its way.
async fn acquire_many(link: &SharedLink, requests: &[Acquire]) -> Result<Vec<Option<Acquired>>> {
    let (names, first) = (&link.names, &requests[0]);
    let since_ms = unix_ms();
    // What each compares is as it was before all of them, and nothing is written twice: of a key and of a number, one goes.
    let (mut keys, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    let goes = requests
        .iter()
        .map(|request| keys.insert(request.claims[0].key()) && numbers.insert(request.grant.n));
    let goes: Vec<bool> = goes.collect();
    let part = |request: &Acquire| {
        let (grant, claims) = (request.grant, &request.claims);
        let free = looks(names, claims)
            .into_iter()
            .map(|look| nobody(&look.range));
        let free: Vec<Compare> = [behind_over(names, grant)]
            .into_iter()
            .chain(free)
            .collect();
        let claim = &claims[0];
        let holder = names.holder(grant, class(claim.want()), claim.key().as_str());
        let value = holder_value(claim.want(), grant, request.owner, since_ms);
        let entered = TxnOp::put(holder, value, None);
        let batch = TxnOp::put(names.batch(grant), batch_value(claims), None);
        TxnOp::txn(Txn::new().when(free).and_then([entered, batch]))
    };
    // What is written within a part counts for nothing where the server has no space left: that refuses this one.
    let live = names.live(first.grant.session);
    let then = || {
        let same = PutOptions::new().with_ignore_value().with_ignore_lease();
        let written = TxnOp::put(live.clone(), "", Some(same));
        let going = requests.iter().zip(&goes).filter(|(_, goes)| **goes);
        let parts = going.map(|(request, _)| part(request));
        [written].into_iter().chain(parts).collect()
    };
    let way = Way {
        link,
        operation: Operation::Acquire,
    };
    let lives = || vec![present(live.clone())];
    let nothing = || vec![None; requests.len()];
    let Ok(mut answer) = way.under(first.incarnation, lives, then, || None).await? else {
        return Ok(nothing());
    };
    if !answer.succeeded {
        return Ok(nothing());
    }
    let token = answer.token()?;
    answer.skip();
    let acquired = goes.into_iter().map(|goes| {
        let granted = goes && answer.done()?;
        Ok(granted.then_some(Acquired::Acquired(token)))
    });
    acquired.collect()
}

async fn release_many(
    link: &SharedLink,
    releases: &[(Grant, Claim)],
) -> Result<Vec<Option<Stood>>> {
    let names = &link.names;
    let part = |(grant, claim): &(Grant, Claim)| {
        let (class, key) = (class(claim.want()), claim.key().as_str());
        let not_over = || behind_over(names, *grant);
        let removed = |keys: Vec<Vec<u8>>| -> Vec<TxnOp> {
            let keys = keys.into_iter();
            keys.map(|key| TxnOp::delete(key, None)).collect()
        };
        let mut held = stands(names, *grant, class, key);
        held.push(not_over());
        let there = removed(vec![names.holder(*grant, class, key), names.batch(*grant)]);
        // Who has waited holds where it has.
        let beside = (class != SHARED).then(|| {
            let batches = [names.batch(*grant), names.waiting_batch(*grant)];
            let mut keys = vec![names.holder_beside(*grant, class, key)];
            keys.extend(batches);
            let held = [holds(names, *grant, class, key), not_over()];
            TxnOp::txn(Txn::new().when(held).and_then(removed(keys)))
        });
        let beside: Vec<TxnOp> = beside.into_iter().collect();
        TxnOp::txn(Txn::new().when(held).and_then(there).or_else(beside))
    };
    let way = Way {
        link,
        operation: Operation::Release,
    };
    let lives = present(names.live(releases[0].0.session));
    let parts = releases.iter().map(part).collect();
    let mut answer = way.txn(vec![lives], parts, Vec::new()).await?;
    if !answer.succeeded {
        return Ok(vec![None; releases.len()]);
    }
    let stood = releases.iter().map(|_| {
        let held = answer.done()?;
        Ok(held.then_some(Stood::Held))
    });
    stood.collect()
}
