#!/bin/bash
# From the root of the repository: verl_run.sh OUT SECONDS [cpu] [overrides of verl …]
# verl 0.9.1's main_ppo from what `equipoise export verl` writes, and then our own commands on what it left:
# the embedded model, arithmetic, STEPS (20) steps of 16 × 16 responses, rollout by vLLM in bfloat16, a checkpoint
# every KEEP (10) steps. A worker is killed after the step that follows the first checkpoint and the launch started
# again, if the training is then expected to end in time (KILL: auto, always, never); else the run goes on undisturbed.
# SECONDS holds for everything; the training gets all but RESERVE (60) of it, audit, report and eval the rest.
# Leaves OUT/verl-run.tar.xz and OUT/verl-summary.txt. `cpu`: the launch that needs no GPU.
# Environment: PYTHON, STEPS, KEEP, KILL, RESERVE, DTYPE (bfloat16), EAGER (True), MEMORY (0.12), KV (1073741824 bytes),
# PROMPTS (16), GROUP (16), ATTENTION (sdpa).
set -u
out=$1; seconds=$2; shift 2
mode=gpu; if [ "${1:-}" = cpu ]; then mode=cpu; shift; fi
python=${PYTHON:-python3}
work=${WORK:-/tmp/verl-run-$mode}; rm -rf "$work"; mkdir -p "$work/logs" "$out"
steps=${STEPS:-20}; keep=${KEEP:-10}
say() { echo "VERL $*" | tee -a "$out/verl-summary.txt"; }
: > "$out/verl-summary.txt"

# verl finds the plug-in by its entry point: metadata without an installation.
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/equipoise/__init__.py)
meta=$work/meta/equipoise-${version:=1.0.0}.dist-info; mkdir -p "$meta"
printf 'Metadata-Version: 2.1\nName: equipoise\nVersion: %s\n' "$version" > "$meta/METADATA"
printf '[verl.plugins]\nequipoise = equipoise.integrations.verl.plugin\n' > "$meta/entry_points.txt"
export PYTHONPATH=$work/meta:$PWD/src:${PYTHONPATH:-}

device=(--model.dtype "${DTYPE:-bfloat16}" --rollout.engine vllm --rollout.engine_memory "${MEMORY:-0.12}")
[ $mode = cpu ] && device=(--model.device cpu --model.dtype float32)
"$python" -m equipoise export verl examples/abacus.toml "$work/launch" "${device[@]}" --task.max_prompt_tokens 64 \
    --rollout.prompts "${PROMPTS:-16}" --rollout.group_size "${GROUP:-16}" --train.steps "$steps" \
    --train.checkpoint_every "$keep" --eval.every "$steps" --eval.per_level 4 --eval.samples 4 \
    --train.out "$work/run" > "$work/logs/export.txt" 2>&1 || { cat "$work/logs/export.txt"; say "FAILED: export"; exit 1; }
words=()
if [ $mode = gpu ]; then
    words=(
        actor_rollout_ref.model.use_remove_padding=False
        "+actor_rollout_ref.model.override_config.attn_implementation=${ATTENTION:-sdpa}"
        actor_rollout_ref.actor.strategy=fsdp2
        actor_rollout_ref.actor.use_torch_compile=False
        actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
        actor_rollout_ref.rollout.agent.num_workers=4
        "actor_rollout_ref.rollout.enforce_eager=${EAGER:-True}"
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=${KV:-1073741824}"
        reward.num_workers=1
        data.dataloader_num_workers=0
        transfer_queue.backend.SimpleStorage.num_data_storage_units=1
        ray_kwargs.ray_init.num_cpus=16
        +ray_kwargs.ray_init.num_gpus=1
        +ray_kwargs.ray_init.include_dashboard=false
        +ray_kwargs.ray_init.object_store_memory=2000000000
    )
fi
words+=("$@")
printf '%s\n' "${words[@]}" > "$work/overrides.txt"
grep "lora_" "$work/launch/launch.sh" >> "$out/verl-summary.txt"
export RAY_worker_niceness=0 RAY_DEDUP_LOGS=0 RAY_USAGE_STATS_ENABLED=0 HYDRA_FULL_ERROR=1 GPUS=1 PYTHON=$python
unset RAY_ADDRESS
say "prepared after $SECONDS s; launch follows"

"$python" - "$work" "$steps" "$keep" "${KILL:-auto}" "$SECONDS" "$((seconds - ${RESERVE:-60}))" "${words[@]}" \
    <<'P' 2>&1 | tee -a "$out/verl-summary.txt"
