//! TLS: the daemon shows a certificate, clients verify it before they send anything, and a peer without a token gains
//! nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use lodge_proto::client::{Client, ClientError, Login, Target, Unverified};
use lodge_proto::tls::TlsError;
use lodge_proto::{post, transfer};
use lodge_testkit::lodge::{PATIENCE, http, rpc, until};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, told};

/// The names under which the daemon of these tests is dialled.
const NAMES: &str = "DNS:localhost,IP:127.0.0.1,DNS:box.test";
const VALID: (&str, &str) = ("20200101000000Z", "21200101000000Z");
const OVER: (&str, &str) = ("20200101000000Z", "20200201000000Z");

/// Who issues certificates.
struct Authority {
    dir: PathBuf,
}

impl Authority {
    /// Two of the same name have different keys.
    fn new(dir: PathBuf, name: &str) -> Authority {
        fs::create_dir(&dir).expect("a directory");
        let config = format!(
            "[ca]\ndefault_ca = it\n[it]\ndatabase = {0}/index\nnew_certs_dir = {0}\nrand_serial = yes\npolicy = names\ncopy_extensions = \
             copy\n[names]\ncommonName = supplied\n",
            dir.display()
        );
        fs::write(dir.join("config"), config).expect("a file");
        fs::write(dir.join("index"), "").expect("a file");
        fs::write(dir.join("index.attr"), "unique_subject = no\n").expect("a file");
        let authority = Authority { dir };
        authority.openssl(&format!("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem -days 30 -subj /CN={name}"));
        authority
    }

    fn openssl(&self, args: &str) {
        let mut command = Command::new("openssl");
        command.args(args.split_whitespace()).current_dir(&self.dir).stdin(Stdio::null());
        let (code, _, err) = told(&command.output().expect("openssl runs"));
        assert_eq!(code, 0, "openssl {args}: {err}");
    }

    fn file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Writes `cert.pem` and `key.pem` for these names.
    fn issue(&self, to: &Path, names: &str, (from, until): (&str, &str)) -> (PathBuf, PathBuf) {
        fs::create_dir_all(to).expect("a directory");
        let (cert, key) = (to.join("cert.pem"), to.join("key.pem"));
        self.openssl(&format!(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout new.key -out new.csr -subj /CN=daemon \
             -addext subjectAltName={names}"
        ));
        self.openssl(&format!(
            "ca -batch -notext -config config -in new.csr -out new.pem -cert ca.pem -keyfile ca.key -md sha256 \
             -startdate {from} -enddate {until}"
        ));
        fs::set_permissions(self.dir.join("new.key"), fs::Permissions::from_mode(0o600)).expect("a mode");
        fs::rename(self.dir.join("new.pem"), &cert).expect("a file");
        fs::rename(self.dir.join("new.key"), &key).expect("a file");
        (cert, key)
    }
}

/// A daemon that is about to start with a certificate for these names.
fn with_certificate(names: &str, valid: (&str, &str)) -> (ApiWorld, Authority) {
    let mut world = ApiWorld::asleep();
    let authority = Authority::new(world.lodge.dir().join("authority"), "ours");
    authority.issue(&world.lodge.dir().join("tls"), names, valid);
    for (setting, file) in [("LODGED_TLS_CERT", "tls/cert.pem"), ("LODGED_TLS_KEY", "tls/key.pem")] {
        let path = world.lodge.dir().join(file).display().to_string();
        world.lodge.set_env(setting, &path);
    }
    (world, authority)
}

fn started() -> (ApiWorld, Authority) {
    let (mut world, authority) = with_certificate(NAMES, VALID);
    world.lodge.start();
    (world, authority)
}

/// `host:port` of a listener that speaks TLS.
fn addr(world: &ApiWorld) -> String {
    let known = world.lodge.credentials().expect("credentials");
    known["http"].as_str().and_then(|url| url.strip_prefix("https://")).expect("an https address").to_owned()
}

fn login(world: &ApiWorld, authority: &Authority) -> Login {
    Login::new(world.lodge.token()).trusting(Some(authority.file()))
}

