//! The file set of one load: every file is read once, kept in memory, and hashed, so that the bytes that are
//! checked are the bytes that are used.
//!
//! Invariants: nothing outside the config directory is read (symbolic links are followed only within it); one file
//! and the whole set are bounded; file contents are overwritten when dropped, because some of them are keys.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{fs, io};

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::finding::{Findings, Problem};

const FILE_BYTES_MAX: u64 = 4 << 20;
const ALL_BYTES_MAX: u64 = 512 << 20;
const SERVICES_MAX: usize = 10_000;

pub(crate) const SINGLE_FILE: &str = "shard.yaml";
pub(crate) const SERVICE_FILE: &str = "service.yaml";

pub(crate) type Contents = Rc<Zeroizing<Vec<u8>>>;

/// What a YAML file of the set describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Platform,
    /// Of the service with this name.
    Service(String),
    Single,
}

enum Source {
    Directory(PathBuf),
    Memory(BTreeMap<String, Vec<u8>>),
}

pub(crate) struct Files {
    source: Source,
    /// Read so far, by path relative to the root.
    read: BTreeMap<String, Contents>,
    bytes: u64,
}

impl Files {
    pub(crate) fn of_directory(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        // An early listing tells a file or an unreadable directory from an empty one.
        fs::read_dir(&root)?;
        Ok(Self::new(Source::Directory(root)))
    }

    pub(crate) fn of_memory(files: BTreeMap<String, Vec<u8>>) -> Self {
        Self::new(Source::Memory(files))
    }

    fn new(source: Source) -> Self {
        Self { source, read: BTreeMap::new(), bytes: 0 }
    }

    /// The YAML files by role, in a stable order.
    pub(crate) fn documents(&self, findings: &mut Findings) -> Vec<(String, Role)> {
        let single = self.exists(SINGLE_FILE);
        let mut documents = Vec::new();
        for name in self.list("platform") {
            if name.ends_with(".yaml") || name.ends_with(".yml") {
                documents.push((format!("platform/{name}"), Role::Platform));
            }
        }
        let services = self.list("services");
        if services.len() > SERVICES_MAX {
            let problem = Problem::new(format!("more than {SERVICES_MAX} services"), "split the fleet");
            findings.error_in("services", problem);
            return documents;
        }
        for service in services {
            let path = format!("services/{service}/{SERVICE_FILE}");
            if self.exists(&path) {
                documents.push((path, Role::Service(service)));
            } else if self.is_directory(&format!("services/{service}")) {
                let problem = Problem::new(
                    format!("the service has no {SERVICE_FILE}"),
                    format!("create {path}, or delete the directory"),
                );
                findings.error_in(&format!("services/{service}"), problem);
            }
        }
        match (single, documents.first()) {
            (true, None) => documents.push((SINGLE_FILE.to_owned(), Role::Single)),
            (true, Some((other, _))) => findings.error_in(
                SINGLE_FILE,
                Problem::new(
                    format!("the config is in one file or in directories, and {other} is there too"),
                    format!("move the content of {SINGLE_FILE} to platform/ and services/, or delete those"),
                ),
            ),
            (false, None) => findings.error_in(
                ".",
                Problem::new(
                    "no config here",
                    format!(
                        "create platform/listeners.yaml and services/<name>/{SERVICE_FILE}, or {SINGLE_FILE}"
                    ),
                ),
            ),
            (false, Some(_)) => {}
        }
        documents
    }

    /// The contents of a file, read at most once.
    ///
    /// # Errors
    /// The problem, for the place that names the file.
    pub(crate) fn read(&mut self, path: &str) -> Result<Contents, Problem> {
        let path = path.strip_prefix("./").unwrap_or(path);
        if let Some(contents) = self.read.get(path) {
            return Ok(Rc::clone(contents));
        }
        let bytes = self.read_source(path).map_err(|error| {
            Problem::new(
                format!("the file {path} cannot be read: {error}"),
                "create it, make it readable, or correct the path (relative to the config directory)",
            )
        })?;
        self.bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.bytes > ALL_BYTES_MAX {
            return Err(Problem::new("the config's files have more than 512 MiB", "split the fleet"));
        }
        let contents = Rc::new(bytes);
        self.read.insert(path.to_owned(), Rc::clone(&contents));
        Ok(contents)
    }

    /// Whether users other than the owner's group may read a file (a private key, say).
    pub(crate) fn is_world_readable(&self, path: &str) -> bool {
        use std::os::unix::fs::PermissionsExt;
        match &self.source {
            Source::Directory(root) => {
                fs::metadata(root.join(path)).is_ok_and(|m| m.permissions().mode() & 0o004 != 0)
            }
            Source::Memory(_) => false,
        }
    }

    /// SHA-256 over all files read, in hexadecimal: equal for equal inputs, whatever the order of reading.
    pub(crate) fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for (path, contents) in &self.read {
            // Lengths first, so that no two sets run together.
            hash.update(path.len().to_be_bytes());
            hash.update(path.as_bytes());
            hash.update(contents.len().to_be_bytes());
            hash.update(contents.as_slice());
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn read_source(&self, path: &str) -> io::Result<Zeroizing<Vec<u8>>> {
        match &self.source {
            Source::Directory(root) => read_inside(root, path),
            Source::Memory(files) => match files.get(path) {
                Some(bytes) => Ok(Zeroizing::new(bytes.clone())),
                None => Err(io::Error::from(io::ErrorKind::NotFound)),
            },
        }
    }

    fn exists(&self, path: &str) -> bool {
        match &self.source {
            Source::Directory(root) => root.join(path).is_file(),
            Source::Memory(files) => files.contains_key(path),
        }
    }

    fn is_directory(&self, path: &str) -> bool {
        match &self.source {
            Source::Directory(root) => root.join(path).is_dir(),
            Source::Memory(files) => files.keys().any(|k| k.starts_with(&format!("{path}/"))),
        }
    }

    /// Names of the entries of a directory, sorted; hidden ones are left out.
    fn list(&self, directory: &str) -> Vec<String> {
        let mut names: Vec<String> = match &self.source {
            Source::Directory(root) => match fs::read_dir(root.join(directory)) {
                Ok(entries) => entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect(),
                Err(_) => Vec::new(),
            },
            Source::Memory(files) => files
                .keys()
                .filter_map(|path| path.strip_prefix(directory)?.strip_prefix('/'))
                .filter_map(|rest| rest.split('/').next())
                .map(str::to_owned)
                .collect(),
        };
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names.dedup();
        names
    }
}

fn read_inside(root: &Path, path: &str) -> io::Result<Zeroizing<Vec<u8>>> {
    let resolved = root.join(path).canonicalize()?;
    if !resolved.starts_with(root) {
        return Err(io::Error::other("it lies outside the config directory"));
    }
    let file = fs::File::open(&resolved)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("it is larger than 4 MiB"));
    }
    // The whole size at once: growing would leave copies of a key behind.
    let capacity = usize::try_from(metadata.len()).unwrap_or(0) + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
