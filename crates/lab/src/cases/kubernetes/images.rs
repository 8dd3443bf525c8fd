//! Container images in the guest, made of its own programs. Does not: define pods.

use anyhow::Result;

use super::cluster::LIMIT;
use crate::case::{Ctx, Outcome};

/// Makes an image from a root directory: `image NAME ENTRYPOINT ROOT`.
const IMAGE: &str = r#"
image() {
    local work
    work=$(mktemp -d)
    cd "$work"
    tar -C "$3" -cf layer.tar .
    sum=$(sha256sum layer.tar | cut -d' ' -f1)
    echo '{"architecture":"amd64","os":"linux","config":{"Entrypoint":'"$2"'},"rootfs":{"type":"layers","diff_ids":["sha256:'$sum'"]}}' >config.json
    echo '[{"Config":"config.json","RepoTags":["'"$1"'"],"Layers":["layer.tar"]}]' >manifest.json
    tar -cf - manifest.json config.json layer.tar | ctr -n k8s.io images import -
    cd /
    rm -r "$work"
}
"#;

/// Imports the image of a pod's sandbox, `lab/pause:1`, and one with a shell and a few commands: `lab/box:1`, and as tutorials call it.
pub(super) async fn import_box(ctx: &Ctx) -> Result<()> {
    let root = "mkdir -p /tmp/box/bin; cp /usr/bin/busybox /tmp/box/bin/; \
                for n in sh cat sleep sync mv df id stat dd rm mkdir date cmp blockdev; do ln -s busybox /tmp/box/bin/$n; done";
    let images = "image lab/pause:1 '[\"/bin/sleep\", \"1000000\"]' /tmp/box; image lab/box:1 '[\"/bin/sh\", \"-c\"]' /tmp/box; \
                  image docker.io/library/busybox:1.37 '[]' /tmp/box; rm -r /tmp/box";
    ctx.machine.sh_within(&format!("{IMAGE}{root}\n{images}"), LIMIT).await.map(drop)
}

/// Makes the image of a program, with the libraries that it needs, under the name that manifests have; its containers run it with these arguments
/// before their own.
pub(super) async fn import_program(ctx: &Ctx, program: &str, arguments: &[&str], image: &str) -> Result<()> {
    let name = program.rsplit('/').next().unwrap_or(program);
    let entrypoint = serde_json::to_string(&[&[&*format!("/usr/bin/{name}")], arguments].concat())?;
    // Programs in Go need no library.
    let import = format!(
        "{IMAGE}mkdir -p /tmp/root/usr/bin; cp {program} /tmp/root/usr/bin/; \
         for library in $(ldd {program} 2> /dev/null | grep -o '/[^ ]*' || true); do cp -L --parents -t /tmp/root $library; done; \
         image {image} '{entrypoint}' /tmp/root; rm -r /tmp/root"
    );
    ctx.machine.sh_within(&import, LIMIT).await.map(drop)
}

/// Makes the image of the driver, as its Dockerfile does.
pub(super) async fn import_driver(ctx: &Ctx, image: &str) -> Result<()> {
    import_program(ctx, &ctx.program("bulkhead"), &["csi"], image).await
}

/// Packages of PostgreSQL and its client.
pub(super) const POSTGRES: [&str; 3] = ["postgresql-17", "postgresql-client-17", "libpq5"];

/// Makes the image `lab/postgres:17`: a shell that finds PostgreSQL's programs, without those of its extensions that need more.
const IMPORT_POSTGRES: &str = r#"
root=/tmp/root
programs=usr/lib/postgresql/17
mkdir -p $root/{bin,etc,tmp,$programs/bin,$programs/lib,usr/share/zoneinfo,lib/x86_64-linux-gnu}
cp /usr/bin/busybox $root/bin/
for n in sh sleep rm mv; do ln -s busybox $root/bin/$n; done
cp /opt/postgresql-17/$programs/bin/{postgres,initdb,pgbench} /opt/postgresql-client-17/$programs/bin/{psql,pg_isready} $root/$programs/bin/
cp /opt/postgresql-17/$programs/lib/{plpgsql,dict_snowball}.so $root/$programs/lib/
cp -r /opt/postgresql-17/usr/share/postgresql $root/usr/share/
cp -rL /usr/share/zoneinfo/Etc $root/usr/share/zoneinfo/
cp -L /opt/libpq5/usr/lib/x86_64-linux-gnu/libpq.so.5 $root/lib/x86_64-linux-gnu/
export LD_LIBRARY_PATH=$root/lib/x86_64-linux-gnu
for n in $root/$programs/bin/*; do ldd $n; done | grep -o '/[^ ]*' | grep -v '^/tmp/' | sort -u | xargs cp -L --parents -t $root
unset LD_LIBRARY_PATH
for n in $root/$programs/bin/*; do ln -s /$programs/bin/${n##*/} $root/bin/; done
echo 'postgres:x:999:999::/:/bin/sh' >$root/etc/passwd
image lab/postgres:17 '["/bin/sh", "-c"]' $root
rm -r $root
"#;

/// Imports the image `lab/postgres:17`; the reason for a skip if a package of it is not available.
pub(super) async fn import_postgres(ctx: &Ctx) -> Result<std::result::Result<(), Outcome>> {
    for name in POSTGRES {
        if let Err(error) = ctx.lab.package(name).await {
            return Ok(Err(Outcome::Skipped(format!("Debian's {name} is not available: {error:#}"))));
        }
    }
    ctx.machine.sh_within(&format!("{IMAGE}{IMPORT_POSTGRES}"), LIMIT).await?;
    Ok(Ok(()))
}