/// What `lodge` says with this address.
fn lodge_at(world: &ApiWorld, url: &str, ca_file: Option<&Path>, args: &[&str]) -> (i32, String, String) {
    let mut command = world.lodge.cli_command(["--daemon", url].iter().chain(args));
    command.envs(ca_file.map(|file| ("LODGE_CA_FILE", file)));
    told(&command.output().expect("lodge runs"))
}

fn client_config(authority: &Authority) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file()).expect("a certificate")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(builder.expect("versions").with_root_certificates(roots).with_no_client_auth())
}

/// One request over TLS, by a client that is not ours, and the certificate that it was shown.
fn request(world: &ApiWorld, authority: &Authority, head: &str, body: &[u8]) -> (String, Vec<u8>) {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(client_config(authority), name).expect("a client");
    let stream = TcpStream::connect(addr(world)).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut stream = StreamOwned::new(connection, stream);
    let length = body.len();
    write!(stream, "{head}connection: close\r\ncontent-length: {length}\r\n\r\n").expect("a head");
    stream.write_all(body).expect("a body");
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).expect("an answer, and a proper end");
    let shown = stream.conn.peer_certificates().expect("certificates")[0].to_vec();
    (String::from_utf8_lossy(&heard).into_owned(), shown)
}

fn unverified(connected: Result<Client, ClientError>) -> Unverified {
    match connected {
        Err(ClientError::Unverified { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_daemon_with_a_certificate_is_reached_on_every_way() {
    let (world, authority) = started();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "ada").await;
    let port = addr(&world).rsplit_once(':').expect("a port").1.to_owned();
    for dialled in [format!("127.0.0.1:{port}"), format!("localhost:{port}")] {
        let (target, login) = (Target::Tls(dialled.clone()), login(&world, &authority));
        let mut client = Client::connect(&target, &login).await.expect("a connection");
        client.call_value("client/attach", json!({"agent": agent})).await.expect("an attachment");
        let asked = json!({"agent": agent, "session": "s", "text": "[[reply:fine]]"});
        client.call_value("turn/send", asked).await.expect("a turn");
        let event = client.next().await.expect("an event");
        assert_eq!(event.method, "event");
        post::post(&target, &login, "agent/list", json!({})).await.expect("a list");
        match transfer::get(&target, &login, "/v1/images/export?image=none").await {
            Err(ClientError::Refused(body)) => assert_eq!(body.data.code, "image.not_found"),
            other => panic!("{other:?}"),
        }
        let url = format!("https://{dialled}");
        let (code, out, err) = lodge_at(&world, &url, Some(&authority.file()), &["-q", "ps"]);
        assert_eq!((code, out.trim(), err.as_str()), (0, agent.as_str(), ""));
        let (code, out, err) =
            lodge_at(&world, &url, Some(&authority.file()), &["prompt", "ada", "[[reply:over tls]]"]);
        assert_eq!((code, out.trim()), (0, "over tls"), "{err}");
    }
    let bearer = format!("authorization: Bearer {}\r\n", world.lodge.token());
    let call = rpc("info", &json!({}));
    for (line, headers, body, status) in [
        ("GET /healthz", "host: localhost\r\n".to_owned(), &b""[..], "200"),
        // A name in the certificate is the daemon's own; any other has to be listed.
        ("GET /healthz", "host: box.test:1\r\norigin: https://box.test:1\r\n".to_owned(), b"", "200"),
        ("GET /healthz", "host: evil.test\r\n".to_owned(), b"", "403"),
        ("GET /healthz", "host: box.test\r\norigin: https://evil.test\r\n".to_owned(), b"", "403"),
        ("GET /v2/", format!("host: localhost\r\n{bearer}"), b"", "200"),
        ("GET /v2/", "host: localhost\r\n".to_owned(), b"", "401"),
        ("GET /v1/events", "host: localhost\r\n".to_owned(), b"", "401"),
        (
            "POST /v1/rpc",
            format!("host: localhost\r\ncontent-type: application/json\r\n{bearer}"),
            &call,
            "200",
        ),
        ("POST /v1/rpc", "host: localhost\r\ncontent-type: application/json\r\n".to_owned(), &call, "401"),
    ] {
        let (heard, _) = request(&world, &authority, &format!("{line} HTTP/1.1\r\n{headers}"), body);
        assert!(heard.starts_with(&format!("HTTP/1.1 {status}")), "{line} {headers}: {heard}");
    }
    let info = api.ok("info", json!({})).await;
    assert_eq!(
        (&info["http"]["state"], &info["http"]["url"], &info["http_addr"]),
        (&json!("listening"), &json!(format!("https://{}", addr(&world))), &json!(addr(&world)))
    );
    assert!(info["http"]["certificate"].as_str().is_some_and(|print| print.starts_with("sha256:")), "{info}");
    assert_eq!(info["config"]["tls-cert"]["source"], "env");
    assert!(world.lodge.cli_ok(["info"]).contains(&format!("https://{}", addr(&world))));
}

/// Passes connections on to another address, as a tunnel does.
fn forward(to: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let here = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&to) else { return };
            for (mut from, mut to) in [
                (near.try_clone().expect("a stream"), far.try_clone().expect("a stream")),
                (far.try_clone().expect("a stream"), near.try_clone().expect("a stream")),
            ] {
                std::thread::spawn(move || {
                    drop(std::io::copy(&mut from, &mut to));
                    drop(to.shutdown(Shutdown::Write));
                });
            }
        }
    });
    here
}

