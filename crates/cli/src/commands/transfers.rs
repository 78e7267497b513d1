//! Transfers: `push` and `pull` of images and tools, and the pull before an agent is created.

use lodge_proto::{
    BinPullParams, BinPushParams, ImagePullParams, ImagePushParams, ImagePushed, ImageRef, ImageView,
    InspectImage, PullBin, PullImage, PushBin, PushImage, error_code,
};

use super::bins::warn_other_platform;
use super::source::names_registry;
use super::{CommandContext, request_id};
use crate::args::{PullArgs, PushArgs};
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;
use crate::progress::{TransferMeter, bytes_text};
use crate::words::put;

/// What travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferKind {
    Image,
    Bin,
}

impl TransferKind {
    fn noun(self) -> &'static str {
        match self {
            TransferKind::Image => "image",
            TransferKind::Bin => "bin",
        }
    }
}

pub(super) async fn push(
    context: &CommandContext,
    kind: TransferKind,
    args: PushArgs,
) -> Result<(), CommandFailure> {
    let PushArgs { from, to } = args;
    let mut daemon = context.daemon().await?;
    let meter = TransferMeter::new(&context.words, format!("pushing {}", to.as_ref().unwrap_or(&from)));
    context.set_interrupt_note("detached; the daemon continues the push".to_owned());
    let request_id = Some(request_id()?);
    let pushed: ImagePushed = match kind {
        TransferKind::Image => {
            let params = ImagePushParams { image: from, to, request_id };
            daemon.transfer::<PushImage>(params, &meter).await?
        }
        TransferKind::Bin => {
            let params = BinPushParams { bin: from, to, request_id };
            daemon.transfer::<PushBin>(params, &meter).await?
        }
    };
    if context.words.json {
        return context.words.json(&pushed);
    }
    let sent = match pushed.sent_bytes {
        0 => "everything was there".to_owned(),
        bytes => format!("{} sent", bytes_text(bytes)),
    };
    context.words.print_note(&format!("pushed {}: {sent}", pushed.reference));
    put(&format!("{}\n", pushed.digest))
}

pub(super) async fn pull(
    context: &CommandContext,
    kind: TransferKind,
    args: PullArgs,
) -> Result<(), CommandFailure> {
    let PullArgs { reference, tag } = args;
    let mut daemon = context.daemon().await?;
    match kind {
        TransferKind::Image => {
            let image = pull_image(context, &mut daemon, &reference, tag).await?;
            if context.words.json {
                return context.words.json(&image);
            }
            put(&format!("{}\n", image.digest))
        }
        TransferKind::Bin => {
            let meter = begin_pull(context, kind, &reference);
            let params = BinPullParams { bin: reference.clone(), tags: tag, request_id: Some(request_id()?) };
            let bin = daemon.transfer::<PullBin>(params, &meter).await?;
            if context.words.json {
                return context.words.json(&bin);
            }
            context.words.print_note(&meter.pulled(&reference));
            warn_other_platform(context, &bin);
            put(&format!("{}\n", bin.digest))
        }
    }
}

async fn pull_image(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    reference: &str,
    tags: Vec<String>,
) -> Result<ImageView, CommandFailure> {
    let meter = begin_pull(context, TransferKind::Image, reference);
    let params = ImagePullParams { image: reference.to_owned(), tags, request_id: Some(request_id()?) };
    let image = daemon.transfer::<PullImage>(params, &meter).await?;
    if !context.words.json {
        context.words.print_note(&meter.pulled(reference));
    }
    Ok(image)
}

fn begin_pull(context: &CommandContext, kind: TransferKind, reference: &str) -> TransferMeter {
    let noun = kind.noun();
    // The daemon also continues the transfer for other callers.
    context.set_interrupt_note(format!(
        "detached; the daemon continues the pull: `lodge {noun} pull {reference}` shows its progress again"
    ));
    TransferMeter::new(&context.words, format!("pulling {reference}"))
}

/// Pulls an image that is not local and that names a registry, before an agent is created from it, so that its
/// progress is shown. Errors of the lookup and of the pull are left to the call that follows.
pub(super) async fn pull_if_missing(
    context: &CommandContext,
    daemon: &mut DaemonClient<'_>,
    reference: &str,
) -> Result<(), CommandFailure> {
    if !names_registry(reference) {
        return Ok(());
    }
    let params = ImageRef { image: reference.to_owned(), request_id: None };
    match daemon.call::<InspectImage>(params).await {
        Ok(detail) if detail.image.complete => return Ok(()),
        Ok(_) => {}
        Err(failure) if failure.is(error_code!("image.not_found")) => {}
        // A token may be good for agents, and not for looking at images.
        Err(failure) if failure.is(error_code!("auth.forbidden")) => return Ok(()),
        Err(failure) => return Err(failure),
    }
    match pull_image(context, daemon, reference, Vec::new()).await {
        Err(failure) if failure.is(error_code!("auth.forbidden")) => Ok(()),
        Err(failure) => Err(failure),
        Ok(_) => Ok(()),
    }
}
