//! Files are followed without a call of the program. The test lasts until the second look, some 5 s.
#![forbid(unsafe_code)]

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use verbline_tls::{Identity, Roots, ServerTls};

#[test]
fn files_are_followed_without_a_call() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    let write = |year: i32| {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let pair = KeyPair::generate().unwrap();
        fs::write(&certificate, params.self_signed(&pair).unwrap().pem()).unwrap();
        fs::write(&key, pair.serialize_pem()).unwrap();
    };
    write(2100);
    let identity = Identity::from_files(&certificate, &key).unwrap();
    // It has the same thread.
    let _roots = Roots::from_file(&certificate).unwrap();
    let server = ServerTls::new(identity.clone());
    let (before, config) = (identity.expires(), server.config());
    write(2101);
    let deadline = Instant::now() + Duration::from_secs(60);
    while identity.expires() == before {
        assert!(Instant::now() < deadline, "the files are not followed");
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!std::sync::Arc::ptr_eq(&config, &server.config()));
    assert_eq!(threads(), 1);
}

/// The threads that look at files. A thread's name is cut to 15 bytes there.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names
        .filter(|name| name.starts_with("verbline-tls-fi"))
        .count()
}