#[tokio::test]
async fn behind_a_forwarded_port_the_certificate_is_enough_and_a_configured_address_still_counts() {
    let (world, authority) = started();
    let tunnel = Target::Tls(forward(addr(&world)));
    let login = login(&world, &authority);
    let mut client = Client::connect(&tunnel, &login).await.expect("a connection");
    client.call_value("info", json!({})).await.expect("an answer");
    let real = addr(&world).parse().ok();
    Client::connect(&tunnel, login.clone().listening_at(real)).await.expect("a connection");
    let elsewhere = "127.0.0.1:1".parse().ok();
    let why = unverified(Client::connect(&tunnel, login.listening_at(elsewhere)).await);
    assert!(matches!(why, Unverified::OtherAddress { .. }), "{why:?}");
}

/// A foreign server with a certificate: it answers everything with `{}`, and records what it reads.
fn impostor(cert: &Path, key: &Path) -> (String, Arc<Mutex<Vec<u8>>>) {
    let chain = vec![CertificateDer::from_pem_file(cert).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(key).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config =
        builder.expect("versions").with_no_client_auth().with_single_cert(chain, key).expect("a server");
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").expect("a port"));
    let here = listener.local_addr().expect("an address").to_string();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let all = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(config.clone()).expect("a server");
            let mut stream = StreamOwned::new(connection, stream);
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = stream.read(&mut piece) {
                all.lock().expect("a log").extend_from_slice(&piece[..read]);
                drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"));
            }
        }
    });
    (here, heard)
}

