//! A registry of images that a daemon can push to and pull from. It lives in this process, so it outlives every daemon.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::connection::{HttpRequest, MockConnection};

/// A running registry. Dropping it ends it.
#[derive(Debug)]
pub struct MockRegistry {
    addr: SocketAddr,
    /// Ends when it is dropped.
    _task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct RegistryContents {
    /// By their path below `/v2/`.
    there: BTreeMap<String, Vec<u8>>,
    /// What is being sent, by number.
    uploads: Vec<Vec<u8>>,
}

/// What is answered.
struct RegistryAnswer {
    status: &'static str,
    head: String,
    body: Vec<u8>,
}

impl MockRegistry {
    pub async fn start() -> io::Result<MockRegistry> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let mut task = JoinSet::new();
        task.spawn(serve(listener));
        Ok(MockRegistry { addr, _task: task })
    }

    /// As names of images begin with it.
    pub fn host(&self) -> String {
        self.addr.to_string()
    }
}

async fn serve(listener: TcpListener) {
    let contents = Arc::new(Mutex::new(RegistryContents::default()));
    // Dropping the set ends the connections with the server.
    let mut connections = JoinSet::new();
    for number in 1.. {
        let Ok((stream, _)) = listener.accept().await else { return };
        while connections.try_join_next().is_some() {}
        let contents = Arc::clone(&contents);
        connections.spawn(async move {
            // A daemon that is killed breaks its connections.
            drop(connection(number, stream, &contents).await);
        });
    }
}

async fn connection(number: u64, stream: TcpStream, contents: &Mutex<RegistryContents>) -> io::Result<()> {
    let mut connection = MockConnection::new(number, stream)?;
    while let Some(request) = connection.request().await? {
        let RegistryAnswer { status, head, body } = answer(&mut lock(contents), &request);
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{head}\r\n");
        connection.write(head.as_bytes()).await?;
        if request.method != "HEAD" {
            connection.write(&body).await?;
        }
        if !request.keep_alive {
            break;
        }
    }
    Ok(())
}

fn lock(contents: &Mutex<RegistryContents>) -> MutexGuard<'_, RegistryContents> {
    contents.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(contents: &mut RegistryContents, request: &HttpRequest) -> RegistryAnswer {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let path = path.trim_start_matches("/v2/");
    let plain = |status| RegistryAnswer { status, head: String::new(), body: Vec::new() };
    if let Some((repository, number)) = path.split_once("/blobs/uploads/") {
        return upload(contents, request, repository, number, query);
    }
    match (request.method.as_str(), contents.there.get(path)) {
        ("PUT", _) => {
            contents.there.insert(path.to_owned(), request.body.clone());
            plain("201 Created")
        }
        ("GET" | "HEAD", _) if path.is_empty() => plain("200 OK"),
        ("GET" | "HEAD", Some(body)) => {
            let head = format!("content-type: {}\r\n", media_type(body));
            RegistryAnswer { status: "200 OK", head, body: body.clone() }
        }
        ("GET" | "HEAD", None) => plain("404 Not Found"),
        _other => plain("405 Method Not Allowed"),
    }
}

fn upload(
    contents: &mut RegistryContents,
    request: &HttpRequest,
    repository: &str,
    number: &str,
    query: &str,
) -> RegistryAnswer {
    let number = number.parse().unwrap_or_else(|_| {
        contents.uploads.push(Vec::new());
        contents.uploads.len() - 1
    });
    let Some(sent) = contents.uploads.get_mut(number) else {
        return RegistryAnswer { status: "404 Not Found", head: String::new(), body: Vec::new() };
    };
    sent.extend_from_slice(&request.body);
    let last = sent.len().saturating_sub(1);
    let head = format!("location: /v2/{repository}/blobs/uploads/{number}\r\nrange: 0-{last}\r\n");
    if request.method != "PUT" {
        return RegistryAnswer { status: "202 Accepted", head, body: Vec::new() };
    }
    let digest = query.split('&').find_map(|pair| pair.strip_prefix("digest=")).unwrap_or_default();
    let digest = digest.replace("%3A", ":").replace("%3a", ":");
    let whole = std::mem::take(sent);
    contents.there.insert(format!("{repository}/blobs/{digest}"), whole);
    RegistryAnswer { status: "201 Created", head, body: Vec::new() }
}

/// The media type that a manifest contains; for other contents it does not matter.
fn media_type(body: &[u8]) -> String {
    let said: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let said = said.and_then(|said| Some(said.get("mediaType")?.as_str()?.to_owned()));
    said.unwrap_or_else(|| "application/octet-stream".to_owned())
}
