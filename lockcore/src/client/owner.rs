//! [`Owner`]: who may re-enter.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::OwnerId;
use crate::client::core::Core;
use crate::client::error::AcquireError;
use crate::client::locks::Locks;
use crate::client::session::{Handle, WeakHandle};

/// An owner lets several acquisitions hold overlapping document and tree locks: holders of one owner never conflict for
/// a re-entrant claim. Each guard is still released by itself.
///
/// An owner belongs to one session. The first acquisition with the owner binds it to the current session, and all
/// others use that session. Once the session is lost, every acquisition with the owner fails as
/// [`Lost`](AcquireError::Lost): make a new owner.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lockcore::{Locks, MemoryBackend};
///
/// let locks = Locks::builder(MemoryBackend::new()).build()?;
/// let owner = locks.owner();
/// let tree = locks.tree().write("/clinton").owner(&owner).acquire().await?;
/// let below = locks.tree().write("/clinton/projects").owner(&owner).acquire().await?;
/// tree.release().await?;
/// assert!(below.is_valid());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Owner(Arc<Inner>);

struct Inner {
    core: Arc<Core>,
    binding: Binding,
}

enum Binding {
    /// Made by the program. It keeps its session open.
    Program(Locks, OnceLock<(Handle, OwnerId)>),
    /// The owner of a guard. The guard keeps the session open.
    Guard(WeakHandle, OwnerId),
}

impl Locks {
    /// A new owner. Acquisitions with the same owner re-enter each other's document and tree locks.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::unbound(self)
    }
}

impl Owner {
    pub(crate) fn unbound(locks: &Locks) -> Self {
        let binding = Binding::Program(locks.clone(), OnceLock::new());
        Self(Arc::new(Inner {
            core: Arc::clone(&locks.core),
            binding,
        }))
    }

    pub(crate) fn of_guard(core: &Arc<Core>, session: &WeakHandle, owner: OwnerId) -> Self {
        let binding = Binding::Guard(session.clone(), owner);
        Self(Arc::new(Inner {
            core: Arc::clone(core),
            binding,
        }))
    }

    pub(crate) fn belongs_to(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.0.core, core)
    }

    /// The session that the owner is bound to, and its name there. Binds the owner if it is not bound yet.
    pub(crate) async fn bind(&self) -> Result<(Handle, OwnerId), AcquireError> {
        let (handle, owner) = match &self.0.binding {
            Binding::Program(locks, cell) => {
                if let Some(bound) = cell.get() {
                    bound.clone()
                } else {
                    // All who come before it is bound wait for the session at once.
                    let handle = locks.pool.shared(&locks.core).await?;
                    let bind = || {
                        let owner = handle.session.owner();
                        (handle, owner)
                    };
                    cell.get_or_init(bind).clone()
                }
            }
            Binding::Guard(handle, owner) => (handle.upgrade().ok_or(AcquireError::Lost)?, *owner),
        };
        if handle.is_usable() {
            Ok((handle, owner))
        } else {
            Err(AcquireError::Lost)
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = match &self.0.binding {
            Binding::Program(_, cell) => cell.get().map(|(_, owner)| *owner),
            Binding::Guard(_, owner) => Some(*owner),
        };
        f.debug_tuple("Owner").field(&id).finish()
    }
}
