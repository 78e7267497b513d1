//! Between here and registries: `push` and `pull` of images and of tools, and a pull before an agent is made.

use lodge_proto::{
    BinPullParams, BinPushParams, ImagePullParams, ImagePushParams, ImagePushed, ImageRef, ImageView,
    InspectImage, PullBin, PullImage, PushBin, PushImage,
};

use super::bins::tell_elsewhere;
use super::source::names_registry;
use super::{Context, request_id};
use crate::args::{PullArgs, PushArgs};
use crate::failure::Failure;
use crate::follow::Daemon;
use crate::progress::{Meter, bytes_text};
use crate::words::put;

/// What travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Image,
    Bin,
}

impl Kind {
    fn noun(self) -> &'static str {
        match self {
            Kind::Image => "image",
            Kind::Bin => "bin",
        }
    }
}

pub(super) async fn push(context: &Context, kind: Kind, args: PushArgs) -> Result<(), Failure> {
    let PushArgs { from, to } = args;
    let mut daemon = context.daemon().await?;
    let meter = Meter::new(&context.words, format!("pushing {}", to.as_ref().unwrap_or(&from)));
    context.say_on_interrupt("interrupted; the daemon goes on with the push".to_owned());
    let request_id = Some(request_id()?);
    let pushed: ImagePushed = match kind {
        Kind::Image => {
            let params = ImagePushParams { image: from, to, request_id };
            daemon.transfer::<PushImage>(params, &meter).await?
        }
        Kind::Bin => {
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
    context.words.say(&format!("pushed {}: {sent}", pushed.reference));
    put(&format!("{}\n", pushed.digest))
}

pub(super) async fn pull(context: &Context, kind: Kind, args: PullArgs) -> Result<(), Failure> {
    let PullArgs { reference, tag } = args;
    let mut daemon = context.daemon().await?;
    match kind {
        Kind::Image => {
            let image = pull_image(context, &mut daemon, &reference, tag).await?;
            if context.words.json {
                return context.words.json(&image);
            }
            put(&format!("{}\n", image.digest))
        }
        Kind::Bin => {
            let meter = begin_pull(context, kind, &reference);
            let params = BinPullParams { bin: reference.clone(), tags: tag, request_id: Some(request_id()?) };
            let bin = daemon.transfer::<PullBin>(params, &meter).await?;
            if context.words.json {
                return context.words.json(&bin);
            }
            context.words.say(&meter.pulled(&reference));
            tell_elsewhere(context, &bin);
            put(&format!("{}\n", bin.digest))
        }
    }
}

async fn pull_image(
    context: &Context,
    daemon: &mut Daemon<'_>,
    reference: &str,
    tags: Vec<String>,
) -> Result<ImageView, Failure> {
    let meter = begin_pull(context, Kind::Image, reference);
    let params = ImagePullParams { image: reference.to_owned(), tags, request_id: Some(request_id()?) };
    let image = daemon.transfer::<PullImage>(params, &meter).await?;
    if !context.words.json {
        context.words.say(&meter.pulled(reference));
    }
    Ok(image)
}

fn begin_pull(context: &Context, kind: Kind, reference: &str) -> Meter {
    let noun = kind.noun();
    // The daemon fetches for whoever asks next, too.
    context.say_on_interrupt(format!(
        "interrupted; the daemon goes on with the pull: `lodge {noun} pull {reference}` looks on again"
    ));
    Meter::new(&context.words, format!("pulling {reference}"))
}

/// Brings an image that is not here and that names a registry, before an agent is made of it: whoever waits sees how far
/// it is. What cannot be looked up or pulled is left to whatever comes next to complain about.
pub(super) async fn bring(
    context: &Context,
    daemon: &mut Daemon<'_>,
    reference: &str,
) -> Result<(), Failure> {
    if !names_registry(reference) {
        return Ok(());
    }
    let params = ImageRef { image: reference.to_owned(), request_id: None };
    match daemon.call::<InspectImage>(params).await {
        Ok(detail) if detail.image.complete => return Ok(()),
        Ok(_) => {}
        Err(failure) if failure.is("image.not_found") => {}
        // A token may be good for agents, and not for looking at images.
        Err(failure) if failure.is("auth.forbidden") => return Ok(()),
        Err(failure) => return Err(failure),
    }
    match pull_image(context, daemon, reference, Vec::new()).await {
        Err(failure) if failure.is("auth.forbidden") => Ok(()),
        Err(failure) => Err(failure),
        Ok(_) => Ok(()),
    }
}
