//! A check of tokens for the program's own keys in etcd.

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use lockcore::FencingToken;

use crate::record::digits;

/// A transaction for the program's own keys in etcd. It executes these operations unless a later holder of the lock has
/// executed some before. A lease can end while its holder is paused before a write; this refuses that write.
///
/// `token_key` is a key beside those that are written. It keeps the greatest token that has written them. The answer
/// says `succeeded` if a greater token was found there: then **nothing was written**. Every writer of those keys must
/// do the same. The program sends the transaction through a client of its own.
///
/// # Examples
///
/// Compiled and not run, because it needs a server; the example `fenced` runs it.
///
/// ```no_run
/// use etcd_client::{Client, Error, TxnOp};
/// use lockcore::FencingToken;
///
/// async fn set_balance(client: &mut Client, balance: i64, token: FencingToken) -> Result<bool, Error> {
///     let write = TxnOp::put("account/1/balance", balance.to_string(), None);
///     let answer = client.txn(lockcore_etcd::fenced("account/1/token", token, [write])).await?;
///     let refused = answer.succeeded();
///     Ok(!refused)
/// }
/// ```
#[must_use]
pub fn fenced(
    token_key: impl Into<Vec<u8>>,
    token: FencingToken,
    operations: impl Into<Vec<TxnOp>>,
) -> Txn {
    let (token_key, token) = (token_key.into(), digits(token.get()));
    // A comparison with a key that is not there fails, and so does one with a smaller token: both are written.
    let later = Compare::value(token_key.clone(), CompareOp::Greater, token.clone());
    let mut writes = operations.into();
    writes.push(TxnOp::put(token_key, token, None));
    Txn::new().when([later]).or_else(writes)
}
