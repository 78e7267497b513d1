//! `GET /v1/images/export` and `POST /v1/images/import`: images as one file, the tar of an OCI layout.
//!
//! Both are produced in pieces: for images of any size and clients of any speed, only a few pieces are in memory. An
//! interrupted export does not end properly, so that no client takes a part for the whole. If anything in an archive is
//! wrong, nothing of it is recorded.

mod blocks;
mod checked_import;
mod pipe;

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use futures_util::StreamExt;
use lodge_core::record::{ImageContents, ImageState};
use lodge_image::Pins;
use lodge_image::oci::{Descriptor, StreamError, read_archive, write_archive};
use lodge_proto::{ApiMethod, ErrorBody, ImagesImported, InspectImage, PullImage};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use self::blocks::{Blocks, QuarantinedBlock};
use self::checked_import::{CheckedImport, ImportNaming};
use self::pipe::{ArchiveCut, ExportWriter, ImportReader, PIECES_MAX, STALLED_AFTER};
use super::methods::{PreparedChange, detached, internal, not_the_reply, record};
use super::{Api, http, images, quarantine};
use crate::auth::{ApiCaller, rights};
use crate::crash;
use crate::images::ImageError;
use crate::shell::{Shell, ShuttingDown};
use crate::suspects::carry;
use crate::tasks::TaskKind;
use crate::view::{self, EngineReply, no_image};
use lodge_engine::{Answer, Command, ImageCommand, NewImage};

/// Images of one archive.
const EXPORT_MAX: usize = 64;

pub(super) async fn export(
    State(api): State<Arc<Api>>,
    axum::Extension(who): axum::Extension<ApiCaller>,
    asked: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> HttpResponse {
    match export_of(api, who, asked).await {
        Ok(response) => response,
        Err(error) => http::failed(Value::Null, error),
    }
}

async fn export_of(
    api: Arc<Api>,
    who: ApiCaller,
    asked: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<HttpResponse, ErrorBody> {
    rights::admit(&who, InspectImage::NAME)?;
    let invalid = |what: String| {
        ErrorBody::new("params.invalid", what)
            .hint("name each image with `image=`; repeat it for several images")
    };
    let Query(asked) = asked.map_err(|error| invalid(error.body_text()))?;
    if let Some((key, _)) = asked.iter().find(|(key, _)| key != "image") {
        return Err(invalid(format!("`{}` is not known here", lodge_image::agentfile::shown(key))));
    }
    if asked.is_empty() || asked.len() > EXPORT_MAX {
        return Err(invalid(format!("an archive has 1 to {EXPORT_MAX} images")));
    }
    let names: Vec<String> = asked.into_iter().map(|(_, name)| name).collect();
    let given = serde_json::json!({"images": names});
    let choose = async {
        let shell = api.shell.clone();
        tokio::task::spawn_blocking(carry(move || chosen(&shell, names))).await
    };
    let chosen = match quarantine::suspect(&api.shell, &who, "image/export", &given)? {
        Some(watched) => watched.watch(choose).await,
        None => choose.await,
    };
    let chosen = chosen.unwrap_or_else(|error| Err(ErrorBody::new("daemon.internal", error.to_string())))?;
    let slot = slot(&api.shell).await?;
    let mut response = HttpResponse::new(sent(&api, who, chosen, slot));
    let head = response.headers_mut();
    head.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    head.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    head.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"images.tar\""));
    Ok(response)
}

/// The right to have a thread wait for a client.
async fn slot(shell: &Shell) -> Result<OwnedSemaphorePermit, ErrorBody> {
    shell.archives.clone().acquire_owned().await.map_err(|_| ShuttingDown.into())
}

/// Images that are to be exported, with the tools that they need.
struct ExportSelection {
    images: Vec<(Descriptor, Option<String>)>,
    pins: Pins,
}

