//! Sweeping: removing what does not count, by the batches that it was taken in.

use etcd_client::{Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp};
use lockcore::backend::{Sweep, Swept};
use lockcore::limits::TOMBSTONE_KEPT;
use lockcore::{Life, Operation, Result, SessionId, SessionState};

use crate::EtcdBackend;
use crate::claims::removal;
use crate::line::quits;
use crate::pages::{PAGE, after};
use crate::record::{Batch, SHARED, Session, read_batch};
use crate::states::{SESSIONS_PER_REQUEST, States};
use crate::txn::{absent, get, keys, present};

/// So many batches that do not count are read in one request: each may have a thousand bytes for each of its keys.
const BATCHES: usize = 32;

/// What buries a session, and how many operations it has.
struct Burial {
    txn: TxnOp,
    operations: usize,
    /// Some of it stays.
    in_part: bool,
}

/// A batch that does not count, as it is stored.
struct Gone {
    whose: Batch,
    batch: KeyValue,
}

impl EtcdBackend {
    pub(crate) async fn sweep_some(&self, which: Sweep, limit: usize) -> Result<Swept> {
        let of = match which {
            Sweep::Session(session) => Some(session),
            Sweep::All => None,
        };
        let mut removed = 0;
        let mut states = States::new();
        let mut range = self.link.names.batches(of);
        loop {
            let batches = keys(&range, PAGE);
            let mut answer = self.way(Operation::Sweep).all(vec![batches]).await?;
            let found = answer.found()?;
            let gone = self.gone_batches(&found.pairs, &mut states).await?;
            for some in gone.chunks(BATCHES) {
                for gone in self.read_gone(some).await? {
                    if removed >= limit {
                        return Ok(Swept::new(removed, true));
                    }
                    removed += self.remove_gone(gone).await?;
                }
            }
            match after(&found.pairs, found.more) {
                Some(from) => range.from = from,
                None => break,
            }
        }
        let (more, read) = match of {
            None => self.bury(limit.saturating_sub(removed)).await?,
            Some(_) => (false, 0),
        };
        Ok(Swept::new(removed, more).of_sessions(states.len().max(read)))
    }