"""Starts the launch, kills a worker after step KEEP + 1 where there is time to resume, starts it again."""
import json, os, re, shutil, signal, statistics, subprocess, sys, time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

work, steps, keep, kill, spent, limit = Path(sys.argv[1]), *map(str, sys.argv[2:7])
steps, keep, spent, limit = int(steps), int(keep), float(spent), float(limit)
words, run, began = sys.argv[7:], work / "run", time.monotonic()


def now():
    return spent + time.monotonic() - began


def say(*text):
    print("VERL", f"{now():.0f} s:", *text, flush=True)


def processes():
    """Each process's parent and start."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[int(stat.parent.name)] = int(fields[1]), fields[19]
    return found


def below(root):
    """The processes that descend from this one, with their starts: Ray's, the sampler's."""
    table, found, grew = processes(), {root}, True
    while grew:
        more = {pid for pid, (parent, _) in table.items() if parent in found} - found
        grew, found = bool(more), found | more
    return {pid: table[pid][1] for pid in found if pid in table}


def end(known):
    """Ends what is left of these processes."""
    table = processes()
    left = [pid for pid, start in known.items() if pid in table and table[pid][1] == start]
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return len(left)


def start(number, *more):
    log = work / "logs" / f"launch-{number}.txt"
    with open(log, "wb") as to:
        child = subprocess.Popen(["bash", work / "launch" / "launch.sh", *words, *more], stdout=to, stderr=to,
                                 stdin=subprocess.DEVNULL, start_new_session=True)
    return child, log


def records(before=()):
    """verl's lines by step, of the newest start that is not among those before."""
    files = sorted(set(run.glob("verl-*.jsonl")) - set(before))
    lines = files[-1].read_text().splitlines() if files else []
    found = [json.loads(line) for line in lines if line.endswith("}}")]
    return {r["step"]: r["data"] for r in found if "training/global_step" in r["data"] or "critic/rewards/mean" in r["data"]}


def wait(child, until, known):
    """Waits for the child's end, a condition or the limit; keeps track of its processes."""
    while child.poll() is None and now() < limit and not until():
        known.update(below(child.pid))
        time.sleep(0.5)
    return child.poll()


def stop(child, known):
    known.update(below(child.pid))
    gone = end(known)
    child.wait()
    return gone


def rows(step):
    lines = (run / "rollouts" / f"{step}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def versions():
    for name in ("torch", "transformers", "tokenizers", "ray", "tensordict", "TransferQueue", "verl", "vllm"):
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} -"


say("versions:", ", ".join(versions()))
launched, known = now(), {}
child, log = start(1)
stepped = lambda: keep + 1 in records()
code = wait(child, stepped, known)
resumes = False
if code is None and stepped():
    told = records()
    of_step = statistics.median(d["timing_s/step"] for d in told.values() if "timing_s/step" in d)
    of_start = now() - launched - sum(d.get("timing_s/step", of_step) for d in told.values())
    # The second start finds files in memory and validates nothing at first.
    expected = now() + 5 + 0.9 * of_start + (steps - keep) * of_step + 10
    resumes = kill == "always" or (kill == "auto" and expected <= limit)
    say(f"step {keep + 1} done; start {of_start:.0f} s, step {of_step:.1f} s; with a kill the end is expected at "
        f"{expected:.0f} s, the limit is {limit:.0f}: {'kill' if resumes else 'no kill'}")
if resumes:
    files, first = list(run.glob("verl-*.jsonl")), records()
    known.update(below(child.pid))
    worker = int(re.search(r"\(WorkerDict pid=(\d+)\)", log.read_text(errors="replace"))[1])
    os.kill(worker, signal.SIGKILL)
    killed, quiet = time.monotonic(), lambda: time.monotonic() - killed > 15
    code = wait(child, quiet, known)
    left = stop(child, known)
    say(f"worker {worker} killed (SIGKILL); the launch ended by itself with exit {code} after "
        f"{time.monotonic() - killed:.0f} s, {left} processes were left" if code is not None else
        f"worker {worker} killed (SIGKILL); the launch had not ended after 15 s, {left} processes of it were ended")
    checkpoint = (run / "latest_checkpointed_iteration.txt").read_text()
    say("latest checkpoint:", checkpoint, sorted(p.name for p in run.glob("global_step_*")))
    shutil.copytree(run / "rollouts", work / "rollouts-before-kill")
    before = rows(keep + 1)
    for file in (run / "rollouts").glob("*.jsonl"):
        if int(file.stem) > keep:
            file.unlink()
    known, again = {}, now()
    child, log = start(2, "trainer.val_before_train=false")
    code = wait(child, lambda: False, known)
    second = records(files)
    if second:
        step = min(second)
        say(f"resumed: first step {step}, last {max(second)}, second start and its steps {now() - again:.0f} s")
        if keep + 1 in second and keep + 1 in first:
            for name in ("difficulty/anchor", "critic/rewards/mean", "bias/mass_balance", "training/rollout_probs_diff_max"):
                say(f"step {keep + 1} {name}: before the kill {first[keep + 1].get(name)}, resumed {second[keep + 1].get(name)}")
            after = rows(keep + 1)
            prompts = [sorted(r["input"] for r in found) for found in (before, after)]
            drawn = [sorted((r["input"], r["output"]) for r in found) for found in (before, after)]
            same = sum(a == b for a, b in zip(*drawn))
            say(f"step {keep + 1}: same prompts {prompts[0] == prompts[1]}, the same response in {same} of {len(drawn[0])} places of the sorted lists")