#[tokio::test]
async fn no_token_is_sent_without_a_certificate_that_is_right_nor_to_another_server_that_has_one() {
    let (world, authority) = started();
    let dir = world.lodge.dir();
    let (stranger, twin) =
        (Authority::new(dir.join("stranger"), "stranger"), Authority::new(dir.join("twin"), "ours"));
    let login = login(&world, &authority);
    let servers = [
        (authority.issue(&dir.join("a"), "DNS:other.test", VALID), "is not for", "subjectAltName"),
        (authority.issue(&dir.join("b"), NAMES, OVER), "has expired", "lodge reload"),
        (stranger.issue(&dir.join("c"), NAMES, VALID), "authority that is not trusted here", "LODGE_CA_FILE"),
        (twin.issue(&dir.join("e"), NAMES, VALID), "not signed with the key", "LODGE_CA_FILE"),
        // A certificate of an authority is not one of a server.
        ((authority.file(), authority.dir.join("ca.key")), "is not valid", "CA:FALSE"),
        (authority.issue(&dir.join("d"), NAMES, VALID), "did not prove", "another program"),
    ];
    for ((cert, key), because, hint) in servers {
        let (at, heard) = impostor(&cert, &key);
        let target = Target::Tls(at.clone());
        let why = unverified(Client::connect(&target, &login).await);
        assert!(why.to_string().contains(because), "{because}: {why}");
        assert!(post::post(&target, &login, "info", json!({})).await.is_err());
        assert!(transfer::get(&target, &login, "/v1/images/export?image=x").await.is_err());
        let (code, _, err) = lodge_at(&world, &format!("https://{at}"), Some(&authority.file()), &["ps"]);
        assert!(code == 1 && err.contains(because) && err.contains("hint: ") && err.contains(hint), "{err}");
        let heard = String::from_utf8_lossy(&heard.lock().expect("a log")).into_owned();
        assert!(
            !heard.to_lowercase().contains("authorization") && !heard.contains("eyJ"),
            "{because}: {heard}"
        );
        assert_eq!(heard.contains("GET /v1/proof/"), because == "did not prove", "{because}: {heard}");
    }
    // Without a file of authorities those of the system count, which do not know ours.
    let (code, _, err) = lodge_at(&world, &format!("https://{}", addr(&world)), None, &["ps"]);
    assert!(code == 1 && err.contains("token was not sent") && err.contains("set LODGE_CA_FILE"), "{err}");
    let missing = dir.join("missing.pem");
    let (code, _, err) = lodge_at(&world, &format!("https://{}", addr(&world)), Some(&missing), &["ps"]);
    assert!(code == 1 && err.contains("missing.pem") && err.contains("LODGE_CA_FILE"), "{err}");
}

#[tokio::test]
async fn tls_and_plain_http_that_meet_report_each_other() {
    let (world, authority) = started();
    let url = format!("http://{}", addr(&world));
    let (code, _, err) = lodge_at(&world, &url, None, &["ps"]);
    assert!(code == 1 && err.contains("speaks TLS") && err.contains("https://"), "{code} {err}");
    let (status, body) = http(&addr(&world), "POST", "/v1/rpc", &[], &[b'x'; 300_000]).expect("an answer");
    let error = serde_json::from_str::<Value>(&body).expect("JSON")["error"].clone();
    assert_eq!((status, error["data"]["code"].as_str()), (400, Some("daemon.tls_required")));
    world.checked().await.schemas.error(&error);
    let plain = ApiWorld::new();
    let target = Target::Tls(plain.lodge.http_addr());
    let login = Login::new(plain.lodge.token()).trusting(Some(authority.file()));
    assert_eq!(unverified(Client::connect(&target, &login).await), Unverified::Tls(TlsError::NotTls));
    let url = format!("https://{}", plain.lodge.http_addr());
    let (code, _, err) = lodge_at(&plain, &url, Some(&authority.file()), &["ps"]);
    assert!(code == 1 && err.contains("does not speak TLS") && err.contains("`http://`"), "{code} {err}");
}

