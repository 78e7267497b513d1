//! `bin/…`: tools that are packaged as images.

mod platforms;
mod programs;

use std::sync::Arc;

use lodge_core::record::ImageKind;
use lodge_image::oci::{BadImage, NewBin, pack_bin};
use lodge_image::registry::TransferWatch;
use lodge_proto::{
    ApiMethod, BinBuildParams, BinDetail, BinList, BinListParams, BinPullParams, BinPushParams, BinRef,
    BuildBin, ErrorBody, InspectBin, ListBins, PullBin, PushBin, RemoveBin,
};
use serde_json::Value;

use self::programs::programs;
use super::images::{find_bin, free_for, pull, push, remove, tagged, tags_of};
use super::methods::{PreparedChange, Reply, ask_prepared, changed, internal, no_method, page, reply};
use super::params;
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;
use crate::view::no_image;
use lodge_engine::{Command, ImageCommand, NewImage, RequestKey};

pub(super) async fn call(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    method: &str,
    given: Value,
    watch: Arc<dyn TransferWatch>,
) -> Reply {
    match method {
        BuildBin::NAME => {
            let given = params::<BuildBin>(given)?;
            changed::<BuildBin>(&ask_prepared(shell, key, move |shell| build(shell, given)).await?)
        }
        ListBins::NAME => {
            let given = params::<ListBins>(given)?;
            shell.read(move |at| reply::<ListBins>(list(at, &given))).await
        }
        InspectBin::NAME => {
            let given = params::<InspectBin>(given)?;
            shell.read(move |at| reply::<InspectBin>(inspect(at, &given))).await
        }
        PullBin::NAME => {
            let BinPullParams { bin, tags, .. } = params::<PullBin>(given)?;
            changed::<PullBin>(&pull(shell, key, ImageKind::Bin, bin, tags, watch).await?)
        }
        PushBin::NAME => {
            let BinPushParams { bin, to, .. } = params::<PushBin>(given)?;
            push(shell, key, ImageKind::Bin, bin, to, watch).await
        }
        RemoveBin::NAME => {
            let given = params::<RemoveBin>(given)?;
            changed::<RemoveBin>(&remove(shell, key, ImageKind::Bin, given.bin).await?)
        }
        _other => Err(no_method(method)),
    }
}

fn build(shell: &Shell, given: BinBuildParams) -> Result<PreparedChange, ErrorBody> {
    // Before the work: a name that cannot be given is known without it.
    let mut tags = tags_of(&given.tags)?;
    let programs = programs(&given.programs)?;
    let BinBuildParams { name, description, usage, labels, .. } = given;
    if tags.is_empty() {
        tags.push(tagged(&name)?);
    }
    free_for(ImageKind::Bin, &tags)?;
    let mut new = NewBin { name, description, usage, labels, programs: Vec::new() };
    let bad = |error: BadImage| {
        ErrorBody::new("params.invalid", error.to_string()).hint("see `lodge bin build --help`")
    };
    new.check().map_err(bad)?;
    let blobs = shell.images.blobs()?;
    let pins = blobs.pins();
    // Packed they are no larger to speak of.
    let room = shell.images.admit(programs.iter().map(|program| program.size).sum())?;
    for program in programs {
        let platform = program.platform.clone();
        let layer = program.pack(&new, blobs, &pins)?;
        new.programs.push((platform, layer));
    }
    // The reservation ends: the bytes are written.
    drop(room);
    let packed = pack_bin(&new).map_err(bad)?;
    shell.images.store_packed(&pins, &packed)?;
    let row = shell.images.load_row(
        &pins,
        &packed.digest.to_string(),
        tags.first().cloned().unwrap_or_default(),
    )?;
    let command = Command::Image(ImageCommand::Add(Box::new(NewImage { row, with: Vec::new(), tags })));
    Ok(PreparedChange { command, pins: vec![pins] })
}

fn list(at: &ReadView<'_>, given: &BinListParams) -> Result<BinList, ErrorBody> {
    let limit = page(given.limit);
    let found = at.store.bins(given.after.as_deref(), limit).map_err(internal)?;
    let next =
        (found.len() == limit as usize).then(|| found.last().map(|(last, _)| last.digest.clone())).flatten();
    let bins = found.into_iter().map(|(found, record)| view::bin(found, &record)).collect();
    Ok(BinList { bins, next })
}

fn inspect(at: &ReadView<'_>, given: &BinRef) -> Result<BinDetail, ErrorBody> {
    let found = find_bin(at, &given.bin)?;
    let summary = at.store.image_summary(&found.digest).map_err(internal)?;
    let summary = summary.ok_or_else(|| no_image(&given.bin))?;
    Ok(view::bin_detail(summary, found.record))
}