fn chosen(shell: &Shell, names: Vec<String>) -> Result<ExportSelection, ErrorBody> {
    crash::pill_at("export", &names.join(" "));
    let pins = shell.images.blobs()?.pins();
    let mut images: Vec<(Descriptor, Option<String>)> = Vec::new();
    let mut needed: Vec<Descriptor> = Vec::new();
    for given in names {
        let (located, summary, record) = shell.read_here(|at| {
            let located = images::locate(at, &given)?;
            let unknown = || no_image(&given);
            let summary = at.store.image_summary(&located.digest).map_err(internal)?.ok_or_else(unknown)?;
            let record = at.store.image(&located.digest).map_err(internal)?;
            Ok::<_, ErrorBody>((located, summary, record))
        })?;
        if summary.state == ImageState::Announced {
            return Err(ErrorBody::new("image.not_found", format!("`{given}` is not wholly here yet"))
                .hint(format!("`lodge image pull {given}` pulls it")));
        }
        let descriptor = shell.images.load_packed(&pins, &located.digest)?.descriptor;
        if let Some(record) = record {
            for need in ImageContents::Agent(record).needs() {
                needed.push(shell.images.load_packed(&pins, &need)?.descriptor);
            }
        }
        let first = summary.refs.into_iter().next().map(|row| row.reference);
        let name = located.reference.or(first);
        if !images.iter().any(|(known, named)| known.digest == descriptor.digest && *named == name) {
            images.push((descriptor, name));
        }
    }
    for tool in needed {
        // Its local name is not exported.
        if !images.iter().any(|(known, _)| known.digest == tool.digest) {
            images.push((tool, None));
        }
    }
    Ok(ExportSelection { images, pins })
}