/// What `info` says of the certificate.
async fn warnings(api: &mut CheckedClient) -> Vec<String> {
    let info = api.ok("info", json!({})).await;
    let all = info["warnings"].as_array().expect("a list").iter().filter_map(Value::as_str);
    all.filter(|warning| warning.starts_with("tls-cert: ")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_certificate_that_every_client_refuses_is_reported_when_it_is_loaded() {
    let (mut world, authority) = with_certificate(NAMES, OVER);
    world.lodge.start();
    let tls = world.lodge.dir().join("tls");
    let file = tls.join("cert.pem").display().to_string();
    let mut api = world.checked().await;
    let told = |why: &str| format!("tls-cert: clients refuse {file}: {why}");
    let found = warnings(&mut api).await;
    assert!(
        found.len() == 1 && found[0].starts_with(&told("its certificate has expired (renew")),
        "{found:?}"
    );
    assert!(world.lodge.cli_ok(["info"]).contains("its certificate has expired"));
    assert!(world.lodge.log().contains("tls.certificate_refused"), "{}", world.lodge.log());
    // It is served all the same, and what replaces it is looked at, too.
    assert_eq!(http_state(&mut api).await["state"], "listening");
    authority.issue(&tls, NAMES, ("21000101000000Z", "21200101000000Z"));
    api.ok("daemon/reload", json!({})).await;
    let found = warnings(&mut api).await;
    assert!(found.len() == 1 && found[0].starts_with(&told("its certificate is not valid yet")), "{found:?}");
    // An authority's own, which has no names either.
    for (from, to) in [("ca.pem", "cert.pem"), ("ca.key", "key.pem")] {
        fs::copy(authority.dir.join(from), tls.join(to)).expect("a copy");
    }
    api.ok("daemon/reload", json!({})).await;
    let found = warnings(&mut api).await;
    let expected = [
        "its certificate is not valid: it is an authority's own (CA:TRUE)",
        "its certificate has no subjectAltName",
    ];
    assert_eq!(found.len(), 2, "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(&told(expected)) && found.contains("CA:FALSE"), "{found}");
    }
    authority.issue(&tls, NAMES, VALID);
    api.ok("daemon/reload", json!({})).await;
    assert_eq!(warnings(&mut api).await, [""; 0]);
}

async fn http_state(api: &mut CheckedClient) -> Value {
    api.ok("info", json!({})).await["http"].clone()
}

#[tokio::test]
async fn files_that_cannot_be_used_leave_the_unix_socket_served_and_count_when_they_are_fixed() {
    let (mut world, authority) = with_certificate(NAMES, VALID);
    let (cert, key) = (world.lodge.dir().join("tls/cert.pem"), world.lodge.dir().join("tls/key.pem"));
    let other = authority.issue(&world.lodge.dir().join("other"), NAMES, VALID);
    let put = |path: &Path, bytes: &[u8], mode: u32| {
        fs::write(path, bytes).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    let (good_cert, good_key) = (fs::read(&cert).expect("a file"), fs::read(&key).expect("a file"));
    let other_key = fs::read(other.1).expect("a file");
    let nothing = &b"nothing"[..];
    let (cert_bytes, key_bytes) = (&good_cert[..], &good_key[..]);
    let mistakes = [
        (cert_bytes, key_bytes, 0o644, "others can read the private key", "chmod 600"),
        (cert_bytes, key_bytes, 0o660, "others can read the private key", "chmod 600"),
        (nothing, key_bytes, 0o600, "there is no certificate", "BEGIN CERTIFICATE"),
        (cert_bytes, nothing, 0o600, "there is no private key", "without a passphrase"),
        (cert_bytes, &other_key[..], 0o600, "cannot be used", "the key belongs to"),
    ];
    for (cert_bytes, key_bytes, mode, reason, hint) in mistakes {
        put(&cert, cert_bytes, 0o644);
        put(&key, key_bytes, mode);
        world.lodge.start();
        let mut api = world.checked().await;
        let info = api.ok("info", json!({})).await;
        assert_eq!((&info["http"]["state"], &info["http_addr"]), (&json!("no_certificate"), &Value::Null));
        assert!(info["http"]["reason"].as_str().is_some_and(|told| told.contains(reason)), "{info}");
        let warnings = info["warnings"].to_string();
        assert!(warnings.contains(hint) && warnings.contains("lodge reload"), "{warnings}");
        assert_eq!(world.lodge.credentials().expect("credentials")["http"], Value::Null);
        let error = api.refused("daemon/reload", json!({}), "config.invalid").await;
        assert!(error["message"].as_str().is_some_and(|told| told.contains(reason)), "{error}");
        // Fixed, it is taken without a restart.
        put(&cert, &good_cert, 0o644);
        put(&key, &good_key, 0o600);
        let reloaded = api.ok("daemon/reload", json!({})).await;
        assert_eq!(
            (&reloaded["changed"][0]["key"], &reloaded["changed"][0]["from"]),
            (&json!("tls-cert"), &Value::Null)
        );
        let known = until("the address is written", || {
            let known = world.lodge.credentials().ok()?;
            known["http"].as_str().map(str::to_owned)
        });
        assert_eq!(http_state(&mut api).await["url"], json!(known));
        Client::connect(&Target::Tls(addr(&world)), login(&world, &authority)).await.expect("a connection");
        world.lodge.kill9();
    }
    world.lodge.unset_env("LODGED_TLS_KEY");
    world.lodge.start();
    let mut api = world.checked().await;
    let http = http_state(&mut api).await;
    assert_eq!(
        (&http["state"], &http["reason"]),
        (&json!("no_certificate"), &json!("tls-cert is set and tls-key is not"))
    );
}

#[tokio::test]
async fn a_renewed_certificate_is_taken_at_a_reload_and_open_connections_stay() {
    let (world, authority) = started();
    let target = Target::Tls(addr(&world));
    let mut before = Client::connect(&target, login(&world, &authority)).await.expect("a connection");
    let healthz = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n";
    let (_, old) = request(&world, &authority, healthz, b"");
    let mut api = world.checked().await;
    let tls = world.lodge.dir().join("tls");
    assert_eq!(api.ok("daemon/reload", json!({})).await["changed"], json!([]), "it is the same");
    authority.issue(&tls, NAMES, VALID);
    assert_eq!(request(&world, &authority, healthz, b"").1, old, "files are read at a reload");
    let was = http_state(&mut api).await["certificate"].clone();
    let reloaded = api.ok("daemon/reload", json!({})).await;
    let is = http_state(&mut api).await["certificate"].clone();
    assert_eq!(reloaded["changed"], json!([{"key": "tls-cert", "from": was, "to": is}]));
    assert_ne!(was, is);
    let (_, new) = request(&world, &authority, healthz, b"");
    assert_ne!(new, old);
    before.call_value("info", json!({})).await.expect("who was there stays");
    // What cannot be used changes nothing.
    fs::write(tls.join("cert.pem"), "nothing").expect("a file");
    api.refused("daemon/reload", json!({}), "config.invalid").await;
    assert_eq!(request(&world, &authority, healthz, b"").1, new);
    before.call_value("info", json!({})).await.expect("who was there stays");
    let mut after = Client::connect(&target, login(&world, &authority)).await.expect("a connection");
    after.call_value("info", json!({})).await.expect("an answer");
}

/// The beginning of a handshake that never continues: a record of 512 bytes is announced.
const HALF_A_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01";

#[tokio::test]
async fn handshakes_that_never_end_take_the_places_of_nobody_with_a_token_and_are_ended() {
    const CROWD: usize = 700;
    let (world, authority) = started();
    let (target, login) = (Target::Tls(addr(&world)), login(&world, &authority));
    let mut early = Client::connect(&target, &login).await.expect("a connection");
    let connect = |sent: &[u8]| {
        let mut stream = TcpStream::connect(addr(&world)).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(sent).expect("some bytes");
        stream
    };
    let crowd: Vec<TcpStream> = (0..CROWD).map(|at| connect(&HALF_A_HELLO[..at % 7])).collect();
    early.call_value("info", json!({})).await.expect("who was there first is served");
    let mut late = Client::connect(&target, &login).await.expect("there is room");
    late.call_value("info", json!({})).await.expect("an answer");
    drop(crowd);
    for (sent, mut stream) in [&b""[..], HALF_A_HELLO, b"GET "].map(|sent| (sent, connect(sent))) {
        let mut heard = Vec::new();
        // One that is closed over unread bytes is reset, and one that is never closed is not.
        if let Err(error) = stream.read_to_end(&mut heard) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{sent:?}");
        }
        assert_eq!(heard.starts_with(b"HTTP/1.1 400"), sent == b"GET ", "{heard:?}");
    }
    early.call_value("info", json!({})).await.expect("who has a token stays");
}
