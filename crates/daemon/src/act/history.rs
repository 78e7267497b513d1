//! The messages of one model call, from the store.

use lodge_core::record::MessageRow;
use lodge_store::ReadError;

use lodge_engine::{ModelOrder, Purpose};

use super::ports::WorkReads;
use crate::context;

/// The messages that the model reads, in order, followed by the instruction if the call makes a summary. None: this snapshot
/// lacks the message that the call needs.
pub(super) fn history(
    store: &dyn WorkReads,
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
