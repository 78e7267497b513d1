//! The messages of one model call, from the store.

use lodge_core::record::MessageRow;
use lodge_store::ReadError;

use crate::context;
use crate::shell::Shell;
use lodge_engine::{ModelOrder, Purpose};

/// What the model reads, in order, with the instruction behind it where a summary is wanted.
pub(super) fn history(shell: &Shell, order: &ModelOrder) -> Result<Vec<MessageRow>, ReadError> {
    let summary = match order.summary {
        Some(epoch) => shell.reader.summary(&order.session, epoch)?,
        None => None,
    };
    let before = |rows| match &summary {
        Some(summary) => context::after_summary(summary, rows),
        None => rows,
    };
    match order.purpose {
        Purpose::Step => {
            let rows = shell.reader.context(&order.session, order.from_turn, order.number)?;
            Ok(before(context::readable(rows, order.number)))
        }
        Purpose::Summary { upto, strategy } => {
            let rows = shell.reader.context(&order.session, order.from_turn, upto)?;
            let rows = context::readable(context::summed_up(rows), order.number);
            Ok(context::asked_for_summary(before(rows), strategy))
        }
    }
}
