//! Files that are whole or not there.

use super::Image;
use crate::error::MediaError;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Reads a picture file.
///
/// # Errors
/// If it cannot be read or is no PNG, JPEG or WebP picture.
pub fn read(path: &Path) -> Result<Image, MediaError> {
    let bytes = fs::read(path).map_err(|e| io_error(path, e))?;
    Image::from_bytes(&bytes, &path.display().to_string())
}

/// Writes a file at once: into a new file of the same folder, then renamed over `path`, so that no half file is ever seen.
///
/// # Errors
/// If the folder is not there or cannot be written; nothing is left behind then.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), MediaError> {
    write_with(path, |file| file.write_all(bytes).map_err(|e| io_error(path, e)))
}

/// As [`write()`], for contents that `fill` makes piece by piece.
///
/// # Errors
/// As [`write()`], or if `fill` fails; nothing is left behind then.
pub fn write_with<E: From<MediaError>>(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let fail = |e| E::from(io_error(path, e));
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Err(fail(io::ErrorKind::IsADirectory.into())),
        // Renaming would replace a device such as /dev/null.
        Ok(found) if !found.is_file() => {
            let mut file = fs::OpenOptions::new().write(true).open(path).map_err(fail)?;
            return fill(&mut file);
        }
        _ => {}
    }
    // Follows a link, so that it stays one.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut file = io::BufWriter::new(temporary(&target).map_err(fail)?);
    fill(&mut file)?;
    let file = file.into_inner().map_err(|e| fail(e.into_error()))?;
    file.persist(&target).map_err(|e| fail(e.error))?;
    Ok(())
}

/// Finds out whether [`write()`] would work, before hours of work depend on it. Leaves no trace.
///
/// # Errors
/// As [`write()`].
pub fn check_writable(path: &Path) -> Result<(), MediaError> {
    let fail = |e| io_error(path, e);
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(fail(io::ErrorKind::IsADirectory.into())),
        Ok(found) if !found.is_file() => Ok(()),
        _ => temporary(&fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()))
            .map(drop)
            .map_err(fail),
    }
}

fn temporary(target: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = match target.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => return Err(io::ErrorKind::IsADirectory.into()),
    };
    if target.file_name().is_none() {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    // Said of the folder, in the system's words; what follows would name the temporary file.
    if !fs::metadata(folder)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".rotile-").suffix(".part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // What any new file gets: the umask takes its share.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder).map_err(|e| e.kind().into())
}

fn io_error(path: &Path, source: io::Error) -> MediaError {
    MediaError::Io {
        file: path.display().to_string(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(folder: &Path) -> Vec<String> {
        let name = |e: io::Result<fs::DirEntry>| e.expect("an entry").file_name().to_string_lossy().into_owned();
        fs::read_dir(folder).expect("the folder").map(name).collect()
    }

    #[test]
    fn writes_whole_files_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.png");
        check_writable(&path).expect("writable");
        assert!(entries(folder.path()).is_empty());
        write(&path, b"one").expect("written");
        write(&path, b"two").expect("written over");
        assert_eq!(fs::read(&path).expect("the file"), b"two");
        assert_eq!(entries(folder.path()), ["a.png"]);
    }

    #[test]
    fn says_what_cannot_be_written() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in [
            folder.path().to_owned(),
            folder.path().join("no/a.png"),
            folder.path().join(".."),
        ] {
            let error = check_writable(&path).expect_err("not writable");
            assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
            assert!(write(&path, b"x").is_err());
        }
        assert!(entries(folder.path()).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn devices_and_links_stay_what_they_are() {
        use std::os::unix::fs::FileTypeExt;
        let null = Path::new("/dev/null");
        check_writable(null).expect("writable");
        write(null, b"x").expect("swallowed");
        assert!(fs::metadata(null).expect("still there").file_type().is_char_device());
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file.png"), folder.path().join("link.png"));
        fs::write(&file, b"old").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        write(&link, b"new").expect("written");
        assert_eq!(fs::read(&file).expect("the file"), b"new");
        assert!(fs::symlink_metadata(&link).expect("the link").is_symlink());
    }
}
