//! Reading a range page by page, with the keys together that belong together.

use std::collections::VecDeque;

use etcd_client::KeyValue;
use lockcore::Result;

use crate::record::{Names, Range};
use crate::txn::Way;

/// So many keys are read at once.
pub(crate) const PAGE: usize = 1_000;

/// What belongs together in a range, one after the other. Each page is read as it is then.
pub(crate) struct Groups<'a, G> {
    way: Way<'a>,
    of: fn(&Names, &[u8]) -> Option<G>,
    rest: Option<Range>,
    read: VecDeque<(G, KeyValue)>,
}

impl<'a, G: PartialEq + Clone> Groups<'a, G> {
    /// Those of a range; what belongs to nothing is passed over.
    pub(crate) fn new(way: Way<'a>, range: Range, of: fn(&Names, &[u8]) -> Option<G>) -> Self {
        Self {
            way,
            of,
            rest: Some(range),
            read: VecDeque::new(),
        }
    }

    /// The next of them, whole.
    pub(crate) async fn next(&mut self) -> Result<Option<(G, Vec<KeyValue>)>> {
        loop {
            let first = self.read.front().map(|(group, _)| group.clone());
            let ends = first
                .as_ref()
                .and_then(|first| self.read.iter().position(|(group, _)| group != first));
            if ends.is_none() && self.rest.is_some() {
                self.read_on().await?;
                continue;
            }
            let Some(first) = first else {
                return Ok(None);
            };
            let end = ends.unwrap_or(self.read.len());
            let pairs = self.read.drain(..end).map(|(_, pair)| pair);
            return Ok(Some((first, pairs.collect())));
        }
    }

    async fn read_on(&mut self) -> Result<()> {
        let Some(range) = self.rest.take() else {
            return Ok(());
        };
        let (found, _) = self.way.get(&range, PAGE).await?;
        self.rest = after(&found.pairs, found.more).map(|from| Range { from, ..range });
        let of = |pair: KeyValue| Some(((self.of)(&self.way.link.names, pair.key())?, pair));
        self.read.extend(found.pairs.into_iter().filter_map(of));
        Ok(())
    }
}

/// Where a range goes on behind what was read of it.
pub(crate) fn after(pairs: &[KeyValue], more: bool) -> Option<Vec<u8>> {
    let mut from = pairs.last().filter(|_| more)?.key().to_vec();
    from.push(0);
    Some(from)
}