    /// Which of these batches do not count.
    async fn gone_batches<'a>(
        &self,
        pairs: &'a [KeyValue],
        states: &mut States,
    ) -> Result<Vec<(Batch, &'a [u8])>> {
        let names = &self.link.names;
        let read = pairs
            .iter()
            .filter_map(|pair| Some((names.read_batch(pair.key())?, pair.key())));
        let batches: Vec<(Batch, &[u8])> = read.collect();
        let sessions = batches.iter().map(|(whose, _)| whose.grant.session);
        self.way(Operation::Sweep).learn(sessions, states).await?;
        // One that nobody knows was forgotten, long after it had died.
        let counts = |Batch { grant, waits }: &Batch| {
            let state = states.get(&grant.session).and_then(Option::as_ref);
            state.is_some_and(|state| {
                let lives = !waits || state.life == Life::Living;
                lives && state.is_live(grant.n)
            })
        };
        let gone = batches.into_iter().filter(|(whose, _)| !counts(whose));
        Ok(gone.collect())
    }

    /// The batches of these names, with their keys, as far as they are still there.
    async fn read_gone(&self, gone: &[(Batch, &[u8])]) -> Result<Vec<Gone>> {
        let reads = gone.iter().map(|(_, name)| TxnOp::get(*name, None));
        let mut answer = self.way(Operation::Sweep).all(reads.collect()).await?;
        let mut read = Vec::with_capacity(gone.len());
        for (whose, _) in gone {
            let batch = answer.found()?.pairs.into_iter().next();
            let whose = *whose;
            read.extend(batch.map(|batch| Gone { whose, batch }));
        }
        Ok(read)
    }

    /// Removes what a batch has left, and says how many holders that were.
    async fn remove_gone(&self, gone: Gone) -> Result<usize> {
        let Gone { whose, batch } = gone;
        let (names, grant) = (&self.link.names, whose.grant);
        if whose.waits {
            let ops = quits(names, grant, &batch);
            let mut answer = self.way(Operation::Sweep).all(ops).await?;
            return Ok(answer.all_removed().saturating_sub(1));
        }
        let holders: Vec<(u8, &str)> = read_batch(batch.value()).collect();
        // The batch is the last: until then it is found again.
        let batch_too = || [TxnOp::delete(batch.key(), None)];
        if holders.len() < self.link.config.operations {
            // Mostly they stand as they were written, with the batch. So it is less work for the server.
            let exclusive = holders.iter().filter(|(class, _)| *class != SHARED);
            let as_written = exclusive.map(|(class, key)| {
                let name = names.holder(grant, *class, key);
                Compare::mod_revision(name, CompareOp::Equal, batch.mod_revision())
            });
            let all = holders
                .iter()
                .map(|(class, key)| TxnOp::delete(names.holder(grant, *class, key), None));
            let (as_written, all) = (as_written.collect(), all.chain(batch_too()).collect());
            let way = self.way(Operation::Sweep);
            let mut answer = way.txn(as_written, all, Vec::new()).await?;
            if answer.succeeded {
                // The batch is no holder.
                return Ok(answer.all_removed().saturating_sub(1));
            }
        }
        let each = holders
            .iter()
            .map(|(class, key)| removal(&self.link.names, grant, *class, key));
        let mut removals: Vec<TxnOp> = each.chain(batch_too()).collect();
        let mut removed = 0;
        while !removals.is_empty() {
            let some = self.some_of(&mut removals);
            let mut answer = self.way(Operation::Sweep).all(some).await?;
            removed += answer.all_removed();
        }
        Ok(removed.saturating_sub(1))
    }

    /// Puts what is left of dead sessions on a lease of its own, so that their names are refused as long as tombstones are
    /// kept, and then go by themselves. So many at most; says whether there are more, and how many sessions it has read.
    async fn bury(&self, most: usize) -> Result<(bool, usize)> {
        let names = &self.link.names;
        let mut range = names.ttls();
        let (mut lease, mut buried, mut looked_at, mut more) = (None, 0, 0, false);
        loop {
            let (found, _) = self.way(Operation::Sweep).get(&range, PAGE).await?;
            let unburied = found.pairs.iter();
            let unburied = unburied.filter_map(|pair| names.read_ttl(pair.key()));
            let unburied: Vec<SessionId> = unburied.collect();
            looked_at += unburied.len();
            for some in unburied.chunks(SESSIONS_PER_REQUEST) {
                let mut burials = self.burials(some, &mut lease).await?;
                let full = buried + burials.len() > most;
                burials.truncate(most - buried);
                buried += burials.len();
                more |= burials.iter().any(|burial| burial.in_part);
                self.bury_each(burials).await?;
                if full {
                    return Ok((true, looked_at));
                }
            }
            match after(&found.pairs, found.more) {
                Some(from) => range.from = from,
                None => return Ok((more, looked_at)),
            }
        }
    }

    /// What buries those of the sessions that are dead and have left no batch, in a transaction for each.
    async fn burials(
        &self,
        sessions: &[SessionId],
        lease: &mut Option<i64>,
    ) -> Result<Vec<Burial>> {
        let (names, way) = (&self.link.names, self.way(Operation::Sweep));
        let each = |id: &SessionId| {
            let session = get(&names.session(*id), 0);
            [session, keys(&names.batches(Some(*id)), 1)]
        };
        let mut answer = way.all(sessions.iter().flat_map(each).collect()).await?;
        let mut burials = Vec::new();
        for session in sessions {
            let (pairs, batches) = (answer.found()?.pairs, answer.found()?.pairs);
            let read = Session::read(names, *session, &pairs);
            let dead = read.filter(|read| read.state.life == Life::Dead);
            if let Some(Session { state, .. }) = dead
                && batches.is_empty()
            {
                let lease = match *lease {
                    Some(lease) => lease,
                    None => *lease.insert(way.grant(TOMBSTONE_KEPT).await?),
                };
                burials.push(self.burial(&state, &pairs, lease));
            }
        }
        Ok(burials)
    }

    /// In as few requests as take all their operations, of which each has less than a request.
    async fn bury_each(&self, burials: Vec<Burial>) -> Result<()> {
        let most = self.keys_per_batch();
        let (mut some, mut operations) = (Vec::new(), 0);
        for burial in burials {
            if operations + burial.operations > most && !some.is_empty() {
                let some = std::mem::take(&mut some);
                self.way(Operation::Sweep).all(some).await?;
                operations = 0;
            }
            operations += burial.operations;
            some.push(burial.txn);
        }
        if !some.is_empty() {
            self.way(Operation::Sweep).all(some).await?;
        }
        Ok(())
    }

    fn burial(&self, dead: &SessionState, pairs: &[KeyValue], lease: i64) -> Burial {
        let (names, session) = (&self.link.names, dead.session);
        // What was over when it died is in nobody's way; of thousands some stay until the next time.
        let most = self.keys_per_batch();
        let in_part = pairs.len() > most;
        let mut burial = Vec::new();
        if !in_part {
            burial.push(TxnOp::delete(names.ttl(session), None));
        }
        for pair in pairs.iter().rev().take(most) {
            burial.push(match names.read_session(pair.key()) {
                Some((_, "label" | "adoption" | "adopter" | "notes")) => {
                    let options = PutOptions::new().with_ignore_value().with_lease(lease);
                    TxnOp::put(pair.key(), "", Some(options))
                }
                _ => TxnOp::delete(pair.key(), None),
            });
        }
        // Nothing changes a session that is dead but a note, and a burial, after which it is another time's.
        let still = vec![
            present(names.label(session)),
            absent(names.live(session)),
            absent(names.intent(session)),
            self.notes_are(session, &dead.notes),
        ];
        Burial {
            operations: burial.len(),
            in_part,
            txn: TxnOp::txn(Txn::new().when(still).and_then(burial)),
        }
    }
}