elif code is None:
    code = wait(child, lambda: False, known)
over = code is None
left = stop(child, known)
say(f"launch: exit {'TIME IS UP' if over else code}; {left} processes were ended")
for file in sorted(run.glob("verl-*.jsonl")):
    for line in file.read_text().splitlines():
        if not line.endswith("}}"):
            continue
        record = json.loads(line)
        d = record["data"]
        wanted = ("critic/rewards/mean", "training/rollout_probs_diff_max", "actor/grad_norm", "bias/mass_balance", "difficulty/anchor", "timing_s/step")
        print("VERL", file.name, "step", record["step"], {k: round(d[k], 5) for k in wanted if k in d},
              {k: round(v, 3) for k, v in d.items() if k.startswith("val-core") and "mean" in k})
sys.exit(1 if over or code else 0)
P
code=${PIPESTATUS[0]}

# Our own commands on what the run left, side by side.
mkdir -p "$work/read"
rest=$((seconds - SECONDS - 12)); rest=$((rest > 90 ? 90 : rest < 20 ? 20 : rest))
read_back() { local name=$1; shift; timeout -k 5 $rest "$python" -m equipoise "$@" > "$work/read/$name.txt" 2> "$work/read/$name.err"; echo "$?" > "$work/read/$name.exit"; }
read_back audit audit "$work/run/rollouts" &
read_back report report "$work/run" &
read_back eval eval "$work/run" &
read_back eval-before eval abacus --task arithmetic &
wait
for name in audit report eval eval-before; do
    say "$name: exit $(cat "$work/read/$name.exit")"
    { cat "$work/read/$name.txt"; [ "$(cat "$work/read/$name.exit")" = 0 ] || tail -n 5 "$work/read/$name.err"; } | cut -c1-200 | tail -n 30 >> "$out/verl-summary.txt"
done

# One archive: everything small whole, of logs the ends, of checkpoints the last whole and the rest by name.
for f in /tmp/ray/session_latest/logs/worker-*.err /tmp/ray/session_latest/logs/raylet.err /tmp/ray/session_latest/logs/gcs_server.err; do
    [ -s "$f" ] && { echo "##### $f"; tail -c 6000 "$f"; }
done > "$work/logs/ray.txt" 2> /dev/null
for f in "$work"/logs/launch-*.txt; do tail -c 400000 "$f" > "$f.end" && mv "$f.end" "$f"; done
[ -d "$work/run" ] && ( cd "$work/run" && find . -type f -printf '%s %p\n' | sort -k2 > "$work/files.txt" )
cp -f "$out/verl-summary.txt" "$work/summary.txt"
"$python" - "$work" "$out/verl-run.tar.xz" <<'P'
import sys, tarfile
from pathlib import Path
work, to = Path(sys.argv[1]), Path(sys.argv[2])
saved = sorted((work / "run").glob("global_step_*"), key=lambda p: int(p.name.rsplit("_", 1)[1]))
last, most = saved[-1] if saved else None, 15_500_000

def wanted(path, small):
    part = path.relative_to(work).parts
    if part[0] == "meta":
        return False
    for folder in saved:
        if folder in path.parents and (folder != last or small):
            return path.name == "equipoise.json" or ("huggingface" in part and folder == last)
    return not (small and path.stat().st_size > 3_000_000)

for small in (False, True):
    with tarfile.open(to, "w:xz") as archive:
        for path in sorted(p for p in work.rglob("*") if p.is_file()):
            if wanted(path, small):
                archive.add(path, Path("verl-run") / path.relative_to(work))
    if to.stat().st_size <= most:
        break
print("VERL packed:", to.stat().st_size, "bytes", "(small)" if small else "")
P
say "all done after $SECONDS s, launch exit $code"
exit "$code"
