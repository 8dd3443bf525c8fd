//! Import of images as bases, and clones of these.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::host::{PROFILE, cli, json, make_pools, refused, start_daemon, unmake_pools};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[Case {
    name: "image_import",
    about: "a directory, a tar archive, an OCI layout and what `docker save` writes of one tree give the same base, \
            which contains that tree, even after a killed import; its clones are independent volumes; damaged, hostile \
            and oversized sources are refused and leave nothing behind",
    kernels: &[Kernel::V6_12],
    profile: PROFILE,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(image_import(ctx)),
}];

/// Directories of sources, of unfinished imports, and of the pool.
const AT: &str = "/run/filepool/sources";
const STAGING: &str = "/run/filepool/staging";
const POOL: &str = "/run/filepool/pool";

/// Creates a tree with every kind of file and attribute.
const PLANT: &str = r#"
mkdir -p sources/tree/lib staging; cd sources
cp /usr/lib/python3.13/*.py tree/lib/
cd tree
mkdir -p dev deep/er shared closed
mknod dev/null c 1 3; mknod dev/loop b 7 9; mkfifo dev/pipe
cp lib/tarfile.py set-uid; chown 1000:100 set-uid; chmod 6755 set-uid
cp lib/json.py able 2> /dev/null || cp lib/ast.py able; setcap cap_net_raw,cap_setuid+ep able
setfattr -n user.note -v $'two\nlines' deep; setfattr -n user.note -v text lib/ast.py
ln lib/ast.py deep/linked; ln lib/ast.py deep/er/linked; ln -s /nowhere dangling; ln -s lib near
chown -h 70000:70000 dangling; chmod 1777 shared; chmod 0500 closed; : > empty
truncate -s 3M holes; echo end >> holes
printf x > "$(printf 'a name\nof two lines')"
mkdir -p "$(printf 'long/%.0s' $(seq 30))"; printf x > "$(printf 'long/%.0s' $(seq 30))file"
touch -h -d '2001-02-03 04:05:06.7' deep/er/linked dangling deep; touch -d '1969-12-31 23:59:50' empty
cd ..
tar -C tree --xattrs --xattrs-include='*' --format=posix --numeric-owner -czf tree.tar.gz .
gzip -dc tree.tar.gz > tree.tar
"#;

/// Creates an OCI layout of two layers, the upper of which hides the files that only the lower one has.
const LAYOUT: &str = r#"
import hashlib, io, json, os, tarfile, gzip
os.makedirs("layout/blobs/sha256")
def blob(kind, data):
    digest = hashlib.sha256(data).hexdigest()
    open("layout/blobs/sha256/" + digest, "wb").write(data)
    return {"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + digest, "size": len(data)}
def entry(tar, name, data=b""):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
lower = io.BytesIO()
with tarfile.open(fileobj=lower, mode="w") as tar:
    for name in ["old/file", "lib/old.py", "empty", "set-uid/as/directory"]:
        entry(tar, name, b"old")
upper = io.BytesIO(open("tree.tar", "rb").read())
with tarfile.open(fileobj=upper, mode="a") as tar:
    for name in [".wh.old", "lib/.wh..wh..opq"]:
        entry(tar, name)
layers = [blob("layer.v1.tar+gzip", gzip.compress(lower.getvalue(), 1)), blob("layer.v1.tar", upper.getvalue())]
config = blob("config.v1+json", json.dumps({"os": "linux", "architecture": "amd64"}).encode())
manifest = blob("manifest.v1+json", json.dumps({"schemaVersion": 2, "config": config, "layers": layers}).encode())
manifest["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
json.dump({"schemaVersion": 2, "manifests": [manifest]}, open("layout/index.json", "w"))
json.dump({"imageLayoutVersion": "1.0.0"}, open("layout/oci-layout", "w"))
# The same in the format of `docker save`, with a second image.
os.makedirs("saved")
def saved(tag, layers):
    ids = ["sha256:" + hashlib.sha256(data).hexdigest() for data in layers]
    config = json.dumps({"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": ids}}).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    open("saved/" + name, "wb").write(config)
    paths = []
    for id, data in zip(ids, layers):
        directory = hashlib.sha256(id.encode()).hexdigest()
        os.makedirs("saved/" + directory, exist_ok=True)
        open("saved/" + directory + "/VERSION", "w").write("1.0")
        open("saved/" + directory + "/layer.tar", "wb").write(data)
        paths.append(directory + "/layer.tar")
    return {"Config": name, "RepoTags": [tag], "Layers": paths}
images = [saved("other:latest", [lower.getvalue()]), saved("registry.example/app:1.0", [lower.getvalue(), upper.getvalue()])]
json.dump(images, open("saved/manifest.json", "w"))
with tarfile.open("saved.tar.gz", "w:gz", compresslevel=1) as tar:
    tar.add("saved", arcname=".")
"#;

/// Creates damaged and hostile sources.
const SPOIL: &str = r#"
import io, os, shutil, tarfile
whole = open("tree.tar.gz", "rb").read()
open("cut.tar.gz", "wb").write(whole[: len(whole) // 2])
def hostile(path, *infos):
    with tarfile.open(path, "w") as tar:
        for info in infos:
            tar.addfile(info, io.BytesIO(b"x" * info.size))
def info(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return info
hostile("out.tar", info("../../escaped"))
hostile("absolute.tar", info("/run/escaped"))
hostile("behind.tar", info("up", tarfile.SYMTYPE, "/run"), info("up/escaped"))
hostile("loop.tar", info("up", tarfile.SYMTYPE, "up"), info("up/escaped"))
hostile("linked.tar", info("up", tarfile.LNKTYPE, "../../../etc/passwd"))
foreign = info("file")
foreign.pax_headers = {"SCHILY.xattr.com.apple.quarantine": "0081"}
hostile("foreign.tar", foreign)
shutil.copytree("layout", "damaged")
largest = max((os.path.join("damaged/blobs/sha256", name) for name in os.listdir("damaged/blobs/sha256")), key=os.path.getsize)
with open(largest, "r+b") as blob:
    blob.seek(2000)
    byte = blob.read(1)[0]
    blob.seek(2000)
    blob.write(bytes([byte ^ 1]))
"#;

/// Lists everything of a tree that an import must preserve, one line per file.
const LIST: &str = r#"
import hashlib, os, stat, sys
root = os.fsencode(sys.argv[1])
lines = []
for at, directories, files in os.walk(root):
    if b"lost+found" in directories:
        directories.remove(b"lost+found")
    for name in [b"."] + [name for name in directories if os.path.islink(os.path.join(at, name))] + files:
        path = os.path.join(at, name)
        found = os.lstat(path)
        attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)}
        what = ""
        if stat.S_ISLNK(found.st_mode):
            what = os.readlink(path)
        elif stat.S_ISREG(found.st_mode):
            what = hashlib.sha256(open(path, "rb").read()).hexdigest()
        size = 0 if stat.S_ISDIR(found.st_mode) else (found.st_size, found.st_nlink, found.st_rdev)
        lines.append(repr((os.path.relpath(path, root), oct(found.st_mode), found.st_uid, found.st_gid, int(found.st_mtime // 1), size, sorted(attributes.items()), what)))
print("\n".join(sorted(lines)))
"#;

/// Requests a clone from the daemon, and prints the response time in milliseconds.
const ASK: &str = r#"
import json, socket, time
body = json.dumps({"name": "three", "read_only": False})
daemon = socket.socket(socket.AF_UNIX)
daemon.connect("/run/bulkhead/bulkhead.sock")
began = time.monotonic()
daemon.sendall(("POST /v1/volumes/file/layout/copy HTTP/1.1\r\nHost: daemon\r\nConnection: close\r\n"
    "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)).encode())
answer = b""
while part := daemon.recv(65536):
    answer += part
took = time.monotonic() - began
assert answer.startswith(b"HTTP/1.1 200"), answer
print(round(took * 1000))
"#;

async fn image_import(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file", "thin"]).await?;
    ctx.machine.sh(&format!("cd /run/filepool; {PLANT}")).await?;
    for (name, script) in [("layout.py", LAYOUT), ("spoil.py", SPOIL)] {
        ctx.machine.sh(&format!("cd {AT}; cat > {name} <<'END'\n{script}\nEND\npython3 {name}")).await?;
    }
    ctx.machine.sh(&format!("cat > {AT}/list.py <<'END'\n{LIST}\nEND")).await?;
    same_base(ctx).await?;
    clones(ctx).await?;
    killed(ctx).await?;
    within(ctx).await?;
    refusals(ctx).await?;
    for view in json(ctx, &["volume", "ls"]).await?.as_array().into_iter().flatten() {
        json(ctx, &["volume", "rm", view["volume"].as_str().context("no name")?]).await?;
    }
    let left = ctx.machine.sh(&format!("ls {POOL}; ls {STAGING}; losetup --list --noheadings")).await?;
    ensure!(left.trim() == "bulkhead-pool", "something was left: {left}");
    ctx.machine.sh(&format!("rm -r {AT} {STAGING}")).await?;
    unmake_pools(ctx, &["file", "thin"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Imports the tree from each kind of source, and compares the results.
async fn same_base(ctx: &Ctx) -> Result<()> {
    for (name, source) in [("directory", "tree"), ("archive", "tree.tar.gz"), ("layout", "layout")] {
        let took = import(ctx, &format!("{AT}/{source}"), &format!("file/{name}")).await?;
        ctx.log(format!("{name}: imported in {took:.1} s"));
    }
    // Reading the source, changing an inode and using another staging directory make no difference.
    ctx.machine
        .sh(&format!("cd {AT}; cat tree/lib/*.py > /dev/null; chmod 600 tree/empty; chmod 644 tree/empty"))
        .await?;
    import(ctx, &format!("{AT}/tree"), "file/again").await?;
    for (name, source) in [("saved", "saved.tar.gz"), ("saved-directory", "saved")] {
        let (source, volume) = (format!("{AT}/{source}"), format!("file/{name}"));
        json(
            ctx,
            &["image", "import", &source, &volume, "--staging", STAGING, "--reference", "registry.example/app:1.0"],
        )
        .await?;
    }
    let program = ctx.program("bulkhead");
    ctx.machine
        .sh(&format!("cat {AT}/tree.tar.gz | {program} image import /dev/stdin file/piped --staging {STAGING}"))
        .await?;
    let mut bases = BTreeMap::new();
    for name in ["directory", "archive", "layout", "saved", "saved-directory", "again", "piped"] {
        bases.insert(name, base_of(ctx, &format!("file/{name}")).await?);
    }
    let base = bases["directory"].clone();
    ensure!(bases.values().all(|other| *other == base), "there are several bases: {bases:?}");
    ctx.log(format!("base {base}"));
    let index = ctx.machine.sh(&format!("stat -c %s {POOL}/{base}.index; head -c 7 {POOL}/{base}.index")).await?;
    ensure!(index.ends_with("BHINDEX"), "no index: {index}");
    json(ctx, &["tenant", "create", "reader", "--volume", "file/layout"]).await?;
    let view = json(ctx, &["volume", "inspect", "file/layout"]).await?;
    let at = view["mounted_at"].as_str().context("not mounted")?;
    let (wanted, found) = (list(ctx, &format!("{AT}/tree")).await?, list(ctx, at).await?);
    ensure!(wanted.lines().count() > 150, "the tree has only {}", wanted.lines().count());
    for (wanted, found) in wanted.lines().zip(found.lines()) {
        ensure!(wanted == found, "the source has\n{wanted}\nand the base\n{found}");
    }
    ensure!(wanted.lines().count() == found.lines().count(), "one of them has more files");
    json(ctx, &["tenant", "rm", "reader"]).await?;
    for name in ["directory", "archive", "saved", "saved-directory", "again", "piped"] {
        json(ctx, &["volume", "rm", &format!("file/{name}")]).await?;
    }
    Ok(())
}

/// Clones the base twice, logs the time, and writes to one clone.
async fn clones(ctx: &Ctx) -> Result<()> {
    let program = ctx.program("bulkhead");
    // The first clone of an image turns its own blocks into a layer, which later clones reuse.
    for name in ["one", "two"] {
        let clone = format!("{program} -o json volume clone file/layout {name} > /dev/null");
        let timed = format!("s=$(date +%s%N); {clone}; echo $((($(date +%s%N) - s) / 1000000))");
        let took = ctx.machine.sh(&timed).await?;
        ctx.log(format!("clone {name}: {} ms on the command line", took.trim()));
        json(ctx, &["tenant", "create", name, "--volume", &format!("file/{name}")]).await?;
    }
    let took = ctx.machine.sh(&format!("cat > {AT}/ask.py <<'END'\n{ASK}\nEND\npython3 {AT}/ask.py")).await?;
    ctx.log(format!("clone three: {} ms in the daemon", took.trim()));
    let mut places = Vec::new();
    for name in ["one", "two"] {
        let view = json(ctx, &["volume", "inspect", &format!("file/{name}")]).await?;
        places.push(view["mounted_at"].as_str().context("not mounted")?.to_owned());
    }
    ctx.machine.sh(&format!("cd {}; echo changed > lib/ast.py; rm -r long; sync -f .", places[0])).await?;
    let (source, other) = (list(ctx, &format!("{AT}/tree")).await?, list(ctx, &places[1]).await?);
    ensure!(source == other, "writes to one clone are visible in the other");
    let changed = ctx.machine.sh(&format!("cd {}; cat lib/ast.py deep/linked; ls", places[0])).await?;
    ensure!(changed.starts_with("changed\nchanged\n") && !changed.contains("long"), "not written: {changed}");
    let uuids = ctx.machine.sh("findmnt -rno UUID -t ext4 | sort | uniq -d").await?;
    ensure!(uuids.trim().is_empty(), "two file systems have the UUID {uuids}");
    for name in ["one", "two"] {
        json(ctx, &["tenant", "rm", name]).await?;
        json(ctx, &["volume", "check", &format!("file/{name}")]).await?;
    }
    changed_base(ctx).await
}

/// A modified base is refused until it is restored; so is an image without its backing attribute, as after a restore
/// without extended attributes.
async fn changed_base(ctx: &Ctx) -> Result<()> {
    let layer = format!("{POOL}/{}.layer", base_of(ctx, "file/layout").await?);
    ctx.machine
        .sh(&format!(
            "touch -r {layer} /run/when; dd if={layer} of={layer} bs=4096 count=1 conv=notrunc,fsync status=none"
        ))
        .await?;
    let attach = ["tenant", "create", "one", "--volume", "file/one"];
    refused(ctx, 10, &["was changed", "restore the layer"], &attach).await?;
    ctx.machine.sh(&format!("touch -r /run/when {layer}; rm /run/when")).await?;
    let (image, attribute) = (format!("{POOL}/one.img"), "user.bulkhead.below");
    let value = ctx.machine.sh(&format!("getfattr --only-values --absolute-names -n {attribute} {image}")).await?;
    ctx.machine.sh(&format!("setfattr -x {attribute} {image}")).await?;
    refused(ctx, 10, &["lost its attribute", "layers.md"], &attach).await?;
    ctx.machine.sh(&format!("setfattr -n {attribute} -v '{}' {image}", value.trim())).await?;
    json(ctx, &attach).await?;
    json(ctx, &["tenant", "rm", "one"]).await?;
    Ok(())
}

/// Kills the client of an import halfway, and then its worker; nothing is left, and the next import gives the same
/// base.
async fn killed(ctx: &Ctx) -> Result<()> {
    let base = base_of(ctx, "file/layout").await?;
    for name in ["one", "two", "three", "layout"] {
        json(ctx, &["volume", "rm", &format!("file/{name}")]).await?;
    }
    let program = ctx.program("bulkhead");
    let source = format!("{AT}/tree.tar.gz");
    let unpacked = ("while it unpacks", format!("ls -d {STAGING}/*/archive/lib"));
    let part = ("once its staging file exists", format!("ls {POOL}/base.part"));
    for ((when, reached), is_worker) in [(&unpacked, false), (&part, false), (&unpacked, true), (&part, true)] {
        let argv = [&program, "image", "import", &source, "file/base", "--staging", STAGING];
        let importing = ctx.machine.spawn(&argv, &[]).await?;
        ctx.machine
            .catch(when, Duration::from_secs(100), async || {
                let asked = ctx.machine.run(&["bash", "-c", reached]).await?;
                Ok((asked.status == ExitStatus::Code(0)).then_some(()))
            })
            .await?;
        if is_worker {
            ctx.machine.sh("pkill -9 -f '[b]ulkhead work .*import'").await?;
        } else {
            importing.kill(9).await?;
        }
        importing.wait(Duration::from_secs(60)).await?;
        ctx.log(format!("{} killed {when}", if is_worker { "worker" } else { "client" }));
        ctx.machine
            .wait_until("the job and its staging file are gone", Duration::from_secs(60), async || {
                let under_way = json(ctx, &["job", "ls"]).await?.to_string().contains("\"running\"");
                let asked = ctx.machine.run(&["bash", "-c", &format!("! ls {POOL} | grep base.part")]).await?;
                Ok((!under_way && asked.status == ExitStatus::Code(0)).then_some(()))
            })
            .await?;
    }
    import(ctx, &source, "file/base").await?;
    let again = base_of(ctx, "file/base").await?;
    ensure!(again == base, "the base was {base}, and is {again}");
    Ok(())
}

