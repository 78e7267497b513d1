//! The messages of one model call, from the store.

use lodge_core::record::MessageRow;
use lodge_store::{ReadError, StoreSnapshot};

use lodge_engine::{ModelOrder, Purpose};

use crate::context;

/// What the model reads, in order, with the instruction behind it where a summary is wanted. None: the message that the call
/// needs is not recorded in this snapshot.
pub(super) fn history(
    store: &dyn StoreSnapshot,
    order: &ModelOrder,
) -> Result<Option<Vec<MessageRow>>, ReadError> {
    if store.newest_message(&order.session)? < order.message {
        return Ok(None);
    }
    let summary = match order.summary {
        Some(epoch) => store.summary(&order.session, epoch)?,
        None => None,
    };
    let before = |rows| match &summary {
        Some(summary) => context::after_summary(summary, rows),
        None => rows,
    };
    match order.purpose {
        Purpose::Step => {
            let rows = store.context(&order.session, order.from_turn, order.number)?;
            Ok(Some(before(context::readable(rows, order.number))))
        }
        Purpose::Summary { upto, strategy } => {
            let rows = store.context(&order.session, order.from_turn, upto)?;
            let rows = context::readable(context::summed_up(rows), order.number);
            Ok(Some(context::asked_for_summary(before(rows), strategy)))
        }
    }
}
