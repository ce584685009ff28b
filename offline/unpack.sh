#!/bin/bash
# On the GPU machine: bash carry/unpack.sh keep carry      pieces of a load -> $HOME/pieces
#                     bash $HOME/pieces/unpack.sh vllm     -> $HOME/site, and $HOME/site-trl with TRL (PYTHONPATH)
#                     bash $HOME/pieces/unpack.sh verl     -> $HOME/site-verl, and $HOME/site-verl-hf with verl's own transformers; PYTHONPATH, before $HOME/site
#                     bash $HOME/pieces/unpack.sh fa3      -> $HOME/site-fa3: FA3's forward without vLLM (`vllm` does it too)
set -u
pieces=${PIECES:-$HOME/pieces}
python=${PYTHON:-python3}
case "${1:-}" in
keep)
    mkdir -p "$pieces" || exit 1
    cp -f "$2"/* "$pieces"/ || { echo "UNPACK: could not copy $2 to $pieces"; exit 1; }
    echo "UNPACK kept: $(ls "$pieces" | tr '\n' ' ')"
    exit 0 ;;
vllm) parts="vllm deps"; to=${SITE:-$HOME/site} ;;
verl) parts="verl"; to=${SITE_VERL:-$HOME/site-verl} ;;
fa3)
    to=${SITE_FA3:-$HOME/site-fa3}; mkdir -p "$to"
    cp -f "$pieces/flash_attn_interface.py" "$to/" || exit 1
    from=${SITE:-$HOME/site}/vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so
    if [ -f "$from" ]; then
        ln -sf "$from" "$to/_vllm_fa3_C.abi3.so"
    else
        wanted=$(awk '$2 == "fa3" { print $1 }' "$pieces/sums")
        [ "$wanted" = "$(sha256sum < "$pieces/fa3.so.xz" | cut -d' ' -f1)" ] || { echo "UNPACK FAILED: neither vLLM nor the load of FA3 is here"; exit 1; }
        env -u PYTHONPATH "$python" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"), 1 << 22)' "$pieces/fa3.so.xz" "$to/_vllm_fa3_C.abi3.so" || { echo "UNPACK FAILED: fa3"; exit 1; }
    fi
    echo "UNPACK done: $to: $(ls "$to" | tr '\n' ' ')"
    exit 0 ;;
*) echo "usage: unpack.sh keep FOLDER | vllm | fa3 | verl"; exit 2 ;;
esac
began=$SECONDS
mkdir -p "$to"
work=$to.unpacking
rm -rf "$work"; mkdir -p "$work"
for part in $parts; do
    wanted=$(awk -v p="$part" '$2 == p { print $1 }' "$pieces/sums")
    found=$(cat "$pieces/$part".tar.xz.* | sha256sum | cut -d' ' -f1)
    if [ "$wanted" != "$found" ]; then
        echo "UNPACK FAILED: $part is not whole; here: $(ls -l "$pieces/$part".tar.xz.* 2>&1 | awk '{print $5, $NF}' | tr '\n' ';')"; exit 1
    fi
    if command -v xz > /dev/null && cat "$pieces/$part".tar.xz.* | xz -dc -T16 2> /dev/null | tar xf - -C "$work" 2> /dev/null; then
        :
    else
        cat "$pieces/$part".tar.xz.* > "$work/$part.tar.xz"
        env -u PYTHONPATH "$python" - "$work/$part.tar.xz" "$work" <<'P' || { echo "UNPACK FAILED: $part"; exit 1; }
import sys, tarfile
with tarfile.open(sys.argv[1], "r:xz") as t:
    t.extractall(sys.argv[2], filter="fully_trusted")
P
        rm -f "$work/$part.tar.xz"
    fi
done
# `site` as it is; of `fallback/NAME`, what this machine's Python cannot import by itself.
( cd / && env -u PYTHONPATH "$python" - "$work" "$to" <<'P' ) || { echo "UNPACK FAILED at placing"; exit 1; }
import importlib.metadata, importlib.util, os, shutil, sys
work, to = sys.argv[1:]

def number(text):
    return tuple(int(x) for x in "".join(c if c.isdigit() else " " for c in text).split()[:3])

def place(folder):
    for name in os.listdir(folder):
        source, target = os.path.join(folder, name), os.path.join(to, name)
        if os.path.isdir(source) and os.path.isdir(target) and not name.endswith(".dist-info"):
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            if os.path.isdir(target):
                shutil.rmtree(target)
            elif os.path.exists(target):
                os.remove(target)
            shutil.move(source, target)

if os.path.isdir(os.path.join(work, "site")):
    place(os.path.join(work, "site"))
# verl fails where it finds a TRL of today: TRL lies apart, on the path of the benchmark that compares with it.
for name in [x for x in os.listdir(to) if x == "trl" or x.startswith("trl-")]:
    os.makedirs(to + "-trl", exist_ok=True)
    shutil.rmtree(os.path.join(to + "-trl", name), ignore_errors=True)
    shutil.move(os.path.join(to, name), os.path.join(to + "-trl", name))
if os.path.isdir(os.path.join(work, "hf")):  # verl's own transformers and tokenizers, apart
    shutil.rmtree(to + "-hf", ignore_errors=True)
    shutil.move(os.path.join(work, "hf"), to + "-hf")
for name in ("vllm", "vllm-0.26.0.dist-info"):
    if os.path.isdir(os.path.join(work, name)):
        if os.path.isdir(os.path.join(to, name)):
            shutil.rmtree(os.path.join(to, name))
        shutil.move(os.path.join(work, name), os.path.join(to, name))

def is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False

NEWER = {"typing_extensions"}  # taken where the machine's is older
taken, had = [], []
extra = os.path.join(work, "fallback")
for name in sorted(os.listdir(extra)) if os.path.isdir(extra) else ():
    folder = os.path.join(extra, name)
    tops = [x.removesuffix(".py").split(".")[0] for x in os.listdir(folder) if not x.endswith((".dist-info", ".libs"))]
    tops = [x for x in tops if x.isidentifier()]
    known = [x for x in tops if is_there("google.protobuf" if x == "google" else x)]
    mine = next((x.removesuffix(".dist-info").rsplit("-", 1)[1] for x in os.listdir(folder) if x.endswith(".dist-info")), "0")
    if known:
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            here = "?"
        if name not in NEWER or here == "?" or number(here) >= number(mine):
            had.append(f"{name} {here}")
            continue
    place(folder)
    taken.append(f"{name} {mine}")
print("UNPACK from the pack:", ", ".join(taken) or "nothing")
print("UNPACK machine has:", ", ".join(had))
never = ("torch", "transformers", "numpy", "triton", "tokenizers", "safetensors", "huggingface_hub", "scipy", "pyarrow")
bad = [x for x in never if os.path.exists(os.path.join(to, x))]
print(f"UNPACK SHADOWED: {bad}" if bad else f"UNPACK nothing of the machine's is shadowed in {to}")
P
rm -rf "$work"
[ "$1" = vllm ] && [ -f "$pieces/flash_attn_interface.py" ] && bash "$0" fa3
echo "UNPACK done: $to, $(du -sh "$to" | cut -f1), $((SECONDS - began)) s"