/// Absolute names, and names behind symbolic links, are resolved from the root of the image, not of the host;
/// attributes of other systems are omitted.
async fn within(ctx: &Ctx) -> Result<()> {
    for source in ["absolute.tar", "behind.tar"] {
        import(ctx, &format!("{AT}/{source}"), "file/within").await?;
        json(ctx, &["tenant", "create", "reader", "--volume", "file/within"]).await?;
        let view = json(ctx, &["volume", "inspect", "file/within"]).await?;
        let at = view["mounted_at"].as_str().context("not mounted")?;
        ctx.machine.sh(&format!("test -f {at}/run/escaped && ! test -e /run/escaped")).await?;
        json(ctx, &["tenant", "rm", "reader"]).await?;
        json(ctx, &["volume", "rm", "file/within"]).await?;
    }
    // Attributes that no file can have are omitted and reported.
    let source = format!("{AT}/foreign.tar");
    let view = json(ctx, &["image", "import", &source, "file/within", "--staging", STAGING]).await?;
    let left_out = &view["left_out"][0];
    ensure!(left_out["attribute"] == "com.apple.quarantine" && left_out["entries"] == 1, "left out: {left_out}");
    json(ctx, &["volume", "rm", "file/within"]).await?;
    Ok(())
}

/// Sources that cannot be imported are refused with cause and hint, and leave nothing behind.
async fn refusals(ctx: &Ctx) -> Result<()> {
    let large = "mkdir large; head -c 20000000 /dev/urandom > large/file; tar -C large -cf large.tar .";
    ctx.machine.sh(&format!("cd {AT}; {large}")).await?;
    let listed = format!(
        "ls {POOL} {STAGING} /run/filepool; ls -d /run/escaped 2> /dev/null || true; losetup --list --noheadings"
    );
    let before = ctx.machine.sh(&listed).await?;
    for (source, to, options, code, words) in [
        ("cut.tar.gz", "file/x", &[][..], 10, &["it is cut off", "archive again"][..]),
        ("out.tar", "file/x", &[], 2, &["../../escaped", "leads out of the archive"]),
        ("foreign.tar", "file/x", &["--strict"], 8, &["com.apple.quarantine of 1 entry", "allow them to be omitted"]),
        ("loop.tar", "file/x", &[], 2, &["behind the symbolic link", "which is part of a loop"]),
        ("linked.tar", "file/x", &[], 2, &["hard link", "leads out"]),
        ("damaged", "file/x", &[], 10, &["is damaged: its digest is sha256:"]),
        ("list.py", "file/x", &[], 2, &["not a directory, tar archive or OCI image"]),
        ("nowhere", "file/x", &[], 3, &["cannot find"]),
        ("layout", "file/x", &["--platform", "linux/s390x"], 3, &["only for linux/amd64", "--platform"]),
        ("layout", "file/x", &["--reference", "v9"], 3, &["no image named \"v9\", only \"latest\""]),
        (
            "saved.tar.gz",
            "file/x",
            &[],
            2,
            &["several images", "other:latest", "registry.example/app:1.0", "--reference"],
        ),
        ("saved", "file/x", &["--reference", "v9"], 3, &["no image named \"v9\"", "other:latest"]),
        ("large", "file/x", &["--size", "16M"], 7, &["larger `--size`"]),
        ("tree", "file/base", &[], 4, &["a volume of that name"]),
        ("tree", "nowhere/x", &[], 3, &["nowhere"]),
        ("tree", "thin/x", &[], 8, &["LVM pools cannot import"]),
    ] {
        let source = format!("{AT}/{source}");
        let args = [&["image", "import", &source, to, "--staging", STAGING], options].concat();
        refused(ctx, code, words, &args).await?;
    }
    // A staging directory that is too small for the contents of an archive.
    ctx.machine.sh("mkdir /run/small; mount -t tmpfs -o size=8M none /run/small").await?;
    let source = format!("{AT}/large.tar");
    let args = ["image", "import", &source, "file/x", "--staging", "/run/small"];
    refused(ctx, 7, &["No space left", "--staging"], &args).await?;
    ctx.machine.sh("test -z \"$(ls /run/small)\"; umount /run/small; rmdir /run/small").await?;
    let plan = cli(ctx, &["image", "import", &source, "file/x", "--staging", STAGING, "--dry-run"]).await?;
    ensure!(
        plan.status == ExitStatus::Code(0) && plan.stdout.contains("would create staging file"),
        "dry run: {plan:?}"
    );
    let after = ctx.machine.sh(&listed).await?;
    ensure!(before == after, "before:\n{before}\nafter:\n{after}");
    Ok(())
}

/// Imports a source; returns the time that it took, in seconds.
async fn import(ctx: &Ctx, source: &str, volume: &str) -> Result<f64> {
    let began = std::time::Instant::now();
    json(ctx, &["image", "import", source, volume, "--staging", STAGING]).await?;
    Ok(began.elapsed().as_secs_f64())
}

/// The base of a volume.
async fn base_of(ctx: &Ctx, volume: &str) -> Result<String> {
    let view = json(ctx, &["volume", "inspect", volume]).await?;
    let below = view["layers"]["below"].as_array().context("no layers")?;
    Ok(below.last().and_then(|layer| layer["id"].as_str()).context("no base")?.to_owned())
}

async fn list(ctx: &Ctx, tree: &str) -> Result<String> {
    ctx.machine.sh(&format!("python3 {AT}/list.py {tree}")).await
}
