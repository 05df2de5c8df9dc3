//! nginx as a plain proxy: the baseline of the comparison.

use crate::Error;
use crate::client::Request;
use crate::directory::Directory;

use super::process::{Process, command, free_address};
use super::server::{ORDERS, Server};

/// Starts it with its own configuration, in its own directory.
pub(super) async fn start(upstream: &str) -> Result<Server, Error> {
    let (directory, address) = (Directory::temporary()?, free_address()?);
    let workers = std::thread::available_parallelism()?.to_string();
    let path = directory
        .path()
        .to_str()
        .ok_or("the path for temporary files is not text")?;
    let values = [
        ("{directory}", path),
        ("{workers}", &workers),
        ("{upstream}", upstream),
        ("{address}", &address),
    ];
    let configuration = values.iter().fold(
        include_str!("nginx.conf").to_owned(),
        |text, (name, value)| text.replace(name, value),
    );
    std::fs::write(directory.file("nginx.conf"), configuration)?;
    let mut nginx = command("nginx")?;
    nginx
        .arg("-e")
        .arg("stderr")
        .arg("-p")
        .arg(directory.path())
        .arg("-c")
        .arg(directory.file("nginx.conf"));
    let mut process = Process::start("nginx", nginx, directory.path())?;
    process.ready(&address).await?;
    Ok(Server {
        process,
        service: None,
        address,
        order: Request::order(ORDERS, 201),
        without_key: Request::order_without_key(ORDERS, 201),
        _directory: Some(directory),
    })
}