/// The archive as a body, which is written while it is sent.
fn sent(api: &Arc<Api>, who: ApiCaller, chosen: ExportSelection, slot: OwnedSemaphorePermit) -> Body {
    let (pieces, waiting) = mpsc::channel::<io::Result<Bytes>>(PIECES_MAX);
    let shell = api.shell.clone();
    tokio::task::spawn_blocking(move || {
        let mut leaving = ExportWriter::new(pieces, shell.end.clone());
        let written = match shell.images.blobs() {
            Ok(blobs) => {
                write_archive(blobs, &chosen.images, &mut leaving).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        leaving.over(written);
        drop((chosen.pins, slot));
    });
    Body::from_stream(futures_util::stream::unfold((waiting, who), |(mut waiting, who)| async move {
        let piece = waiting.recv().await?;
        let piece = if who.is_over() { Err(io::Error::other("the token is over")) } else { piece };
        if piece.is_err() {
            // An error drops what is not flushed, also the head of the response. A body that waits is flushed first.
            tokio::task::yield_now().await;
        }
        Some((piece, (waiting, who)))
    }))
}

pub(super) async fn import(
    State(api): State<Arc<Api>>,
    axum::Extension(who): axum::Extension<ApiCaller>,
    asked: Result<Query<Vec<(String, String)>>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> HttpResponse {
    match import_of(api, who, asked, &headers, body).await {
        Ok(imported) => axum::Json(imported).into_response(),
        Err(error) => http::failed(Value::Null, error),
    }
}

async fn import_of(
    api: Arc<Api>,
    who: ApiCaller,
    asked: Result<Query<Vec<(String, String)>>, QueryRejection>,
    headers: &HeaderMap,
    body: Body,
) -> Result<ImagesImported, ErrorBody> {
    rights::admit(&who, PullImage::NAME)?;
    let allowed = ImportNaming::read(asked)?;
    let shell = &api.shell;
    shell.room.admit(crate::room::DiskNeed::Room, crate::shell::now())?;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let slot = slot(shell).await?;
    // Until all of it is here.
    let promised = shell.images.admit(length.unwrap_or(0))?;
    let (pieces, waiting) = mpsc::channel::<Bytes>(PIECES_MAX);
    let reading = {
        let (shell, caller) = (shell.clone(), who.caller.clone());
        tokio::task::spawn_blocking(move || {
            let _slot = slot;
            let watch = |so_far: &[u8]| {
                quarantine::watch_block(&shell, &caller, "image/import", so_far).ok_or(QuarantinedBlock)
            };
            let blobs = shell.images.blobs()?;
            let pins = blobs.pins();
            let room = |bytes| match length {
                Some(_) => shell.room.spares(bytes),
                // To one that does not say how long it is nothing was promised: it has what is left beside the others.
                None => shell.images.spares(bytes),
            };
            let mut arriving = ImportReader::new(Blocks::new(waiting, &watch), &room);
            let read = read_archive(blobs, &pins, &mut arriving);
            if let Some(cut) = arriving.cut() {
                return Err(cut.told());
            }
            let archive = read.map_err(not_read)?;
            // What is made of the archive still counts as its last block's.
            let taken = CheckedImport::of(&shell, pins, archive, allowed);
            drop(arriving);
            taken
        })
    };
    let fed = feed(body, pieces).await;
    let taken =
        reading.await.unwrap_or_else(|error| Err(ErrorBody::new("daemon.internal", error.to_string())));
    drop(promised);
    let taken = match (fed, taken) {
        (Ok(()), taken) => taken,
        // An interrupted upload is the reason for any fault in the received data.
        (Err(cut), _) => Err(cut.told()),
    };
    let begun = shell.clone();
    detached(shell, async move {
        let imported = match taken {
            Ok(taken) => recorded(&begun, taken, allowed).await,
            Err(error) => Err(error),
        };
        if imported.is_err() {
            // Unrecorded contents have no owner.
            begun.spawn(TaskKind::ImageCollection, begun.images.clone().collect());
        }
        imported
    })
    .await
}

fn not_read(error: StreamError) -> ErrorBody {
    match error {
        StreamError::Bad(error) => ErrorBody::new(
            error.code(),
            format!("this archive cannot be used: {error}"),
        )
        .hint(
            "archives are made by `lodge image export IMAGE -o FILE`, or by `skopeo copy … oci-archive:FILE`",
        ),
        StreamError::Blob(error) => ImageError::from(error).into(),
        StreamError::Io { cause } => ArchiveCut::Broken(cause.to_string()).told(),
    }
}

/// Passes a body on as it arrives. The reader may stop before its end.
async fn feed(body: Body, pieces: mpsc::Sender<Bytes>) -> Result<(), ArchiveCut> {
    let mut stream = body.into_data_stream();
    loop {
        match tokio::time::timeout(STALLED_AFTER, stream.next()).await {
            Err(_) => return Err(ArchiveCut::Stalled),
            Ok(None) => return Ok(()),
            Ok(Some(Err(error))) => return Err(ArchiveCut::Broken(error.to_string())),
            Ok(Some(Ok(piece))) => {
                if pieces.send(piece).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

/// Each image is recorded with its names and its tools at once, or not at all.
async fn recorded(
    shell: &Shell,
    taken: CheckedImport,
    allowed: ImportNaming,
) -> Result<ImagesImported, ErrorBody> {
    let mut imported = ImagesImported { images: Vec::new(), bins: Vec::new(), tools: taken.tools };
    let CheckedImport { agents, bins, pins, .. } = taken;
    let add = |new: NewImage| match allowed.moves {
        true => PreparedChange::of(Command::Image(ImageCommand::Add(Box::new(new)))),
        false => PreparedChange::of(Command::Image(ImageCommand::AddNew(Box::new(new)))),
    };
    for new in bins {
        let command = add(new);
        imported.bins.push(added(&record(shell, None, command).await?)?);
    }
    for new in agents {
        let command = add(new);
        imported.images.push(added(&record(shell, None, command).await?)?);
    }
    drop(pins);
    Ok(imported)
}

/// The image that the engine recorded. A request without an id is never answered from the records.
fn added<T: EngineReply>(answer: &Answer) -> Result<T, ErrorBody> {
    view::answer_view(answer).ok().and_then(T::from_view).ok_or_else(not_the_reply)
}
